// Packing moves words of four bytes, numbers or pairs of halves, a square of 16 by 16 at a time.
#include "pack.hpp"

#include <cstring>

#include "pages.hpp"

namespace plait {

namespace {

constexpr long SIDE = 16;

struct Square {
    std::uint32_t words[SIDE][SIDE];
};

// Words [row][word] from rows `bytes` apart; what is not there is zero.
void read(Square& square, const unsigned char* from, long bytes, long rows, long size) {
    if (rows < SIDE || size < long(sizeof square.words[0])) std::memset(&square, 0, sizeof square);
    for (long r = 0; r < rows; ++r)
        if (size >= long(sizeof square.words[0])) std::memcpy(square.words[r], from + r * bytes, sizeof square.words[0]);
        else std::memcpy(square.words[r], from + r * bytes, std::size_t(size));
}

void turn(const Square& from, Square& to) {
    for (long r = 0; r < SIDE; ++r)
        for (long c = 0; c < SIDE; ++c) to.words[c][r] = from.words[r][c];
}

// Sixteen pairs of halves become the sixteen first and the sixteen second ones.
void part_halves(std::uint32_t* pairs) {
    std::uint16_t first[SIDE], second[SIDE];
    for (long i = 0; i < SIDE; ++i) {
        first[i] = std::uint16_t(pairs[i]);
        second[i] = std::uint16_t(pairs[i] >> 16);
    }
    std::memcpy(pairs, first, sizeof first);
    std::memcpy(pairs + SIDE / 2, second, sizeof second);
}

// Rows of `in` numbers of `bytes` bytes, `words` words to a column of a panel. Panels may begin with any thread.
template <bool PART>
void pack(std::uintptr_t weight, std::uintptr_t packed, long out, long in, long bytes, long words) {
    const auto* w = reinterpret_cast<const unsigned char*>(weight);
    auto* to = reinterpret_cast<std::uint32_t*>(packed);
    long panels = (out + SIDE - 1) / SIDE, row = in * bytes;
    in_large_pages(packed, panels * words * SIDE * 4);
    make_ready(w, out * row);
#pragma omp parallel for schedule(static)
    for (long p = 0; p < panels; ++p) {
        long rows = out - p * SIDE < SIDE ? out - p * SIDE : SIDE;
        for (long k = 0; k < words; k += SIDE) {
            Square read_words, turned;
            read(read_words, w + p * SIDE * row + k * 4, row, rows, row - k * 4 > 0 ? row - k * 4 : 0);
            turn(read_words, turned);
            long count = words - k < SIDE ? words - k : SIDE;
            if (PART)
                for (long c = 0; c < count; ++c) part_halves(turned.words[c]);
            std::memcpy(to + (p * words + k) * SIDE, &turned, std::size_t(count) * sizeof turned.words[0]);
        }
    }
}

}  // namespace

void pack_f32(std::uintptr_t weight, std::uintptr_t packed, long out, long in) {
    pack<false>(weight, packed, out, in, 4, (in + 1) / 2 * 2);
}

void pack_f16(std::uintptr_t weight, std::uintptr_t packed, long out, long in) {
    pack<true>(weight, packed, out, in, 2, (in + 1) / 2);
}

void pack_bf16(std::uintptr_t weight, std::uintptr_t packed, long out, long in) {
    pack<false>(weight, packed, out, in, 2, (in + 31) / 32 * 16);
}

}  // namespace plait

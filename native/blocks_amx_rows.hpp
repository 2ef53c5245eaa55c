// Rows for matrix tiles: the integers of blocks_rows.hpp, q = 256 high + low, as bf16 numbers 256 s high and s low,
// which hold them exactly, s being a power of two. A weight's code is a bf16 number too, so tiles of bf16 add up
// multiples of s in float32. As long as these are below 2^24 s the sums are those of integers, in whatever order.
// Integers of 8 bits are bf16 numbers as they are; their scale is no power of two and meets their sums.
#pragma once

#include <immintrin.h>

#include "blocks_rows.hpp"

namespace PLAIT_LEVEL {

// Groups of columns that strips are read in, one strip after the other.
constexpr long PIECE = 4;

// Whole numbers of at most 8 bits, times 256 or not, times a power of two, to bf16, in the order of TileRows.
PLAIT_INLINE void store_halves(std::uint16_t* to, __m512i first, __m512i last, __m512 scale) {
    alignas(64) static constexpr std::uint16_t ORDER[32] = {1,  5,  3,  7,  9,  13, 11, 15, 17, 21, 19,
                                                            23, 25, 29, 27, 31, 33, 37, 35, 39, 41, 45,
                                                            43, 47, 49, 53, 51, 55, 57, 61, 59, 63};
    auto bits = [&](__m512i x) { return _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(x), scale)); };
    _mm512_store_si512(to, _mm512_permutex2var_epi16(bits(first), _mm512_load_si512(ORDER), bits(last)));
}

// A run of strips: for each place [plane][row of the strip][32 columns], high before low, and for each row of a place the sum
// of its numbers, s * sum of q, and s where it is not in the numbers. Of four columns 0, 2, 1, 3 is the order, that of the codes.
struct TileRows {
    long height, groups, most;
    int planes;
    Held<std::uint16_t> halves;
    Held<float> sums, scale, limit;
    Held<Entry> entries;
    Held<long> counts;
    Held<bool> over;
    Held<std::uint32_t> tops;

    TileRows(long in, long height, long most, int planes)
        : height(height),
          groups(in / plait::GROUP),
          most(most),
          planes(planes),
          halves(2 * most * (groups + PIECE) * height * 32 * planes),
          sums(2 * most * (groups + PIECE) * height),
          scale(planes == 1 ? 2 * most * (groups + PIECE) * height : 1),
          limit(most * height),
          entries(2 * most * groups),
          counts(most),
          over(most * groups),
          tops(most * height * groups) {}

    // Pieces of strips lie in the order in which they are read.
    long place(long strip, long group, bool over) const {
        long pieces = (groups + PIECE - 1) / PIECE, piece = over * pieces + group / PIECE;
        return ((piece * most + strip) * PIECE + group % PIECE) * height;
    }
    const Entry* of(long strip) const { return entries.at + 2 * strip * groups; }

    // Row r of a place: 32 numbers, see whole_of.
    void put(long at, long r, const float* x, std::uint32_t top, long sum_limit, float* rest) {
        alignas(64) std::int32_t q[32];
        float own = whole_of(x, top, planes, q, sum_limit, rest);
        __m512 s = _mm512_set1_ps(planes == 1 ? 1.0f : own);
        __m512i a = _mm512_load_si512(q), b = _mm512_load_si512(q + 16);
        auto high = [](__m512i v) {
            return _mm512_and_si512(_mm512_add_epi32(v, _mm512_set1_epi32(128)), _mm512_set1_epi32(~255));
        };
        std::uint16_t* to = halves.at + (at * planes + r) * 32;
        if (planes == 1) {
            store_halves(to, a, b, s);
            scale.at[at + r] = own;
        } else {
            __m512i high_a = high(a), high_b = high(b);
            store_halves(to, high_a, high_b, s);
            store_halves(to + height * 32, _mm512_sub_epi32(a, high_a), _mm512_sub_epi32(b, high_b), s);
        }
        sums.at[at + r] = own * float(_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)));
    }

    void put_nothing(long at, long r) {
        for (int plane = 0; plane < planes; ++plane)
            std::memset(halves.at + (at * planes + plane * height + r) * 32, 0, 64);
        sums.at[at + r] = 0.0f;
        if (planes == 1) scale.at[at + r] = 0.0f;
    }
};

}  // namespace PLAIT_LEVEL

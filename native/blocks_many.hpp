// Products with packed blocks, many rows at a time, for processors without matrix tiles: codes are taken out of their
// panel once for all rows, as numbers of 16 bits less their zero, and meet the rows' integers two columns at a time.
// Sums over a group are whole numbers and exact, so an output is the chain of blocks_few.hpp, bit for bit.
#pragma once

#include "blocks_strips.hpp"

namespace PLAIT_LEVEL {

#if defined(PLAIT_X86_VECTORS)

// Rows of a strip: their sums lie in registers.
#if defined(__AVX512F__)
constexpr int MANY_ROWS = 12;
#else
constexpr int MANY_ROWS = 6;
#endif
// Fewer rows are sooner done with codes as they lie.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr long MANY = 33;
#elif defined(__AVX512F__)
constexpr long MANY = 9;
#else
constexpr long MANY = 5;
#endif
// Bytes of codes that are taken out before the rows pass by; a part of a core's second cache.
constexpr long TAKEN_OUT = 1 << 18;

// Codes of a group: 16 times the same two columns of 16 outputs.
constexpr long WORDS = 16 * plait::PANEL * 2;

// A panel's codes, [group][WORDS]. Operand j's columns 0 and 2 of 4 are words 2 j, 1 and 3 are words 2 j + 1.
template <plait::Form F>
static void take_out(const std::uint8_t* panel, long groups, std::int16_t* to) {
    constexpr int zero = plait::shape_of(F).zero;
    for (long g = 0; g < groups; ++g, to += WORDS) {
        const std::uint8_t* record = panel + plait::record_at(F, g);
        auto put = [&](long j, Ints bytes) {
            store_words(to + 2 * j * 32, even_bytes(bytes), zero);
            store_words(to + (2 * j + 1) * 32, odd_bytes(bytes), zero);
        };
        auto both = [&](auto j) {
            Ints low, high;
            operands<F, decltype(j)::value>(record, low, high);
            put(j, low);
            put(j + 4, high);
        };
        both(std::integral_constant<int, 0>());
        both(std::integral_constant<int, 1>());
        both(std::integral_constant<int, 2>());
        both(std::integral_constant<int, 3>());
    }
}

// Words [FROM, STOP) of a group times those of an entry's rows.
template <int FROM, int STOP>
PLAIT_INLINE void add_words(const std::int16_t* w, const std::int8_t* x, Ints (&sums)[MANY_ROWS]) {
    PLAIT_UNROLL for (int t = FROM; t < STOP; ++t) {
        Ints columns = load_bytes(reinterpret_cast<const std::uint8_t*>(w + 32 * t));
        PLAIT_UNROLL for (int r = 0; r < MANY_ROWS; ++r) {
            std::int32_t two;
            std::memcpy(&two, x + r * 64 + 4 * t, sizeof two);
            sums[r] = dot_words(sums[r], columns, two);
        }
    }
}

// A strip times a panel, whose codes are `words`.
template <plait::Form F>
static void meet_words(const Planes& planes, long strip, const std::uint8_t* panel, const std::int16_t* words,
                       Vec (&made)[MANY_ROWS]) {
    Vec acc[MANY_ROWS];
    for (int r = 0; r < MANY_ROWS; ++r) acc[r] = set1(0.0f);
    const Entry *entry = planes.of(strip), *stop = entry + planes.counts.at[strip];
    for (; entry < stop; ++entry) {
        long g = entry->group, at = entry->place;
        const std::int8_t* x = planes.bytes.at + at * 64;
        const std::int16_t* w = words + g * WORDS;
        Vec first, last, offset;
        scales<F>(panel, g, first, last, offset);
        Ints sums[MANY_ROWS];
        auto join = [&](Vec by) {
            for (int r = 0; r < MANY_ROWS; ++r)
                acc[r] = fma(mul(as_floats(sums[r]), set1(planes.scale.at[at + r])), by, acc[r]);
        };
        for (int r = 0; r < MANY_ROWS; ++r) sums[r] = zeros();
        add_words<0, 8>(w, x, sums);
        if constexpr (has_halves(F)) {
            join(first);
            for (int r = 0; r < MANY_ROWS; ++r) sums[r] = zeros();
        }
        add_words<8, 16>(w, x, sums);
        join(has_halves(F) ? last : first);
        if constexpr (has_offset(F))
            for (int r = 0; r < MANY_ROWS; ++r) acc[r] = fma(set1(planes.offset.at[at + r]), offset, acc[r]);
    }
    for (int r = 0; r < MANY_ROWS; ++r) made[r] = acc[r];
}

// All strips and the panels of a share, of gated products pairs of panels.
template <plait::Form F>
static void many_strips(const plait::BlockProduct& p, const Planes& planes, const Share& share) {
    long size = plait::panel_bytes(F, p.in), each = p.gated ? 2 : 1, words = planes.groups * WORDS;
    long together = smaller(larger(1, TAKEN_OUT / (2 * words * each)), share.stop - share.first);
    Held<std::int16_t> taken(together * each * words);
    for (long begin = share.first; begin < share.stop; begin += together) {
        long count = smaller(together, share.stop - begin);
        const std::uint8_t* panels = share.part->w + begin * each * size;
        for (long i = 0; i < count * each; ++i) take_out<F>(panels + i * size, planes.groups, taken.at + i * words);
        for (long strip = 0; strip < planes.strips; ++strip)
            for (long i = 0; i < count; ++i) {
                Vec made[MANY_ROWS], up[MANY_ROWS];
                meet_words<F>(planes, strip, panels + i * each * size, taken.at + i * each * words, made);
                if (p.gated)
                    meet_words<F>(planes, strip, panels + (2 * i + 1) * size, taken.at + (2 * i + 1) * words, up);
                long low = (begin + i) * LANES, width = smaller(LANES, share.outputs - low);
                for (int r = 0; r < MANY_ROWS && strip * MANY_ROWS + r < p.rows; ++r)
                    put_row(p, strip * MANY_ROWS + r, share.column + low, width, made[r], p.gated ? &up[r] : nullptr);
            }
    }
}

static void blocks_many(const plait::BlockProduct& p) {
    blocks_by_strips(p, MANY_ROWS, true, 1, [&](auto form, const Planes& planes, const Share* shares, long) {
        many_strips<decltype(form)::value>(p, planes, *shares);
    });
}

#endif

}  // namespace PLAIT_LEVEL

// Products with packed blocks, a few rows at a time: codes are taken out of their panel once for all of these. An
// output is one chain over the groups of columns in order, whatever the number of rows:
//
//     acc = fma(float(sum of q (u - zero)) * s, A, acc), where there is an offset O then acc = fma(s * sum of q, O, acc)
//
// Of integers of 16 bits the sums of both planes of bytes are made by themselves, of 8 bits there is the low one alone.
#pragma once

#include "blocks_strips.hpp"

namespace PLAIT_LEVEL {

// Most rows at a time.
#if defined(__AVX512F__)
constexpr int FEW_ROWS = 8;
#elif defined(__AVX2__)
constexpr int FEW_ROWS = 2;
#else
constexpr int FEW_ROWS = 1;
#endif

// Panels that so many rows meet side by side: there must be registers for their sums.
constexpr int side_by_side(long rows) { return FEW_ROWS == 8 && rows <= 2 ? 2 : 1; }

template <int ROWS>
struct Sums {
    Ints high[ROWS], low[ROWS], high_last[ROWS], low_last[ROWS];
};

template <plait::Form F, int ROWS, int PLANES, int J>
PLAIT_INLINE void add_operands(const std::uint8_t* record, const std::int8_t* x, Sums<ROWS>& sums) {
    constexpr int bits = plait::shape_of(F).bits;
    Ints low, high;
    operands<F, J>(record, low, high);
    auto add = [](Ints acc, Ints u, const std::int8_t* at) {
        std::int32_t four;
        std::memcpy(&four, at, sizeof four);
        return dot<bits>(acc, u, four);
    };
    for (int r = 0; r < ROWS; ++r) {
        const std::int8_t *top = x + r * 32 * PLANES + 4 * J, *at = top + 32 * (PLANES - 1);
        sums.low[r] = add(sums.low[r], low, at);
        Ints& low_sum = has_halves(F) ? sums.low_last[r] : sums.low[r];
        low_sum = add(low_sum, high, at + 16);
        if constexpr (PLANES == 2) {
            sums.high[r] = add(sums.high[r], low, top);
            Ints& high_sum = has_halves(F) ? sums.high_last[r] : sums.high[r];
            high_sum = add(high_sum, high, top + 16);
        }
    }
}

// Rows whose sums over a group lie in registers.
template <plait::Form F, int PLANES>
constexpr int at_once(int rows) {
    return has_halves(F) && PLANES == 2 && rows > 4 ? 4 : rows;
}

// Rows from `at` on of an entry times the codes of group g of a panel.
template <plait::Form F, int ROWS, int PLANES>
PLAIT_INLINE void add_rows(const Planes& planes, long at, const std::uint8_t* panel, long g, Vec* acc) {
    constexpr int zero = plait::shape_of(F).zero;
    const std::uint8_t* record = panel + plait::record_at(F, g);
    const std::int8_t* x = planes.bytes.at + at * 32 * PLANES;
    const std::int32_t* q = planes.sums.at + at * 2;
    Sums<ROWS> sums;
    for (int r = 0; r < ROWS; ++r) {
        sums.high[r] = zeros();
        sums.low[r] = zero == 0 ? zeros() : set1(-zero * (has_halves(F) ? q[2 * r] : q[2 * r] + q[2 * r + 1]));
        if constexpr (has_halves(F)) {
            sums.high_last[r] = zeros();
            sums.low_last[r] = set1(-zero * q[2 * r + 1]);
        }
    }
    add_operands<F, ROWS, PLANES, 0>(record, x, sums);
    add_operands<F, ROWS, PLANES, 1>(record, x, sums);
    add_operands<F, ROWS, PLANES, 2>(record, x, sums);
    add_operands<F, ROWS, PLANES, 3>(record, x, sums);
    auto whole = [](Ints high, Ints low) { return as_floats(PLANES == 2 ? joined(high, low) : low); };
    Vec first, last, offset;
    scales<F>(panel, g, first, last, offset);
    for (int r = 0; r < ROWS; ++r) {
        Vec s = set1(planes.scale.at[at + r]);
        acc[r] = fma(mul(whole(sums.high[r], sums.low[r]), s), first, acc[r]);
        if constexpr (has_halves(F))
            acc[r] = fma(mul(whole(sums.high_last[r], sums.low_last[r]), s), last, acc[r]);
        if constexpr (has_offset(F)) acc[r] = fma(set1(planes.offset.at[at + r]), offset, acc[r]);
    }
}

// An entry's rows times the codes of its group of a panel.
template <plait::Form F, int ROWS, int PLANES>
PLAIT_INLINE void add_entry(const Planes& planes, const Entry& entry, const std::uint8_t* panel, Vec (&acc)[ROWS]) {
    constexpr int some = at_once<F, PLANES>(ROWS);
    if (planes.asks) ask_ahead<F, ROWS>(panel, entry.group);
    PLAIT_UNROLL for (int r = 0; r < ROWS; r += some)
        add_rows<F, some, PLANES>(planes, entry.place + r, panel, entry.group, acc + r);
}

// By products of bytes, each row by itself.
template <int PLANES>
struct Dots {
    template <plait::Form F, int ROWS, int PANELS>
    static void meet(const Planes& planes, long strip, const std::uint8_t* const (&panels)[PANELS],
                     Vec (&made)[PANELS][ROWS]) {
        // Of its own, so that the sums lie in registers all the time.
        Vec acc[PANELS][ROWS];
        for (int at = 0; at < PANELS; ++at)
            for (int r = 0; r < ROWS; ++r) acc[at][r] = set1(0.0f);
        const Entry *entry = planes.of(strip), *stop = entry + planes.counts.at[strip];
        for (; entry < stop; ++entry)
            for (int at = 0; at < PANELS; ++at) add_entry<F, ROWS, PLANES>(planes, *entry, panels[at], acc[at]);
        for (int at = 0; at < PANELS; ++at)
            for (int r = 0; r < ROWS; ++r) made[at][r] = acc[at][r];
    }
};

template <plait::Form F, int PLANES>
static void few_strips(const plait::BlockProduct& p, const Planes& planes, const Share* shares, long count) {
    switch (planes.height) {
#if defined(__AVX512F__)
        case 8: return meet_strips<Dots<PLANES>, F, 8, side_by_side(8)>(p, planes, shares, count);
        case 4: return meet_strips<Dots<PLANES>, F, 4, side_by_side(4)>(p, planes, shares, count);
#endif
#if defined(__AVX2__)
        case 2: return meet_strips<Dots<PLANES>, F, 2, side_by_side(2)>(p, planes, shares, count);
#endif
        default: return meet_strips<Dots<PLANES>, F, 1, side_by_side(1)>(p, planes, shares, count);
    }
}

static void blocks_few(const plait::BlockProduct& p) {
    long height = p.own_rows ? 1 : smaller(p.rows > 4 ? 8 : p.rows > 2 ? 4 : p.rows, FEW_ROWS);
    blocks_by_strips(p, height, Laid::bytes, side_by_side(height),
                     [&](auto form, const Planes& planes, const Share* shares, long count) {
                         constexpr plait::Form F = decltype(form)::value;
                         if (p.planes == 1) few_strips<F, 1>(p, planes, shares, count);
                         else few_strips<F, 2>(p, planes, shares, count);
                     });
}

}  // namespace PLAIT_LEVEL

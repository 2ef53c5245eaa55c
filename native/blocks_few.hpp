// Products with packed blocks, a few rows at a time: codes are taken out of their panel once for all of these. An
// output is one chain over the groups of columns in order, whatever the number of rows:
//
//     acc = fma(float(sum of q (u - zero)) * s, A, acc), where there is an offset O then acc = fma(s * sum of q, O, acc)
#pragma once

#include "blocks_codes.hpp"
#include "blocks_rows.hpp"
#include "blocks_share.hpp"

namespace PLAIT_LEVEL {

// Most rows at a time.
#if defined(__AVX512F__)
constexpr int FEW_ROWS = 4;
#elif defined(__AVX2__)
constexpr int FEW_ROWS = 2;
#else
constexpr int FEW_ROWS = 1;
#endif

// Bytes before their turn at which codes are asked for: a page and a half.
constexpr long CODES_AHEAD = 6144;

template <int ROWS>
struct Sums {
    Ints high[ROWS], low[ROWS], high_last[ROWS], low_last[ROWS];
};

template <plait::Form F, int ROWS, int J>
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
        const std::int8_t* at = x + r * 64 + 4 * J;
        sums.high[r] = add(sums.high[r], low, at);
        sums.low[r] = add(sums.low[r], low, at + 32);
        Ints& high_sum = has_halves(F) ? sums.high_last[r] : sums.high[r];
        Ints& low_sum = has_halves(F) ? sums.low_last[r] : sums.low[r];
        high_sum = add(high_sum, high, at + 16);
        low_sum = add(low_sum, high, at + 48);
    }
}

// A strip of ROWS rows times one panel.
template <plait::Form F, int ROWS>
static void few(const Planes& planes, long strip, const std::uint8_t* panel, Vec (&acc)[ROWS]) {
    constexpr int zero = plait::shape_of(F).zero;
    constexpr long size = plait::record_bytes(F);
    const std::uint8_t* side = panel + planes.groups * size;
    // Scales lie behind a panel's codes: those of the next panel are fetched while this one's codes pass by.
    const std::uint8_t* next_side = side + plait::panel_bytes(F, planes.groups * plait::GROUP);
    for (int r = 0; r < ROWS; ++r) acc[r] = set1(0.0f);
    const Entry* entries = planes.of(strip);
    for (long i = 0; i < planes.counts.at[strip]; ++i) {
        long g = entries[i].group, at = entries[i].place;
        const std::uint8_t* record = panel + g * size;
        // From memory to the second cache; what asks for the first one as well would hold up that.
        for (long line = 0; line < size; line += 64) __builtin_prefetch(record + CODES_AHEAD + line, 0, 2);
        __builtin_prefetch(next_side + g * plait::side_bytes(F, 256) / 8, 0, 2);
        const std::int8_t* x = planes.bytes.at + at * 64;
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
        add_operands<F, ROWS, 0>(record, x, sums);
        add_operands<F, ROWS, 1>(record, x, sums);
        add_operands<F, ROWS, 2>(record, x, sums);
        add_operands<F, ROWS, 3>(record, x, sums);
        Vec first, last, offset;
        scales<F>(side, g, first, last, offset);
        for (int r = 0; r < ROWS; ++r) {
            Vec s = set1(planes.scale.at[at + r]);
            acc[r] = fma(mul(as_floats(joined(sums.high[r], sums.low[r])), s), first, acc[r]);
            if constexpr (has_halves(F))
                acc[r] = fma(mul(as_floats(joined(sums.high_last[r], sums.low_last[r])), s), last, acc[r]);
            if constexpr (has_offset(F)) acc[r] = fma(set1(planes.offset.at[at + r]), offset, acc[r]);
        }
    }
}

template <plait::Form F, int ROWS>
static void few_strips(const plait::BlockProduct& p, const Planes& planes, const Share& share) {
    long size = plait::panel_bytes(F, p.in);
    for (long strip = 0; strip < planes.strips; ++strip)
        for (long i = share.first; i < share.stop; ++i) {
            const std::uint8_t* panel = share.part->w + i * (p.gated ? 2 : 1) * size;
            long width = smaller(LANES, share.outputs - i * LANES), column = share.column + i * LANES;
            Vec made[ROWS], up[ROWS];
            few<F, ROWS>(planes, strip, panel, made);
            if (p.gated) few<F, ROWS>(planes, strip, panel + size, up);
            for (int r = 0; r < ROWS && strip * ROWS + r < p.rows; ++r)
                put_row(p, strip * ROWS + r, column, width, made[r], p.gated ? &up[r] : nullptr);
        }
}

template <plait::Form F>
static void few_strips(const plait::BlockProduct& p, const Planes& planes, const Share& share) {
    switch (planes.height) {
#if defined(__AVX512F__)
        case 4: return few_strips<F, 4>(p, planes, share);
#endif
#if defined(__AVX2__)
        case 2: return few_strips<F, 2>(p, planes, share);
#endif
        default: return few_strips<F, 1>(p, planes, share);
    }
}

static void blocks_few(const plait::BlockProduct& p) {
    Planes planes(p.rows, p.in, smaller(p.rows > 2 ? 4 : p.rows, FEW_ROWS));
    // Of one strip panels pass by; for several they are kept in the cache.
    Shares shares(p, 1, planes.strips > 1 ? 1 << 19 : 1 << 15);
    in_region([&] {
        if (thread_here() > 0) shares.begin();
        quantise(p, planes);
        shares.each([&](const Share& share) {
            with_form(share.part->form,
                      [&](auto form) { few_strips<decltype(form)::value>(p, planes, share); });
        });
    });
}

}  // namespace PLAIT_LEVEL

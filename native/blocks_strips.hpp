// Products with packed blocks a strip of rows at a time: panels pass by, or stay in the cache for one strip after the
// other. What a strip and panels make of each other is said by a `Meet`:
//
//     Meet::meet<F, ROWS, PANELS>(planes, strip, panels, made)  sums [PANELS][ROWS] of a strip times panels side by side
#pragma once

#include "blocks_codes.hpp"
#include "blocks_rows.hpp"
#include "blocks_share.hpp"

namespace PLAIT_LEVEL {

// Bytes before their turn at which codes and scales are asked for: more where rows to meet take longer than memory.
constexpr long codes_ahead(int rows) { return rows > 2 ? 2048 : 1024; }

// Asks for what a group of a panel will be read from.
template <plait::Form F, int ROWS>
PLAIT_INLINE void ask_ahead(const std::uint8_t* panel, long g) {
    const std::uint8_t *record = panel + plait::record_at(F, g), *chunk = panel + plait::chunk_at(F, g);
    for (long line = 0; line < plait::record_bytes(F); line += 64) __builtin_prefetch(record + codes_ahead(ROWS) + line);
    if (plait::in_chunk(F, g) == 0)
        for (long line = 0; line < plait::side_bytes(F); line += 64) __builtin_prefetch(chunk + codes_ahead(ROWS) + line);
}

// Panel `panel` (of gated products pair of panels) of each of the shares, PANELS of one form.
template <class Meet, plait::Form F, int ROWS, int PANELS>
static void meet_panels(const plait::BlockProduct& p, const Planes& planes, long strip, const Share* shares, long panel) {
    long size = plait::panel_bytes(F, p.in);
    const std::uint8_t* at[PANELS];
    Vec made[PANELS][ROWS], up[PANELS][ROWS];
    for (int i = 0; i < PANELS; ++i) at[i] = shares[i].part->w + (shares[i].first + panel) * (p.gated ? 2 : 1) * size;
    Meet::template meet<F, ROWS, PANELS>(planes, strip, at, made);
    if (p.gated) {
        for (int i = 0; i < PANELS; ++i) at[i] += size;
        Meet::template meet<F, ROWS, PANELS>(planes, strip, at, up);
    }
    for (int i = 0; i < PANELS; ++i) {
        long low = (shares[i].first + panel) * LANES, width = smaller(LANES, shares[i].outputs - low);
        for (int r = 0; r < ROWS && strip * ROWS + r < p.rows; ++r)
            put_row(p, strip * ROWS + r, shares[i].column + low, width, made[i][r], p.gated ? &up[i][r] : nullptr);
    }
}

// All strips, or that of the part's own row, and the panels of shares of one form: of one, or of TOGETHER with as many
// panels each.
template <class Meet, plait::Form F, int ROWS, int TOGETHER>
static void meet_strips(const plait::BlockProduct& p, const Planes& planes, const Share* shares, long count) {
    long panels = shares->stop - shares->first, own = shares->part - p.parts;
    for (long strip = p.own_rows ? own : 0, stop = p.own_rows ? own + 1 : planes.strips; strip < stop; ++strip)
        for (long panel = 0; panel < panels; ++panel) {
            if (count == 1) meet_panels<Meet, F, ROWS, 1>(p, planes, strip, shares, panel);
            else meet_panels<Meet, F, ROWS, TOGETHER>(p, planes, strip, shares, panel);
        }
}

// The product: `work(form, shares, count)` on each thread, with shares of one form, one or `together` of them.
template <class Work>
static void blocks_by_strips(const plait::BlockProduct& p, long height, Laid laid, long together, const Work& work) {
    // Where there is more to compute than for two rows no processor foresees enough by itself.
    Planes planes(p.rows, p.in, height, p.planes, laid, p.asks || (p.rows > 2 && !p.own_rows));
    // Of one strip panels pass by; for several they are kept in the cache.
    bool one = planes.strips == 1 || p.own_rows;
    if (p.own_rows) together = 1;
    Shares shares(p, 1, one ? 1 << 15 : 1 << 19, one ? together : 1);
    in_region([&] {
        fill_strips(p, planes, 0, planes.strips);
        shares.each([&](const Share* given, long count) {
            bool alike = count == 2 && given[0].part->form == given[1].part->form;
            for (long i = 0; i < count; i += alike ? 2 : 1)
                with_form(given[i].part->form,
                          [&](auto form) { work(form, planes, given + i, long(alike ? 2 : 1)); });
        });
    });
}

}  // namespace PLAIT_LEVEL

// Products of up to 8 rows at a time with packed blocks on matrix tiles of bytes (AMX). The high and the low bytes of the
// rows' integers (or their only ones) are the rows of one tile, codes as they are the other's: 8-bit codes are read where they lie. Sums of
// integers are those of the other forms, and so are the float operations that follow: the bits are theirs.
#pragma once

#include "blocks_strips.hpp"
#include "tiles.hpp"

namespace PLAIT_LEVEL {

// Rows of a strip.
constexpr int EIGHT = 8;

// So many entries ahead codes are taken out and multiplied: a load waits for a store just before it, of a tile above all.
constexpr long TAKEN = 4, MET = 2;

template <plait::Form F>
constexpr int EIGHT_SUMS = has_halves(F) ? 2 : 1;

// Tiles 0 to 3: sums, [row][plane][16 outputs]. 4, 5: rows' bytes. 6, 7: codes.
static void configure_eight(bool halves, int planes) {
    plait::TileConfig config;
    for (int t = 0; t < 6; ++t) config.rows[t] = std::uint8_t(EIGHT * planes);
    for (int t : {6, 7}) config.rows[t] = halves ? 4 : 8;
    for (int t : {0, 1, 2, 3, 6, 7}) config.bytes_per_row[t] = 64;
    for (int t : {4, 5}) config.bytes_per_row[t] = halves ? 16 : 32;
    plait::configure_tiles(config);
}

// Codes of a group with their sign, [4 columns][16 outputs][4].
template <plait::Form F>
PLAIT_INLINE void bytes_of(const std::uint8_t* record, std::uint8_t* to) {
    auto put = [&](int operand, Ints codes) {
        _mm512_store_si512(to + operand * 64, minus_byte(codes, plait::shape_of(F).zero).v);
    };
    auto both = [&]<int J>() {
        Ints low, high;
        operands<F, J>(record, low, high);
        put(J, low);
        put(J + 4, high);
    };
    both.template operator()<0>();
    both.template operator()<1>();
    both.template operator()<2>();
    both.template operator()<3>();
}

// By matrix tiles.
template <int PLANES>
struct Eights {
    // Sums of two entries, codes of four. Lines 4096 bytes apart are one to a processor that looks for a store which a
    // load has to wait for: codes of even entries lie beside their own sums so, not beside those that are made meanwhile.
    template <plait::Form F, int PANELS>
    struct alignas(64) Room {
        std::int32_t sums[2][PANELS][EIGHT_SUMS<F>][256];
        std::uint8_t codes[2][2][PANELS][512];
        auto& codes_of(long entry) { return codes[entry & 1][entry >> 1 & 1]; }
    };

    template <plait::Form F, int PANELS>
    PLAIT_INLINE void take_out(const std::uint8_t* const (&panels)[PANELS], long g, std::uint8_t (&codes)[PANELS][512]) {
        for (int i = 0; i < PANELS; ++i) {
            ask_ahead<F, EIGHT>(panels[i], g);
            bytes_of<F>(panels[i] + plait::record_at(F, g), codes[i]);
        }
    }

    template <plait::Form F, int PANELS>
    PLAIT_INLINE void multiply(const std::int8_t* rows, const std::uint8_t (&codes)[PANELS][512],
                               std::int32_t (&sums)[PANELS][EIGHT_SUMS<F>][256]) {
        plait::written();
        _tile_loadd(4, rows, 32);
        _tile_zero(0);
        _tile_loadd(6, codes[0], 64);
        _tile_dpbssd(0, 4, 6);
        if constexpr (PANELS == 2) {
            _tile_zero(1);
            _tile_loadd(7, codes[1], 64);
            _tile_dpbssd(1, 4, 7);
        }
        if constexpr (has_halves(F)) {
            _tile_loadd(5, rows + 16, 32);
            _tile_zero(2);
            _tile_loadd(6, codes[0] + 256, 64);
            _tile_dpbssd(2, 5, 6);
            _tile_stored(2, sums[0][1], 64);
        }
        _tile_stored(0, sums[0][0], 64);
        if constexpr (PANELS == 2) _tile_stored(1, sums[1][0], 64);
    }

    template <plait::Form F>
    PLAIT_INLINE void take_in(const Planes& planes, const Entry& entry, const std::uint8_t* panel,
                              const std::int32_t (&sums)[EIGHT_SUMS<F>][256], Vec (&acc)[EIGHT]) {
        Vec first, last, offset;
        scales<F>(panel, entry.group, first, last, offset);
#pragma GCC unroll 8
        for (int r = 0; r < EIGHT; ++r) {
            Vec s = set1(planes.scale.at[entry.place + r]);
            auto whole = [&](const std::int32_t* of) {
                Ints sum = {_mm512_load_si512(of)};
                if constexpr (PLANES == 2) sum = joined(sum, {_mm512_load_si512(of + 16)});
                return mul(as_floats(sum), s);
            };
            acc[r] = fma(whole(sums[0] + 16 * PLANES * r), first, acc[r]);
            if constexpr (has_halves(F)) acc[r] = fma(whole(sums[1] + 16 * PLANES * r), last, acc[r]);
            if constexpr (has_offset(F)) acc[r] = fma(set1(planes.offset.at[entry.place + r]), offset, acc[r]);
        }
    }

    template <plait::Form F, int ROWS, int PANELS>
    static void meet(const Planes& planes, long strip, const std::uint8_t* const (&panels)[PANELS],
                     Vec (&made)[PANELS][ROWS]) {
        static_assert(ROWS == EIGHT);
        if constexpr (has_halves(F) && PANELS == 2) {
            // There are too few tiles and registers for two such panels.
            for (int i = 0; i < PANELS; ++i) {
                const std::uint8_t* one[1] = {panels[i]};
                Vec its[1][ROWS];
                meet<F, ROWS, 1>(planes, strip, one, its);
                for (int r = 0; r < ROWS; ++r) made[i][r] = its[0][r];
            }
        } else {
            Room<F, PANELS> room;
            // One array for both would lie in memory.
            Vec acc[EIGHT], other[EIGHT];
#pragma GCC unroll 8
            for (int r = 0; r < EIGHT; ++r) acc[r] = other[r] = set1(0.0f);
            const Entry* entries = planes.of(strip);
            long count = planes.counts.at[strip];
            for (long e = -TAKEN; e < count; ++e) {
                long met = e + MET, taken = e + TAKEN;
                if (e >= 0) {
                    take_in<F>(planes, entries[e], panels[0], room.sums[e & 1][0], acc);
                    if constexpr (PANELS == 2)
                        take_in<F>(planes, entries[e], panels[1], room.sums[e & 1][1], other);
                }
                if (taken < count) {
                    const std::int8_t* rows = planes.bytes.at + entries[taken].place * 32 * PLANES;
                    for (long line = 0; line < EIGHT * 32 * PLANES; line += 64) __builtin_prefetch(rows + line);
                    take_out<F>(panels, entries[taken].group, room.codes_of(taken));
                }
                if (met >= 0 && met < count)
                    multiply<F>(planes.bytes.at + entries[met].place * 32 * PLANES, room.codes_of(met), room.sums[met & 1]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < EIGHT; ++r) {
                made[0][r] = acc[r];
                if constexpr (PANELS == 2) made[1][r] = other[r];
            }
        }
    }
};

static void blocks_eight(const plait::BlockProduct& p) {
    blocks_by_strips(p, EIGHT, Laid::bytes, 2, [&](auto form, const Planes& planes, const Share* shares, long count) {
        constexpr plait::Form F = decltype(form)::value;
        configure_eight(has_halves(F), p.planes);
        if (p.planes == 1) meet_strips<Eights<1>, F, EIGHT, 2>(p, planes, shares, count);
        else meet_strips<Eights<2>, F, EIGHT, 2>(p, planes, shares, count);
        _tile_release();
    });
}

}  // namespace PLAIT_LEVEL

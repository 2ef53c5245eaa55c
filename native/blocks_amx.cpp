// Products with packed blocks on the processor's matrix tiles (AMX), for more rows than eight. The sums of a group are
// those of the other forms, exactly, and so are the float operations that follow: the bits are theirs.
#include "blocks_amx_codes.hpp"
#include "blocks_eight.hpp"
#include "blocks_share.hpp"
#include "tiles.hpp"

namespace plait {

namespace {

using namespace PLAIT_LEVEL;

// Bytes of rows that stay in the cache while panels pass by.
constexpr long NEAR = 1 << 20;
// Panels that meet a row at a time, and groups whose sums are made before they are taken in: a load that follows the
// store of a tile waits for it.
constexpr int PANELS = 4, BATCH = 2;

// Tiles 0 to 3: sums of `height` rows by 16 outputs. 4, 5: rows, high and low. 6, 7: codes.
void configure(long height, bool halves) {
    TileConfig config;
    for (int t = 0; t < 6; ++t) config.rows[t] = std::uint8_t(height);
    for (int t : {6, 7}) config.rows[t] = halves ? 8 : 16;
    for (int t : {0, 1, 2, 3, 6, 7}) config.bytes_per_row[t] = 64;
    for (int t : {4, 5}) config.bytes_per_row[t] = halves ? 32 : 64;
    configure_tiles(config);
}

// Sums of a group for the panels, [panel][1 or 2][16 rows][16 outputs]: of all columns; or of the first and the last.
template <Form F>
constexpr int SUMS = has_halves(F) ? 2 : 1;

template <Form F>
struct alignas(64) Made {
    float of[PANELS][SUMS<F>][256];
};

// An entry's sums for the panels' codes of its group, where a panel has one sum.
template <Form F, int PLANES>
PLAIT_INLINE void multiply_whole(const std::uint16_t* rows, long low, const Piece* pieces, long at, Made<F>& to) {
    _tile_loadd(4, rows, 64);
    _tile_loadd(6, pieces[0].codes + at, 64);
    _tile_zero(0);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (PLANES == 2) _tile_loadd(5, rows + low, 64);
    _tile_loadd(7, pieces[1].codes + at, 64);
    _tile_zero(1);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (PLANES == 2) {
        _tile_dpbf16ps(0, 5, 6);
        _tile_dpbf16ps(1, 5, 7);
    }
    _tile_loadd(6, pieces[2].codes + at, 64);
    _tile_zero(2);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, pieces[3].codes + at, 64);
    _tile_zero(3);
    _tile_dpbf16ps(3, 4, 7);
    if constexpr (PLANES == 2) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, to.of[0][0], 64);
    _tile_stored(1, to.of[1][0], 64);
    _tile_stored(2, to.of[2][0], 64);
    _tile_stored(3, to.of[3][0], 64);
}

// Two panels from `panel` on, where a panel has two sums.
template <Form F, int PLANES>
PLAIT_INLINE void multiply_two(const std::uint16_t* rows, long low, const Piece* pieces, long at, int panel,
                               Made<F>& to) {
    const std::uint16_t *first = pieces[panel].codes + at, *second = pieces[panel + 1].codes + at;
    _tile_loadd(4, rows, 64);
    _tile_loadd(6, first, 64);
    _tile_zero(0);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (PLANES == 2) _tile_loadd(5, rows + low, 64);
    _tile_loadd(7, second, 64);
    _tile_zero(1);
    _tile_dpbf16ps(1, 4, 7);
    _tile_zero(2);
    _tile_zero(3);
    if constexpr (PLANES == 2) {
        _tile_dpbf16ps(0, 5, 6);
        _tile_dpbf16ps(1, 5, 7);
    }
    _tile_loadd(4, rows + 16, 64);
    _tile_loadd(6, first + 256, 64);
    _tile_dpbf16ps(2, 4, 6);
    if constexpr (PLANES == 2) _tile_loadd(5, rows + low + 16, 64);
    _tile_loadd(7, second + 256, 64);
    _tile_dpbf16ps(3, 4, 7);
    if constexpr (PLANES == 2) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, to.of[panel][0], 64);
    _tile_stored(1, to.of[panel + 1][0], 64);
    _tile_stored(2, to.of[panel][1], 64);
    _tile_stored(3, to.of[panel + 1][1], 64);
}

// `scales`: of the rows, where their numbers do not hold them.
template <Form F, int HEIGHT, int PLANES>
PLAIT_INLINE void take_in(const Made<F>& made, int panel, const float* sums, const float* scales, const float* weights,
                          __m512 (&acc)[HEIGHT]) {
    __m512 first = _mm512_load_ps(weights), last = first, offset = first;
    if constexpr (has_halves(F)) last = _mm512_load_ps(weights + 16);
    if constexpr (has_offset(F)) offset = _mm512_load_ps(weights + 32);
#pragma GCC unroll 16
    for (int r = 0; r < HEIGHT; ++r) {
        auto whole = [&](const float* of) {
            __m512 sum = _mm512_load_ps(of + 16 * r);
            return PLANES == 2 ? sum : _mm512_mul_ps(sum, _mm512_set1_ps(scales[r]));
        };
        acc[r] = _mm512_fmadd_ps(whole(made.of[panel][0]), first, acc[r]);
        if constexpr (has_halves(F)) acc[r] = _mm512_fmadd_ps(whole(made.of[panel][1]), last, acc[r]);
        if constexpr (has_offset(F)) acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(sums[r]), offset, acc[r]);
    }
}

// Entries [0, count), of groups from `base` on, times a piece of each panel; added to sums [panel][16][16].
template <Form F, int HEIGHT, int PLANES>
void block(const TileRows& rows, const Entry* entries, long count, long base, const Piece* pieces, float* sums) {
    Made<F> made[BATCH];
    for (long low = 0; low < count; low += BATCH) {
        long size = smaller(BATCH, count - low);
        for (long i = 0; i < size; ++i) {
            const Entry& entry = entries[low + i];
            const std::uint16_t* halves = rows.halves.at + entry.place * 32 * PLANES;
            long codes = (entry.group - base) * 512, low_half = rows.height * 32;
            if constexpr (SUMS<F> == 1) {
                multiply_whole<F, PLANES>(halves, low_half, pieces, codes, made[i]);
            } else {
                multiply_two<F, PLANES>(halves, low_half, pieces, codes, 0, made[i]);
                multiply_two<F, PLANES>(halves, low_half, pieces, codes, 2, made[i]);
            }
        }
        for (int panel = 0; panel < PANELS; ++panel) {
            __m512 acc[HEIGHT];
#pragma GCC unroll 16
            for (int r = 0; r < HEIGHT; ++r) acc[r] = _mm512_load_ps(sums + panel * 256 + 16 * r);
            for (long i = 0; i < size; ++i) {
                const Entry& entry = entries[low + i];
                const float* scales = PLANES == 1 ? rows.scale.at + entry.place : nullptr;
                take_in<F, HEIGHT, PLANES>(made[i], panel, rows.sums.at + entry.place, scales,
                                   pieces[panel].scales + (entry.group - base) * 48, acc);
            }
#pragma GCC unroll 16
            for (int r = 0; r < HEIGHT; ++r) _mm512_store_ps(sums + panel * 256 + 16 * r, acc[r]);
        }
    }
}

// What a thread works with: pieces of the panels, and for each strip of a run its sums and its next entry.
struct Bench {
    Held<Piece> pieces;
    Held<float> sums;
    Held<long> next;
    explicit Bench(long strips) : pieces(PANELS), sums(strips * PANELS * 256), next(strips) {}
};

template <Form F, int HEIGHT, int PLANES>
void panels_of(const TileRows& rows, long strips, const std::uint8_t* const* panels, const Bench& bench) {
    std::memset(bench.sums.at, 0, strips * PANELS * 256 * sizeof(float));
    std::memset(bench.next.at, 0, strips * sizeof(long));
    for (long base = 0; base < rows.groups; base += PIECE) {
        long stop = smaller(base + PIECE, rows.groups);
        for (int panel = 0; panel < PANELS; ++panel)
            take<F>(panels[panel], base, stop, bench.pieces.at[panel]);
        for (long strip = 0; strip < strips; ++strip) {
            const Entry* entries = rows.of(strip);
            long first = bench.next.at[strip], end = first;
            while (end < rows.counts.at[strip] && entries[end].group < stop) ++end;
            bench.next.at[strip] = end;
            block<F, HEIGHT, PLANES>(rows, entries + first, end - first, base, bench.pieces.at,
                             bench.sums.at + strip * PANELS * 256);
        }
    }
}

template <Form F>
void panels_of(const TileRows& rows, long strips, const std::uint8_t* const* panels, const Bench& bench) {
    auto of_planes = [&](auto planes) {
        if (rows.height == 12) panels_of<F, 12, planes.value>(rows, strips, panels, bench);
        else panels_of<F, 16, planes.value>(rows, strips, panels, bench);
    };
    if (rows.planes == 1) of_planes(std::integral_constant<int, 1>());
    else of_planes(std::integral_constant<int, 2>());
}

// A thread's share of the outputs for the strips [low, low + strips) that `rows` holds.
template <Form F>
void share_of_strips(const BlockProduct& p, const TileRows& rows, long low, long strips, const Share& share,
                     const Bench& bench) {
    long size = panel_bytes(F, p.in), unit = p.gated ? 2 : 1, step = PANELS / unit;
    configure(rows.height, has_halves(F));
    for (long i = share.first; i < share.stop; i += step) {
        const std::uint8_t* panels[PANELS];
        // At the end of a share the last panel stands in for those that are not there; what that makes is left.
        for (long at = 0; at < PANELS; ++at)
            panels[at] = share.part->w + smaller(i * unit + at, share.stop * unit - 1) * size;
        panels_of<F>(rows, strips, panels, bench);
        for (long strip = 0; strip < strips; ++strip) {
            const float* sums = bench.sums.at + strip * PANELS * 256;
            long row = (low + strip) * rows.height, count = smaller(rows.height, p.rows - row);
            for (long r = 0; r < count; ++r)
                for (long at = i; at < smaller(i + step, share.stop); ++at) {
                    const float* made = sums + (at - i) * unit * 256 + 16 * r;
                    Vec up = load(made + (unit - 1) * 256);
                    put_row(p, row + r, share.column + at * LANES, smaller(LANES, share.outputs - at * LANES),
                            load(made), p.gated ? &up : nullptr);
                }
        }
    }
    _tile_release();
}

}  // namespace

// Rows from which on tiles are faster.
static long least_rows(const BlockProduct& p) {
    for (long i = 0; i < p.count; ++i)
        if (has_halves(p.parts[i].form)) return 5;
    return 3;
}

void blocks_amx(const BlockProduct& p) {
    if (p.rows < least_rows(p) || p.own_rows) return blocks_avx512vnni(p);
    if (p.rows <= EIGHT) return blocks_eight(p);
    long height = p.rows > 12 ? 16 : 12, strips = (p.rows + height - 1) / height;
    long most = smaller(strips, larger(1, NEAR / (p.in / GROUP * height * 64 * p.planes)));
    TileRows rows(p.in, height, most, p.planes);
    Shares shares(p, p.gated ? PANELS / 2 : PANELS, 1, 1);
    in_region([&] {
        Bench bench(most);
        for (long low = 0; low < strips; low += most) {
            long count = smaller(most, strips - low);
            fill_strips(p, rows, low, count);
            shares.each([&](const Share* share, long) {
                with_form(share->part->form, [&](auto form) {
                    share_of_strips<decltype(form)::value>(p, rows, low, count, *share, bench);
                });
            });
            barrier();
            if (low + most < strips) {
#pragma omp single
                shares.restart();
            }
        }
    });
}

}  // namespace plait

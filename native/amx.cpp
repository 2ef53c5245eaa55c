// linear_bf16 with the processor's matrix tiles (AMX). A tile multiplies up to 16 rows by 16 outputs over 32 columns;
// an output's chain over the columns is the same for every number of rows in the tile.
//
// Where x is not to be rounded, it is the sum of two planes of bf16, its rounded value and what that leaves: of every 32
// columns the first plane's products join the sum and then the second's, with the weights loaded once.
#include <immintrin.h>

#include <initializer_list>

#include "linear.hpp"
#include "tiles.hpp"

namespace plait {

namespace {

using PLAIT_LEVEL::ahead;
using PLAIT_LEVEL::finish;
using PLAIT_LEVEL::LANES;
using PLAIT_LEVEL::Memory;
using PLAIT_LEVEL::Part;
using PLAIT_LEVEL::Share;
using PLAIT_LEVEL::smaller;

// Elements of a tile of x or of W, and of one of sums.
constexpr long HALVES = 512, SUM = 256;

// Tiles 0 to 3: sums of up to 32 rows by 32 outputs. 4, 5: x. 6, 7: weights.
void configure(long rows) {
    TileConfig config;
    long upper = smaller(16, rows), lower = rows > 16 ? rows - 16 : 1;
    for (int t : {0, 1, 4}) config.rows[t] = std::uint8_t(upper);
    for (int t : {2, 3, 5}) config.rows[t] = std::uint8_t(lower);
    for (int t : {6, 7}) config.rows[t] = 16;
    for (int t = 0; t < 8; ++t) config.bytes_per_row[t] = 64;
    configure_tiles(config);
}

// Lines of the next block's weights called for in a step.
constexpr long CALLED = 8;

// x: strips of 16 rows, [strip][padded / 32][plane][16][32]; `below` is the strip after, `beside` the panel after.
template <int PLANES, bool LOWER, bool TWO>
void multiply(const std::uint16_t* x, const std::uint16_t* below, const std::uint16_t* w, const std::uint16_t* beside,
              long steps, float* sums, bool begin, const char* next) {
    if (begin) {
        _tile_zero(0);
        if (TWO) _tile_zero(1);
        if (LOWER) _tile_zero(2);
        if (LOWER && TWO) _tile_zero(3);
    } else {
        _tile_loadd(0, sums, 64);
        if (TWO) _tile_loadd(1, sums + SUM, 64);
        if (LOWER) _tile_loadd(2, sums + 2 * SUM, 64);
        if (LOWER && TWO) _tile_loadd(3, sums + 3 * SUM, 64);
    }
    if (next == nullptr) next = reinterpret_cast<const char*>(x);
    for (long k = 0; k < steps; ++k) {
        for (long i = 0; i < CALLED; ++i) __builtin_prefetch(next + (k * CALLED + i) * 64, 0, 2);
        _tile_loadd(6, w + k * HALVES, 64);
        if (TWO) _tile_loadd(7, beside + k * HALVES, 64);
#pragma GCC unroll 2
        for (int plane = 0; plane < PLANES; ++plane) {
            _tile_loadd(4, x + (k * PLANES + plane) * HALVES, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (TWO) _tile_dpbf16ps(1, 4, 7);
            if (LOWER) {
                _tile_loadd(5, below + (k * PLANES + plane) * HALVES, 64);
                _tile_dpbf16ps(2, 5, 6);
                if (TWO) _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, sums, 64);
    if (TWO) _tile_stored(1, sums + SUM, 64);
    if (LOWER) _tile_stored(2, sums + 2 * SUM, 64);
    if (LOWER && TWO) _tile_stored(3, sums + 3 * SUM, 64);
}

template <int PLANES>
struct Tiles {
    static constexpr long STRIP = 32, WIDE = 2, SUMS = 4 * SUM;
    const Product<std::uint16_t>& p;
    const std::uint16_t* x;
    long padded;
    long shaped = 0;  // rows the tiles are configured for

    void prepare(const Part&) {}

    void tile(const Part& part) {
        if (part.rows != shaped) {
            configure(part.rows);
            shaped = part.rows;
        }
        const std::uint16_t* strip = x + (part.row * padded + part.from * 16) * PLANES;
        const std::uint16_t* below = strip + 16 * padded * PLANES;
        const std::uint16_t* w = p.w + (part.panel * padded + part.from) * LANES;
        const std::uint16_t* beside = w + padded * LANES;
        long steps = (part.stop - part.from) / 32;
        bool lower = part.rows > 16, two = part.panels > 1;
        auto run = lower ? (two ? multiply<PLANES, true, true> : multiply<PLANES, true, false>)
                         : (two ? multiply<PLANES, false, true> : multiply<PLANES, false, false>);
        const char* next = ahead(part, p.w, padded, steps * CALLED);
        run(strip, below, w, beside, steps, part.sums, part.begin, next);
        if (!part.end) return;
        finish(p, part.sums, LANES, SUM, part.row, smaller(16, part.rows), part.panel, part.panels);
        if (lower) finish(p, part.sums + 2 * SUM, LANES, SUM, part.row + 16, part.rows - 16, part.panel, part.panels);
    }
};

// What rounding to bf16 leaves, as bf16; nothing where the rounded value is infinite or no number.
inline __m512 left(__m512 x, __m256bh rounded) {
    __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)rounded), 16));
    __mmask16 finite = _mm512_knot(_mm512_fpclass_ps_mask(wide, 0x99));
    return _mm512_maskz_sub_ps(finite, x, wide);
}

// A strip of up to 16 rows: a tile reads its 16 lines side by side. In rows 4096 bytes apart they would fall into the
// same set of the cache.
template <int PLANES>
void lay_strip(const float* x, long x_stride, long rows, long in, long padded, std::uint16_t* to) {
    for (long r = 0; r < rows; ++r)
        for (long k = 0; k < padded; k += 32) {
            const float* from = x + r * x_stride + k;
            std::uint16_t* at = to + k * 16 * PLANES + r * 32;
            long low = smaller(16, in - k), high = smaller(16, in - k - 16);
            check_bytes(from, 4 * smaller(32, in - k));
            __m512 a = _mm512_maskz_loadu_ps(__mmask16((1u << low) - 1), from);
            __m512 b = high > 0 ? _mm512_maskz_loadu_ps(__mmask16((1u << high) - 1), from + 16) : _mm512_setzero_ps();
            __m512bh both = _mm512_cvtne2ps_pbh(b, a);
            _mm512_storeu_si512(at, (__m512i)both);
            if (PLANES == 1) continue;
            __m512 a_left = left(a, (__m256bh)_mm512_castsi512_si256((__m512i)both));
            __m512 b_left = left(b, (__m256bh)_mm512_extracti64x4_epi64((__m512i)both, 1));
            _mm512_storeu_si512(at + HALVES, (__m512i)_mm512_cvtne2ps_pbh(b_left, a_left));
        }
}

template <int PLANES>
void product(const Product<std::uint16_t>& p) {
    long panels = PLAIT_LEVEL::panels_of(p.out, p.gated), padded = (p.in + 31) / 32 * 32, strips = (p.rows + 15) / 16;
    Memory<std::uint16_t> laid(strips * 16 * padded * PLANES);
#pragma omp parallel if (p.rows * panels * LANES * p.in > PLAIT_LEVEL::ALONE)
    {
#pragma omp for schedule(static)
        for (long s = 0; s < strips; ++s)
            lay_strip<PLANES>(p.x + s * 16 * p.x_stride, p.x_stride, smaller(16, p.rows - s * 16), p.in, padded,
                              laid.data() + s * 16 * padded * PLANES);
        Tiles<PLANES> body{p, laid.data(), padded};
        walk(body, Share(panels, 2), p.rows, padded);
        _tile_release();
    }
}

}  // namespace

void linear_bf16_amx(const Product<std::uint16_t>& p) { p.exact ? product<2>(p) : product<1>(p); }

}  // namespace plait

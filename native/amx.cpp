// linear_bf16 with the processor's matrix tiles (AMX). A tile multiplies up to 16 rows by 16 outputs over 32 columns;
// an output's chain over the columns is the same for every number of rows in the tile.
#include <immintrin.h>

#include <initializer_list>

#include "linear.hpp"
#include "tiles.hpp"

namespace plait {

namespace {

inline long smaller(long a, long b) { return a < b ? a : b; }

struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes_per_row[16] = {};
    std::uint8_t rows[16] = {};
};

// Tiles 0 to 3: outputs of up to 32 rows by 32 columns. 4, 5: inputs. 6, 7: weights.
void configure(long rows) {
    Config config;
    long upper = smaller(16, rows), lower = rows > 16 ? rows - 16 : 1;
    for (int t : {0, 1, 4}) config.rows[t] = std::uint8_t(upper);
    for (int t : {2, 3, 5}) config.rows[t] = std::uint8_t(lower);
    for (int t : {6, 7}) config.rows[t] = 16;
    for (int t = 0; t < 8; ++t) config.bytes_per_row[t] = 64;
    configure_tiles(&config);
}

using PLAIT_LEVEL::LANES;
using PLAIT_LEVEL::Vec;

// A tile, or the gated product of two, goes to its place by way of the scratch.
void put(const Product<std::uint16_t>& p, const float* made, const float* up, long row, long count, long column) {
    long width = smaller(LANES, p.out - column);
    for (long r = 0; r < count; ++r) {
        Vec value = PLAIT_LEVEL::load(made + r * LANES);
        if (up != nullptr)
            value = PLAIT_LEVEL::mul(PLAIT_LEVEL::activate(p.activation, value), PLAIT_LEVEL::load(up + r * LANES));
        PLAIT_LEVEL::store_n(p.y + (row + r) * p.y_stride + column, value, int(width));
    }
}

// Rows [row, row + rows), at most 32, of two panels (or of one). x: blocks of 16 rows by 32 columns, block after block.
void block(const Product<std::uint16_t>& p, const std::uint16_t* x, long padded, long row, long rows, long panel,
           bool two) {
    alignas(64) float made[4][LANES * LANES];
    bool tall = rows > 16;
    const std::uint16_t* w = p.w + panel * padded * LANES;
    const std::uint16_t* below = x + 16 * padded;
    const std::uint16_t* beside = w + 16 * padded;
    _tile_zero(0);
    if (two) _tile_zero(1);
    if (tall) _tile_zero(2);
    if (tall && two) _tile_zero(3);
    for (long k = 0; k < padded * 16; k += 512) {
        _tile_loadd(6, w + k, 64);
        _tile_loadd(4, x + k, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (tall) {
            _tile_loadd(5, below + k, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two) {
            _tile_loadd(7, beside + k, 64);
            _tile_dpbf16ps(1, 4, 7);
            if (tall) _tile_dpbf16ps(3, 5, 7);
        }
    }
    long upper = smaller(16, rows), column = panel / (p.gated ? 2 : 1) * LANES;
    _tile_stored(0, made[0], 64);
    if (two) _tile_stored(1, made[1], 64);
    if (tall) _tile_stored(2, made[2], 64);
    if (tall && two) _tile_stored(3, made[3], 64);
    if (p.gated) {
        put(p, made[0], made[1], row, upper, column);
        if (tall) put(p, made[2], made[3], row + 16, rows - 16, column);
        return;
    }
    put(p, made[0], nullptr, row, upper, column);
    if (two) put(p, made[1], nullptr, row, upper, column + LANES);
    if (tall) put(p, made[2], nullptr, row + 16, rows - 16, column);
    if (tall && two) put(p, made[3], nullptr, row + 16, rows - 16, column + LANES);
}

// Rows rounded to bf16 in blocks of 16 rows by 32 columns: a tile reads them from 16 lines side by side. In rows
// 4096 bytes apart they would fall into the same set of the cache.
void round_blocks(const float* x, long x_stride, std::uint16_t* y, long rows, long in, long padded) {
    long strips = (rows + 15) / 16;
#pragma omp parallel for schedule(static) if (rows * in >= 65536)
    for (long s = 0; s < strips; ++s) {
        for (long r = 0; r < 16 && s * 16 + r < rows; ++r) {
            const float* from = x + (s * 16 + r) * x_stride;
            std::uint16_t* to = y + s * 16 * padded + r * 32;
            for (long k = 0; k < padded; k += 32) {
                long low = smaller(16, in - k), high = smaller(16, in - k - 16);
                __m512 a = _mm512_maskz_loadu_ps(__mmask16((1u << low) - 1), from + k);
                __m512 b = high > 0 ? _mm512_maskz_loadu_ps(__mmask16((1u << high) - 1), from + k + 16)
                                    : _mm512_setzero_ps();
                _mm512_storeu_si512(to + k * 16, (__m512i)_mm512_cvtne2ps_pbh(b, a));
            }
        }
    }
}

}  // namespace

void linear_bf16_amx(const Product<std::uint16_t>& p) {
    long panels = PLAIT_LEVEL::panels_of(p.out, p.gated), padded = (p.in + 31) / 32 * 32, pairs = (panels + 1) / 2;
    auto* rounded = new std::uint16_t[(p.rows + 15) / 16 * 16 * padded];
    round_blocks(p.x, p.x_stride, rounded, p.rows, p.in, padded);
#pragma omp parallel
    {
        long shaped = 0;
#pragma omp for schedule(static)
        for (long g = 0; g < pairs; ++g) {
            for (long row = 0; row < p.rows; row += 32) {
                long count = smaller(32, p.rows - row);
                if (count != shaped) {
                    configure(count);
                    shaped = count;
                }
                block(p, rounded + row * padded, padded, row, count, 2 * g, 2 * g + 1 < panels);
            }
        }
        _tile_release();
    }
    delete[] rounded;
}

}  // namespace plait

// linear_bf16 with the processor's matrix tiles (AMX). A tile multiplies up to 16 rows by 16 outputs over 32 columns;
// an output's chain over the columns is the same for every number of rows in the tile.
#include <immintrin.h>

#include <initializer_list>

#include "kernels.hpp"

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
    _tile_loadconfig(&config);
}

// The part of an output tile that exists, from a tile of the scratch.
void put(const float* made, float* y, long rows, long out, long column) {
    long width = smaller(16, out - column);
    for (long r = 0; r < rows; ++r) __builtin_memcpy(y + r * out + column, made + r * 16, sizeof(float) * width);
}

// Whole columns go straight to their place.
#define PLAIT_PUT(tile, row, count, column)                             \
    if ((column) + 16 <= out) {                                         \
        _tile_stored(tile, y + (row) * out + (column), out * 4);        \
    } else {                                                            \
        _tile_stored(tile, made, 64);                                   \
        put(made, y + (row) * out, count, out, column);                 \
    }

// Rows [0, rows), at most 32, of two panels (or of one). x: blocks of 16 rows by 32 columns, block after block.
void block(const std::uint16_t* x, long padded, const std::uint16_t* w, float* y, long rows, long out, long column,
           bool two) {
    alignas(64) float made[16 * 16];
    bool tall = rows > 16;
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
    long upper = smaller(16, rows);
    PLAIT_PUT(0, 0, upper, column)
    if (two) PLAIT_PUT(1, 0, upper, column + 16)
    if (tall) PLAIT_PUT(2, 16, rows - 16, column)
    if (tall && two) PLAIT_PUT(3, 16, rows - 16, column + 16)
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

void linear_bf16_amx(const float* x, long x_stride, const std::uint16_t* w, float* y, long rows, long out, long in) {
    long panels = (out + 15) / 16, padded = (in + 31) / 32 * 32, pairs = (panels + 1) / 2;
    auto* rounded = new std::uint16_t[(rows + 15) / 16 * 16 * padded];
    round_blocks(x, x_stride, rounded, rows, in, padded);
#pragma omp parallel
    {
        long shaped = 0;
#pragma omp for schedule(static)
        for (long g = 0; g < pairs; ++g) {
            for (long row = 0; row < rows; row += 32) {
                long count = smaller(32, rows - row);
                if (count != shaped) {
                    configure(count);
                    shaped = count;
                }
                block(rounded + row * padded, padded, w + 2 * g * padded * 16, y + row * out, count, out, g * 32,
                      2 * g + 1 < panels);
            }
        }
        _tile_release();
    }
    delete[] rounded;
}

}  // namespace plait

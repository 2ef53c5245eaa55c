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

void put(const float* made, float* y, long rows, long out, long column) {
    long width = smaller(16, out - column);
    for (long r = 0; r < rows; ++r) __builtin_memcpy(y + r * out + column, made + r * 16, sizeof(float) * width);
}

// Rows [0, rows), at most 32, of two panels (or of one).
void block(const std::uint16_t* x, long padded, const std::uint16_t* w, float* y, long rows, long out, long column,
           bool two) {
    alignas(64) float made[16 * 16];
    bool tall = rows > 16;
    long step = padded * 2;
    _tile_zero(0);
    if (two) _tile_zero(1);
    if (tall) _tile_zero(2);
    if (tall && two) _tile_zero(3);
    for (long k = 0; k < padded; k += 32) {
        _tile_loadd(6, w + k * 16, 64);
        _tile_loadd(4, x + k, step);
        _tile_dpbf16ps(0, 4, 6);
        if (tall) {
            _tile_loadd(5, x + 16 * padded + k, step);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two) {
            _tile_loadd(7, w + (padded + k) * 16, 64);
            _tile_dpbf16ps(1, 4, 7);
            if (tall) _tile_dpbf16ps(3, 5, 7);
        }
    }
    long upper = smaller(16, rows);
    _tile_stored(0, made, 64);
    put(made, y, upper, out, column);
    if (two) {
        _tile_stored(1, made, 64);
        put(made, y, upper, out, column + 16);
    }
    if (tall) {
        _tile_stored(2, made, 64);
        put(made, y + 16 * out, rows - 16, out, column);
        if (two) {
            _tile_stored(3, made, 64);
            put(made, y + 16 * out, rows - 16, out, column + 16);
        }
    }
}

}  // namespace

void linear_bf16_amx(const float* x, long x_stride, const std::uint16_t* w, float* y, long rows, long out, long in) {
    long panels = (out + 15) / 16, padded = (in + 31) / 32 * 32, pairs = (panels + 1) / 2;
    auto* rounded = new std::uint16_t[rows * padded];
    round_rows(x, x_stride, rounded, rows, in, padded);
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

// Products with packed weights. An output is one chain of multiply-adds over k in order, whatever the number of rows
// and whoever computes it: tiles only decide what is computed side by side.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

// A tile of ROWS rows and PANELS panels.
template <int ROWS, int PANELS>
PLAIT_INLINE void tile_f32(const float* x, long x_stride, const float* w, long in, float* y, long out, long column) {
    Vec acc[ROWS][PANELS];
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PANELS; ++p) acc[r][p] = set1(0.0f);
    for (long k = 0; k < in; ++k) {
        Vec b[PANELS];
        for (int p = 0; p < PANELS; ++p) b[p] = load(w + (p * in + k) * LANES);
        for (int r = 0; r < ROWS; ++r) {
            Vec a = set1(x[r * x_stride + k]);
            for (int p = 0; p < PANELS; ++p) acc[r][p] = fma(a, b[p], acc[r][p]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PANELS; ++p) {
            long at = column + p * LANES;
            if (at + LANES <= out) store(y + r * out + at, acc[r][p]);
            else if (at < out) store_n(y + r * out + at, acc[r][p], int(out - at));
        }
}

template <int ROWS, int PANELS>
PLAIT_INLINE void tile_pairs(const std::uint16_t* x, long padded, const std::uint16_t* w, float* y, long out,
                             long column) {
    Vec acc[ROWS][PANELS];
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PANELS; ++p) acc[r][p] = set1(0.0f);
    for (long k = 0; k < padded; k += 2) {
        for (int p = 0; p < PANELS; ++p) {
            const std::uint16_t* pair = w + (p * padded + k) * LANES;
            Vec low = low_halves(pair), high = high_halves(pair);
            for (int r = 0; r < ROWS; ++r) {
                std::uint32_t a = std::uint32_t(x[r * padded + k]) << 16, b = std::uint32_t(x[r * padded + k + 1]) << 16;
                float first, second;
                std::memcpy(&first, &a, sizeof a);
                std::memcpy(&second, &b, sizeof b);
                acc[r][p] = fma(set1(first), low, acc[r][p]);
                acc[r][p] = fma(set1(second), high, acc[r][p]);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PANELS; ++p) {
            long at = column + p * LANES;
            if (at + LANES <= out) store(y + r * out + at, acc[r][p]);
            else if (at < out) store_n(y + r * out + at, acc[r][p], int(out - at));
        }
}

#if defined(__AVX512F__)
constexpr int TALL = 12, WIDE = 2;
#else
constexpr int TALL = 3, WIDE = 1;
#endif
constexpr int FEW = 4;

static void linear_f32(const float* x, long x_stride, const float* w, float* y, long rows, long out, long in) {
    long panels = (out + LANES - 1) / LANES;
    // Few rows: groups of panels are read side by side. Many: a group of panels stays in the cache for all rows.
    long group = rows < TALL ? FEW : WIDE;
#pragma omp parallel for schedule(static)
    for (long g = 0; g < (panels + group - 1) / group; ++g) {
        long first = g * group, stop = smaller(first + group, panels);
        long row = 0;
        for (; row + TALL <= rows; row += TALL) {
            long p = first;
            for (; p + WIDE <= stop; p += WIDE)
                tile_f32<TALL, WIDE>(x + row * x_stride, x_stride, w + p * in * LANES, in, y + row * out, out, p * LANES);
            for (; p < stop; ++p)
                tile_f32<TALL, 1>(x + row * x_stride, x_stride, w + p * in * LANES, in, y + row * out, out, p * LANES);
        }
        for (; row + 3 <= rows; row += 3) {
            for (long p = first; p < stop; ++p)
                tile_f32<3, 1>(x + row * x_stride, x_stride, w + p * in * LANES, in, y + row * out, out, p * LANES);
        }
        for (; row < rows; ++row) {
            long p = first;
            if (p + FEW <= stop) {
                tile_f32<1, FEW>(x + row * x_stride, x_stride, w + p * in * LANES, in, y + row * out, out, p * LANES);
                p += FEW;
            }
            for (; p < stop; ++p)
                tile_f32<1, 1>(x + row * x_stride, x_stride, w + p * in * LANES, in, y + row * out, out, p * LANES);
        }
    }
}

static void linear_bf16(const float* x, long x_stride, const std::uint16_t* w, float* y, long rows, long out, long in) {
    long panels = (out + LANES - 1) / LANES, padded = (in + 31) / 32 * 32;
    auto* rounded = new std::uint16_t[rows * padded];
    plait::round_rows(x, x_stride, rounded, rows, in, padded);
#pragma omp parallel for schedule(static)
    for (long p = 0; p < panels; ++p) {
        long row = 0;
        for (; row + TALL <= rows; row += TALL)
            tile_pairs<TALL, 1>(rounded + row * padded, padded, w + p * padded * LANES, y + row * out, out, p * LANES);
        for (; row < rows; ++row)
            tile_pairs<1, 1>(rounded + row * padded, padded, w + p * padded * LANES, y + row * out, out, p * LANES);
    }
    delete[] rounded;
}

}  // namespace PLAIT_LEVEL

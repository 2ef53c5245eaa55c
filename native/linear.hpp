// Products with packed weights. An output is one chain of multiply-adds over k in order, whatever the number of rows
// and whoever computes it: tiles only decide what is computed side by side.
#pragma once

#include "activate.hpp"
#include "kernels.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

#if defined(__AVX512F__)
constexpr int TALL = 12, WIDE = 2;
#else
constexpr int TALL = 3, WIDE = 2;
#endif
constexpr int FEW = 4;

// A tile's outputs go to their place: columns of panel `panel` on, or of gate products those of half as many panels.
template <class Weight, int ROWS, int PANELS>
PLAIT_INLINE void put(const plait::Product<Weight>& p, Vec (&acc)[ROWS][PANELS], long row, long panel) {
    int step = p.gated ? 2 : 1;
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < PANELS; c += step) {
            long at = (panel + c) / step * LANES;
            if (at >= p.out) continue;
            Vec made = acc[r][c];
            if (p.gated && c + 1 < PANELS) made = mul(activate(p.activation, made), acc[r][c + 1]);
            float* to = p.y + (row + r) * p.y_stride + at;
            if (at + LANES <= p.out) store(to, made);
            else store_n(to, made, int(p.out - at));
        }
}

// A tile of ROWS rows and PANELS panels.
template <int ROWS, int PANELS>
PLAIT_INLINE void tile(const plait::Product<float>& p, long row, long panel) {
    Vec acc[ROWS][PANELS];
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < PANELS; ++c) acc[r][c] = set1(0.0f);
    const float* x = p.x + row * p.x_stride;
    const float* w = p.w + panel * p.in * LANES;
    for (long k = 0; k < p.in; ++k) {
        Vec b[PANELS];
        for (int c = 0; c < PANELS; ++c) b[c] = load(w + (c * p.in + k) * LANES);
        for (int r = 0; r < ROWS; ++r) {
            Vec a = set1(x[r * p.x_stride + k]);
            for (int c = 0; c < PANELS; ++c) acc[r][c] = fma(a, b[c], acc[r][c]);
        }
    }
    put<float, ROWS, PANELS>(p, acc, row, panel);
}

PLAIT_INLINE float from_bf16(std::uint16_t bits) {
    std::uint32_t wide = std::uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
}

// The same over pairs of columns; `rounded` are the rows as bf16, `padded` apart.
template <int ROWS, int PANELS>
PLAIT_INLINE void tile(const plait::Product<std::uint16_t>& p, const std::uint16_t* rounded, long padded, long row,
                       long panel) {
    Vec acc[ROWS][PANELS];
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < PANELS; ++c) acc[r][c] = set1(0.0f);
    const std::uint16_t* x = rounded + row * padded;
    for (long k = 0; k < padded; k += 2)
        for (int c = 0; c < PANELS; ++c) {
            const std::uint16_t* pair = p.w + ((panel + c) * padded + k) * LANES;
            Vec low = low_halves(pair), high = high_halves(pair);
            for (int r = 0; r < ROWS; ++r) {
                acc[r][c] = fma(set1(from_bf16(x[r * padded + k])), low, acc[r][c]);
                acc[r][c] = fma(set1(from_bf16(x[r * padded + k + 1])), high, acc[r][c]);
            }
        }
    put<std::uint16_t, ROWS, PANELS>(p, acc, row, panel);
}

PLAIT_INLINE long panels_of(long out, bool gated) { return (out + LANES - 1) / LANES * (gated ? 2 : 1); }

static void linear_f32(const plait::Product<float>& p) {
    long panels = panels_of(p.out, p.gated);
    // Few rows: groups of panels are read side by side. Many: a group of panels stays in the cache for all rows.
    long group = p.rows < TALL ? FEW : WIDE;
#pragma omp parallel for schedule(static)
    for (long g = 0; g < (panels + group - 1) / group; ++g) {
        long first = g * group, stop = smaller(first + group, panels), row = 0;
        for (; row + TALL <= p.rows; row += TALL) {
            long c = first;
            for (; c + WIDE <= stop; c += WIDE) tile<TALL, WIDE>(p, row, c);
            for (; c < stop; ++c) tile<TALL, 1>(p, row, c);
        }
        for (; row < p.rows; ++row) {
            long c = first;
            for (; c + FEW <= stop; c += FEW) tile<1, FEW>(p, row, c);
            for (; c + 2 <= stop; c += 2) tile<1, 2>(p, row, c);
            for (; c < stop; ++c) tile<1, 1>(p, row, c);
        }
    }
}

static void linear_bf16(const plait::Product<std::uint16_t>& p) {
    long panels = panels_of(p.out, p.gated), padded = (p.in + 31) / 32 * 32;
    auto* rounded = new std::uint16_t[p.rows * padded];
    plait::round_rows(p.x, p.x_stride, rounded, p.rows, p.in, padded);
#pragma omp parallel for schedule(static)
    for (long g = 0; g < (panels + 1) / 2; ++g) {
        long first = g * 2, row = 0;
        bool two = first + 2 <= panels;
        for (; row + TALL <= p.rows; row += TALL)
            two ? tile<TALL, 2>(p, rounded, padded, row, first) : tile<TALL, 1>(p, rounded, padded, row, first);
        for (; row < p.rows; ++row)
            two ? tile<1, 2>(p, rounded, padded, row, first) : tile<1, 1>(p, rounded, padded, row, first);
    }
    delete[] rounded;
}

}  // namespace PLAIT_LEVEL

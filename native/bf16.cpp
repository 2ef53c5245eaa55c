// linear_bf16 with the processor's own products of bf16 pairs (AVX-512 BF16).
#include <immintrin.h>

#include "linear.hpp"

namespace plait {

namespace {

using PLAIT_LEVEL::FEW;
using PLAIT_LEVEL::TALL;
using PLAIT_LEVEL::WIDE;

template <int ROWS, int PANELS>
PLAIT_INLINE void tile(const Product<std::uint16_t>& p, const std::uint16_t* rounded, long padded, long row,
                       long panel) {
    __m512 acc[ROWS][PANELS];
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < PANELS; ++c) acc[r][c] = _mm512_setzero_ps();
    const std::uint16_t* x = rounded + row * padded;
    const std::uint16_t* w = p.w + panel * padded * 16;
    for (long k = 0; k < padded; k += 2) {
        __m512bh b[PANELS];
        for (int c = 0; c < PANELS; ++c) b[c] = (__m512bh)_mm512_loadu_si512(w + (c * padded + k) * 16);
        for (int r = 0; r < ROWS; ++r) {
            int pair;
            __builtin_memcpy(&pair, x + r * padded + k, sizeof pair);
            __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
            for (int c = 0; c < PANELS; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], a, b[c]);
        }
    }
    PLAIT_LEVEL::Vec made[ROWS][PANELS];
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < PANELS; ++c) made[r][c] = {acc[r][c]};
    PLAIT_LEVEL::put<std::uint16_t, ROWS, PANELS>(p, made, row, panel);
}

}  // namespace

void linear_bf16_avx512bf16(const Product<std::uint16_t>& p) {
    long panels = PLAIT_LEVEL::panels_of(p.out, p.gated), padded = (p.in + 31) / 32 * 32;
    long group = p.rows < TALL ? FEW : WIDE;
    auto* rounded = new std::uint16_t[p.rows * padded];
    round_rows(p.x, p.x_stride, rounded, p.rows, p.in, padded);
#pragma omp parallel for schedule(static)
    for (long g = 0; g < (panels + group - 1) / group; ++g) {
        long first = g * group, stop = PLAIT_LEVEL::smaller(first + group, panels), row = 0;
        for (; row + TALL <= p.rows; row += TALL) {
            long c = first;
            for (; c + WIDE <= stop; c += WIDE) tile<TALL, WIDE>(p, rounded, padded, row, c);
            for (; c < stop; ++c) tile<TALL, 1>(p, rounded, padded, row, c);
        }
        for (; row < p.rows; ++row) {
            long c = first;
            for (; c + FEW <= stop; c += FEW) tile<1, FEW>(p, rounded, padded, row, c);
            for (; c + 2 <= stop; c += 2) tile<1, 2>(p, rounded, padded, row, c);
            for (; c < stop; ++c) tile<1, 1>(p, rounded, padded, row, c);
        }
    }
    delete[] rounded;
}

}  // namespace plait

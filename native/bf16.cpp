// linear_bf16 with the processor's own products of bf16 pairs (AVX-512 BF16).
#include <immintrin.h>

#include "kernels.hpp"

namespace plait {

namespace {

template <int ROWS, int PANELS>
inline __attribute__((always_inline)) void tile(const std::uint16_t* x, long padded, const std::uint16_t* w, float* y,
                                                long out, long column) {
    __m512 acc[ROWS][PANELS];
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PANELS; ++p) acc[r][p] = _mm512_setzero_ps();
    for (long k = 0; k < padded; k += 2) {
        __m512bh b[PANELS];
        for (int p = 0; p < PANELS; ++p) b[p] = (__m512bh)_mm512_loadu_si512(w + (p * padded + k) * 16);
        for (int r = 0; r < ROWS; ++r) {
            int pair;
            __builtin_memcpy(&pair, x + r * padded + k, sizeof pair);
            __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
            for (int p = 0; p < PANELS; ++p) acc[r][p] = _mm512_dpbf16_ps(acc[r][p], a, b[p]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PANELS; ++p) {
            long at = column + p * 16;
            if (at >= out) continue;
            __mmask16 there = at + 16 <= out ? __mmask16(0xffff) : __mmask16((1u << (out - at)) - 1);
            _mm512_mask_storeu_ps(y + r * out + at, there, acc[r][p]);
        }
}

constexpr long TALL = 12, WIDE = 2, FEW = 4;

}  // namespace

void linear_bf16_avx512bf16(const float* x, long x_stride, const std::uint16_t* w, float* y, long rows, long out,
                            long in) {
    long panels = (out + 15) / 16, padded = (in + 31) / 32 * 32, group = rows < TALL ? FEW : WIDE;
    auto* rounded = new std::uint16_t[rows * padded];
    round_rows(x, x_stride, rounded, rows, in, padded);
#pragma omp parallel for schedule(static)
    for (long g = 0; g < (panels + group - 1) / group; ++g) {
        long first = g * group, stop = first + group < panels ? first + group : panels;
        long row = 0;
        for (; row + TALL <= rows; row += TALL) {
            long p = first;
            for (; p + WIDE <= stop; p += WIDE)
                tile<TALL, WIDE>(rounded + row * padded, padded, w + p * padded * 16, y + row * out, out, p * 16);
            for (; p < stop; ++p)
                tile<TALL, 1>(rounded + row * padded, padded, w + p * padded * 16, y + row * out, out, p * 16);
        }
        for (; row < rows; ++row) {
            long p = first;
            if (p + FEW <= stop) {
                tile<1, FEW>(rounded + row * padded, padded, w + p * padded * 16, y + row * out, out, p * 16);
                p += FEW;
            }
            for (; p < stop; ++p)
                tile<1, 1>(rounded + row * padded, padded, w + p * padded * 16, y + row * out, out, p * 16);
        }
    }
    delete[] rounded;
}

}  // namespace plait

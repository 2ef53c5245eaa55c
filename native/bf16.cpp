// linear_bf16 with the processor's own products of bf16 pairs (AVX-512 BF16).
#include <immintrin.h>

#include "linear.hpp"

namespace plait {

namespace {

using PLAIT_LEVEL::FEW;
using PLAIT_LEVEL::FEW_ROWS;
using PLAIT_LEVEL::finish;
using PLAIT_LEVEL::LANES;
using PLAIT_LEVEL::Memory;
using PLAIT_LEVEL::Part;
using PLAIT_LEVEL::Share;
using PLAIT_LEVEL::smaller;
using PLAIT_LEVEL::TALL;

// Sums of ROWS rows and PANELS panels go on over pairs of columns; x [pairs][ROWS].
template <int ROWS, int PANELS>
void tile(const int* x, const std::uint16_t* w, long panel_step, long pairs, float* made, bool begin) {
    __m512 acc[ROWS][PANELS];
    PLAIT_UNROLL for (int r = 0; r < ROWS; ++r)
        PLAIT_UNROLL for (int c = 0; c < PANELS; ++c)
            acc[r][c] = begin ? _mm512_setzero_ps() : _mm512_loadu_ps(made + (r * PANELS + c) * LANES);
    for (long k = 0; k < pairs; ++k) {
        __m512bh b[PANELS];
        PLAIT_UNROLL for (int c = 0; c < PANELS; ++c)
            b[c] = (__m512bh)_mm512_loadu_si512(w + c * panel_step + k * 2 * LANES);
        PLAIT_UNROLL for (int r = 0; r < ROWS; ++r) {
            __m512bh a = (__m512bh)_mm512_set1_epi32(x[k * ROWS + r]);
            PLAIT_UNROLL for (int c = 0; c < PANELS; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], a, b[c]);
        }
    }
    PLAIT_UNROLL for (int r = 0; r < ROWS; ++r)
        PLAIT_UNROLL for (int c = 0; c < PANELS; ++c) _mm512_storeu_ps(made + (r * PANELS + c) * LANES, acc[r][c]);
}

template <int PANELS, int ROWS>
void tile_of(long rows, const int* x, const std::uint16_t* w, long panel_step, long pairs, float* made, bool begin) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return tile_of<PANELS, ROWS - 1>(rows, x, w, panel_step, pairs, made, begin);
    tile<ROWS, PANELS>(x, w, panel_step, pairs, made, begin);
}

// Up to FEW_ROWS rows: four panels are read side by side.
template <int PANELS>
struct Pairs {
    static constexpr long STRIP = TALL, WIDE = PANELS, SUMS = TALL * PANELS * LANES;
    const Product<std::uint16_t>& p;
    const int* x;
    long padded;

    void prepare(const Part&) {}

    template <int WIDTH>
    void some(const Part& part, long panel) {
        constexpr int ROWS = WIDTH > 2 ? FEW_ROWS : TALL;
        const std::uint16_t* w = p.w + (panel * padded + part.from) * LANES;
        const int* strip = x + (part.row * padded + part.from * part.rows) / 2;
        tile_of<WIDTH, ROWS>(part.rows, strip, w, padded * LANES, (part.stop - part.from) / 2, part.sums, part.begin);
        if (part.end) finish(p, part.sums, WIDTH * LANES, LANES, part.row, part.rows, panel, WIDTH);
    }

    void tile(const Part& part) {
        if (part.panels == PANELS) return some<PANELS>(part, part.panel);
        // Fewer are left over: never with sums of earlier columns, for then tiles are two panels wide.
        long c = 0;
        if constexpr (PANELS > 2)
            for (; c + 2 <= part.panels; c += 2) some<2>(part, part.panel + c);
        if (c < part.panels) some<1>(part, part.panel + c);
    }
};

void lay_strip(const float* x, long x_stride, long rows, long in, long padded, std::uint16_t* to) {
    for (long r = 0; r < rows; ++r)
        for (long k = 0; k < padded; ++k)
            to[(k / 2 * rows + r) * 2 + k % 2] = k < in ? to_bf16(x[r * x_stride + k]) : std::uint16_t(0);
}

}  // namespace

void linear_bf16_avx512bf16(const Product<std::uint16_t>& p) {
    // Two products of the planes of x would take longer than floats do.
    if (p.exact) return avx512_kernels.linear_bf16(p);
    long panels = PLAIT_LEVEL::panels_of(p.out, p.gated), padded = (p.in + 31) / 32 * 32;
    long strips = (p.rows + TALL - 1) / TALL;
    Memory<int> laid(p.rows * padded / 2);
#pragma omp parallel if (p.rows * panels * LANES * p.in > PLAIT_LEVEL::ALONE)
    {
#pragma omp for schedule(static)
        for (long s = 0; s < strips; ++s)
            lay_strip(p.x + s * TALL * p.x_stride, p.x_stride, smaller(TALL, p.rows - s * TALL), p.in, padded,
                      reinterpret_cast<std::uint16_t*>(laid.data() + s * TALL * padded / 2));
        if (p.rows <= FEW_ROWS) {
            Pairs<FEW> body{p, laid.data(), padded};
            walk(body, Share(panels, FEW), p.rows, padded);
        } else {
            Pairs<2> body{p, laid.data(), padded};
            walk(body, Share(panels, 2), p.rows, padded);
        }
    }
}

}  // namespace plait

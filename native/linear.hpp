// Products with packed weights. An output is one chain of multiply-adds over k in order, whatever the number of rows
// and whoever computes it: tiles only decide what is computed side by side.
#pragma once

#include "activate.hpp"
#include "halves.hpp"
#include "kernels.hpp"
#include "walk.hpp"

namespace PLAIT_LEVEL {

#if defined(__AVX512F__)
constexpr int TALL = 12, FEW_ROWS = 4;
#else
constexpr int TALL = 3, FEW_ROWS = 1;
#endif
// Panels read at once for up to FEW_ROWS rows; otherwise two.
constexpr int FEW = 4;

PLAIT_INLINE long panels_of(long out, bool gated) { return (out + LANES - 1) / LANES * (gated ? 2 : 1); }

// A tile's sums go to their place: `made` holds rows of 16, `row_step` apart, and the next panel's `panel_step` on. Of
// gate products a gate and its up make one column of outputs.
template <class Weight>
static void finish(const plait::Product<Weight>& p, const float* made, long row_step, long panel_step, long row,
                   long rows, long panel, long panels) {
    long step = p.gated ? 2 : 1;
    for (long c = 0; c < panels; c += step) {
        long column = (panel + c) / step * LANES, width = smaller(LANES, p.out - column);
        if (width <= 0) return;
        for (long r = 0; r < rows; ++r) {
            const float* from = made + r * row_step + c * panel_step;
            Vec value = load(from);
            if (p.gated) value = mul(activate(p.activation, value), load(from + panel_step));
            float* to = p.y + (row + r) * p.y_stride + column;
            if (width == LANES) store(to, value);
            else store_n(to, value, int(width));
        }
    }
}

// How weights are stored: sixteen of column k and of k + 1 as floats. Panels hold an even number of columns.
struct F32 {
    using Weight = float;
    PLAIT_INLINE void pair(const float* w, Vec& a, Vec& b) {
        a = load(w);
        b = load(w + LANES);
    }
};
struct F16 {
    using Weight = std::uint16_t;
    PLAIT_INLINE void pair(const std::uint16_t* w, Vec& a, Vec& b) {
        a = load_f16(w);
        b = load_f16(w + LANES);
    }
};
struct Bf16 {
    using Weight = std::uint16_t;
    PLAIT_INLINE void pair(const std::uint16_t* w, Vec& a, Vec& b) {
        a = low_halves(w);
        b = high_halves(w);
    }
};

// Sums of ROWS rows and PANELS panels, `made` [ROWS][PANELS][16], go on over `columns` columns; x [columns][ROWS]. Of
// every two columns a line from `next` on is called for.
template <class Source, int ROWS, int PANELS>
static void tile(const float* x, const typename Source::Weight* w, long panel_step, long columns, float* made,
                 bool begin, const char* next) {
    Vec acc[ROWS][PANELS];
    PLAIT_UNROLL for (int r = 0; r < ROWS; ++r)
        PLAIT_UNROLL for (int c = 0; c < PANELS; ++c)
            acc[r][c] = begin ? set1(0.0f) : load(made + (r * PANELS + c) * LANES);
    if (next == nullptr) next = reinterpret_cast<const char*>(x);
    for (long k = 0; k < columns; k += 2) {
        __builtin_prefetch(next + k * 32, 0, 2);
        Vec w_k[2][PANELS];
        PLAIT_UNROLL for (int c = 0; c < PANELS; ++c)
            Source::pair(w + c * panel_step + k * LANES, w_k[0][c], w_k[1][c]);
        PLAIT_UNROLL for (int j = 0; j < 2; ++j)
            PLAIT_UNROLL for (int r = 0; r < ROWS; ++r) {
                Vec x_k = set1(x[(k + j) * ROWS + r]);
                PLAIT_UNROLL for (int c = 0; c < PANELS; ++c) acc[r][c] = fma(x_k, w_k[j][c], acc[r][c]);
            }
    }
    PLAIT_UNROLL for (int r = 0; r < ROWS; ++r)
        PLAIT_UNROLL for (int c = 0; c < PANELS; ++c) store(made + (r * PANELS + c) * LANES, acc[r][c]);
}

template <class Source, int PANELS, int ROWS>
PLAIT_INLINE void tile_of(long rows, const float* x, const typename Source::Weight* w, long panel_step, long columns,
                          float* made, bool begin, const char* next) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return tile_of<Source, PANELS, ROWS - 1>(rows, x, w, panel_step, columns, made, begin, next);
    tile<Source, ROWS, PANELS>(x, w, panel_step, columns, made, begin, next);
}

// Rows side by side: [strip][padded][TALL], the last strip as narrow as it has rows; rounded to bf16 where asked.
static void lay_strip(const float* x, long x_stride, long rows, long in, long padded, bool rounded, float* to) {
    for (long r = 0; r < rows; ++r)
        for (long k = 0; k < in; ++k) to[k * rows + r] = x[r * x_stride + k];
    for (long i = in * rows; i < padded * rows; ++i) to[i] = 0.0f;
    if (rounded)
        for (long i = 0; i < in * rows; ++i) to[i] = plait::from_bf16(plait::to_bf16(to[i]));
}

// One strip of rows: weights are read as they are stored, many panels at once for the memory's sake.
template <class Source>
struct Few {
    using Weight = typename Source::Weight;
    static constexpr long STRIP = TALL, WIDE = FEW, SUMS = TALL * 2 * LANES;
    const plait::Product<Weight>& p;
    const float* x;
    long padded;

    void prepare(const Part&) {}

    template <int PANELS, int ROWS>
    void some(const Part& part, long panel) {
        const Weight* w = p.w + (panel * padded + part.from) * LANES;
        const float* strip = x + part.row * padded + part.from * part.rows;
        tile_of<Source, PANELS, ROWS>(part.rows, strip, w, padded * LANES, part.stop - part.from, part.sums, true, nullptr);
        finish(p, part.sums, PANELS * LANES, LANES, part.row, part.rows, panel, PANELS);
    }

    void tile(const Part& part) {
        if (part.panels == FEW && part.rows <= FEW_ROWS) return some<FEW, FEW_ROWS>(part, part.panel);
        long c = 0;
        for (; c + 2 <= part.panels; c += 2) some<2, TALL>(part, part.panel + c);
        if (c < part.panels) some<1, TALL>(part, part.panel + c);
    }
};

// Many strips: the weights of a block are widened to floats once for all of them.
template <class Source>
struct Many {
    using Weight = typename Source::Weight;
    static constexpr long STRIP = TALL, WIDE = 2, SUMS = TALL * WIDE * LANES, STEP = COLUMN_BLOCK * LANES;
    const plait::Product<Weight>& p;
    const float* x;
    long padded;
    float* widened;  // [WIDE][COLUMN_BLOCK][16]

    void prepare(const Part& part) {
        for (long c = 0; c < part.panels; ++c)
            for (long k = 0; k < part.stop - part.from; k += 2) {
                Vec a, b;
                Source::pair(p.w + ((part.panel + c) * padded + part.from + k) * LANES, a, b);
                store(widened + c * STEP + k * LANES, a);
                store(widened + c * STEP + (k + 1) * LANES, b);
            }
    }

    void tile(const Part& part) {
        const float* strip = x + part.row * padded + part.from * part.rows;
        long columns = part.stop - part.from;
        const char* next = ahead(part, p.w, padded, columns / 2);
        auto run = part.panels == 2 ? tile_of<F32, 2, TALL> : tile_of<F32, 1, TALL>;
        run(part.rows, strip, widened, STEP, columns, part.sums, part.begin, next);
        if (part.end) finish(p, part.sums, part.panels * LANES, LANES, part.row, part.rows, part.panel, part.panels);
    }
};

// `multiple`: columns are padded to it.
template <class Source>
PLAIT_INLINE void product(const plait::Product<typename Source::Weight>& p, long multiple, bool rounded) {
    long padded = (p.in + multiple - 1) / multiple * multiple, panels = panels_of(p.out, p.gated);
    long strips = (p.rows + TALL - 1) / TALL;
    Memory<float> laid(p.rows * padded);
#pragma omp parallel if (p.rows * panels * LANES * p.in > ALONE)
    {
#pragma omp for schedule(static)
        for (long s = 0; s < strips; ++s)
            lay_strip(p.x + s * TALL * p.x_stride, p.x_stride, smaller(TALL, p.rows - s * TALL), p.in, padded, rounded,
                      laid.data() + s * TALL * padded);
        if (strips == 1) {
            Few<Source> body{p, laid.data(), padded};
            walk(body, Share(panels, FEW), p.rows, padded);
        } else {
            Memory<float> widened(2 * COLUMN_BLOCK * LANES);
            Many<Source> body{p, laid.data(), padded, widened.data()};
            walk(body, Share(panels, 2), p.rows, padded);
        }
    }
}

static void linear_f32(const plait::Product<float>& p) { product<F32>(p, 2, false); }
static void linear_f16(const plait::Product<std::uint16_t>& p) { product<F16>(p, 2, false); }
static void linear_bf16(const plait::Product<std::uint16_t>& p) { product<Bf16>(p, 32, !p.exact); }

}  // namespace PLAIT_LEVEL

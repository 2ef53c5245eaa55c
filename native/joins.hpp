// What stands between products: gates of heads, additions to the stream with their norms, caps. Each row by itself.
#pragma once

#include "activate.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "rows.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

PLAIT_INLINE void gate_one(const plait::HeadGate& g, const float* from, const float* gate, float* to) {
    if (g.normed) {
        norm_one(from, g.weight, g.eps, to, g.width);
        from = to;
    }
    float first[LANES] = {};
    if (g.per_head) {
        first[0] = gate[0];
        store(first, activate(g.activation, load(first)));
    }
    for (long i = 0; i < g.width; i += LANES) {
        long n = g.width - i;
        Vec factor = g.per_head ? set1(first[0]) : activate(g.activation, load_upto(gate + i, n));
        store_upto(to + i, mul(load_upto(from + i, n), factor), n);
    }
}

static void gate_heads(const plait::HeadGate& g) {
#pragma omp parallel for schedule(static) if (g.rows * g.heads * g.width >= SMALL)
    for (long item = 0; item < g.rows * g.heads; ++item) {
        long r = item / g.heads, h = item % g.heads;
        gate_one(g, g.x + r * g.x_stride + h * g.width, g.gate + r * g.gate_stride + (g.per_head ? h : h * g.width),
                 g.y + item * g.width);
    }
}

static void join_rows(const plait::Join& j) {
#pragma omp parallel if (j.rows * j.width >= SMALL)
    {
        Memory<float> held(j.y_normed ? j.width : 1);
#pragma omp for schedule(static)
        for (long r = 0; r < j.rows; ++r) {
            const float* y = j.y + r * j.y_stride;
            float* h = j.h + r * j.width;
            if (j.y_normed) {
                norm_one(y, j.y_weight, j.y_eps, held.data(), j.width);
                y = held.data();
            }
            for (long i = 0; i < j.width; i += LANES) {
                long n = j.width - i;
                store_upto(h + i, add(load_upto(h + i, n), load_upto(y + i, n)), n);
            }
            if (j.out != nullptr) norm_one(h, j.weight, j.eps, j.out + r * j.width, j.width);
        }
    }
}

static void softcap(const float* x, float* y, long rows, long width, float cap) {
    // Shares of whole vectors, so that an element is computed alike wherever a share ends.
    long vecs = (width + LANES - 1) / LANES;
#pragma omp parallel for schedule(static) if (rows * width >= SMALL)
    for (long item = 0; item < rows * vecs; ++item) {
        long i = item % vecs * LANES;
        long at = item / vecs * width + i;
        long n = width - i;
        store_upto(y + at, mul(tanh(div(load_upto(x + at, n), set1(cap))), set1(cap)), n);
    }
}

}  // namespace PLAIT_LEVEL

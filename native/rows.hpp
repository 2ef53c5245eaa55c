// Norms and gates: each row by itself.
#pragma once

#include "activate.hpp"
#include "kernels.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

// Loops over fewer elements than this stay on one thread.
constexpr long SMALL = 16384;

// One vector scaled to a mean square of 1, times a weight.
PLAIT_INLINE void norm_one(const float* from, const float* factor, float eps, float* to, long width) {
    Vec squares = set1(0.0f);
    long i = 0;
    for (; i + LANES <= width; i += LANES) squares = fma(load(from + i), load(from + i), squares);
    if (i < width) {
        Vec rest = load_n(from + i, int(width - i));
        squares = fma(rest, rest, squares);
    }
    Vec scale = set1(1.0f / std::sqrt(sum(squares) / float(width) + eps));
    for (i = 0; i + LANES <= width; i += LANES) {
        Vec made = mul(load(from + i), scale);
        store(to + i, factor == nullptr ? made : mul(made, load(factor + i)));
    }
    if (i < width) {
        int n = int(width - i);
        Vec made = mul(load_n(from + i, n), scale);
        store_n(to + i, factor == nullptr ? made : mul(made, load_n(factor + i, n)), n);
    }
}

static void rms_norm(const float* x, long x_stride, const float* weight, float eps, float* y, long rows, long groups,
                     long width) {
#pragma omp parallel for schedule(static) if (rows * groups * width >= SMALL)
    for (long r = 0; r < rows; ++r)
        for (long g = 0; g < groups; ++g)
            norm_one(x + r * x_stride + g * width, weight == nullptr ? nullptr : weight + g * width, eps,
                     y + (r * groups + g) * width, width);
}

// Pairs (first[i], second[i]) turned by their angles.
PLAIT_INLINE void turn_halves(float* first, float* second, const float* cosine, const float* sine, long pairs) {
    for (long i = 0; i < pairs; i += LANES) {
        int n = int(smaller(LANES, pairs - i));
        Vec a = load_n(first + i, n), b = load_n(second + i, n), c = load_n(cosine + i, n), s = load_n(sine + i, n);
        store_n(first + i, sub(mul(a, c), mul(b, s)), n);
        store_n(second + i, add(mul(b, c), mul(a, s)), n);
    }
}

static void heads(const plait::Heads& h) {
#pragma omp parallel for schedule(static) if (h.rows * h.groups * h.width >= SMALL)
    for (long r = 0; r < h.rows; ++r) {
        const float* cosine = h.cosine + r * h.pairs;
        const float* sine = h.sine + r * h.pairs;
        for (long g = 0; g < h.groups; ++g) {
            const float* from = h.x + r * h.x_stride + g * h.x_apart;
            float* to = h.y + (r * h.groups + g) * h.width;
            if (h.weight != nullptr) norm_one(from, h.weight + g * h.width, h.eps, to, h.width);
            else std::memcpy(to, from, sizeof(float) * h.width);
            if (!h.adjacent) {
                turn_halves(to + h.start, to + h.start + h.distance, cosine, sine, h.pairs);
                continue;
            }
            for (long i = 0; i < h.pairs; ++i) {
                float a = to[h.start + 2 * i], b = to[h.start + 2 * i + 1];
                to[h.start + 2 * i] = a * cosine[i] - b * sine[i];
                to[h.start + 2 * i + 1] = b * cosine[i] + a * sine[i];
            }
        }
    }
}

static void gated(plait::Activation activation, const float* x, long x_stride, float* y, long rows, long width) {
#pragma omp parallel for schedule(static) if (rows * width >= SMALL)
    for (long r = 0; r < rows; ++r) {
        const float* gate = x + r * x_stride;
        const float* up = gate + width;
        float* to = y + r * width;
        long i = 0;
        for (; i + LANES <= width; i += LANES) store(to + i, mul(activate(activation, load(gate + i)), load(up + i)));
        if (i < width) {
            int n = int(width - i);
            store_n(to + i, mul(activate(activation, load_n(gate + i, n)), load_n(up + i, n)), n);
        }
    }
}

}  // namespace PLAIT_LEVEL

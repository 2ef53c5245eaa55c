// Norms and gates: each row by itself.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

// Loops over fewer elements than this stay on one thread.
constexpr long SMALL = 16384;

static void rms_norm(const float* x, long x_stride, const float* weight, float eps, float* y, long rows, long groups,
                     long width) {
#pragma omp parallel for schedule(static) if (rows * groups * width >= SMALL)
    for (long r = 0; r < rows; ++r) {
        for (long g = 0; g < groups; ++g) {
            const float* from = x + r * x_stride + g * width;
            const float* factor = weight == nullptr ? nullptr : weight + g * width;
            float* to = y + (r * groups + g) * width;
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
    }
}

PLAIT_INLINE Vec activate(plait::Activation activation, Vec x) {
    switch (activation) {
        case plait::Activation::silu:
            return mul(x, sigmoid(x));
        case plait::Activation::sigmoid:
            return sigmoid(x);
        default:
            break;
    }
    // x (1 + tanh(u)) / 2 = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
    Vec cube = mul(mul(x, x), x);
    Vec u = mul(fma(cube, set1(0.044715f), x), set1(2.0f * 0.7978845608028654f));
    return mul(x, sigmoid(u));
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

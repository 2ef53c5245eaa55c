// Activations of sixteen numbers.
#pragma once

#include <initializer_list>

#include "kernels.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

// x (1 + erf(x / sqrt 2)) / 2. The complementary error function is the Chebyshev fit of Numerical Recipes, section 6.2,
// whose relative error is below 1.2e-7 everywhere: small values far out keep their digits.
PLAIT_INLINE Vec gelu(Vec x) {
    Vec z = mul(max(x, sub(set1(0.0f), x)), set1(0.70710678118654752f));
    Vec t = div(set1(1.0f), fma(z, set1(0.5f), set1(1.0f)));
    Vec p = set1(0.17087277f);
    for (float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
                    1.00002368f, -1.26551223f})
        p = fma(p, t, set1(c));
    Vec far = mul(t, exp(sub(p, mul(z, z))));
    Vec below = where_less(x, set1(0.0f), far, sub(set1(2.0f), far));
    return mul(mul(x, set1(0.5f)), below);
}

PLAIT_INLINE Vec activate(plait::Activation activation, Vec x) {
    switch (activation) {
        case plait::Activation::silu:
            return mul(x, sigmoid(x));
        case plait::Activation::sigmoid:
            return sigmoid(x);
        case plait::Activation::gelu:
            return gelu(x);
        default:
            break;
    }
    // x (1 + tanh(u)) / 2 = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
    Vec cube = mul(mul(x, x), x);
    Vec u = mul(fma(cube, set1(0.044715f), x), set1(2.0f * 0.7978845608028654f));
    return mul(x, sigmoid(u));
}

}  // namespace PLAIT_LEVEL

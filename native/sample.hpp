// What choosing a token reads of a row of logits. Sums run over pieces of fixed size and then over the pieces in order,
// so that they do not depend on the number of threads.
#pragma once

#include "kernels.hpp"
#include "memory.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

using plait::SUMMED;

constexpr long MANY = 32768;

// The largest of the numbers at `row` and, in `broken`, whether one is no number.
PLAIT_INLINE float highest_of(const float* row, long n, bool* broken) {
    constexpr float NONE = -__builtin_inff();
    Vec most = set1(NONE), none = set1(0.0f), zero = set1(0.0f), one = set1(1.0f);
    for (long i = 0; i < n; i += LANES) {
        float rest[LANES];
        Vec x;
        if (i + LANES <= n) {
            x = load(row + i);
        } else {
            for (int j = 0; j < LANES; ++j) rest[j] = i + j < n ? row[i + j] : NONE;
            x = load(rest);
        }
        most = max(x, most);
        // Neither below 0 nor above -1.
        none = max(none, where_less(x, zero, zero, where_less(set1(-1.0f), x, zero, one)));
    }
    *broken = highest(none) != 0.0f;
    return highest(most);
}

static void peak(const float* row, long n, plait::Peak* found) {
    long pieces = (n + SUMMED - 1) / SUMMED;
    Memory<float> most(pieces);
    Memory<bool> broken(pieces);
#pragma omp parallel for schedule(static) if (n >= MANY)
    for (long p = 0; p < pieces; ++p)
        most.data()[p] = highest_of(row + p * SUMMED, smaller(SUMMED, n - p * SUMMED), broken.data() + p);
    long best = 0;
    *found = {0, 0.0f, false};
    for (long p = 0; p < pieces; ++p) {
        found->broken = found->broken || broken.data()[p];
        if (most.data()[p] > most.data()[best]) best = p;
    }
    found->value = most.data()[best];
    for (found->index = best * SUMMED; !found->broken && row[found->index] != found->value;) ++found->index;
}

static double sum_exp(const float* row, long n, float peak) {
    long pieces = (n + SUMMED - 1) / SUMMED;
    Memory<float> sums(pieces);
#pragma omp parallel for schedule(static) if (n >= MANY)
    for (long p = 0; p < pieces; ++p) {
        const float* from = row + p * SUMMED;
        long count = smaller(SUMMED, n - p * SUMMED), i = 0;
        Vec total[4];
        for (int c = 0; c < 4; ++c) total[c] = set1(0.0f);
        for (; i + 4 * LANES <= count; i += 4 * LANES)
            for (int c = 0; c < 4; ++c) total[c] = add(total[c], exp(sub(load(from + i + c * LANES), set1(peak))));
        for (; i < count; i += LANES) {
            float rest[LANES];
            for (int j = 0; j < LANES; ++j) rest[j] = i + j < count ? from[i + j] : -__builtin_inff();
            total[0] = add(total[0], exp(sub(load(rest), set1(peak))));
        }
        sums.data()[p] = sum(add(add(total[0], total[1]), add(total[2], total[3])));
    }
    double whole = 0.0;
    for (long p = 0; p < pieces; ++p) whole += double(sums.data()[p]);
    return whole;
}

// most[g * 16 + lane]: the largest of the elements 16 t + lane, t in [g depth, (g + 1) depth). n: a multiple of 16 depth.
static void maxima(const float* row, long n, long depth, float* most) {
    long groups = n / (LANES * depth);
#pragma omp parallel for schedule(static) if (n >= MANY)
    for (long g = 0; g < groups; ++g) {
        Vec found = set1(-__builtin_inff());
        for (long t = 0; t < depth; ++t) found = max(load(row + (g * depth + t) * LANES), found);
        store(most + g * LANES, found);
    }
}

}  // namespace PLAIT_LEVEL

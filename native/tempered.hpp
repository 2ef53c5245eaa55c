// Sums of the weights of a row of logits, see weights.hpp, over pieces of fixed size and in a fixed order. Loops are plain,
// for the compiler to make vectors of: every level rounds alike.
#pragma once

#include "memory.hpp"
#include "sample.hpp"
#include "weights.hpp"

namespace PLAIT_LEVEL {

// Numbers whose weights are made at a time, and sums that run side by side.
constexpr long WEIGHED = 256, SUMS = 8;

static void masses(const plait::Tempered& t, const plait::Kept& kept, double* to) {
    long pieces = (t.n + SUMMED - 1) / SUMMED;
#pragma omp parallel for schedule(static) if (t.n >= MANY)
    for (long p = 0; p < pieces; ++p) {
        double sums[SUMS] = {};
        for (long low = p * SUMMED, stop = smaller(low + SUMMED, t.n); low < stop; low += WEIGHED) {
            double weights[WEIGHED];
            long count = smaller(WEIGHED, stop - low);
            for (long i = 0; i < count; ++i) {
                double x = t.row[low + i], weight = exp_below(above_peak(t, x));
                weights[i] = is_kept(kept, x, low + i, weight) ? weight : 0.0;
            }
            for (long i = count; i % SUMS != 0; ++i) weights[i] = 0.0;
            for (long i = 0; i < count; i += SUMS)
                for (long j = 0; j < SUMS; ++j) sums[j] += weights[i + j];
        }
        double whole = 0.0;
        for (long j = 0; j < SUMS; ++j) whole += sums[j];
        to[p] = whole;
    }
}

static void bucket_masses(const plait::Tempered& t, double* to) {
    // So many parts of the row have buckets of their own, however many threads there are.
    constexpr long PARTS = 8;
    Memory<double> own(PARTS * plait::BUCKETS);
    long size = (t.n + PARTS - 1) / PARTS;
#pragma omp parallel for schedule(static) if (t.n >= MANY)
    for (long part = 0; part < PARTS; ++part) {
        double* sums = own.data() + part * plait::BUCKETS;
        for (long i = 0; i < plait::BUCKETS; ++i) sums[i] = 0.0;
        for (long low = part * size, stop = smaller(low + size, t.n); low < stop; low += WEIGHED) {
            double weights[WEIGHED];
            std::int32_t buckets[WEIGHED];
            long count = smaller(WEIGHED, stop - low);
            for (long i = 0; i < count; ++i) {
                double x = t.row[low + i];
                weights[i] = exp_below(above_peak(t, x));
                buckets[i] = bucket_of(t, x);
            }
            for (long i = 0; i < count; ++i) sums[buckets[i]] += weights[i];
        }
    }
    for (long i = 0; i < plait::BUCKETS; ++i) {
        to[i] = 0.0;
        for (long part = 0; part < PARTS; ++part) to[i] += own.data()[part * plait::BUCKETS + i];
    }
}

// Indices of numbers in [lowest, highest], ascending; how many there are.
static long between(const float* row, long n, double lowest, double highest, std::int64_t* to) {
    long found = 0;
    for (long low = 0; low < n; low += WEIGHED) {
        long stop = smaller(low + WEIGHED, n);
        std::int32_t any = 0;
        for (long i = low; i < stop; ++i) any |= (row[i] >= lowest) & (row[i] <= highest);
        for (long i = low; any != 0 && i < stop; ++i)
            if (row[i] >= lowest && row[i] <= highest) to[found++] = i;
    }
    return found;
}

}  // namespace PLAIT_LEVEL

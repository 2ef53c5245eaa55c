// Short causal convolutions over the rows of many sequences; see ops/convolution.py.
#pragma once

#include "activate.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

// Channels a thread takes at a time: their inputs of a few rows stay in the cache.
constexpr long CHANNELS = 512;

// Channels [first, stop) of one sequence, whose first row is `row`. `before` [kernel - 1, CHANNELS] is scratch.
static void convolve(const plait::Convolution& c, const plait::Span& span, long row, long first, long stop,
                     float* before) {
    long kept = c.kernel - 1, width = stop - first;
    for (long i = 0; i < width; ++i)
        for (long j = 0; j < kept; ++j)
            before[j * CHANNELS + i] = span.now == nullptr ? 0.0f : span.now[(first + i) * kept + j];
    // Input t of the sequence, counted from its first row; those before it are negative.
    auto input = [&](long t) {
        return t < 0 ? before + (kept + t) * CHANNELS : c.x + (row + t) * c.x_stride + first;
    };
    for (long t = 0; t < span.rows; ++t) {
        float* y = c.y + (row + t) * c.channels + first;
        for (long i = 0; i < width; i += LANES) {
            int n = int(smaller(LANES, width - i));
            Vec made = mul(load_n(c.weight + first + i, n), load_n(input(t - kept) + i, n));
            for (long tap = 1; tap <= kept; ++tap)
                made = fma(load_n(c.weight + tap * c.channels + first + i, n), load_n(input(t - kept + tap) + i, n), made);
            store_n(y + i, c.activated ? activate(c.activation, made) : made, n);
        }
    }
    for (long i = 0; i < width; ++i)
        for (long j = 0; j < kept; ++j) span.next[(first + i) * kept + j] = input(span.rows - kept + j)[i];
}

static void convolution(const plait::Convolution& c) {
    long rows = 0, blocks = (c.channels + CHANNELS - 1) / CHANNELS;
    Memory<long> starts(c.count);
    for (long s = 0; s < c.count; ++s) {
        starts.data()[s] = rows;
        rows += c.spans[s].rows;
    }
#pragma omp parallel if (rows * c.channels >= 4096)
    {
        Memory<float> before(c.kernel * CHANNELS);
#pragma omp for schedule(static)
        for (long item = 0; item < c.count * blocks; ++item) {
            long s = item / blocks, first = item % blocks * CHANNELS;
            convolve(c, c.spans[s], starts.data()[s], first, smaller(first + CHANNELS, c.channels), before.data());
        }
    }
}

}  // namespace PLAIT_LEVEL

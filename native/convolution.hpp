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
// KEPT: kernel - 1 where the compiler is to know it, else 0.
template <int KEPT>
static void convolve(const plait::Convolution& c, const plait::Span& span, long row, long first, long stop,
                     float* before) {
    const long kept = KEPT > 0 ? KEPT : c.kernel - 1;
    const long width = stop - first;
    const float* now = span.now;
    if (now == nullptr) {
        for (long i = 0; i < kept * CHANNELS; ++i) before[i] = 0.0f;
    } else {
        now += first * kept;
        for (long i = 0; i < width; ++i)
            for (long j = 0; j < kept; ++j) before[j * CHANNELS + i] = now[i * kept + j];
    }
    // Input t of the sequence, counted from its first row; those before it are negative.
    auto input = [&](long t) {
        return t < 0 ? before + (kept + t) * CHANNELS : c.x + (row + t) * c.x_stride + first;
    };
    const float* weight = c.weight + first;
    for (long t = 0; t < span.rows; ++t) {
        float* y = c.y + (row + t) * c.channels + first;
        for (long i = 0; i < width; i += LANES) {
            long n = width - i;
            Vec made = mul(load_upto(weight + i, n), load_upto(input(t - kept) + i, n));
            for (long tap = 1; tap <= kept; ++tap)
                made = fma(load_upto(weight + tap * c.channels + i, n), load_upto(input(t - kept + tap) + i, n), made);
            store_upto(y + i, c.activated ? activate(c.activation, made) : made, n);
        }
    }
    // `before` is turned into the end of the inputs, so that it is written from memory of a known stride.
    for (long j = 0; j < kept; ++j) {
        const float* from = input(span.rows - kept + j);
        if (from != before + j * CHANNELS) std::memcpy(before + j * CHANNELS, from, sizeof(float) * width);
    }
    float* next = span.next + first * kept;
    for (long i = 0; i < width; ++i)
        for (long j = 0; j < kept; ++j) next[i * kept + j] = before[j * CHANNELS + i];
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
            long stop = smaller(first + CHANNELS, c.channels), row = starts.data()[s];
            if (c.kernel == 4) convolve<3>(c, c.spans[s], row, first, stop, before.data());
            else convolve<0>(c, c.spans[s], row, first, stop, before.data());
        }
    }
}

}  // namespace PLAIT_LEVEL

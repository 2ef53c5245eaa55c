// How threads share a product with several parts: each takes one run of panels of about the same bytes.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "blocks.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

// Panels [first, stop) of a part (of gated products pairs of them), whose outputs begin at `column` of y.
struct Share {
    const plait::BlockPart* part;
    long first, stop, column, outputs;
};

PLAIT_INLINE long units_of(long outputs) { return (outputs + LANES - 1) / LANES; }

// Calls `work` for each run of the calling thread.
template <class Work>
PLAIT_INLINE void share_of(const plait::BlockProduct& p, long thread, long threads, Work&& work) {
    long total = 0;
    for (long i = 0; i < p.count; ++i)
        total += units_of(p.gated ? p.parts[i].out / 2 : p.parts[i].out) * plait::panel_bytes(p.parts[i].form, p.in);
    // A panel is the thread's in whose share its first byte lies.
    long low = total / threads * thread, high = thread + 1 == threads ? total : total / threads * (thread + 1);
    long base = 0, column = 0;
    for (long i = 0; i < p.count; ++i) {
        long outputs = p.gated ? p.parts[i].out / 2 : p.parts[i].out;
        long size = plait::panel_bytes(p.parts[i].form, p.in), units = units_of(outputs);
        auto from = [&](long byte) { return byte <= base ? 0 : smaller((byte - base + size - 1) / size, units); };
        Share share{p.parts + i, from(low), from(high), column, outputs};
        if (share.first < share.stop) work(share);
        base += units * size;
        column += outputs;
    }
}

template <class Work>
static void shared(const plait::BlockProduct& p, const Work& work) {
#if defined(_OPENMP)
#pragma omp parallel
    share_of(p, omp_get_thread_num(), omp_get_num_threads(), work);
#else
    share_of(p, 0, 1, work);
#endif
}

}  // namespace PLAIT_LEVEL

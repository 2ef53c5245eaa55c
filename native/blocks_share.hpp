// How threads share a product with several parts: each takes runs of panels from what is left until nothing is. Cores
// that others use as well are not equally fast from one call to the next.
#pragma once

#include <atomic>

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

// Threads of the region this is called in.
PLAIT_INLINE long threads_in_region() {
#if defined(_OPENMP)
    return omp_get_num_threads();
#else
    return 1;
#endif
}

// Within a region: calls `work` for runs of panels, as long as there are any that no thread has taken. Each is a share
// of what is left: long ones at first, which are read without a pause, and short ones at last, for which none waits.
template <class Work>
PLAIT_INLINE void share_left(const plait::BlockProduct& p, std::atomic<long>& taken, Work&& work) {
    constexpr long LEAST = 1 << 15, STEP = 4;  // whole fours for matrix tiles
    long mine = taken.fetch_add(1, std::memory_order_relaxed), run = 0, column = 0, share = 2 * threads_in_region();
    for (long i = 0; i < p.count; ++i) {
        long outputs = p.gated ? p.parts[i].out / 2 : p.parts[i].out, units = units_of(outputs);
        long size = plait::panel_bytes(p.parts[i].form, p.in) * (p.gated ? 2 : 1);
        for (long first = 0; first < units; ++run) {
            long length = larger((units - first) / share, LEAST / size);
            long stop = smaller(first + (length + STEP) / STEP * STEP, units);
            if (run == mine) {
                work(Share{p.parts + i, first, stop, column, outputs});
                mine = taken.fetch_add(1, std::memory_order_relaxed);
            }
            first = stop;
        }
        column += outputs;
    }
}

// `work` on every thread.
template <class Work>
static void in_region(const Work& work) {
#if defined(_OPENMP)
#pragma omp parallel
#endif
    work();
}

// Within a region: all threads have come here.
PLAIT_INLINE void barrier() {
#if defined(_OPENMP)
#pragma omp barrier
#endif
}

template <class Work>
static void shared(const plait::BlockProduct& p, const Work& work) {
    std::atomic<long> taken{0};
    in_region([&] { share_left(p, taken, work); });
}

}  // namespace PLAIT_LEVEL

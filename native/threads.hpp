// Threads there are, with OpenMP and without.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "simd.hpp"

namespace PLAIT_LEVEL {

// Of a region that is begun here.
PLAIT_INLINE long threads_at_most() {
#if defined(_OPENMP)
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// This one's number in its region.
PLAIT_INLINE long thread_here() {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

}  // namespace PLAIT_LEVEL

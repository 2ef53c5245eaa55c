// What the address sanitizer does not see by itself: accesses by intrinsics that are not plain loads and stores. In
// every other build nothing is left of it.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace plait {

// Where one of the bytes is nobody's, the process ends with the place.
static inline __attribute__((always_inline)) void check_bytes([[maybe_unused]] const void* at,
                                                              [[maybe_unused]] long bytes) {
#if defined(__SANITIZE_ADDRESS__)
    if (bytes <= 0) return;
    const void* bad = __asan_region_is_poisoned(const_cast<void*>(at), static_cast<unsigned long>(bytes));
    if (bad != nullptr) (void)*static_cast<const volatile char*>(bad);
#endif
}

}  // namespace plait

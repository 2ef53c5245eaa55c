// What the system is told of memory that holds weights. All of it is advice: where it is refused nothing changes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace plait {

// Large pages: fewer of them are asked for while packing and looked up while reading.
inline void in_large_pages([[maybe_unused]] std::uintptr_t address, [[maybe_unused]] long bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr std::uintptr_t PAGE = 1 << 21;
    std::uintptr_t first = (address + PAGE - 1) & ~(PAGE - 1), stop = (address + std::uintptr_t(bytes)) & ~(PAGE - 1);
    if (first < stop) (void)madvise(reinterpret_cast<void*>(first), stop - first, MADV_HUGEPAGE);
#endif
}

// All pages of a mapped file's part are made ready at once: one by one, as they are touched, takes ten times as long.
inline void make_ready([[maybe_unused]] const void* memory, [[maybe_unused]] long bytes) {
#if defined(__linux__) && defined(MADV_POPULATE_READ)
    constexpr std::uintptr_t PAGE = 1 << 12;
    std::uintptr_t address = reinterpret_cast<std::uintptr_t>(memory), first = address & ~(PAGE - 1);
    (void)madvise(reinterpret_cast<void*>(first), address + std::uintptr_t(bytes) - first, MADV_POPULATE_READ);
#endif
}

// Whether the system puts small pages together when it is asked to. Writing to large ones from the start may take much
// longer, where a machine is a guest on another.
bool can_gather();
// Small pages of the ranges (address, bytes) become large ones, one after the other, by a thread that rests between them.
void gather(std::vector<std::pair<std::uintptr_t, long>> ranges);
// Waits for a moment, in which there are no rests. False: it is not done yet.
bool settle();

}  // namespace plait

// Pages that are put together after they were written, beside everything else that runs.
#include "pages.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace plait {

namespace {

#if defined(__linux__) && !defined(MADV_COLLAPSE)
constexpr int MADV_COLLAPSE = 25;
#endif

std::atomic<int>& running() {
    static std::atomic<int> count{0};
    return count;
}

}  // namespace

bool can_gather() {
#if defined(__linux__)
    // Of no bytes at all: the system only says whether it knows the advice.
    alignas(1 << 12) static char place[1 << 12];
    return madvise(place, 0, MADV_COLLAPSE) == 0;
#else
    return false;
#endif
}

void gather(std::vector<std::pair<std::uintptr_t, long>> ranges) {
#if defined(__linux__)
    ++running();
    // The thread touches no memory itself. Where a range is gone meanwhile, the system refuses, or puts together pages
    // of what lies there now, which nobody notices.
    std::thread([ranges = std::move(ranges)] {
        constexpr std::uintptr_t PAGE = 1 << 21;
        constexpr int BEHIND = 10;
        (void)setpriority(PRIO_PROCESS, 0, BEHIND);
        // What follows a load asks for memory itself, and would wait.
        std::this_thread::sleep_for(std::chrono::seconds(2));
        for (auto [address, bytes] : ranges) {
            std::uintptr_t stop = (address + std::uintptr_t(bytes)) & ~(PAGE - 1);
            for (std::uintptr_t page = (address + PAGE - 1) & ~(PAGE - 1); page < stop; page += PAGE)
                (void)madvise(reinterpret_cast<void*>(page), PAGE, MADV_COLLAPSE);
        }
        --running();
    }).detach();
#else
    (void)ranges;
#endif
}

bool gathering() { return running() > 0; }

}  // namespace plait

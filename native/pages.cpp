// Pages that are put together after they were written, beside everything else that runs.
#include "pages.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace plait {

namespace {

#if defined(__linux__) && !defined(MADV_COLLAPSE)
constexpr int MADV_COLLAPSE = 25;
#endif

// What is being put together, by how many threads, and whether somebody waits for it.
struct Work {
    std::mutex lock;
    std::condition_variable changed;
    int running = 0, waiting = 0;
};

// Never destroyed: threads may still run when the program ends.
Work& work() {
    static Work* all = new Work;
    return *all;
}

// Lies still for some time, or until somebody waits.
[[maybe_unused]] void rest(std::chrono::nanoseconds time) {
    std::unique_lock held(work().lock);
    work().changed.wait_for(held, time, [] { return work().waiting > 0; });
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
    {
        std::lock_guard held(work().lock);
        ++work().running;
    }
    // The thread touches no memory itself. Where a range is gone meanwhile, the system refuses, or puts together pages
    // of what lies there now, which nobody notices.
    std::thread([ranges = std::move(ranges)] {
        constexpr std::uintptr_t PAGE = 1 << 21;
        // Others get this many times what the thread takes. It has their priority: while it holds the system's lock on
        // the process's memory nobody gets any, and behind busy threads it would hold it long.
        constexpr int REST = 3;
        // What follows a load asks for memory itself, and would wait.
        rest(std::chrono::seconds(2));
        for (auto [address, bytes] : ranges) {
            std::uintptr_t stop = (address + std::uintptr_t(bytes)) & ~(PAGE - 1);
            for (std::uintptr_t page = (address + PAGE - 1) & ~(PAGE - 1); page < stop; page += PAGE) {
                auto begun = std::chrono::steady_clock::now();
                (void)madvise(reinterpret_cast<void*>(page), PAGE, MADV_COLLAPSE);
                rest(REST * (std::chrono::steady_clock::now() - begun));
            }
        }
        std::lock_guard held(work().lock);
        --work().running;
        work().changed.notify_all();
    }).detach();
#else
    (void)ranges;
#endif
}

bool settle() {
    // Whoever waits wants to be able to give up.
    constexpr auto SLICE = std::chrono::milliseconds(100);
    std::unique_lock held(work().lock);
    ++work().waiting;
    work().changed.notify_all();
    bool done = work().changed.wait_for(held, SLICE, [] { return work().running == 0; });
    --work().waiting;
    return done;
}

}  // namespace plait

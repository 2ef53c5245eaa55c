// How threads share a product with several parts. Each has a stretch of its panels, which it reads from front to back;
// one that is done goes on with the last half of what another has left. Cores that others use as well are not equally
// fast from one call to the next.
#pragma once

#include <atomic>

#include "blocks.hpp"
#include "memory.hpp"
#include "simd.hpp"
#include "threads.hpp"

namespace PLAIT_LEVEL {

// Panels [first, stop) of a part (of gated products pairs of them), whose outputs begin at `column` of y.
struct Share {
    const plait::BlockPart* part;
    long first, stop, column, outputs;
};

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

// Units of `step` panels of all parts, numbered end to end.
class Shares {
    // Units [front, back) that no thread has taken, in one word.
    struct alignas(64) Stretch {
        std::atomic<std::uint64_t> left;
    };
    static std::uint64_t word(long front, long back) { return std::uint64_t(front) << 32 | std::uint64_t(back); }
    static long front(std::uint64_t left) { return long(left >> 32); }
    static long back(std::uint64_t left) { return long(left & 0xffffffffu); }

    const plait::BlockProduct& p;
    const long step, least, threads;  // bytes that are taken at a time, at least
    Memory<Stretch> stretches;

    long outputs(const plait::BlockPart& part) const { return p.gated ? part.out / 2 : part.out; }
    long panels(const plait::BlockPart& part) const { return (outputs(part) + LANES - 1) / LANES; }
    long units(const plait::BlockPart& part) const { return (panels(part) + step - 1) / step; }
    long bytes(const plait::BlockPart& part) const {
        return step * plait::panel_bytes(part.form, p.in) * (p.gated ? 2 : 1);
    }

    // The part of unit `u`, and the number of its first one.
    const plait::BlockPart& part_of(long u, long& first, long& column) const {
        long i = 0;
        for (first = column = 0; u >= first + units(p.parts[i]); ++i) {
            first += units(p.parts[i]);
            column += outputs(p.parts[i]);
        }
        return p.parts[i];
    }

    // Takes units from the thread's own stretch; how many.
    long take(Stretch& own, long& first) const {
        std::uint64_t left = own.left.load(std::memory_order_relaxed);
        for (;;) {
            long low = front(left), high = back(left), begin, column;
            if (low >= high) return 0;
            const plait::BlockPart& part = part_of(low, begin, column);
            long many = larger(1, least / bytes(part));
            many = smaller(many, smaller(high, begin + units(part)) - low);
            if (own.left.compare_exchange_weak(left, word(low + many, high), std::memory_order_relaxed)) {
                first = low;
                return many;
            }
        }
    }

    // The last half of the longest stretch becomes the thread's own. False: nobody has any.
    bool steal(Stretch& own) const {
        for (;;) {
            Stretch* longest = nullptr;
            std::uint64_t most = 0;
            for (long t = 0; t < threads; ++t) {
                std::uint64_t left = stretches.held[t].left.load(std::memory_order_relaxed);
                if (back(left) - front(left) > back(most) - front(most)) longest = stretches.held + t, most = left;
            }
            if (longest == nullptr) return false;
            long low = front(most), high = back(most), cut = high - (high - low + 1) / 2;
            if (!longest->left.compare_exchange_strong(most, word(low, cut), std::memory_order_relaxed)) continue;
            own.left.store(word(cut, high), std::memory_order_relaxed);
            return true;
        }
    }

  public:
    Shares(const plait::BlockProduct& p, long step, long least)
        : p(p), step(step), least(least), threads(threads_at_most()), stretches(threads) {
        for (long t = 0; t < threads; ++t) new (stretches.held + t) Stretch;
        restart();
    }

    // All units are to be taken again. Stretches hold as many bytes each, to a unit.
    void restart() {
        long total = 0, low = 0;
        for (long i = 0; i < p.count; ++i) total += units(p.parts[i]) * bytes(p.parts[i]);
        for (long t = 0; t < threads; ++t) {
            long left = total / threads * (t + 1), high = 0, i = 0;
            for (; i < p.count && left >= units(p.parts[i]) * bytes(p.parts[i]); ++i) {
                left -= units(p.parts[i]) * bytes(p.parts[i]);
                high += units(p.parts[i]);
            }
            if (i < p.count) high += t + 1 < threads ? left / bytes(p.parts[i]) : units(p.parts[i]);
            stretches.held[t].left.store(word(low, high), std::memory_order_relaxed);
            low = high;
        }
    }

    // Within a region: asks memory for what this thread takes first.
    void begin() const {
        long first, column, low = front(stretches.held[thread_here()].left.load(std::memory_order_relaxed));
        if (low >= back(stretches.held[thread_here()].left.load(std::memory_order_relaxed))) return;
        const plait::BlockPart& part = part_of(low, first, column);
        const std::uint8_t* at = part.w + (low - first) * bytes(part);
        for (long line = 0; line < smaller(AT_FIRST, bytes(part)); line += 64) __builtin_prefetch(at + line, 0, 2);
    }

    // Within a region: calls `work` with panels as long as there are any that no thread has taken.
    template <class Work>
    void each(Work&& work) const {
        Stretch& own = stretches.held[thread_here()];
        do {
            long low, first, column;
            while (long many = take(own, low)) {
                const plait::BlockPart& part = part_of(low, first, column);
                long begin = (low - first) * step;
                work(Share{&part, begin, smaller(begin + many * step, panels(part)), column, outputs(part)});
            }
        } while (steal(own));
    }

  private:
    static constexpr long AT_FIRST = 1 << 15;
};

}  // namespace PLAIT_LEVEL

// How threads share a product with several parts. Each has a stretch of its panels, which it reads from front to back,
// or two far from each other, which it reads side by side: memory gives more that way. Where one is read, half of what
// is left of the longest takes its place. Cores that others use as well are not equally fast from one call to the next.
#pragma once

#include <atomic>

#include "blocks.hpp"
#include "memory.hpp"
#include "simd.hpp"
#include "threads.hpp"

namespace PLAIT_LEVEL {

// Panels [first, stop) of a part (of gated products pairs of them), whose outputs begin at `column` of y.
struct Share {
    const plait::BlockPart* part = nullptr;
    long first = 0, stop = 0, column = 0, outputs = 0;
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
    static constexpr long MOST_LANES = 2;

    // Units [front, back) that no thread has taken, in one word.
    struct alignas(64) Stretch {
        std::atomic<std::uint64_t> left;
    };
    static std::uint64_t word(long front, long back) { return std::uint64_t(front) << 32 | std::uint64_t(back); }
    static long front(std::uint64_t left) { return long(left >> 32); }
    static long back(std::uint64_t left) { return long(left & 0xffffffffu); }

    // A part's outputs, and where they begin; its units [first, stop), and bytes of one.
    struct Sized {
        long outputs, column, panels, first, stop, bytes;
    };

    const plait::BlockProduct& p;
    // Bytes that are taken at a time, at least; stretches of a thread, and of all.
    const long step, least, lanes, count;
    Memory<Stretch> stretches;
    Memory<Sized> sizes;  // of the parts

    // Takes units from the thread's own stretch. What is left of it others may take.
    Share take(Stretch& own) const {
        std::uint64_t left = own.left.load(std::memory_order_relaxed);
        for (;;) {
            long low = front(left), high = back(left), i = 0;
            if (low >= high) return {};
            while (low >= sizes.held[i].stop) ++i;
            const Sized& part = sizes.held[i];
            long many = smaller(larger(1, least / part.bytes), smaller(high, part.stop) - low);
            if (!own.left.compare_exchange_weak(left, word(low + many, high), std::memory_order_relaxed)) continue;
            long begin = (low - part.first) * step;
            return {p.parts + i, begin, smaller(begin + many * step, part.panels), part.column, part.outputs};
        }
    }

    // The last half of the longest stretch becomes the thread's own. False: nobody has any.
    bool steal(Stretch& own) const {
        for (;;) {
            Stretch* longest = nullptr;
            std::uint64_t most = 0;
            for (long t = 0; t < count; ++t) {
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
    Shares(const plait::BlockProduct& p, long step, long least, long lanes)
        : p(p),
          step(step),
          least(least),
          lanes(lanes),
          count(threads_at_most() * lanes),
          stretches(count),
          sizes(p.count) {
        long column = 0, first = 0;
        for (long i = 0; i < p.count; ++i) {
            long outputs = p.gated ? p.parts[i].out / 2 : p.parts[i].out, panels = (outputs + LANES - 1) / LANES;
            long stop = first + (panels + step - 1) / step;
            long bytes = step * plait::panel_bytes(p.parts[i].form, p.in) * (p.gated ? 2 : 1);
            sizes.held[i] = {outputs, column, panels, first, stop, bytes};
            column += outputs;
            first = stop;
        }
        for (long t = 0; t < count; ++t) new (stretches.held + t) Stretch;
        restart();
    }

    // All units are to be taken again. Stretches hold as many bytes each, to a unit.
    void restart() {
        long total = 0, low = 0;
        for (long i = 0; i < p.count; ++i) total += (sizes.held[i].stop - sizes.held[i].first) * sizes.held[i].bytes;
        for (long t = 0; t < count; ++t) {
            long left = total / count * (t + 1), high = low;
            for (long i = 0; i < p.count; ++i) {
                const Sized& part = sizes.held[i];
                high = part.first + smaller(left / part.bytes, part.stop - part.first);
                left -= (part.stop - part.first) * part.bytes;
                if (left < 0) break;
            }
            if (t + 1 == count) high = sizes.held[p.count - 1].stop;
            stretches.held[t].left.store(word(low, high), std::memory_order_relaxed);
            low = high;
        }
    }

    // Within a region: calls `work` with panels of each of the thread's stretches, as many of one as of the other, and
    // how many stretches these are, as long as there are any that no thread has taken.
    template <class Work>
    void each(Work&& work) const {
        Stretch* own = stretches.held + thread_here() * lanes;
        Share taken[MOST_LANES] = {};
        for (;;) {
            Share shares[MOST_LANES];
            long found = 0, most = 0;
            for (long lane = 0; lane < lanes; ++lane) {
                Share& share = taken[lane];
                while (share.first == share.stop) {
                    share = take(own[lane]);
                    if (share.first == share.stop && !steal(own[lane])) break;
                }
                if (share.first == share.stop) continue;
                most = found == 0 ? share.stop - share.first : smaller(most, share.stop - share.first);
                shares[found++] = share;
            }
            if (found == 0) return;
            for (long i = 0; i < found; ++i) shares[i].stop = shares[i].first + most;
            work(shares, found);
            for (long lane = 0; lane < lanes; ++lane)
                if (taken[lane].first < taken[lane].stop) taken[lane].first += most;
        }
    }

};

}  // namespace PLAIT_LEVEL

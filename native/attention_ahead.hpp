// What an attention call reads is asked for before it is its turn: the keys and values of a chunk in the order in which
// they are taken, behind them those of the chunk that the same thread takes next.
#pragma once

#include "attention.hpp"

namespace PLAIT_LEVEL {

class Ahead {
    // An area is asked for in so many parts side by side, a line of each. Processors of Intel look further ahead in every
    // page where they see lines asked for, and a single page at a time keeps memory waiting; AMD's read a
    // quarter faster in one part, with less on its way; so it is for others, which were not measured.
    static constexpr long MOST_PARTS = 8;
    const long parts, distance;
    struct Area {
        const char* from;
        long bytes;
    };
    Memory<Area> all;
    Area* areas;
    long count = 0, area = 0, inside = 0;  // the next piece to be asked for
    long own = 0, asked = 0, taken = 0;    // bytes of this chunk; from its begin on

    void add(const Rows& rows, const Seen& seen) {
        const plait::Attention& a = rows.a;
        for (long b = seen.low; b < seen.high; ++b)
            for (long p = 0; seen.uses(b) && p < a.part_count; ++p)
                areas[count++] = {rows.keys(b, a.parts[p]), BLOCK * row_bytes(a.store, a.parts[p].dim)};
        for (long b = seen.low; b < seen.high; ++b)
            if (seen.uses(b)) areas[count++] = {rows.values(b), BLOCK * row_bytes(a.store, a.v_dim)};
    }

  public:
    explicit Ahead(const plait::Attention& a)
        : parts(plait::asks_ahead() ? MOST_PARTS : 1),
          distance(plait::asks_ahead() ? 3 << 14 : 1 << 14),
          all(2 * CHUNK * (a.part_count + 1)),
          areas(all.data()) {}

    // A chunk is begun, after which `next` comes: it was the `next` of the one before, or is the first.
    void begin(const Rows& rows, const Seen& seen, Turn next) {
        asked = larger(0, asked - own);
        taken = own = count = area = 0;
        inside = asked;
        add(rows, seen);
        for (long i = 0; i < count; ++i) own += areas[i].bytes;
        if (next.rows != nullptr && rows.a.chosen == nullptr) add(*next.rows, seen_of(*next.rows, next.chunk));
        while (area < count && inside >= areas[area].bytes) inside -= areas[area++].bytes;
    }

    // So many bytes more were taken.
    __attribute__((always_inline)) void took(long bytes) {
        taken += bytes;
        for (; area < count && asked < taken + distance; asked += 64 * parts) {
            const char* from = areas[area].from + (parts == 1 ? inside : inside / MOST_PARTS);
            __builtin_prefetch(from, 0, 2);
            for (long part = 1; part < parts; ++part)
                __builtin_prefetch(from + part * (areas[area].bytes / MOST_PARTS), 0, 2);
            inside += 64 * parts;
            if (inside >= areas[area].bytes) inside -= areas[area++].bytes;
        }
    }
};

}  // namespace PLAIT_LEVEL

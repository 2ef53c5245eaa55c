// What an attention call reads is asked for before it is its turn: the keys and values of a chunk in the order in which
// they are taken, behind them those of the chunk that the same thread takes next.
#pragma once

#include "attention.hpp"

namespace PLAIT_LEVEL {

class Ahead {
    // So much is on its way to the second cache: what memory brings within some hundred nanoseconds, many times over.
    static constexpr long DISTANCE = 3 << 14;
    // An area is asked for in so many parts side by side, a line of each: the processor itself looks further ahead in
    // every page where it sees lines asked for, and a single page at a time keeps memory waiting.
    static constexpr long PARTS = 8, PIECE = 64 * PARTS;
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
    explicit Ahead(const plait::Attention& a) : all(2 * CHUNK * (a.part_count + 1)), areas(all.data()) {}

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
        for (; area < count && asked < taken + DISTANCE; asked += PIECE) {
            const char* from = areas[area].from + inside / PARTS;
            for (long part = 0; part < PARTS; ++part)
                __builtin_prefetch(from + part * (areas[area].bytes / PARTS), 0, 2);
            inside += PIECE;
            if (inside >= areas[area].bytes) inside -= areas[area++].bytes;
        }
    }
};

}  // namespace PLAIT_LEVEL

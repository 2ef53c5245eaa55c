// The order in which a product visits its tiles. What lies beyond the second cache comes at the memory's speed, so of
// a block of rows a few hundred columns at a time stay there, with the sums begun so far, while weights pass by once.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "memory.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

// Rows and columns of a block, and panels that share its rows while they are near.
constexpr long ROW_BLOCK = 128, COLUMN_BLOCK = 1024, PANEL_BLOCK = 32;
// Fewer multiply-adds are not worth a second thread.
constexpr long ALONE = 32768;

// One tile's part: a strip of rows times a few panels over columns [from, stop).
struct Part {
    long row, rows, panel, panels, from, stop;
    float* sums;      // what the columns before have made, and where it goes
    bool begin, end;  // no columns before, none after
    long strip;       // which strip of its block
    long next_panel, next_from;  // where the block after this one begins; `next_panel` -1: nowhere
};

// Lines of the weights of the block after this one, panel after panel, for the strip to call for while it computes:
// the memory works meanwhile. Null: they are called for already, or there are none.
template <class Weight>
PLAIT_INLINE const char* ahead(const Part& part, const Weight* w, long padded, long lines) {
    long of_panel = (part.stop - part.from) * LANES * long(sizeof(Weight)) / 64, line = part.strip * lines;
    if (part.next_panel < 0 || line >= 2 * of_panel) return nullptr;
    const Weight* panel = w + ((part.next_panel + line / of_panel) * padded + part.next_from) * LANES;
    return reinterpret_cast<const char*>(panel) + line % of_panel * 64;
}

// Panels [first, stop) of `count` for this thread, in whole tiles of `wide`.
struct Share {
    long first, stop;
    Share(long count, long wide) {
#if defined(_OPENMP)
        long thread = omp_get_thread_num(), threads = omp_get_num_threads();
#else
        long thread = 0, threads = 1;
#endif
        long tiles = (count + wide - 1) / wide;
        first = tiles * thread / threads * wide;
        stop = smaller(tiles * (thread + 1) / threads * wide, count);
    }
};

// Body: STRIP rows and WIDE panels of a tile; SUMS floats of one tile's sums; prepare(part) before the strips of the
// same panels and columns; tile(part).
template <class Body>
static void walk(Body& body, Share share, long rows, long columns) {
    constexpr long STRIP = Body::STRIP, WIDE = Body::WIDE, BLOCK = ROW_BLOCK / STRIP * STRIP;
    // A single strip meets its weights once: nothing is kept for later.
    long block = rows <= STRIP ? columns : COLUMN_BLOCK;
    long strips = (smaller(rows, BLOCK) + STRIP - 1) / STRIP;
    Memory<float> sums(columns <= block ? Body::SUMS : PANEL_BLOCK / WIDE * strips * Body::SUMS);
    for (long top = 0; top < rows; top += BLOCK)
        for (long group = share.first; group < share.stop; group += PANEL_BLOCK)
            for (long from = 0; from < columns; from += block) {
                Part part{};
                part.from = from;
                part.stop = smaller(from + block, columns);
                part.begin = from == 0;
                part.end = part.stop == columns;
                long last = smaller(group + PANEL_BLOCK, share.stop);
                bool more = part.stop < columns;
                float* at = sums.data();
                for (part.panel = group; part.panel < last; part.panel += WIDE) {
                    part.panels = smaller(WIDE, last - part.panel);
                    bool beside = part.panel + WIDE < last || !more;
                    part.next_panel = beside ? part.panel + WIDE : group;
                    part.next_from = part.panel + WIDE < last ? from : more ? part.stop : 0;
                    if (part.next_panel + WIDE > share.stop) part.next_panel = -1;
                    part.strip = 0;
                    body.prepare(part);
                    for (part.row = top; part.row < smaller(top + BLOCK, rows); part.row += STRIP) {
                        part.rows = smaller(STRIP, rows - part.row);
                        part.sums = at;
                        body.tile(part);
                        ++part.strip;
                        if (columns > block) at += Body::SUMS;
                    }
                }
            }
}

}  // namespace PLAIT_LEVEL

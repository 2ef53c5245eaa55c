// How the work of an attention call is cut: rows of one span and KV head together, and of what would keep one thread
// busy for too long the chunks of keys by themselves. The cut changes no bits: chunks are joined in their order.
#pragma once

#include <atomic>

#include "attention.hpp"
#include "threads.hpp"

namespace PLAIT_LEVEL {

// Rows that meet a chunk of keys together: what they need should stay in a core's cache of 2 MiB.
PLAIT_INLINE long rows_together(const plait::Attention& a) {
    long dims = 0;
    for (long p = 0; p < a.part_count; ++p) dims += a.parts[p].dim;
    long each = 4 * STRIDE + 6 * dims + 8 * a.v_dim;
    return clamped(800000 / each / 32 * 32, 32, 128);
}

// So many rows at most are few: where a call has no more together, scratch is made for these alone.
constexpr long FEW_QUERIES = 16;

struct RowPiece {
    long span, head, first, count;
    long partial;  // where the partials of its chunks begin; below 0: one thread takes all chunks
};
struct RowUnit {
    long piece, begin, stop;
};

template <class Form>
static void attend(const plait::Attention& a) {
    long group = a.heads / a.kv_heads, together = rows_together(a), pieces = 0, most = 0;
    for (long s = 0; s < a.count; ++s) {
        long rows = a.spans[s].n * group;
        pieces += (rows + together - 1) / together * a.kv_heads;
        most = larger(most, smaller(rows, together));
    }
    Memory<RowPiece> piece(pieces);
    long at = 0, total = 0;
    auto rows_of = [&](const RowPiece& p) { return Rows{a, a.spans[p.span], p.head, p.first, p.count}; };
    auto cost = [&](const RowPiece& p) {
        Rows rows = rows_of(p);
        return (rows.stop() - rows.begin()) * (p.count + 16);
    };
    for (long s = 0; s < a.count; ++s)
        for (long first = 0; first < a.spans[s].n * group; first += together)
            for (long h = 0; h < a.kv_heads; ++h) {
                piece.held[at] = {s, h, first, smaller(together, a.spans[s].n * group - first), -1};
                total += cost(piece.held[at++]);
            }
    long threads = threads_at_most(), units = 0, chunks = 0;
    for (long p = 0; p < pieces; ++p) {
        Rows rows = rows_of(piece.held[p]);
        long own = rows.stop() - rows.begin();
        if (threads > 1 && own > 1 && cost(piece.held[p]) * threads * 4 > total) {
            piece.held[p].partial = chunks;
            chunks += own;
            units += own;
        } else {
            units += 1;
        }
    }
    Memory<RowUnit> unit(units);
    at = 0;
    // The last rows see most keys: they are begun first.
    for (long p = pieces - 1; p >= 0; --p) {
        Rows rows = rows_of(piece.held[p]);
        if (piece.held[p].partial < 0) {
            unit.held[at++] = {p, rows.begin(), rows.stop()};
        } else {
            for (long c = rows.begin(); c < rows.stop(); ++c) unit.held[at++] = {p, c, c + 1};
        }
    }
    long padded = Form::padded(a), room = ceil_to(most, most <= FEW_QUERIES ? FEW_QUERIES : 32);
    Partials partials(chunks, room, padded);
    std::atomic<long> begun{0};
#pragma omp parallel if (units > 1)
    {
        Form form(a, room);
        Room scores(room * STRIDE);
        Partials own(2, room, padded);
        auto take = [&] { return begun.fetch_add(1, std::memory_order_relaxed); };
        for (long u = take(), after; u < units; u = after < units ? after : take()) {
            // While there are many the next unit is taken early, to ask for its memory while this one is computed.
            after = u + 4 * threads < units ? take() : units;
            const RowPiece& p = piece.held[unit.held[u].piece];
            Rows rows = rows_of(p), later = after < units ? rows_of(piece.held[unit.held[after].piece]) : rows;
            Turn next{after < units ? &later : nullptr, after < units ? unit.held[after].begin : 0};
            form.take(rows);
            if (p.partial >= 0) {
                long c = unit.held[u].begin;
                one_chunk(form, rows, c, next, scores.data(), partials.at(p.partial + c - rows.begin()));
                continue;
            }
            for (long c = rows.begin(); c < rows.stop(); ++c) {
                bool first = c == rows.begin();
                Turn then = c + 1 < rows.stop() ? Turn{&rows, c + 1} : next;
                one_chunk(form, rows, c, then, scores.data(), own.at(first ? 0 : 1));
                if (!first) join(own.at(0), own.at(1), p.count, padded, false);
            }
            finish<Form>(rows, own.at(0), padded);
        }
        // All rows may be finished by now.
        long cut = chunks > 0 ? pieces : 0;
        if (cut > 0) {
#pragma omp barrier
        }
#pragma omp for schedule(dynamic) nowait
        for (long p = 0; p < cut; ++p) {
            if (piece.held[p].partial < 0) continue;
            Rows rows = rows_of(piece.held[p]);
            Partial into = partials.at(piece.held[p].partial);
            for (long c = 1; c < rows.stop() - rows.begin(); ++c)
                join(into, partials.at(piece.held[p].partial + c), rows.count, padded, false);
            finish<Form>(rows, into, padded);
        }
    }
}

}  // namespace PLAIT_LEVEL

// The gated delta rule over the rows of many sequences, in the order of the recurrence; see ops/gated_delta.py.
//
// The columns of a head's state do not know of each other. A thread takes some of them and keeps them in the cache over
// a block of rows; a column's sums run over the key's elements in order. So a row's bits depend neither on how rows are
// cut into calls and blocks nor on how columns are shared out.
#pragma once

#include <initializer_list>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "kernels.hpp"
#include "memory.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

#if defined(__AVX512F__)
constexpr int MOST_VECS = 4;
#else
constexpr int MOST_VECS = 2;
#endif
// So many rows of a state before their turn memory is asked for them.
constexpr long AHEAD = 6;
// Rows made ready at a time.
constexpr long DELTA_BLOCK = 64;

// log(1 + e^x) = max(x, 0) + log(1 + z) with z = e^-|x|, and log(1 + z) = 2 atanh(z / (2 + z)), whose series has terms
// below 1e-8 from the ninth on.
PLAIT_INLINE Vec softplus(Vec x) {
    Vec zero = set1(0.0f);
    Vec z = exp(min(sub(zero, x), x));
    Vec s = div(z, add(z, set1(2.0f))), square = mul(s, s);
    Vec p = set1(1.0f / 15.0f);
    for (float c : {1.0f / 13.0f, 1.0f / 11.0f, 1.0f / 9.0f, 1.0f / 7.0f, 1.0f / 5.0f, 1.0f / 3.0f, 1.0f})
        p = fma(p, square, set1(c));
    // max gives its second argument where one is no number.
    return fma(mul(p, s), set1(2.0f), max(zero, x));
}

PLAIT_INLINE float dot(const float* a, const float* b, long n) {
    Vec total = set1(0.0f);
    long i = 0;
    for (; i + LANES <= n; i += LANES) total = fma(load(a + i), load(b + i), total);
    if (i < n) total = fma(load_n(a + i, int(n - i)), load_n(b + i, int(n - i)), total);
    return sum(total);
}

PLAIT_INLINE void scaled(const float* from, float factor, float* to, long n) {
    long i = 0;
    for (; i + LANES <= n; i += LANES) store(to + i, mul(load(from + i), set1(factor)));
    if (i < n) store_n(to + i, mul(load_n(from + i, int(n - i)), set1(factor)), int(n - i));
}

// What a block of rows needs of its inputs: keys and queries scaled to length 1 (queries times `scale` more), their
// products, what a state keeps of itself, and how much of the new it takes.
struct Ready {
    const plait::Delta& d;
    Memory<float> keys, queries, matches, kept, taken;
    explicit Ready(const plait::Delta& d, long rows)
        : d(d),
          keys(rows * d.key_heads * d.key_dim),
          queries(rows * d.key_heads * d.key_dim),
          matches(rows * d.key_heads),
          kept(rows * d.value_heads),
          taken(rows * d.value_heads) {}

    // Row `row` of the call becomes row `at` of the block.
    void make(long row, long at) {
        const float* from = d.qkv + row * d.qkv_stride;
        long width = d.key_heads * d.key_dim;
        for (long h = 0; h < d.key_heads; ++h) {
            const float *q = from + h * d.key_dim, *k = q + width;
            float* to_q = queries.data() + at * width + h * d.key_dim;
            float* to_k = keys.data() + at * width + h * d.key_dim;
            scaled(q, 1.0f / std::sqrt(dot(q, q, d.key_dim) + d.eps) * d.scale, to_q, d.key_dim);
            scaled(k, 1.0f / std::sqrt(dot(k, k, d.key_dim) + d.eps), to_k, d.key_dim);
            matches.data()[at * d.key_heads + h] = dot(to_q, to_k, d.key_dim);
        }
        const float *decay = d.decay + row * d.decay_stride, *beta = d.beta + row * d.beta_stride;
        for (long h = 0; h < d.value_heads; h += LANES) {
            int n = int(smaller(LANES, d.value_heads - h));
            Vec time = softplus(add(load_n(decay + h, n), load_n(d.bias + h, n)));
            Vec left = exp(sub(set1(0.0f), mul(time, load_n(d.rate + h, n))));
            store_n(kept.data() + at * d.value_heads + h, left, n);
            store_n(taken.data() + at * d.value_heads + h, sigmoid(load_n(beta + h, n)), n);
        }
    }
};

// Some rows of one sequence that lie in a block.
struct Piece {
    long row, at, rows;  // the first in the call and in the block, how many
    const float* from;   // the state before them, null: zeros
    float* to;           // the state after them
};

// Columns [first, first + columns) of value head `head`, at most VECS vectors of them; the last may be incomplete.
// With S the state, k and q a row's key and query, d what is kept: S^T k and S^T q are read before S changes, then
// delta = beta (v - d S^T k), o = d S^T q + (q . k) delta, S = d S + k delta^T. The change of one row and the reading
// for the next are one pass over S.
template <int VECS>
PLAIT_INLINE void columns_of(const Ready& ready, const Piece& piece, long head, long first, long columns, float* tile) {
    const plait::Delta& d = ready.d;
    long key_head = head / (d.value_heads / d.key_heads), width = d.key_heads * d.key_dim;
    long state = head * d.key_dim * d.value_dim + first;
    long left[VECS];
    for (int c = 0; c < VECS; ++c) left[c] = larger(0, columns - c * LANES);
    auto key = [&](long t) { return ready.keys.data() + (piece.at + t) * width + key_head * d.key_dim; };
    auto query = [&](long t) { return ready.queries.data() + (piece.at + t) * width + key_head * d.key_dim; };
    Vec read_k[VECS], read_q[VECS];
    for (int c = 0; c < VECS; ++c) read_k[c] = read_q[c] = set1(0.0f);
    if (piece.from == nullptr) {
        for (long i = 0; i < d.key_dim * VECS; ++i) store(tile + i * LANES, set1(0.0f));
    } else {
        const float *k = key(0), *q = query(0);
        for (long i = 0; i < d.key_dim; ++i) {
            const float* from = piece.from + state + i * d.value_dim;
            Vec ki = set1(k[i]), qi = set1(q[i]);
            for (int c = 0; c < VECS; ++c) {
                __builtin_prefetch(from + AHEAD * d.value_dim + c * LANES, 0, 2);
                Vec s = load_upto(from + c * LANES, left[c]);
                store(tile + (i * VECS + c) * LANES, s);
                read_k[c] = fma(ki, s, read_k[c]);
                read_q[c] = fma(qi, s, read_q[c]);
            }
        }
    }
    for (long t = 0; t < piece.rows; ++t) {
        long at = piece.at + t, row = piece.row + t;
        const float* k = key(t);
        Vec kept = set1(ready.kept.data()[at * d.value_heads + head]);
        Vec taken = set1(ready.taken.data()[at * d.value_heads + head]);
        Vec match = set1(ready.matches.data()[at * d.key_heads + key_head]);
        const float* v = d.qkv + row * d.qkv_stride + 2 * width + head * d.value_dim + first;
        float* y = d.y + (row * d.value_heads + head) * d.value_dim + first;
        Vec delta[VECS];
        for (int c = 0; c < VECS; ++c) {
            delta[c] = mul(taken, sub(load_upto(v + c * LANES, left[c]), mul(kept, read_k[c])));
            store_upto(y + c * LANES, fma(match, delta[c], mul(kept, read_q[c])), left[c]);
        }
        if (t + 1 == piece.rows) {
            float* to = piece.to + state;
            // Nobody reads it before the layer's next call, and by then it has left the caches.
            bool whole = columns == VECS * LANES && reinterpret_cast<std::uintptr_t>(to) % 64 == 0 &&
                         d.value_dim % LANES == 0;
            for (long i = 0; i < d.key_dim; ++i, to += d.value_dim) {
                Vec ki = set1(k[i]);
                for (int c = 0; c < VECS; ++c) {
                    Vec s = fma(ki, delta[c], mul(kept, load(tile + (i * VECS + c) * LANES)));
                    whole ? stream(to + c * LANES, s) : store_upto(to + c * LANES, s, left[c]);
                }
            }
            return;
        }
        const float *next_k = key(t + 1), *next_q = query(t + 1);
        for (int c = 0; c < VECS; ++c) read_k[c] = read_q[c] = set1(0.0f);
        for (long i = 0; i < d.key_dim; ++i) {
            Vec ki = set1(k[i]), next_ki = set1(next_k[i]), next_qi = set1(next_q[i]);
            for (int c = 0; c < VECS; ++c) {
                float* place = tile + (i * VECS + c) * LANES;
                Vec s = fma(ki, delta[c], mul(kept, load(place)));
                store(place, s);
                read_k[c] = fma(next_ki, s, read_k[c]);
                read_q[c] = fma(next_qi, s, read_q[c]);
            }
        }
    }
}

static void columns_of(const Ready& ready, const Piece& piece, long head, long first, long columns, float* tile) {
    if (columns > 2 * LANES && MOST_VECS >= 4) columns_of<MOST_VECS>(ready, piece, head, first, columns, tile);
    else if (columns > LANES) columns_of<2>(ready, piece, head, first, columns, tile);
    else columns_of<1>(ready, piece, head, first, columns, tile);
}

// Columns a thread takes at a time: as many as stay in registers, fewer where there is too little for all threads.
PLAIT_INLINE long slice_of(long value_dim, long others) {
#if defined(_OPENMP)
    long threads = omp_get_num_threads();
#else
    long threads = 1;
#endif
    long vecs = MOST_VECS;
    while (vecs > 1 && others * ((value_dim + vecs * LANES - 1) / (vecs * LANES)) < 2 * threads) vecs /= 2;
    return vecs * LANES;
}

static void delta(const plait::Delta& d) {
    // Where a block begins: the sequence, and its row.
    long rows = 0, span = 0, done = 0;
    for (long s = 0; s < d.count; ++s) rows += d.spans[s].rows;
    long block = smaller(rows, DELTA_BLOCK), pieces = 0;
    Ready ready(d, block);
    Memory<Piece> found(block);
#pragma omp parallel
    {
        Memory<float> tile(d.key_dim * MOST_VECS * LANES);
        for (long start = 0; start < rows; start += block) {
            long stop = smaller(start + block, rows);
#pragma omp for schedule(static)
            for (long row = start; row < stop; ++row) ready.make(row, row - start);
#pragma omp single
            {
                pieces = 0;
                for (long row = start; row < stop;) {
                    const plait::Span& s = d.spans[span];
                    long count = smaller(s.rows - done, stop - row);
                    if (count > 0) found.data()[pieces++] = {row, row - start, count, done == 0 ? s.now : s.next, s.next};
                    row += count;
                    done += count;
                    if (done == s.rows) ++span, done = 0;
                }
            }
            long slice = slice_of(d.value_dim, pieces * d.value_heads);
            long slices = (d.value_dim + slice - 1) / slice;
#pragma omp for schedule(static)
            for (long item = 0; item < pieces * d.value_heads * slices; ++item) {
                long first = item % slices * slice, head = item / slices % d.value_heads;
                const Piece& piece = found.data()[item / slices / d.value_heads];
                columns_of(ready, piece, head, first, smaller(slice, d.value_dim - first), tile.data());
                drain();
            }
        }
    }
}

}  // namespace PLAIT_LEVEL

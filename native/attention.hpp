// Softmax attention over blocks of 64 keys.
//
// Keys are taken in chunks of 8 blocks counted from position 0. In a chunk a row has its own maximum, its own sum of
// weights and its own mix of values; chunks are joined in order. So a row's bits depend on its position and the keys
// it sees, not on which rows are computed beside it or which thread takes which chunk.
#pragma once


#include "kernels.hpp"
#include "memory.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

constexpr long BLOCK = 64, CHUNK = 8, TILE_ROWS = 32;

PLAIT_INLINE long clamped(long x, long low, long high) { return smaller(larger(x, low), high); }
PLAIT_INLINE void fill(float* from, float* stop, float value) {
    for (; from < stop; ++from) *from = value;
}
PLAIT_INLINE long ceil_lanes(long n) { return (n + LANES - 1) / LANES * LANES; }

// One head's rows of a block as floats [64, padded], padded with zeros: in place where they are that already.
static const float* widened(const void* block, long head, long dim, long padded, plait::Store store_as, float* room) {
    long at = head * BLOCK * dim;
    if (store_as == plait::Store::f32) {
        const float* from = static_cast<const float*>(block) + at;
        if (padded == dim) return from;
        for (long j = 0; j < BLOCK; ++j) {
            std::memcpy(room + j * padded, from + j * dim, sizeof(float) * dim);
            fill(room + j * padded + dim, room + (j + 1) * padded, 0.0f);
        }
        return room;
    }
    const std::uint16_t* from = static_cast<const std::uint16_t*>(block) + at;
    for (long j = 0; j < BLOCK; ++j) {
        long i = 0;
        for (; i + LANES <= dim; i += LANES)
            store(room + j * padded + i,
                  store_as == plait::Store::bf16 ? load_bf16(from + j * dim + i) : load_f16(from + j * dim + i));
        if (i < dim) {
            std::uint16_t rest[LANES] = {};
            std::memcpy(rest, from + j * dim + i, sizeof(std::uint16_t) * (dim - i));
            store(room + j * padded + i, store_as == plait::Store::bf16 ? load_bf16(rest) : load_f16(rest));
        }
    }
    return room;
}

template <int ROWS>
PLAIT_INLINE void score_rows(const float* q, const float* k, long padded, float* scores, long stride) {
    for (long j = 0; j < BLOCK; j += 4) {
        Vec acc[ROWS][4];
        for (int r = 0; r < ROWS; ++r)
            for (int c = 0; c < 4; ++c) acc[r][c] = set1(0.0f);
        for (long d = 0; d < padded; d += LANES) {
            Vec key[4];
            for (int c = 0; c < 4; ++c) key[c] = load(k + (j + c) * padded + d);
            for (int r = 0; r < ROWS; ++r) {
                Vec query = load(q + r * padded + d);
                for (int c = 0; c < 4; ++c) acc[r][c] = fma(query, key[c], acc[r][c]);
            }
        }
        for (int r = 0; r < ROWS; ++r) sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3], scores + r * stride + j);
    }
}

template <int ROWS, int VECS>
PLAIT_INLINE void mix_part(const float* weights, long stride, const float* v, long padded, float* mixed, long first,
                           long stop) {
    Vec acc[ROWS][VECS];
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < VECS; ++c) acc[r][c] = load(mixed + r * padded + c * LANES);
    for (long j = first; j < stop; ++j) {
        Vec value[VECS];
        for (int c = 0; c < VECS; ++c) value[c] = load(v + j * padded + c * LANES);
        for (int r = 0; r < ROWS; ++r) {
            Vec w = set1(weights[r * stride + j]);
            for (int c = 0; c < VECS; ++c) acc[r][c] = fma(w, value[c], acc[r][c]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < VECS; ++c) store(mixed + r * padded + c * LANES, acc[r][c]);
}

template <int ROWS>
PLAIT_INLINE void mix_rows(const float* weights, long stride, const float* v, long padded, float* mixed, long first,
                           long stop) {
    long d = 0;
    for (; d + 4 * LANES <= padded; d += 4 * LANES)
        mix_part<ROWS, 4>(weights, stride, v + d, padded, mixed + d, first, stop);
    for (; d < padded; d += LANES) mix_part<ROWS, 1>(weights, stride, v + d, padded, mixed + d, first, stop);
}

// What a chunk leaves behind: for each row its maximum, its sum and its mix.
struct Partial {
    float* most;
    float* total;
    float* mixed;
};

// Rows of a tile: row r is query head `r % group` of the tile's KV head at position `first + r / group`.
struct Tile {
    const plait::Attention& a;
    long head, first, count;
    long group() const { return a.heads / a.kv_heads; }
    long rows() const { return count * group(); }
    long position(long row) const { return a.start + first + row / group(); }
    long lowest(long row) const { return larger(0, position(row) - a.window + 1); }
};

static void gather_queries(const Tile& tile, float* q, long padded) {
    long group = tile.group();
    for (long r = 0; r < tile.rows(); ++r) {
        const float* from = tile.a.queries + (tile.first + r / group) * tile.a.query_stride +
                            (tile.head * group + r % group) * tile.a.dim;
        for (long d = 0; d < padded; ++d) q[r * padded + d] = d < tile.a.dim ? from[d] * tile.a.scale : 0.0f;
    }
}

using Room = Memory<float>;
using Addresses = Memory<const void*>;

// Scratch of one thread.
struct Scratch {
    Room q, scores, keys, mixed, most, total;
    explicit Scratch(const plait::Attention& a)
        : q(TILE_ROWS * ceil_lanes(a.dim)),
          scores(TILE_ROWS * CHUNK * BLOCK),
          keys(BLOCK * larger(ceil_lanes(a.dim), ceil_lanes(a.v_dim))),
          mixed(TILE_ROWS * ceil_lanes(a.v_dim)),
          most(TILE_ROWS),
          total(TILE_ROWS) {}
};

static void one_chunk(const Tile& tile, long chunk, const float* q, Scratch& scratch, Partial out) {
    const plait::Attention& a = tile.a;
    long rows = tile.rows(), stride = CHUNK * BLOCK;
    long padded = ceil_lanes(a.dim), v_padded = ceil_lanes(a.v_dim);
    long low = larger(chunk * CHUNK, tile.lowest(0) / BLOCK);
    long high = smaller((chunk + 1) * CHUNK, tile.position(rows - 1) / BLOCK + 1);
    float* scores = scratch.scores.data();
    for (long b = low; b < high; ++b) {
        const float* k = widened(a.keys[b - a.first_block], tile.head, a.dim, padded, a.store, scratch.keys.data());
        float* at = scores + (b - chunk * CHUNK) * BLOCK;
        long r = 0;
        for (; r + 4 <= rows; r += 4) score_rows<4>(q + r * padded, k, padded, at + r * stride, stride);
        for (; r < rows; ++r) score_rows<1>(q + r * padded, k, padded, at + r * stride, stride);
    }
    long from = (low - chunk * CHUNK) * BLOCK, stop = (high - chunk * CHUNK) * BLOCK;
    constexpr float NONE = -__builtin_inff();
    for (long r = 0; r < rows; ++r) {
        float* row = scores + r * stride;
        if (a.cap != 0.0f)
            for (long j = from; j < stop; j += LANES)
                store(row + j, mul(tanh(div(load(row + j), set1(a.cap))), set1(a.cap)));
        // Keys [seen, last) of the chunk are visible.
        long seen = clamped(tile.lowest(r) - chunk * CHUNK * BLOCK, from, stop);
        long last = clamped(tile.position(r) + 1 - chunk * CHUNK * BLOCK, from, stop);
        fill(row + from, row + seen, NONE);
        fill(row + larger(last, seen), row + stop, NONE);
        Vec most = set1(NONE);
        for (long j = from; j < stop; j += LANES) most = max(most, load(row + j));
        out.most[r] = highest(most);
        Vec total = set1(0.0f);
        if (out.most[r] == NONE) {
            fill(row + from, row + stop, 0.0f);
        } else {
            Vec shift = set1(out.most[r]);
            for (long j = from; j < stop; j += LANES) {
                Vec w = exp(sub(load(row + j), shift));
                store(row + j, w);
                total = add(total, w);
            }
        }
        out.total[r] = sum(total);
    }
    fill(out.mixed, out.mixed + rows * v_padded, 0.0f);
    long last_seen = tile.position(rows - 1) + 1 - chunk * CHUNK * BLOCK;
    for (long b = low; b < high; ++b) {
        const float* v = widened(a.values[b - a.first_block], tile.head, a.v_dim, v_padded, a.store, scratch.keys.data());
        long at = (b - chunk * CHUNK) * BLOCK;
        long end = smaller(BLOCK, last_seen - at);
        long r = 0;
        for (; r + 4 <= rows; r += 4)
            mix_rows<4>(scores + r * stride + at, stride, v, v_padded, out.mixed + r * v_padded, 0, end);
        for (; r < rows; ++r)
            mix_rows<1>(scores + r * stride + at, stride, v, v_padded, out.mixed + r * v_padded, 0, end);
    }
}

// Takes a chunk into what the chunks before it made. e^(a - b) of equal numbers is exactly 1.
static void join(Partial into, Partial part, long rows, long padded, bool first) {
    constexpr float NONE = -__builtin_inff();
    for (long r = 0; r < rows; ++r) {
        float* mixed = into.mixed + r * padded;
        const float* more = part.mixed + r * padded;
        if (first || into.most[r] == NONE) {
            into.most[r] = part.most[r];
            into.total[r] = part.total[r];
            std::memcpy(mixed, more, sizeof(float) * padded);
            continue;
        }
        if (part.most[r] == NONE) continue;
        float most = into.most[r] > part.most[r] ? into.most[r] : part.most[r];
        float scales[LANES] = {into.most[r] - most, part.most[r] - most};
        store(scales, exp(load(scales)));
        into.most[r] = most;
        into.total[r] = into.total[r] * scales[0] + part.total[r] * scales[1];
        Vec keep = set1(scales[0]), take = set1(scales[1]);
        for (long d = 0; d < padded; d += LANES)
            store(mixed + d, fma(load(more + d), take, mul(load(mixed + d), keep)));
    }
}

static void finish(const Tile& tile, Partial made) {
    const plait::Attention& a = tile.a;
    long group = tile.group(), padded = ceil_lanes(a.v_dim);
    for (long r = 0; r < tile.rows(); ++r) {
        long head = tile.head * group + r % group;
        float total = made.total[r], keep = 1.0f;
        if (a.sinks != nullptr) {
            float most = made.most[r] > a.sinks[head] ? made.most[r] : a.sinks[head];
            float scales[LANES] = {made.most[r] - most, a.sinks[head] - most};
            store(scales, exp(load(scales)));
            keep = scales[0];
            total = total * keep + scales[1];
        }
        float* to = a.out + ((tile.first + r / group) * a.heads + head) * a.v_dim;
        const float* from = made.mixed + r * padded;
        for (long d = 0; d < a.v_dim; ++d) to[d] = from[d] * keep / total;
    }
}

static void attention(const plait::Attention& a) {
    long group = a.heads / a.kv_heads;
    long positions = larger(1, TILE_ROWS / group);
    long padded = ceil_lanes(a.dim), v_padded = ceil_lanes(a.v_dim);
    long tiles = (a.n + positions - 1) / positions;
    long most_rows = positions * group;
    // Tiles of more rows than a tile has room for (very wide groups) are cut by the group itself.
    if (group > TILE_ROWS) {
        plait::Attention part = a;
        Room out(a.n * a.v_dim);
        long blocks = (a.start + a.n - 1) / BLOCK - a.first_block + 1;
        Addresses keys(blocks), values(blocks);
        for (long h = 0; h < a.heads; ++h) {
            long kv = h / group;
            long width = a.store == plait::Store::f32 ? 4 : 2;
            for (long b = 0; b < blocks; ++b) {
                keys.held[b] = static_cast<const char*>(a.keys[b]) + kv * BLOCK * a.dim * width;
                values.held[b] = static_cast<const char*>(a.values[b]) + kv * BLOCK * a.v_dim * width;
            }
            part.queries = a.queries + h * a.dim;
            part.out = out.data();
            part.sinks = a.sinks == nullptr ? nullptr : a.sinks + h;
            part.keys = keys.held;
            part.values = values.held;
            part.heads = part.kv_heads = 1;
            attention(part);
            for (long i = 0; i < a.n; ++i)
                std::memcpy(a.out + (i * a.heads + h) * a.v_dim, out.data() + i * a.v_dim, sizeof(float) * a.v_dim);
        }
        return;
    }
    if (tiles * a.kv_heads >= 4) {
#pragma omp parallel
        {
            Scratch scratch(a);
            Room most(most_rows), total(most_rows), mixed(most_rows * v_padded);
            Partial made{most.data(), total.data(), mixed.data()};
            Partial part{scratch.most.data(), scratch.total.data(), scratch.mixed.data()};
#pragma omp for schedule(dynamic)
            for (long item = 0; item < tiles * a.kv_heads; ++item) {
                // The last positions see most keys: they are begun first.
                long first = (tiles - 1 - item / a.kv_heads) * positions;
                Tile tile{a, item % a.kv_heads, first, smaller(positions, a.n - first)};
                gather_queries(tile, scratch.q.data(), padded);
                long begin = tile.lowest(0) / BLOCK / CHUNK;
                long stop = tile.position(tile.rows() - 1) / BLOCK / CHUNK + 1;
                for (long c = begin; c < stop; ++c) {
                    one_chunk(tile, c, scratch.q.data(), scratch, part);
                    join(made, part, tile.rows(), v_padded, c == begin);
                }
                finish(tile, made);
            }
        }
        return;
    }
    // Few tiles: threads share the chunks of each.
    for (long item = 0; item < tiles * a.kv_heads; ++item) {
        long first = item / a.kv_heads * positions;
        Tile tile{a, item % a.kv_heads, first, smaller(positions, a.n - first)};
        long rows = tile.rows();
        long begin = tile.lowest(0) / BLOCK / CHUNK;
        long chunks = tile.position(rows - 1) / BLOCK / CHUNK + 1 - begin;
        Room most(chunks * rows), total(chunks * rows), mixed(chunks * rows * v_padded);
        auto part = [&](long c) {
            return Partial{most.data() + c * rows, total.data() + c * rows, mixed.data() + c * rows * v_padded};
        };
#pragma omp parallel if (chunks > 1)
        {
            Scratch scratch(a);
            gather_queries(tile, scratch.q.data(), padded);
#pragma omp for schedule(static)
            for (long c = 0; c < chunks; ++c) one_chunk(tile, begin + c, scratch.q.data(), scratch, part(c));
        }
        for (long c = 1; c < chunks; ++c) join(part(0), part(c), rows, v_padded, false);
        finish(tile, part(0));
    }
}

}  // namespace PLAIT_LEVEL

// Attention in float32: keys and values are widened slab by slab and met by multiply-adds.
#pragma once

#include "attention_work.hpp"

namespace PLAIT_LEVEL {

// One head's rows of a slab as floats [64, padded], padded with zeros: in place where they are that already.
static const float* widened(const char* rows, long dim, long padded, plait::Store store_as, float* room) {
    long bytes = row_bytes(store_as, dim);
    if (store_as == plait::Store::f32 && padded == dim) return reinterpret_cast<const float*>(rows);
    for (long j = 0; j < BLOCK; ++j) {
        const char* row = rows + j * bytes;
        float* to = room + j * padded;
        if (store_as == plait::Store::f32) {
            std::memcpy(to, row, sizeof(float) * dim);
            fill(to + dim, to + padded, 0.0f);
        } else if (store_as == plait::Store::int8) {
            widen_codes(row, dim, to);
        } else {
            auto* halves = reinterpret_cast<const std::uint16_t*>(row);
            if (store_as == plait::Store::bf16)
                widen_halves(halves, dim, true, to);
            else
                widen_halves(halves, dim, false, to);
        }
    }
    return room;
}

template <int ROWS>
PLAIT_INLINE void score_rows(const float* q, const float* k, long padded, float* scores, bool more) {
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
        for (int r = 0; r < ROWS; ++r) {
            float* to = scores + r * STRIDE + j;
            float made[4];
            sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3], made);
            for (int c = 0; c < 4; ++c) to[c] = more ? to[c] + made[c] : made[c];
        }
    }
}

template <int ROWS, int VECS>
PLAIT_INLINE void mix_part(const float* weights, const float* v, long padded, float* mixed, long stop) {
    Vec acc[ROWS][VECS];
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < VECS; ++c) acc[r][c] = load(mixed + r * padded + c * LANES);
    for (long j = 0; j < stop; ++j) {
        Vec value[VECS];
        for (int c = 0; c < VECS; ++c) value[c] = load(v + j * padded + c * LANES);
        for (int r = 0; r < ROWS; ++r) {
            Vec w = set1(weights[r * STRIDE + j]);
            for (int c = 0; c < VECS; ++c) acc[r][c] = fma(w, value[c], acc[r][c]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < VECS; ++c) store(mixed + r * padded + c * LANES, acc[r][c]);
}

template <int ROWS>
PLAIT_INLINE void mix_rows(const float* weights, const float* v, long padded, float* mixed, long stop) {
    long d = 0;
    for (; d + 4 * LANES <= padded; d += 4 * LANES) mix_part<ROWS, 4>(weights, v + d, padded, mixed + d, stop);
    for (; d < padded; d += LANES) mix_part<ROWS, 1>(weights, v + d, padded, mixed + d, stop);
}

// Scratch of one thread.
struct Fma {
    const plait::Attention& a;
    long room;
    Room q, wide;

    // Codes are widened in whole blocks.
    static long padded_dim(const plait::Attention& a, long dim) {
        return ceil_to(dim, a.store == plait::Store::int8 ? CODES : LANES);
    }
    static long padded(const plait::Attention& a) { return padded_dim(a, a.v_dim); }
    static long widest(const plait::Attention& a) {
        long most = padded(a);
        for (long p = 0; p < a.part_count; ++p) most = larger(most, padded_dim(a, a.parts[p].dim));
        return most;
    }
    static long all_parts(const plait::Attention& a) {
        long sum = 0;
        for (long p = 0; p < a.part_count; ++p) sum += padded_dim(a, a.parts[p].dim);
        return sum;
    }
    Fma(const plait::Attention& a, long room) : a(a), room(room), q(room * all_parts(a)), wide(BLOCK * widest(a)) {}

    // Rows are read in order, which the processor sees for itself; mixes lie in order.
    void begin(const Rows&, const Seen&, Turn) {}
    PLAIT_INLINE void order(Vec&, Vec&) {}

    void take(const Rows& rows) {
        float* to = q.data();
        for (long p = 0; p < a.part_count; ++p) {
            const plait::AttentionPart& part = a.parts[p];
            long width = padded_dim(a, part.dim);
            for (long r = 0; r < rows.count; ++r, to += width) {
                const float* from = part.queries + rows.row(r) * part.stride + rows.query_head(r) * part.dim;
                for (long d = 0; d < width; ++d) to[d] = d < part.dim ? from[d] * a.scale : 0.0f;
            }
        }
    }

    void score(const Rows& rows, long block, float* scores) {
        const float* from = q.data();
        for (long p = 0; p < a.part_count; ++p) {
            long width = padded_dim(a, a.parts[p].dim), r = 0;
            const float* k = widened(rows.keys(block, a.parts[p]), a.parts[p].dim, width, a.store, wide.data());
            for (; r + 4 <= rows.count; r += 4)
                score_rows<4>(from + r * width, k, width, scores + r * STRIDE, p > 0);
            for (; r < rows.count; ++r) score_rows<1>(from + r * width, k, width, scores + r * STRIDE, p > 0);
            from += rows.count * width;
        }
    }

    PLAIT_INLINE void keep(float* row, Vec low, Vec high) {
        store(row, low);
        store(row + LANES, high);
    }

    void mix(const Rows& rows, const Seen& seen, const float* scores, float* mixed) {
        long width = padded(a), last = rows.position(rows.count - 1) + 1 - seen.chunk * CHUNK_KEYS;
        fill(mixed, mixed + rows.count * width, 0.0f);
        for (long b = seen.low; b < seen.high; ++b) {
            if (!seen.uses(b)) continue;
            const float* v = widened(rows.values(b), a.v_dim, width, a.store, wide.data());
            long at = seen.column(b), stop = smaller(BLOCK, last - at), r = 0;
            for (; r + 4 <= rows.count; r += 4)
                mix_rows<4>(scores + r * STRIDE + at, v, width, mixed + r * width, stop);
            for (; r < rows.count; ++r) mix_rows<1>(scores + r * STRIDE + at, v, width, mixed + r * width, stop);
        }
    }
};

static void attention(const plait::Attention& a) { attend<Fma>(a); }

}  // namespace PLAIT_LEVEL

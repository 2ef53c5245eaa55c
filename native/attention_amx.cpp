// Attention with the processor's matrix tiles (AMX), over rows of bf16 and over codes.
//
// Queries are three planes of bf16, weights two: what scores and mixes lose by it is below float32's own rounding of
// sums, to 2^-17 of each weight. A row's chain over dims and over keys is the same whichever rows share its tile.
#include "attention_amx_few.hpp"

namespace plait {

namespace {

using namespace PLAIT_LEVEL;

// Scratch of one thread, whose tiles are configured while it lives: 0 to 3 hold outputs of up to 32 rows by 32 columns.
template <bool CODED>
struct Tiles {
    const Attention& a;
    long steps, across;  // steps of 32 dims of all parts; tiles of 16 values
    Memory<Half> q, keys, values, folded;
    Memory<float> key_scales, value_scales;
    Ahead ahead;

    static long padded(const Attention& a) { return ceil_to(a.v_dim, STEP); }
    static long all_steps(const Attention& a) {
        long sum = 0;
        for (long p = 0; p < a.part_count; ++p) sum += ceil_to(a.parts[p].dim, STEP) / STEP;
        return sum;
    }

    Tiles(const Attention& a, long room)
        : a(a),
          steps(all_steps(a)),
          across(padded(a) / 16),
          q(room * steps * STEP * QUERY_PLANES),
          keys(steps * 4 * TILE),
          values(room <= FEW_QUERIES ? BLOCK / STEP * 4 * TILE : CHUNK_KEYS / STEP * across * TILE),
          folded(CODED ? room * CHUNK_KEYS * WEIGHT_PLANES : 0),
          key_scales(CODED ? steps * BLOCK : 0),
          value_scales(CODED ? across / 2 * CHUNK_KEYS : 0),
          ahead(a) {
        configure(16, 0);
    }
    ~Tiles() { _tile_release(); }

    // Queries as [16 rows][step][plane] tiles; rows that fill up the last two tiles, or the one of few, are zeros.
    void take(const Rows& rows) {
        for (long r = 0; r < ceil_to(rows.count, few(rows) ? FEW_QUERIES : 32); ++r) {
            Half* to = q.data() + r / 16 * steps * QUERY_PLANES * TILE + r % 16 * STEP;
            for (long p = 0; p < a.part_count; ++p) {
                const AttentionPart& part = a.parts[p];
                const float* from = nullptr;
                if (r < rows.count) from = part.queries + rows.row(r) * part.stride + rows.query_head(r) * part.dim;
                for (long d = 0; d < part.dim; d += STEP, to += QUERY_PLANES * TILE) {
                    __m512 low = _mm512_setzero_ps(), high = low, scale = _mm512_set1_ps(a.scale);
                    if (from != nullptr) {
                        low = _mm512_mul_ps(some_floats(from + d, part.dim - d), scale);
                        high = _mm512_mul_ps(some_floats(from + d + 16, part.dim - d - 16), scale);
                    }
                    split<QUERY_PLANES>(low, high, to, TILE);
                }
            }
        }
        if (few(rows)) turn_queries(q.data(), steps * QUERY_PLANES);
    }

    void begin(const Rows& rows, const Seen& seen, Turn next) { ahead.begin(rows, seen, next); }
    PLAIT_INLINE void order(Vec& low, Vec& high) { in_order(low, high); }

    static bool few(const Rows& rows) { return rows.count <= FEW_QUERIES; }

    void score(const Rows& rows, long block, float* scores) {
        if (few(rows)) return score_few<CODED>(rows, block, q.data(), keys.data(), scores, ahead);
        Half* to = keys.data();
        float* scale = key_scales.data();
        for (long p = 0; p < a.part_count; ++p) {
            const AttentionPart& part = a.parts[p];
            long bytes = row_bytes(a.store, part.dim), own = ceil_to(part.dim, STEP) / STEP;
            tile_keys<CODED>(rows.keys(block, part), bytes, part.dim, to, ahead);
            if (CODED) spread_scales(rows.keys(block, part), bytes, part.dim, scale, BLOCK);
            to += own * 4 * TILE;
            scale += own * BLOCK;
        }
        written();
        for (long r = 0; r < rows.count; r += 32) {
            const Half* x = q.data() + r / 16 * steps * QUERY_PLANES * TILE;
            bool tall = rows.count - r > 16;
            for (long j = 0; j < BLOCK; j += 32) {
                if (CODED)
                    score_codes(x, j, tall, scores + r * STRIDE + j);
                else
                    score_halves(x, j, tall, scores + r * STRIDE + j);
            }
        }
    }

    // Adds a step's products to tiles 0 to 3.
    PLAIT_INLINE void meet(const Half* x, const Half* below, const Half* w, bool tall) {
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + TILE, 64);
        for (int p = 0; p < QUERY_PLANES; ++p) {
            _tile_loadd(4, x + p * TILE, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (!tall) continue;
            _tile_loadd(5, below + p * TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }

    PLAIT_INLINE void clear() {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }

    PLAIT_INLINE void put(float* to, long stride, bool tall) {
        _tile_stored(0, to, stride * 4);
        _tile_stored(1, to + 16, stride * 4);
        if (!tall) return;
        _tile_stored(2, to + 16 * stride, stride * 4);
        _tile_stored(3, to + 16 * stride + 16, stride * 4);
    }

    void score_halves(const Half* x, long first, bool tall, float* scores) {
        clear();
        for (long s = 0; s < steps; ++s)
            meet(x + s * QUERY_PLANES * TILE, x + (steps + s) * QUERY_PLANES * TILE,
                 keys.data() + (s * 4 + first / 16) * TILE, tall);
        put(scores, STRIDE, tall);
    }

    // Products with the codes of 32 dims are summed up, and join the score times the keys' scales.
    void score_codes(const Half* x, long first, bool tall, float* scores) {
        alignas(64) float made[32 * 32];
        for (long s = 0; s < steps; ++s) {
            clear();
            meet(x + s * QUERY_PLANES * TILE, x + (steps + s) * QUERY_PLANES * TILE,
                 keys.data() + (s * 4 + first / 16) * TILE, tall);
            put(made, 32, tall);
            Vec low = load(key_scales.data() + s * BLOCK + first), high = load(key_scales.data() + s * BLOCK + first + 16);
            for (long r = 0; r < (tall ? 32 : 16); ++r) {
                float* to = scores + r * STRIDE;
                Vec a0 = load(made + r * 32), a1 = load(made + r * 32 + 16);
                store(to, s == 0 ? mul(a0, low) : fma(a0, low, load(to)));
                store(to + 16, s == 0 ? mul(a1, high) : fma(a1, high, load(to + 16)));
            }
        }
    }

    // 32 weights take the place of 32 scores: as two planes, or as floats that scales still meet.
    PLAIT_INLINE void keep(float* row, Vec low, Vec high) {
        if (CODED) {
            PLAIT_LEVEL::store(row, low);
            PLAIT_LEVEL::store(row + LANES, high);
        } else {
            split<WEIGHT_PLANES>(low.v, high.v, reinterpret_cast<Half*>(row), STEP);
        }
    }

    void mix(const Rows& rows, const Seen& seen, const float* scores, float* mixed) {
        if (few(rows))
            return mix_few<CODED>(rows, seen, scores, values.data(), value_scales.data(), folded.data(), mixed, ahead);
        long bytes = row_bytes(a.store, a.v_dim);
        for (long b = seen.low; b < seen.high; ++b) {
            if (!seen.uses(b)) continue;
            Half* to = values.data() + seen.column(b) / STEP * across * TILE;
            for (long d = 0; d < a.v_dim; d += STEP, to += 2 * TILE) {
                tile_values<CODED>(rows.values(b), bytes, a.v_dim, d, smaller(d + STEP, a.v_dim), across, to);
                ahead.took(4 * bytes_of_step(bytes, a.v_dim));
            }
            if (CODED)
                spread_scales(rows.values(b), bytes, a.v_dim, value_scales.data() + seen.column(b), CHUNK_KEYS);
        }
        for (long c = 0; c < across; c += 2) {
            const Half* weights = reinterpret_cast<const Half*>(scores);
            long stride = 2 * STRIDE;
            if (CODED) {
                fold(rows.count, seen.column(seen.low), seen.column(seen.high), scores,
                     value_scales.data() + c / 2 * CHUNK_KEYS, folded.data());
                weights = folded.data(), stride = WEIGHT_PLANES * CHUNK_KEYS;
            }
            written();
            for (long r = 0; r < rows.count; r += 32) {
                bool tall = rows.count - r > 16;
                mix_tiles(seen, weights + r * stride, stride, values.data() + c * TILE, tall);
                put(mixed + r * padded(a) + c * 16, padded(a), tall);
            }
        }
    }

    // Up to 32 rows of weights meet 32 values of each key of a chunk.
    void mix_tiles(const Seen& seen, const Half* weights, long stride, const Half* v, bool tall) {
        clear();
        const Half* below = weights + 16 * stride;
        for (long b = seen.low; b < seen.high; ++b) {
            if (!seen.uses(b)) continue;
            for (long j = seen.column(b); j < seen.column(b) + BLOCK; j += STEP) {
                const Half* tile = v + j / STEP * across * TILE;
                _tile_loadd(6, tile, 64);
                _tile_loadd(7, tile + TILE, 64);
                for (int p = 0; p < WEIGHT_PLANES; ++p) {
                    _tile_loadd(4, weights + WEIGHT_PLANES * j + p * STEP, stride * 2);
                    _tile_dpbf16ps(0, 4, 6);
                    _tile_dpbf16ps(1, 4, 7);
                    if (!tall) continue;
                    _tile_loadd(5, below + WEIGHT_PLANES * j + p * STEP, stride * 2);
                    _tile_dpbf16ps(2, 5, 6);
                    _tile_dpbf16ps(3, 5, 7);
                }
            }
        }
    }
};

}  // namespace

void attention_amx(const Attention& a) {
    if (a.store == Store::bf16)
        attend<Tiles<false>>(a);
    else if (a.store == Store::int8)
        attend<Tiles<true>>(a);
    else
        avx512_kernels.attention(a);
}

}  // namespace plait

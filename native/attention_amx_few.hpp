// Few rows of queries: keys are the rows of the products as they lie in the slab, queries the columns; values are
// mixed slab by slab. A row's chains are those of attention_amx.cpp: the two sides of a product may change places.
#pragma once

#include "attention_amx.hpp"

namespace PLAIT_LEVEL {

constexpr int QUERY_PLANES = 3, WEIGHT_PLANES = 2;

// Memory is to be asked all the time and never for much at once: so many sixteenths of the keys are counted as taken
// while they meet the queries, the others while scores are turned; of the values while they are mixed, the others while
// they are laid out.
constexpr long KEYS_WHILE_MET = 14, VALUES_WHILE_MIXED = 12;

// The first `count` tiles get `rows` rows of 64 bytes, the others 16.
PLAIT_INLINE void configure(int rows, int count) {
    plait::TileConfig config;
    for (int t = 0; t < 8; ++t) config.rows[t] = std::uint8_t(t < count ? rows : 16), config.bytes_per_row[t] = 64;
    plait::configure_tiles(config);
}

// Tiles of 16 rows become tiles of 16 columns.
static void turn_queries(Half* tiles, long count) {
    for (long t = 0; t < count; ++t, tiles += TILE) {
        __m512i v[16];
        for (long i = 0; i < 16; ++i) v[i] = _mm512_loadu_si512(tiles + i * STEP);
        transpose(v);
        for (long i = 0; i < 16; ++i) _mm512_storeu_si512(tiles + i * STEP, v[i]);
    }
}

// Adds to tiles 0 to 3, of 16 keys each, the products of one step of their rows with the three planes of the queries.
// `each` bytes are taken with every tile of keys.
PLAIT_INLINE void meet_few(const Half* k, long stride, const Half* x, Ahead& ahead, long each) {
    _tile_loadd(4, x, 64);
    _tile_loadd(5, x + TILE, 64);
    _tile_loadd(6, x + 2 * TILE, 64);
    _tile_loadd(7, k, stride * 2);
    ahead.took(each);
    _tile_dpbf16ps(0, 7, 4);
    _tile_dpbf16ps(0, 7, 5);
    _tile_dpbf16ps(0, 7, 6);
    _tile_loadd(7, k + 16 * stride, stride * 2);
    ahead.took(each);
    _tile_dpbf16ps(1, 7, 4);
    _tile_dpbf16ps(1, 7, 5);
    _tile_dpbf16ps(1, 7, 6);
    _tile_loadd(7, k + 32 * stride, stride * 2);
    ahead.took(each);
    _tile_dpbf16ps(2, 7, 4);
    _tile_dpbf16ps(2, 7, 5);
    _tile_dpbf16ps(2, 7, 6);
    _tile_loadd(7, k + 48 * stride, stride * 2);
    ahead.took(each);
    _tile_dpbf16ps(3, 7, 4);
    _tile_dpbf16ps(3, 7, 5);
    _tile_dpbf16ps(3, 7, 6);
}

PLAIT_INLINE void clear_four() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Four tiles to [64][16].
PLAIT_INLINE void put_four(float* to) {
    _tile_stored(0, to, 64);
    _tile_stored(1, to + 256, 64);
    _tile_stored(2, to + 512, 64);
    _tile_stored(3, to + 768, 64);
}

// The rows of one part of a slab's keys as bf16 numbers in whole steps: in place where they are that already.
template <bool CODED>
PLAIT_INLINE const Half* plain_keys(const char* rows, long bytes, long dim, Half* room) {
    if (CODED) {
        widen_keys(rows, bytes, dim, room);
        return room;
    }
    if (dim % STEP == 0) return reinterpret_cast<const Half*>(rows);
    long width = ceil_to(dim, STEP);
    for (long j = 0; j < BLOCK; ++j)
        for (long d = 0; d < dim; d += STEP) _mm512_storeu_si512(room + j * width + d, halves_at(rows + j * bytes, d, dim));
    return room;
}

template <bool CODED>
static void score_few(const Rows& rows, long block, const Half* q, Half* room, float* scores, Ahead& ahead) {
    alignas(64) float made[BLOCK * 16], sums[BLOCK * 16];
    const plait::Attention& a = rows.a;
    long rest = 0;
    clear_four();
    for (long p = 0; p < a.part_count; ++p) {
        const plait::AttentionPart& part = a.parts[p];
        long bytes = row_bytes(a.store, part.dim), width = ceil_to(part.dim, STEP);
        const char* from = rows.keys(block, part);
        long each = bytes_of_step(bytes, part.dim) * KEYS_WHILE_MET / 16;
        rest += BLOCK * bytes - BLOCK * bytes * KEYS_WHILE_MET / 16;
        const Half* k = plain_keys<CODED>(from, bytes, part.dim, room);
        for (long d = 0; d < width; d += STEP, q += QUERY_PLANES * TILE) {
            if (CODED) clear_four();
            plait::written();
            meet_few(k + d, width, q, ahead, each);
            if (!CODED) continue;
            put_four(made);
            for (long j = 0; j < BLOCK; ++j) {
                std::uint16_t h;
                std::memcpy(&h, from + j * bytes + d / STEP * 2, sizeof h);
                Vec scale = {_mm512_cvtph_ps(_mm256_set1_epi16(short(h)))};
                Vec one = load(made + j * 16);
                store(sums + j * 16, p == 0 && d == 0 ? mul(one, scale) : fma(one, scale, load(sums + j * 16)));
            }
        }
    }
    if (!CODED) put_four(sums);
    for (long j = 0; j < BLOCK; j += 16) {
        __m512i v[16];
        for (long k = 0; k < 16; ++k) v[k] = _mm512_load_si512(sums + (j + k) * 16);
        ahead.took(rest / (BLOCK / 16));
        transpose(v);
        for (long r = 0; r < rows.count; ++r) _mm512_storeu_si512(scores + r * STRIDE + j, v[r]);
    }
}

// Weights of columns [from, stop) times the scales of one block of values, as planes: rows of [32 keys][plane].
static void fold(long rows, long from, long stop, const float* scores, const float* scale, Half* to) {
    for (long r = 0; r < rows; ++r)
        for (long j = from; j < stop; j += STEP) {
            const float* w = scores + r * STRIDE + j;
            Vec low = mul(load(w), load(scale + j)), high = mul(load(w + LANES), load(scale + j + LANES));
            split<WEIGHT_PLANES>(low.v, high.v, to + WEIGHT_PLANES * (r * CHUNK_KEYS + j), STEP);
        }
}

// Tiles 0 and 1, or 0 to 3, of 16 values each, get the products of a slab's weights and values. `each` bytes are taken
// with every two tiles of values.
template <int COUNT>
PLAIT_INLINE void mix_slab(const Half* weights, long stride, const Half* v, Ahead& ahead, long each) {
    for (long j = 0; j < BLOCK; j += STEP, v += COUNT * TILE) {
        _tile_loadd(4, weights + WEIGHT_PLANES * j, stride * 2);
        _tile_loadd(5, weights + WEIGHT_PLANES * j + STEP, stride * 2);
        _tile_loadd(6, v, 64);
        _tile_loadd(7, v + TILE, 64);
        ahead.took(each);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(0, 5, 6);
        _tile_dpbf16ps(1, 5, 7);
        if (COUNT == 2) continue;
        _tile_loadd(6, v + 2 * TILE, 64);
        _tile_loadd(7, v + 3 * TILE, 64);
        ahead.took(each);
        _tile_dpbf16ps(2, 4, 6);
        _tile_dpbf16ps(3, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// Tiles of outputs and of weights have the rows there are: fewer are sooner done.
template <bool CODED>
static void mix_few(const Rows& rows, const Seen& seen, const float* scores, Half* values, float* scales, Half* folded,
                    float* mixed, Ahead& ahead) {
    const plait::Attention& a = rows.a;
    long bytes = row_bytes(a.store, a.v_dim), width = ceil_to(a.v_dim, STEP), across = width / 16;
    fill(mixed, mixed + rows.count * width, 0.0f);
    configure(int(rows.count), 6);
    long two = 2 * bytes_of_step(bytes, a.v_dim), each = two * VALUES_WHILE_MIXED / 16;
    for (long b = seen.low; b < seen.high; ++b) {
        if (!seen.uses(b)) continue;
        const char* from = rows.values(b);
        long column = seen.column(b);
        if (CODED) spread_scales(from, bytes, a.v_dim, scales + column, CHUNK_KEYS);
        const Half* weights = reinterpret_cast<const Half*>(scores) + WEIGHT_PLANES * column;
        for (long c = 0; c < across;) {
            float* to = mixed + c * 16;
            long together = CODED || across - c < 4 ? 2 : 4;
            long stop = smaller((c + together) * 16, a.v_dim);
            for (long j = 0; j < BLOCK; j += 16) {
                tile_values<CODED>(from, bytes, a.v_dim, c * 16, stop, together, values, j, j + 16);
                ahead.took((two - each) * together / 4);
            }
            if (CODED) fold(rows.count, column, column + BLOCK, scores, scales + c / 2 * CHUNK_KEYS, folded);
            plait::written();
            _tile_loadd(0, to, width * 4);
            _tile_loadd(1, to + 16, width * 4);
            if (together == 2) {
                if (CODED)
                    mix_slab<2>(folded + WEIGHT_PLANES * column, WEIGHT_PLANES * CHUNK_KEYS, values, ahead, each);
                else
                    mix_slab<2>(weights, 2 * STRIDE, values, ahead, each);
            } else {
                _tile_loadd(2, to + 32, width * 4);
                _tile_loadd(3, to + 48, width * 4);
                mix_slab<4>(weights, 2 * STRIDE, values, ahead, each);
                _tile_stored(2, to + 32, width * 4);
                _tile_stored(3, to + 48, width * 4);
            }
            _tile_stored(0, to, width * 4);
            _tile_stored(1, to + 16, width * 4);
            c += together;
        }
    }
    configure(16, 0);
}

}  // namespace PLAIT_LEVEL

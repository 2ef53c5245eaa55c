// Attention over bf16 rows with the processor's own products of bf16 pairs (AVX-512 BF16): queries and weights are rounded
// to bf16 as keys and values are, and sums are float32. Neither keys nor values are widened, and a product takes in two.
//
// A score is the sum over lanes of one chain over its pairs of dims, a mix one chain over pairs of keys, whatever the number
// of rows.
#include "attention_fma.hpp"

namespace plait {

namespace {

using namespace PLAIT_LEVEL;
using Half = std::uint16_t;

PLAIT_INLINE __m512bh load_pairs(const void* p) { return (__m512bh)_mm512_loadu_si512(p); }

// Scores of ROWS queries [ROWS, width] and the 64 keys of a part. `each` bytes are taken with every key.
template <int ROWS>
PLAIT_INLINE void score_pairs(const Half* q, long width, const Half* k, long dim, float* scores, bool more, Ahead& ahead,
                              long each) {
    constexpr int KEYS = MADE / ROWS;
    for (long j = 0; j < BLOCK; j += KEYS, k += KEYS * dim) {
        Vec acc[MADE];
        PLAIT_UNROLL for (int n = 0; n < MADE; ++n) acc[n] = set1(0.0f);
        for (long d = 0; d < width; d += PAIR) {
            __m512bh query[ROWS];
            PLAIT_UNROLL for (int r = 0; r < ROWS; ++r) query[r] = load_pairs(q + r * width + d);
            PLAIT_UNROLL for (int key = 0; key < KEYS; ++key) {
                __m512bh pairs = load_pairs(k + key * dim + d);
                PLAIT_UNROLL for (int r = 0; r < ROWS; ++r) {
                    Vec& sum = acc[slot_of(r * KEYS + key)];
                    sum.v = _mm512_dpbf16_ps(sum.v, query[r], pairs);
                }
            }
            if (each > 0) ahead.took(KEYS * 2 * PAIR);
        }
        float made[MADE];
        sums(acc, made);
        for (int r = 0; r < ROWS; ++r) {
            float* to = scores + r * STRIDE + j;
            for (int key = 0; key < KEYS; ++key) to[key] = more ? to[key] + made[r * KEYS + key] : made[r * KEYS + key];
        }
    }
}

// Weights of 32 keys lie as pairs in the first half of their place: those of keys j and j + 1, j even.
PLAIT_INLINE const float* pair_at(const float* row, long j) { return row + j / PAIR * PAIR + j % PAIR / 2; }

// Adds the first `stop` values of a slab, their dims [d, d + 32 PAIRS), times ROWS rows of weights to mixes. Of each 32 dims
// a vector has the first four of eight, the other the last four.
template <int ROWS, int PAIRS>
PLAIT_INLINE void mix_pairs(const float* weights, const Half* v, long dim, long padded, float* mixed, long from, long stop,
                            Ahead& ahead, long each) {
    Vec acc[ROWS][2 * PAIRS];
    PLAIT_UNROLL for (int r = 0; r < ROWS; ++r)
        PLAIT_UNROLL for (int c = 0; c < 2 * PAIRS; ++c) acc[r][c] = load(mixed + r * padded + c * LANES);
    auto add = [&](long j, auto both) {
        __m512bh value[2 * PAIRS];
        PLAIT_UNROLL for (int c = 0; c < PAIRS; ++c) {
            __m512i one = _mm512_loadu_si512(v + j * dim + c * PAIR), other = _mm512_setzero_si512();
            if constexpr (both.value) other = _mm512_loadu_si512(v + (j + 1) * dim + c * PAIR);
            value[2 * c] = (__m512bh)_mm512_unpacklo_epi16(one, other);
            value[2 * c + 1] = (__m512bh)_mm512_unpackhi_epi16(one, other);
        }
        PLAIT_UNROLL for (int r = 0; r < ROWS; ++r) {
            __m512bh w = (__m512bh)_mm512_set1_ps(*pair_at(weights + r * STRIDE, j));
            PLAIT_UNROLL for (int c = 0; c < 2 * PAIRS; ++c)
                acc[r][c].v = _mm512_dpbf16_ps(acc[r][c].v, w, value[c]);
        }
    };
    long j = from;
    for (; j + 2 <= stop; j += 2) {
        add(j, std::true_type());
        if (each > 0) ahead.took(2 * each);
    }
    // What lies behind the last key was never written.
    if (j < stop) add(j, std::false_type());
    PLAIT_UNROLL for (int r = 0; r < ROWS; ++r)
        PLAIT_UNROLL for (int c = 0; c < 2 * PAIRS; ++c) store(mixed + r * padded + c * LANES, acc[r][c]);
}

template <int ROWS>
PLAIT_INLINE void mix_dims(const float* weights, const Half* v, long dim, long padded, float* mixed, long from, long stop,
                           Ahead& ahead, long each) {
    constexpr int PAIRS = MADE / 2 / (ROWS > 2 ? ROWS : 2);
    long d = 0, part = each * PAIRS * PAIR / padded;
    for (; d + PAIRS * PAIR <= padded; d += PAIRS * PAIR)
        mix_pairs<ROWS, PAIRS>(weights, v + d, dim, padded, mixed + d, from, stop, ahead, part);
    for (; d < padded; d += PAIR) mix_pairs<ROWS, 1>(weights, v + d, dim, padded, mixed + d, from, stop, ahead, part / PAIRS);
}

struct Pairs : Fma<OfBf16> {
    using Fma<OfBf16>::Fma;

    // Queries [part][row][padded], which take half of their room.
    Half* queries() { return reinterpret_cast<Half*>(q.data()); }

    void take(const Rows& rows) {
        Half* to = queries();
        for (long p = 0; p < a.part_count; ++p) {
            const AttentionPart& part = a.parts[p];
            for (long r = 0; r < rows.count; ++r) {
                const float* from = part.queries + rows.row(r) * part.stride + rows.query_head(r) * part.dim;
                for (long d = 0; d < padded_dim(part.dim); d += PAIR, to += PAIR) {
                    long rest = part.dim - d - LANES;
                    Vec first = load_upto(from + d, part.dim - d), last = set1(0.0f);
                    if (rest > 0) last = load_upto(from + d + LANES, rest);
                    first = mul(first, set1(a.scale)), last = mul(last, set1(a.scale));
                    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(last.v, first.v));
                }
            }
        }
    }

    // One head's rows of a slab [64, padded]: as they lie, or a copy with zeros behind `dim`.
    const Half* padded_rows(const char* rows, long dim) {
        if (dim % PAIR == 0) return reinterpret_cast<const Half*>(rows);
        long width = padded_dim(dim), bytes = 2 * dim;
        char* to = reinterpret_cast<char*>(wide.data());
        for (long j = 0; j < BLOCK; ++j, rows += bytes, to += 2 * width) {
            std::memcpy(to, rows, bytes);
            std::memset(to + bytes, 0, 2 * width - bytes);
            ahead.took(bytes);
        }
        return reinterpret_cast<const Half*>(wide.data());
    }

    void score(const Rows& rows, long block, float* scores) {
        const Half* from = queries();
        for (long p = 0; p < a.part_count; ++p) {
            long dim = a.parts[p].dim, width = padded_dim(dim);
            const Half* k = padded_rows(rows.keys(block, a.parts[p]), dim);
            by_rows(rows.count, dim == width ? 2 * dim : 0, [&](auto count, long r, long taken) {
                score_pairs<count.value>(from + r * width, width, k, width, scores + r * STRIDE, p > 0, ahead, taken);
            });
            from += rows.count * width;
        }
    }

    // What is summed is what was rounded, so that weights add up to 1.
    PLAIT_INLINE void keep(float* row, Vec& low, Vec& high) {
        __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(high.v, low.v);
        _mm512_storeu_si512(row, pairs);
        auto wide = [](__m256i half) { return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16); };
        low.v = _mm512_castsi512_ps(wide(_mm512_castsi512_si256(pairs)));
        high.v = _mm512_castsi512_ps(wide(_mm512_extracti64x4_epi64(pairs, 1)));
    }

    PLAIT_INLINE void order(Vec& low, Vec& high) {
        const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        __m512 front = _mm512_permutex2var_ps(low.v, first, high.v);
        high.v = _mm512_permutex2var_ps(low.v, _mm512_add_epi32(first, _mm512_set1_epi32(8)), high.v);
        low.v = front;
    }

    void mix(const Rows& rows, const Seen& seen, const float* scores, float* mixed) {
        long width = padded(a), last = rows.position(rows.count - 1) + 1 - seen.chunk * CHUNK_KEYS;
        fill(mixed, mixed + rows.count * width, 0.0f);
        for (long b = seen.low; b < seen.high; ++b) {
            if (!seen.uses(b)) continue;
            const Half* v = padded_rows(rows.values(b), a.v_dim);
            long at = seen.column(b), stop = smaller(BLOCK, last - at);
            for (long j = 0, some = mixed_at_once(rows); j < stop; j += some) {
                by_rows(rows.count, a.v_dim == width ? 2 * width : 0, [&](auto count, long r, long taken) {
                    mix_dims<count.value>(scores + at + r * STRIDE, v, width, width, mixed + r * width, j,
                                          smaller(j + some, stop), ahead, taken);
                });
            }
        }
    }
};

}  // namespace

void attention_avx512bf16(const Attention& a) {
    if (a.store == Store::bf16 && !a.exact) attend<Pairs>(a);
    else avx512_kernels.attention(a);
}

}  // namespace plait

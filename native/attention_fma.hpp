// Attention in float32: rows of keys and values are widened in registers and met by multiply-adds. Few rows of queries
// read a slab as it lies, many a copy of it that is widened once; rows of floats are never copied, rows that are no
// multiple of 32 long, of codes excepted, always.
//
// A row is taken 32 elements at a time, as two vectors; which of them a vector holds is a source's own affair, since
// queries are laid out in the same way and mixes are put in order at the end.
#pragma once

#include <type_traits>

#include "attention_ahead.hpp"
#include "attention_work.hpp"

namespace PLAIT_LEVEL {

constexpr long PAIR = 2 * LANES;

// How rows are stored. `pair`: elements [d, d + 32) of a row of `dim`; EVEN_ODD: of these the even and the odd ones.
struct OfFloats {
    static constexpr bool EVEN_ODD = false;
    static constexpr long BYTES = 4;
    PLAIT_INLINE void pair(const char* row, long, long d, Vec& a, Vec& b) {
        a = load(reinterpret_cast<const float*>(row) + d);
        b = load(reinterpret_cast<const float*>(row) + d + LANES);
    }
};
struct OfBf16 {
    static constexpr bool EVEN_ODD = true;
    static constexpr long BYTES = 2;
    PLAIT_INLINE void pair(const char* row, long, long d, Vec& a, Vec& b) {
        a = low_halves(reinterpret_cast<const std::uint16_t*>(row) + d);
        b = high_halves(reinterpret_cast<const std::uint16_t*>(row) + d);
    }
};
struct OfF16 {
    static constexpr bool EVEN_ODD = false;
    static constexpr long BYTES = 2;
    PLAIT_INLINE void pair(const char* row, long, long d, Vec& a, Vec& b) {
        a = load_f16(reinterpret_cast<const std::uint16_t*>(row) + d);
        b = load_f16(reinterpret_cast<const std::uint16_t*>(row) + d + LANES);
    }
};
struct OfCodes {
    static constexpr bool EVEN_ODD = false;
    static constexpr long BYTES = 0;  // rows are padded to whole blocks
    PLAIT_INLINE void pair(const char* row, long dim, long d, Vec& a, Vec& b) {
        const auto* codes = reinterpret_cast<const std::int8_t*>(row + 2 * blocks_of(dim) + d);
        Vec scale = set1_f16(row + d / CODES * 2);
        a = mul(load_codes(codes), scale);
        b = mul(load_codes(codes + LANES), scale);
    }
};

// The last elements of a row that is no multiple of 32 long, zeros behind them.
template <class Source>
PLAIT_INLINE void last_pair(const char* row, long dim, long d, Vec& a, Vec& b) {
    alignas(64) char held[PAIR * 4] = {};
    std::memcpy(held, row + d * Source::BYTES, (dim - d) * Source::BYTES);
    Source::pair(held, PAIR, 0, a, b);
}

// Sums over lanes that are made at a time, for rows of queries times keys: there are registers for so many.
#if defined(__AVX512F__)
constexpr int MADE = 16, MOST_ROWS = 4;
#else
constexpr int MADE = 4, MOST_ROWS = 2;
#endif

#if defined(__AVX512F__)
// Where the accumulator of sum n lies: the sums come out in order.
constexpr int slot_of(int n) { return n % 4 * 4 + n / 4; }

// Sixteen sums over lanes, each with the order of `sum`.
PLAIT_INLINE void sums(const Vec (&acc)[MADE], float* out) {
    auto by_lanes = [](__m512 a, __m512 b, auto first, auto second) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, first.value), _mm512_shuffle_f32x4(a, b, second.value));
    };
    auto within = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
    };
    std::integral_constant<int, 0x44> halves;
    std::integral_constant<int, 0xee> others;
    std::integral_constant<int, 0x88> evens;
    std::integral_constant<int, 0xdd> odds;
    __m512 four[4];
    PLAIT_UNROLL for (int i = 0; i < 4; ++i) {
        __m512 low = by_lanes(acc[4 * i].v, acc[4 * i + 1].v, halves, others);
        __m512 high = by_lanes(acc[4 * i + 2].v, acc[4 * i + 3].v, halves, others);
        four[i] = by_lanes(low, high, evens, odds);
    }
    store(out, {within(within(four[0], four[1]), within(four[2], four[3]))});
}
#else
constexpr int slot_of(int n) { return n; }
PLAIT_INLINE void sums(const Vec (&acc)[MADE], float* out) { sum4(acc[0], acc[1], acc[2], acc[3], out); }
#endif

// Scores of ROWS queries [ROWS, width] and the 64 keys of a part. `each` bytes are taken with every key.
template <class Source, int ROWS>
PLAIT_INLINE void score_rows(const float* q, long width, const char* k, long bytes, long dim, float* scores, bool more,
                             Ahead& ahead, long each) {
    constexpr int KEYS = MADE / ROWS;
    long step = KEYS * each * PAIR / width;
    for (long j = 0; j < BLOCK; j += KEYS, k += KEYS * bytes) {
        Vec acc[MADE];
        PLAIT_UNROLL for (int n = 0; n < MADE; ++n) acc[n] = set1(0.0f);
        for (long d = 0; d < width; d += PAIR) {
            Vec first[ROWS], last[ROWS];
            PLAIT_UNROLL for (int r = 0; r < ROWS; ++r) {
                first[r] = load(q + r * width + d);
                last[r] = load(q + r * width + d + LANES);
            }
            PLAIT_UNROLL for (int key = 0; key < KEYS; ++key) {
                Vec a, b;
                Source::pair(k + key * bytes, dim, d, a, b);
                PLAIT_UNROLL for (int r = 0; r < ROWS; ++r) {
                    Vec& sum = acc[slot_of(r * KEYS + key)];
                    sum = fma(last[r], b, fma(first[r], a, sum));
                }
            }
            if (step > 0) ahead.took(step);
        }
        float made[MADE];
        sums(acc, made);
        for (int r = 0; r < ROWS; ++r) {
            float* to = scores + r * STRIDE + j;
            for (int key = 0; key < KEYS; ++key) to[key] = more ? to[key] + made[r * KEYS + key] : made[r * KEYS + key];
        }
    }
}

// Adds the first `stop` values of a slab, their dims [d, d + 32 PAIRS), times ROWS rows of weights to mixes.
template <class Source, int ROWS, int PAIRS>
PLAIT_INLINE void mix_part(const float* weights, const char* v, long bytes, long dim, long d, long padded, float* mixed,
                           long stop, Ahead& ahead, long each) {
    Vec acc[ROWS][2 * PAIRS];
    PLAIT_UNROLL for (int r = 0; r < ROWS; ++r)
        PLAIT_UNROLL for (int c = 0; c < 2 * PAIRS; ++c) acc[r][c] = load(mixed + r * padded + c * LANES);
    for (long j = 0; j < stop; ++j, v += bytes) {
        Vec value[2 * PAIRS];
        PLAIT_UNROLL for (int c = 0; c < PAIRS; ++c)
            Source::pair(v, dim, d + c * PAIR, value[2 * c], value[2 * c + 1]);
        PLAIT_UNROLL for (int r = 0; r < ROWS; ++r) {
            Vec w = set1(weights[r * STRIDE + j]);
            PLAIT_UNROLL for (int c = 0; c < 2 * PAIRS; ++c) acc[r][c] = fma(w, value[c], acc[r][c]);
        }
        if (each > 0 && j % 4 == 0) ahead.took(4 * each);
    }
    PLAIT_UNROLL for (int r = 0; r < ROWS; ++r)
        PLAIT_UNROLL for (int c = 0; c < 2 * PAIRS; ++c) store(mixed + r * padded + c * LANES, acc[r][c]);
}

template <class Source, int ROWS>
PLAIT_INLINE void mix_rows(const float* weights, const char* v, long bytes, long dim, long padded, float* mixed,
                           long stop, Ahead& ahead, long each) {
    constexpr int PAIRS = MADE / 2 / (ROWS > 2 ? ROWS : 2);
    long d = 0, part = each * PAIRS * PAIR / padded;
    for (; d + PAIRS * PAIR <= padded; d += PAIRS * PAIR)
        mix_part<Source, ROWS, PAIRS>(weights, v, bytes, dim, d, padded, mixed + d, stop, ahead, part);
    for (; d < padded; d += PAIR)
        mix_part<Source, ROWS, 1>(weights, v, bytes, dim, d, padded, mixed + d, stop, ahead, part / PAIRS);
}

// Scratch of one thread.
template <class Source>
struct Fma {
    const plait::Attention& a;
    Room q, wide;
    Ahead ahead;

    // So many rows are sooner done with a slab as it lies than with a copy.
    static constexpr long FEW = 2 * MOST_ROWS;

    static long padded_dim(long dim) { return ceil_to(dim, PAIR); }
    static long padded(const plait::Attention& a) { return padded_dim(a.v_dim); }
    static long widest(const plait::Attention& a) {
        long most = padded(a);
        for (long p = 0; p < a.part_count; ++p) most = larger(most, padded_dim(a.parts[p].dim));
        return most;
    }
    static long all_parts(const plait::Attention& a) {
        long sum = 0;
        for (long p = 0; p < a.part_count; ++p) sum += padded_dim(a.parts[p].dim);
        return sum;
    }
    Fma(const plait::Attention& a, long room) : a(a), q(room * all_parts(a)), wide(BLOCK * widest(a)), ahead(a) {}

    void begin(const Rows& rows, const Seen& seen, Turn next) { ahead.begin(rows, seen, next); }

    PLAIT_INLINE void order(Vec& low, Vec& high) {
        if constexpr (Source::EVEN_ODD) interleave(low, high);
    }

    static bool as_it_lies(const Rows& rows, long dim) {
        bool few = rows.count <= FEW || std::is_same_v<Source, OfFloats>;
        return few && (Source::BYTES == 0 || dim % PAIR == 0);
    }

    // Values that are mixed at once: of few rows so many that what is asked for ahead is there, all their dims.
    static long mixed_at_once(const Rows& rows) { return rows.count <= FEW ? 16 : BLOCK; }

    // One head's rows of a slab as floats [64, padded], zeros behind `dim`.
    const char* widened(const char* rows, long dim) {
        long bytes = row_bytes(a.store, dim), width = padded_dim(dim);
        float* to = wide.data();
        for (long j = 0; j < BLOCK; ++j, rows += bytes, to += width) {
            for (long d = 0; d < width; d += PAIR) {
                Vec first, last;
                if (Source::BYTES == 0 || d + PAIR <= dim) Source::pair(rows, dim, d, first, last);
                else last_pair<Source>(rows, dim, d, first, last);
                store(to + d, first);
                store(to + d + LANES, last);
            }
            ahead.took(bytes);
        }
        return reinterpret_cast<const char*>(wide.data());
    }

    void take(const Rows& rows) {
        float* to = q.data();
        for (long p = 0; p < a.part_count; ++p) {
            const plait::AttentionPart& part = a.parts[p];
            long width = padded_dim(part.dim);
            for (long r = 0; r < rows.count; ++r, to += width) {
                const float* from = part.queries + rows.row(r) * part.stride + rows.query_head(r) * part.dim;
                for (long d = 0; d < width; d += PAIR) {
                    long rest = part.dim - d - LANES;
                    Vec first = load_upto(from + d, part.dim - d), last = set1(0.0f);
                    if (rest > 0) last = load_upto(from + d + LANES, rest);
                    if constexpr (Source::EVEN_ODD) deinterleave(first, last);
                    store(to + d, mul(first, set1(a.scale)));
                    store(to + d + LANES, mul(last, set1(a.scale)));
                }
            }
        }
    }

    // `work` with rows 4, 2 and 1 at a time from `r` on; `each` bytes of a row of the slab are new with the first.
    template <class Work>
    static void by_rows(long count, long each, const Work& work) {
        long r = 0;
        auto some = [&](auto rows) {
            for (; r + rows.value <= count; r += rows.value) work(rows, r, r == 0 ? each : 0);
        };
        if constexpr (MOST_ROWS >= 4) some(std::integral_constant<int, 4>());
        some(std::integral_constant<int, 2>());
        some(std::integral_constant<int, 1>());
    }

    template <class As>
    void score_part(const Rows& rows, const float* from, const char* k, long bytes, long dim, float* scores, bool more,
                    long each) {
        long width = padded_dim(dim);
        by_rows(rows.count, each, [&](auto count, long r, long taken) {
            score_rows<As, count.value>(from + r * width, width, k, bytes, dim, scores + r * STRIDE, more, ahead, taken);
        });
    }

    void score(const Rows& rows, long block, float* scores) {
        const float* from = q.data();
        for (long p = 0; p < a.part_count; ++p) {
            long dim = a.parts[p].dim, width = padded_dim(dim), bytes = row_bytes(a.store, dim);
            const char* k = rows.keys(block, a.parts[p]);
            if (as_it_lies(rows, dim)) score_part<Source>(rows, from, k, bytes, dim, scores, p > 0, bytes);
            else score_part<OfFloats>(rows, from, widened(k, dim), 4 * width, width, scores, p > 0, 0);
            from += rows.count * width;
        }
    }

    PLAIT_INLINE void keep(float* row, const Vec& low, const Vec& high) {
        store(row, low);
        store(row + LANES, high);
    }

    template <class As>
    void mix_slab(const Rows& rows, const char* v, long bytes, long dim, const float* weights, float* mixed, long stop,
                  long each) {
        long width = padded(a);
        by_rows(rows.count, each, [&](auto count, long r, long taken) {
            mix_rows<As, count.value>(weights + r * STRIDE, v, bytes, dim, width, mixed + r * width, stop, ahead, taken);
        });
    }

    void mix(const Rows& rows, const Seen& seen, const float* scores, float* mixed) {
        long width = padded(a), bytes = row_bytes(a.store, a.v_dim);
        long last = rows.position(rows.count - 1) + 1 - seen.chunk * CHUNK_KEYS;
        fill(mixed, mixed + rows.count * width, 0.0f);
        for (long b = seen.low; b < seen.high; ++b) {
            if (!seen.uses(b)) continue;
            const char* v = rows.values(b);
            long at = seen.column(b), stop = smaller(BLOCK, last - at);
            if (as_it_lies(rows, a.v_dim)) {
                for (long j = 0, some = mixed_at_once(rows); j < stop; j += some)
                    mix_slab<Source>(rows, v + j * bytes, bytes, a.v_dim, scores + at + j, mixed,
                                     smaller(some, stop - j), bytes);
            } else {
                mix_slab<OfFloats>(rows, widened(v, a.v_dim), 4 * width, width, scores + at, mixed, stop, 0);
            }
        }
    }
};

static void attention(const plait::Attention& a) {
    switch (a.store) {
        case plait::Store::f32: return attend<Fma<OfFloats>>(a);
        case plait::Store::bf16: return attend<Fma<OfBf16>>(a);
        case plait::Store::f16: return attend<Fma<OfF16>>(a);
        case plait::Store::int8: return attend<Fma<OfCodes>>(a);
    }
}

}  // namespace PLAIT_LEVEL

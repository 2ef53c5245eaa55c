// Rows of keys and values on their way into matrix tiles (AMX), and the splitting of floats into planes of bf16.
//
// A float is the sum of three bf16 numbers, to rounding that of two: products of planes with bf16 rows, or with codes,
// which are whole numbers below 2^7 and so bf16 numbers too, are exact, and sums are float32.
#pragma once

#include <immintrin.h>

#include "attention_ahead.hpp"
#include "attention_work.hpp"
#include "tiles.hpp"

namespace PLAIT_LEVEL {

using Half = std::uint16_t;

constexpr long STEP = 32;          // columns of a tile of inputs
constexpr long TILE = 16 * STEP;   // elements of a tile

// 32 numbers as bf16, to nearest.
PLAIT_INLINE __m512i pair_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
PLAIT_INLINE __m512 low_floats(__m512i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves)), 16));
}
PLAIT_INLINE __m512 high_floats(__m512i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1)), 16));
}

// PLANES planes of 32 numbers, `apart` elements from each other: each of what those before it have left.
template <int PLANES>
PLAIT_INLINE void split(__m512 low, __m512 high, Half* to, long apart) {
    for (int p = 0; p < PLANES; ++p) {
        __m512i plane = pair_bf16(low, high);
        _mm512_storeu_si512(to + p * apart, plane);
        if (p + 1 == PLANES) break;
        low = _mm512_sub_ps(low, low_floats(plane));
        high = _mm512_sub_ps(high, high_floats(plane));
    }
}

// The first n, at most 16, of the floats at p; zeros behind them.
PLAIT_INLINE __m512 some_floats(const float* p, long n) {
    plait::check_bytes(p, 4 * clamped(n, 0, 16));
    return n <= 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(__mmask16((1u << clamped(n, 0, 16)) - 1), p);
}

// Elements [at, at + 32) of a row of bf16 numbers, zeros beyond `dim`.
PLAIT_INLINE __m512i halves_at(const char* row, long at, long dim) {
    const Half* from = reinterpret_cast<const Half*>(row) + at;
    if (at + STEP <= dim) return _mm512_loadu_si512(from);
    plait::check_bytes(from, 2 * (dim - at));
    return _mm512_maskz_loadu_epi16(__mmask32((1ull << (dim - at)) - 1), from);
}

// Codes [at, at + 32) of a row as bf16 numbers.
PLAIT_INLINE __m512i codes_at(const char* row, long at, long dim) {
    __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * blocks_of(dim) + at));
    __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
    __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
    return pair_bf16(low, high);
}

template <bool CODED>
PLAIT_INLINE __m512i elements(const char* row, long at, long dim) {
    return CODED ? codes_at(row, at, dim) : halves_at(row, at, dim);
}

// 16 vectors of 16 numbers of 32 bits: rows become columns.
PLAIT_INLINE void transpose(__m512i* v) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; ++k) {
            v[i + 2 * k] = _mm512_unpacklo_epi64(t[i + k], t[i + k + 2]);
            v[i + 2 * k + 1] = _mm512_unpackhi_epi64(t[i + k], t[i + k + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int k = 0; k < 4; ++k) {
            t[i + k] = _mm512_shuffle_i32x4(v[i + k], v[i + k + 4], 0x88);
            t[i + k + 4] = _mm512_shuffle_i32x4(v[i + k], v[i + k + 4], 0xdd);
        }
    for (int k = 0; k < 8; ++k) {
        v[k] = _mm512_shuffle_i32x4(t[k], t[k + 8], 0x88);
        v[k + 8] = _mm512_shuffle_i32x4(t[k], t[k + 8], 0xdd);
    }
}

// Bytes of 16 rows that a step of 32 columns takes.
PLAIT_INLINE long bytes_of_step(long bytes, long dim) { return 16 * bytes / (ceil_to(dim, STEP) / STEP); }

// Keys of a slab as tiles of weights, [step of 32 dims][16 keys]: in a tile row p holds dims 2 p and 2 p + 1 of all keys.
template <bool CODED>
static void tile_keys(const char* rows, long bytes, long dim, Half* to, Ahead& ahead) {
    long each = bytes_of_step(bytes, dim);
    for (long at = 0; at < dim; at += STEP)
        for (long first = 0; first < BLOCK; first += 16, to += TILE) {
            __m512i v[16];
            for (long j = 0; j < 16; ++j) v[j] = elements<CODED>(rows + (first + j) * bytes, at, dim);
            ahead.took(each);
            transpose(v);
            for (long j = 0; j < 16; ++j) _mm512_storeu_si512(to + j * STEP, v[j]);
        }
}

// The 32 dims of two tiles of values lie in this order: what interleaving rows within 128 bits leaves. See `in_order`.
//
//     0 to 3, 8 to 11, 16 to 19, 24 to 27 | 4 to 7, 12 to 15, 20 to 23, 28 to 31
PLAIT_INLINE void in_order(Vec& low, Vec& high) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i last = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    __m512 a = low.v, b = high.v;
    low.v = _mm512_permutex2var_ps(a, first, b);
    high.v = _mm512_permutex2var_ps(a, last, b);
}

// Dims [from, stop) of keys [low, high) of a slab's values as tiles of weights, [step of 32 keys][16 dims], steps `across`
// tiles from each other: in a tile row p holds keys 2 p and 2 p + 1.
template <bool CODED>
PLAIT_INLINE void tile_values(const char* rows, long bytes, long dim, long from, long stop, long across, Half* to,
                              long low = 0, long high = BLOCK) {
    for (long j = low; j < high; j += 2) {
        Half* at = to + j / STEP * across * TILE + j % STEP / 2 * STEP;
        for (long d = from; d < stop; d += STEP, at += 2 * TILE) {
            __m512i a = elements<CODED>(rows + j * bytes, d, dim), b = elements<CODED>(rows + (j + 1) * bytes, d, dim);
            _mm512_storeu_si512(at, _mm512_unpacklo_epi16(a, b));
            _mm512_storeu_si512(at + TILE, _mm512_unpackhi_epi16(a, b));
        }
    }
}

// Scales of up to 16 of a row's blocks of codes, from block `first` on; zeros behind them.
PLAIT_INLINE __m512 scales_at(const char* row, long first, long dim) {
    long there = smaller(16, blocks_of(dim) - first);
    plait::check_bytes(row + 2 * first, 2 * there);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16((1u << there) - 1), row + 2 * first));
}

// Scales of a slab's codes, [block of 32 dims][64 keys], lines `apart` floats from each other.
static void spread_scales(const char* rows, long bytes, long dim, float* to, long apart) {
    for (long b = 0; b < blocks_of(dim); b += 16)
        for (long j = 0; j < BLOCK; j += 16) {
            __m512i v[16];
            for (long k = 0; k < 16; ++k) v[k] = _mm512_castps_si512(scales_at(rows + (j + k) * bytes, b, dim));
            transpose(v);
            for (long k = 0; k < smaller(16, blocks_of(dim) - b); ++k)
                _mm512_storeu_si512(to + (b + k) * apart + j, v[k]);
        }
}

// Codes of a slab's rows as bf16 numbers, [64][dims in whole steps].
static void widen_keys(const char* rows, long bytes, long dim, Half* to) {
    long width = ceil_to(dim, STEP);
    for (long j = 0; j < BLOCK; ++j)
        for (long d = 0; d < dim; d += STEP) _mm512_storeu_si512(to + j * width + d, codes_at(rows + j * bytes, d, dim));
}

}  // namespace PLAIT_LEVEL

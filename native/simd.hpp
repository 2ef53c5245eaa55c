// Sixteen floats, on whatever the level this file is compiled for has. Every level computes the same expressions in
// the same order; only the rounding of a * b + c differs (one rounding where the level has fused multiply-add).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "checked.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Whether a level has more than the compiler's own vectors.
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#define PLAIT_X86_VECTORS
#endif

#define PLAIT_INLINE static inline __attribute__((always_inline))
// Sums in arrays lie in registers only where the loops over them are unrolled whole.
#define PLAIT_UNROLL _Pragma("GCC unroll 16")

namespace PLAIT_LEVEL {

constexpr int LANES = 16;

PLAIT_INLINE long smaller(long a, long b) { return a < b ? a : b; }
PLAIT_INLINE long larger(long a, long b) { return a > b ? a : b; }

#if defined(__AVX512F__)

struct Vec {
    __m512 v;
};

PLAIT_INLINE Vec set1(float x) { return {_mm512_set1_ps(x)}; }
PLAIT_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
PLAIT_INLINE Vec load_n(const float* p, int n) {
    plait::check_bytes(p, 4l * n);
    return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)};
}
PLAIT_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
PLAIT_INLINE void store_n(float* p, Vec a, int n) {
    plait::check_bytes(p, 4l * n);
    _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a.v);
}
PLAIT_INLINE Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
PLAIT_INLINE Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
PLAIT_INLINE Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
PLAIT_INLINE Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
PLAIT_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a * 2^power, of powers that are whole numbers.
PLAIT_INLINE Vec times_power(Vec a, Vec power) { return {_mm512_scalef_ps(a.v, power.v)}; }
PLAIT_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
PLAIT_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
PLAIT_INLINE Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
PLAIT_INLINE Vec exp2_of_whole(Vec n) { return {_mm512_scalef_ps(_mm512_set1_ps(1.0f), n.v)}; }
// b where x < y, else a
PLAIT_INLINE Vec where_less(Vec x, Vec y, Vec b, Vec a) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), a.v, b.v)};
}
PLAIT_INLINE Vec load_bf16(const std::uint16_t* p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
PLAIT_INLINE Vec load_f16(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// The even and odd elements of 32 bf16 numbers, as floats.
PLAIT_INLINE Vec low_halves(const std::uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
PLAIT_INLINE Vec high_halves(const std::uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xffff0000u))))};
}
PLAIT_INLINE Vec set1_f16(const void* p) {
    short half;
    std::memcpy(&half, p, sizeof half);
    return {_mm512_cvtph_ps(_mm256_set1_epi16(half))};
}
// The first elements of both in turn, and the last.
PLAIT_INLINE void interleave(Vec& a, Vec& b) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    __m512 low = _mm512_permutex2var_ps(a.v, first, b.v);
    b.v = _mm512_permutex2var_ps(a.v, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b.v);
    a.v = low;
}
// The even elements of both, and the odd ones.
PLAIT_INLINE void deinterleave(Vec& a, Vec& b) {
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 even = _mm512_permutex2var_ps(a.v, evens, b.v);
    b.v = _mm512_permutex2var_ps(a.v, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b.v);
    a.v = even;
}
// Past the caches: what is written is not read soon. p is aligned to 64 bytes; `drain` before others may read.
PLAIT_INLINE void stream(float* p, Vec a) {
    plait::check_bytes(p, 64);
    _mm512_stream_ps(p, a.v);
}
PLAIT_INLINE void drain() { _mm_sfence(); }
PLAIT_INLINE void store8(float* p, Vec a) { _mm256_storeu_ps(p, _mm512_castps512_ps256(a.v)); }
// Adds lanes 8..15 to lanes 0..7: the first step of every sum over lanes.
PLAIT_INLINE __m256 fold8(Vec a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#elif defined(__AVX2__) && defined(__FMA__)

struct Vec {
    __m256 a, b;
};

PLAIT_INLINE Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PLAIT_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PLAIT_INLINE void store(float* p, Vec x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
PLAIT_INLINE Vec load_n(const float* p, int n) {
    float held[16] = {};
    std::memcpy(held, p, sizeof(float) * n);
    return load(held);
}
PLAIT_INLINE void store_n(float* p, Vec x, int n) {
    float held[16];
    store(held, x);
    std::memcpy(p, held, sizeof(float) * n);
}
PLAIT_INLINE Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
PLAIT_INLINE Vec sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
PLAIT_INLINE Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
PLAIT_INLINE Vec div(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
PLAIT_INLINE Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
PLAIT_INLINE Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
PLAIT_INLINE Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
PLAIT_INLINE __m256 round8(__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
PLAIT_INLINE Vec round(Vec x) { return {round8(x.a), round8(x.b)}; }
PLAIT_INLINE __m256 exp2_8(__m256 n) {
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_castsi256_ps(bits);
}
PLAIT_INLINE Vec exp2_of_whole(Vec n) { return {exp2_8(n.a), exp2_8(n.b)}; }
PLAIT_INLINE Vec where_less(Vec x, Vec y, Vec b, Vec a) {
    return {_mm256_blendv_ps(a.a, b.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(a.b, b.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
PLAIT_INLINE __m256 bf16_8(const std::uint16_t* p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
PLAIT_INLINE Vec load_bf16(const std::uint16_t* p) { return {bf16_8(p), bf16_8(p + 8)}; }
PLAIT_INLINE Vec load_f16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
PLAIT_INLINE __m256 low8(const std::uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16));
}
PLAIT_INLINE __m256 high8(const std::uint16_t* p) {
    __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(_mm256_and_si256(all, _mm256_set1_epi32(int(0xffff0000u))));
}
PLAIT_INLINE Vec low_halves(const std::uint16_t* p) { return {low8(p), low8(p + 16)}; }
PLAIT_INLINE Vec high_halves(const std::uint16_t* p) { return {high8(p), high8(p + 16)}; }
PLAIT_INLINE Vec set1_f16(const void* p) {
    short half;
    std::memcpy(&half, p, sizeof half);
    __m256 all = _mm256_cvtph_ps(_mm_set1_epi16(half));
    return {all, all};
}
PLAIT_INLINE __m256 fold8(Vec x) { return _mm256_add_ps(x.a, x.b); }
PLAIT_INLINE void stream(float* p, Vec x) {
    plait::check_bytes(p, 64);
    _mm256_stream_ps(p, x.a);
    _mm256_stream_ps(p + 8, x.b);
}
PLAIT_INLINE void drain() { _mm_sfence(); }

#else

// The compiler's own vectors, in whatever registers the machine has.
typedef float Sixteen __attribute__((vector_size(64)));

struct Vec {
    Sixteen f;
};

#define PLAIT_EACH(expression)                \
    Vec r;                                    \
    for (int i = 0; i < 16; ++i) {            \
        r.f[i] = (expression);                \
    }                                         \
    return r

PLAIT_INLINE float as_float(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
PLAIT_INLINE std::uint32_t as_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
PLAIT_INLINE float f16_to_float(std::uint16_t h) {
    std::uint32_t sign = std::uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 31) return as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return as_float(sign | (exponent + 112) << 23 | fraction << 13);
    float small = float(fraction) * 0x1p-24f;
    return sign ? -small : small;
}
PLAIT_INLINE Vec set1(float x) { return {x - Sixteen{}}; }
PLAIT_INLINE Vec load(const float* p) {
    Vec r;
    std::memcpy(&r.f, p, sizeof r.f);
    return r;
}
PLAIT_INLINE Vec load_n(const float* p, int n) { PLAIT_EACH(i < n ? p[i] : 0.0f); }
PLAIT_INLINE void store(float* p, Vec a) { std::memcpy(p, &a.f, sizeof a.f); }
PLAIT_INLINE void store_n(float* p, Vec a, int n) { std::memcpy(p, &a.f, sizeof(float) * n); }
PLAIT_INLINE Vec add(Vec a, Vec b) { return {a.f + b.f}; }
PLAIT_INLINE Vec sub(Vec a, Vec b) { return {a.f - b.f}; }
PLAIT_INLINE Vec mul(Vec a, Vec b) { return {a.f * b.f}; }
PLAIT_INLINE Vec div(Vec a, Vec b) { return {a.f / b.f}; }
PLAIT_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.f * b.f + c.f}; }
PLAIT_INLINE Vec max(Vec a, Vec b) { return {a.f > b.f ? a.f : b.f}; }
PLAIT_INLINE Vec min(Vec a, Vec b) { return {a.f < b.f ? a.f : b.f}; }
PLAIT_INLINE Vec round(Vec a) { PLAIT_EACH(std::nearbyint(a.f[i])); }
// 1.5 * 2^23 added, the last bits of the sum are those of n; what is no number has some bits too.
PLAIT_INLINE Vec exp2_of_whole(Vec n) { PLAIT_EACH(as_float((as_bits(n.f[i] + 0x1.8p23f) + 127u) << 23)); }
PLAIT_INLINE Vec where_less(Vec x, Vec y, Vec b, Vec a) { return {x.f < y.f ? b.f : a.f}; }
PLAIT_INLINE Vec load_bf16(const std::uint16_t* p) { PLAIT_EACH(as_float(std::uint32_t(p[i]) << 16)); }
PLAIT_INLINE Vec load_f16(const std::uint16_t* p) { PLAIT_EACH(f16_to_float(p[i])); }
PLAIT_INLINE Vec low_halves(const std::uint16_t* p) { PLAIT_EACH(as_float(std::uint32_t(p[2 * i]) << 16)); }
PLAIT_INLINE Vec set1_f16(const void* p) {
    std::uint16_t half;
    std::memcpy(&half, p, sizeof half);
    return set1(f16_to_float(half));
}
PLAIT_INLINE void stream(float* p, Vec a) { std::memcpy(p, &a.f, sizeof a.f); }
PLAIT_INLINE void drain() {}
PLAIT_INLINE Vec high_halves(const std::uint16_t* p) { PLAIT_EACH(as_float(std::uint32_t(p[2 * i + 1]) << 16)); }

#endif

#if defined(__AVX2__) && defined(__FMA__)

// The sum over lanes: 8 + 8, then 4 + 4, then pairs.
PLAIT_INLINE float sum(Vec a) {
    __m256 eight = fold8(a);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_hadd_ps(four, four);
    return _mm_cvtss_f32(_mm_hadd_ps(four, four));
}
// Four sums over lanes, each with the order of `sum`.
PLAIT_INLINE void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
    __m256 e = fold8(a), f = fold8(b), g = fold8(c), h = fold8(d);
    __m128 a4 = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    __m128 b4 = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
    __m128 c4 = _mm_add_ps(_mm256_castps256_ps128(g), _mm256_extractf128_ps(g, 1));
    __m128 d4 = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    _mm_storeu_ps(out, _mm_hadd_ps(_mm_hadd_ps(a4, b4), _mm_hadd_ps(c4, d4)));
}

#else

PLAIT_INLINE float sum(Vec a) {
    float four[4];
    for (int i = 0; i < 4; ++i) four[i] = (a.f[i] + a.f[i + 8]) + (a.f[i + 4] + a.f[i + 12]);
    return (four[0] + four[1]) + (four[2] + four[3]);
}
PLAIT_INLINE void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
    out[0] = sum(a);
    out[1] = sum(b);
    out[2] = sum(c);
    out[3] = sum(d);
}

#endif

#if !defined(__AVX512F__)
// The first elements of both in turn, and the last.
PLAIT_INLINE void interleave(Vec& a, Vec& b) {
    float first[16], last[16], made[32];
    store(first, a);
    store(last, b);
    for (int i = 0; i < 16; ++i) made[2 * i] = first[i], made[2 * i + 1] = last[i];
    a = load(made);
    b = load(made + 16);
}
// The even elements of both, and the odd ones.
PLAIT_INLINE void deinterleave(Vec& a, Vec& b) {
    float held[32], even[16], odd[16];
    store(held, a);
    store(held + 16, b);
    for (int i = 0; i < 16; ++i) even[i] = held[2 * i], odd[i] = held[2 * i + 1];
    a = load(even);
    b = load(odd);
}
#endif

// The first n of 16 elements, the rest zeros; whole vectors the short way.
PLAIT_INLINE Vec load_upto(const float* p, long n) { return n >= LANES ? load(p) : load_n(p, int(n)); }
PLAIT_INLINE void store_upto(float* p, Vec x, long n) { n >= LANES ? store(p, x) : store_n(p, x, int(n)); }

PLAIT_INLINE float highest(Vec a) {
    float held[16];
    store(held, a);
    float most = held[0];
    for (int i = 1; i < 16; ++i) most = held[i] > most ? held[i] : most;
    return most;
}

// e^x to about one unit in the last place; 0 below the smallest normal number, so that e^-infinity is exactly 0.
PLAIT_INLINE Vec exp(Vec x) {
    // The second argument is what min and max give where one is no number, so that it comes through.
    Vec bounded = min(set1(88.0f), x);
    Vec n = max(set1(-126.0f), round(mul(bounded, set1(1.44269504088896341f))));
    Vec r = fma(n, set1(-0.693359375f), bounded);
    r = fma(n, set1(2.12194440054690583e-4f), r);
    // Taylor's polynomial: |r| <= ln(2) / 2, where the next term is below 2e-8.
    Vec p = set1(1.0f / 5040.0f);
    p = fma(p, r, set1(1.0f / 720.0f));
    p = fma(p, r, set1(1.0f / 120.0f));
    p = fma(p, r, set1(1.0f / 24.0f));
    p = fma(p, r, set1(1.0f / 6.0f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return where_less(x, set1(-87.3f), set1(0.0f), mul(p, exp2_of_whole(n)));
}

PLAIT_INLINE Vec sigmoid(Vec x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(set1(0.0f), x)))); }

// tanh: from e^2x, and near 0, where that cancels, from its series.
PLAIT_INLINE Vec tanh(Vec x) {
    Vec size = max(x, sub(set1(0.0f), x));
    Vec e = exp(mul(size, set1(-2.0f)));
    Vec big = div(sub(set1(1.0f), e), add(set1(1.0f), e));
    big = where_less(x, set1(0.0f), sub(set1(0.0f), big), big);
    Vec s = mul(x, x);
    Vec p = fma(s, set1(-17.0f / 315.0f), set1(2.0f / 15.0f));
    p = fma(p, s, set1(-1.0f / 3.0f));
    Vec series = fma(mul(p, s), x, x);
    return where_less(size, set1(0.25f), series, big);
}

}  // namespace PLAIT_LEVEL

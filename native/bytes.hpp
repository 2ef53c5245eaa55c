// Sixteen 32-bit integers, or the 64 bytes of them, on whatever the level this file is compiled for has. All is exact:
// levels agree bit for bit.
#pragma once

#include "simd.hpp"

namespace PLAIT_LEVEL {

#if defined(__AVX512F__)

struct Ints {
    __m512i v;
};

PLAIT_INLINE Ints zeros() { return {_mm512_setzero_si512()}; }
PLAIT_INLINE Ints set1(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
PLAIT_INLINE Ints load_bytes(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
PLAIT_INLINE void store_bytes(std::uint8_t* p, Ints a) { _mm512_storeu_si512(p, a.v); }
PLAIT_INLINE Ints low_nibbles(Ints a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
PLAIT_INLINE Ints high_nibbles(Ints a) {
    return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
// nibble | (plane << BY) & MASK in each byte; BY < 0: to the right
template <int BY, int MASK>
PLAIT_INLINE Ints with_bits(Ints nibble, Ints plane) {
    __m512i moved = plane.v;
    if constexpr (BY > 0) moved = _mm512_slli_epi16(moved, BY);
    if constexpr (BY < 0) moved = _mm512_srli_epi16(moved, -BY);
    return {_mm512_or_si512(nibble.v, _mm512_and_si512(moved, _mm512_set1_epi8(MASK)))};
}
PLAIT_INLINE Ints minus_byte(Ints a, int b) { return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(char(b)))}; }
// Products of bytes without sign, of at most BITS bits, and bytes with sign, four to a lane, added to the lane.
#if defined(__AVX512VNNI__)
template <int BITS>
PLAIT_INLINE Ints dot(Ints acc, Ints u, std::int32_t four) {
    return {_mm512_dpbusd_epi32(acc.v, u.v, _mm512_set1_epi32(four))};
}
// The same with the sign of the other: bytes of `s` have one, those of `four` have none.
PLAIT_INLINE Ints dot_signed(Ints acc, Ints s, std::int32_t four) {
    return {_mm512_dpbusd_epi32(acc.v, _mm512_set1_epi32(four), s.v)};
}
#else
// Pairs are first summed in 16 bits, where 7 bits times 8 have room, and 128 times 8 bits too.
PLAIT_INLINE __m512i pairs(__m512i u, __m512i s) {
    return _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1));
}
template <int BITS>
PLAIT_INLINE Ints dot(Ints acc, Ints u, std::int32_t four) {
    __m512i s = _mm512_set1_epi32(four);
    if constexpr (BITS < 8) return {_mm512_add_epi32(acc.v, pairs(u.v, s))};
    __m512i top = _mm512_set1_epi8(-128);
    __m512i both = _mm512_add_epi32(pairs(_mm512_andnot_si512(top, u.v), s), pairs(_mm512_and_si512(top, u.v), s));
    return {_mm512_add_epi32(acc.v, both)};
}
#endif
// Bytes 0 and 2, and 1 and 3, of each lane, as numbers of 16 bits.
PLAIT_INLINE Ints even_bytes(Ints a) { return {_mm512_and_si512(a.v, _mm512_set1_epi16(255))}; }
PLAIT_INLINE Ints odd_bytes(Ints a) { return {_mm512_srli_epi16(a.v, 8)}; }
PLAIT_INLINE void store_words(std::int16_t* p, Ints a, int less) {
    _mm512_storeu_si512(p, _mm512_sub_epi16(a.v, _mm512_set1_epi16(short(less))));
}
// Products of numbers of 16 bits, two to a lane, added to the lane. Compilers know that integers may be added in any
// order, and would make all products first, for which there are no registers.
PLAIT_INLINE Ints dot_words(Ints acc, Ints w, std::int32_t two) {
#if defined(__AVX512VNNI__)
    return {_mm512_dpwssd_epi32(acc.v, w.v, _mm512_set1_epi32(two))};
#else
    __m512i sum = _mm512_add_epi32(acc.v, _mm512_madd_epi16(w.v, _mm512_set1_epi32(two)));
    __asm__("" : "+v"(sum));
    return {sum};
#endif
}
PLAIT_INLINE Ints joined(Ints high, Ints low) { return {_mm512_add_epi32(_mm512_slli_epi32(high.v, 8), low.v)}; }
PLAIT_INLINE Ints negative(Ints a) { return {_mm512_sub_epi32(_mm512_setzero_si512(), a.v)}; }
PLAIT_INLINE Vec as_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Floats that are whole numbers.
PLAIT_INLINE void store_whole(std::int32_t* p, Vec a) { _mm512_storeu_si512(p, _mm512_cvtps_epi32(a.v)); }
PLAIT_INLINE Vec load_u8(const std::uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
PLAIT_INLINE Vec load_i8(const std::uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

#elif defined(__AVX2__) && defined(__FMA__)

struct Ints {
    __m256i a, b;
};

PLAIT_INLINE Ints zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
PLAIT_INLINE Ints set1(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
PLAIT_INLINE Ints load_bytes(const std::uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
PLAIT_INLINE void store_bytes(std::uint8_t* p, Ints x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.b);
}
PLAIT_INLINE Ints low_nibbles(Ints x) {
    __m256i m = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
PLAIT_INLINE Ints high_nibbles(Ints x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
template <int BY, int MASK>
PLAIT_INLINE __m256i with_bits(__m256i nibble, __m256i plane) {
    if constexpr (BY > 0) plane = _mm256_slli_epi16(plane, BY);
    if constexpr (BY < 0) plane = _mm256_srli_epi16(plane, -BY);
    return _mm256_or_si256(nibble, _mm256_and_si256(plane, _mm256_set1_epi8(MASK)));
}
template <int BY, int MASK>
PLAIT_INLINE Ints with_bits(Ints nibble, Ints plane) {
    return {with_bits<BY, MASK>(nibble.a, plane.a), with_bits<BY, MASK>(nibble.b, plane.b)};
}
PLAIT_INLINE Ints minus_byte(Ints x, int b) {
    __m256i by = _mm256_set1_epi8(char(b));
    return {_mm256_sub_epi8(x.a, by), _mm256_sub_epi8(x.b, by)};
}
#if defined(__AVXVNNI__)
PLAIT_INLINE Ints dot_signed(Ints acc, Ints s, std::int32_t four) {
    __m256i u = _mm256_set1_epi32(four);
    return {_mm256_dpbusd_avx_epi32(acc.a, u, s.a), _mm256_dpbusd_avx_epi32(acc.b, u, s.b)};
}
template <int BITS>
PLAIT_INLINE __m256i dot(__m256i acc, __m256i u, __m256i s) {
    return _mm256_dpbusd_avx_epi32(acc, u, s);
}
#else
PLAIT_INLINE __m256i pairs(__m256i u, __m256i s) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1));
}
template <int BITS>
PLAIT_INLINE __m256i dot(__m256i acc, __m256i u, __m256i s) {
    if constexpr (BITS < 8) return _mm256_add_epi32(acc, pairs(u, s));
    __m256i top = _mm256_set1_epi8(-128);
    __m256i both = _mm256_add_epi32(pairs(_mm256_andnot_si256(top, u), s), pairs(_mm256_and_si256(top, u), s));
    return _mm256_add_epi32(acc, both);
}
#endif
template <int BITS>
PLAIT_INLINE Ints dot(Ints acc, Ints u, std::int32_t four) {
    __m256i s = _mm256_set1_epi32(four);
    return {dot<BITS>(acc.a, u.a, s), dot<BITS>(acc.b, u.b, s)};
}
PLAIT_INLINE Ints even_bytes(Ints x) {
    __m256i m = _mm256_set1_epi16(255);
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
PLAIT_INLINE Ints odd_bytes(Ints x) { return {_mm256_srli_epi16(x.a, 8), _mm256_srli_epi16(x.b, 8)}; }
PLAIT_INLINE void store_words(std::int16_t* p, Ints x, int less) {
    __m256i by = _mm256_set1_epi16(short(less));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_sub_epi16(x.a, by));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), _mm256_sub_epi16(x.b, by));
}
PLAIT_INLINE Ints dot_words(Ints acc, Ints w, std::int32_t two) {
    __m256i x = _mm256_set1_epi32(two);
#if defined(__AVXVNNI__)
    return {_mm256_dpwssd_avx_epi32(acc.a, w.a, x), _mm256_dpwssd_avx_epi32(acc.b, w.b, x)};
#else
    __m256i low = _mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, x));
    __m256i high = _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, x));
    __asm__("" : "+x"(low), "+x"(high));
    return {low, high};
#endif
}
PLAIT_INLINE Ints joined(Ints high, Ints low) {
    return {_mm256_add_epi32(_mm256_slli_epi32(high.a, 8), low.a),
            _mm256_add_epi32(_mm256_slli_epi32(high.b, 8), low.b)};
}
PLAIT_INLINE void store_whole(std::int32_t* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvtps_epi32(x.a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_cvtps_epi32(x.b));
}
PLAIT_INLINE Ints negative(Ints x) {
    __m256i none = _mm256_setzero_si256();
    return {_mm256_sub_epi32(none, x.a), _mm256_sub_epi32(none, x.b)};
}
PLAIT_INLINE Vec as_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
PLAIT_INLINE Vec load_u8(const std::uint8_t* p) {
    __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return as_floats({_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))});
}
PLAIT_INLINE Vec load_i8(const std::uint8_t* p) {
    __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return as_floats({_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))});
}

#else

// The compiler's own vectors, in whatever registers the machine has.
typedef std::int32_t Words __attribute__((vector_size(64)));
typedef std::uint32_t Bits __attribute__((vector_size(64)));
typedef unsigned char Bytes __attribute__((vector_size(64)));

struct Ints {
    Words v;
};

PLAIT_INLINE Ints zeros() { return {Words{}}; }
PLAIT_INLINE Ints set1(std::int32_t x) { return {x + Words{}}; }
PLAIT_INLINE Ints load_bytes(const std::uint8_t* p) {
    Ints r;
    std::memcpy(&r.v, p, sizeof r.v);
    return r;
}
PLAIT_INLINE Ints low_nibbles(Ints a) { return {a.v & 0x0f0f0f0f}; }
PLAIT_INLINE Ints high_nibbles(Ints a) { return {a.v >> 4 & 0x0f0f0f0f}; }
template <int BY, int MASK>
PLAIT_INLINE Ints with_bits(Ints nibble, Ints plane) {
    Bits moved = Bits(plane.v);
    if constexpr (BY > 0) moved = moved << BY;
    if constexpr (BY < 0) moved = moved >> -BY;
    return {nibble.v | Words(moved & MASK * 0x01010101u)};
}
// Products of bytes without sign, of at most BITS bits, and bytes with sign, four to a lane, added to the lane.
template <int BITS>
PLAIT_INLINE Ints dot(Ints acc, Ints u, std::int32_t four) {
    std::int8_t s[4];
    std::memcpy(s, &four, 4);
    Bits x = Bits(u.v);
    return {acc.v + (Words(x & 255u) * s[0] + Words(x >> 8 & 255u) * s[1]) +
            (Words(x >> 16 & 255u) * s[2] + Words(x >> 24) * s[3])};
}
PLAIT_INLINE Ints joined(Ints high, Ints low) { return {high.v * 256 + low.v}; }
// Floats that are whole numbers.
PLAIT_INLINE void store_whole(std::int32_t* p, Vec a) {
    for (int i = 0; i < 16; ++i) p[i] = std::int32_t(a.f[i]);
}
PLAIT_INLINE Vec as_floats(Ints a) { return {__builtin_convertvector(a.v, Sixteen)}; }
PLAIT_INLINE Vec load_u8(const std::uint8_t* p) { PLAIT_EACH(float(p[i])); }
PLAIT_INLINE Vec load_i8(const std::uint8_t* p) { PLAIT_EACH(float(std::int8_t(p[i]))); }

#endif

// The sum of 16 numbers of 16 bits; they go to bytes, 256 high + low.
PLAIT_INLINE std::int32_t split(const std::int32_t* q, std::int8_t* high, std::int8_t* low) {
#if defined(__AVX512F__)
    __m512i all = _mm512_loadu_si512(q), top = _mm512_srai_epi32(_mm512_add_epi32(all, _mm512_set1_epi32(128)), 8);
    // A byte keeps the last bits of a number, those of its low part.
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(top));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(all));
    return _mm512_reduce_add_epi32(all);
#else
    std::int32_t sum = 0;
    for (int i = 0; i < 16; ++i) {
        sum += q[i];
        high[i] = std::int8_t((q[i] + 128) >> 8);
        low[i] = std::int8_t(q[i] - high[i] * 256);
    }
    return sum;
#endif
}

// Sums of the first and the last 16 of 32 numbers of 16 bits. They go to words, of each four columns the first and third,
// then the second and fourth.
PLAIT_INLINE void order_words(const std::int32_t* q, std::int16_t* to, std::int32_t& first, std::int32_t& last) {
#if defined(__AVX512BW__)
    alignas(64) static constexpr std::uint16_t ORDER[32] = {0,  4,  2,  6,  8,  12, 10, 14, 16, 20, 18,
                                                            22, 24, 28, 26, 30, 32, 36, 34, 38, 40, 44,
                                                            42, 46, 48, 52, 50, 54, 56, 60, 58, 62};
    __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 16);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, _mm512_load_si512(ORDER), b));
    first = _mm512_reduce_add_epi32(a), last = _mm512_reduce_add_epi32(b);
#else
    first = last = 0;
    for (int i = 0; i < 32; ++i) {
        std::int16_t word = std::int16_t(q[i / 4 * 4 + i % 4 / 2 + i % 2 * 2]);
        std::memcpy(to + i, &word, sizeof word);
        (i < 16 ? first : last) += q[i];
    }
#endif
}

// The sum of 16 numbers that fit into one byte; they go to bytes, the bits of `flip` turned over.
PLAIT_INLINE std::int32_t narrow(const std::int32_t* q, std::int8_t* to, int flip) {
#if defined(__AVX512F__)
    __m512i all = _mm512_loadu_si512(q);
    __m128i bytes = _mm_xor_si128(_mm512_cvtepi32_epi8(all), _mm_set1_epi8(char(flip)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    return _mm512_reduce_add_epi32(all);
#else
    std::int32_t sum = 0;
    for (int i = 0; i < 16; ++i) {
        sum += q[i];
        to[i] = std::int8_t(q[i] ^ flip);
    }
    return sum;
#endif
}

}  // namespace PLAIT_LEVEL

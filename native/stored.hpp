// Rows of keys and values as slabs store them: floats, halves, or blocks of 32 codes with a scale.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace PLAIT_LEVEL {

constexpr long CODES = 32;  // elements that share a scale

PLAIT_INLINE long blocks_of(long dim) { return (dim + CODES - 1) / CODES; }

// Bytes of one head's row. Rows of codes hold the scales of all blocks (float16), then the codes of all blocks.
PLAIT_INLINE long row_bytes(plait::Store store, long dim) {
    if (store == plait::Store::int8) return blocks_of(dim) * (CODES + 2);
    return dim * (store == plait::Store::f32 ? 4 : 2);
}

PLAIT_INLINE std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

PLAIT_INLINE float float_of(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// To nearest, ties to even; beyond the largest number infinity.
PLAIT_INLINE std::uint16_t to_f16(float x) {
    std::uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return std::uint16_t(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);
    if (size < 0x38800000u) {
        // Below the smallest normal number steps are 2^-24: adding 0.5, whose steps are 2^-24 too, rounds to them.
        return std::uint16_t(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000u));
    }
    return std::uint16_t(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));
}

PLAIT_INLINE float from_f16(std::uint16_t h) {
    std::uint32_t sign = std::uint32_t(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 1023u;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float small = float(fraction) * 0x1p-24f;
    return sign ? -small : small;
}

PLAIT_INLINE std::uint16_t to_bf16(float x) {
    std::uint32_t bits = bits_of(x);
    std::uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
    return std::uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? nan : nearest);
}

// Sixteen codes as floats.
PLAIT_INLINE Vec load_codes(const std::int8_t* p) {
#if defined(__AVX512F__)
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
#else
    float held[LANES];
    for (int i = 0; i < LANES; ++i) held[i] = float(p[i]);
    return load(held);
#endif
}

// One row of codes of x. False: a scale is beyond float16.
PLAIT_INLINE bool put_codes(const float* x, long dim, char* row) {
    long blocks = blocks_of(dim);
    for (long b = 0; b < blocks; ++b) {
        float held[CODES] = {}, most = 0.0f;
        std::memcpy(held, x + b * CODES, sizeof(float) * smaller(CODES, dim - b * CODES));
        for (float value : held) {
            float size = value < 0.0f ? -value : value;
            if (!(size <= most) && most == most) most = size;  // what is no number stays
        }
        std::uint16_t scale = to_f16(most / 127.0f);
        if ((scale & 0x7c00u) == 0x7c00u) return false;
        float step = from_f16(scale);
        char* codes = row + 2 * blocks + b * CODES;
        std::memcpy(row + 2 * b, &scale, sizeof scale);
        if (step == 0.0f) {
            std::memset(codes, 0, CODES);
            continue;
        }
        for (long i = 0; i < CODES; i += LANES)
            store(held + i, min(set1(127.0f), max(set1(-127.0f), round(div(load(held + i), set1(step))))));
        for (long i = 0; i < CODES; ++i) codes[i] = char(int(held[i]));
    }
    return true;
}

// Rows of the spans of a call go to their slabs. False: one does not fit into float16, or into codes.
static bool store_rows(const plait::StoredRows& s) {
    long bytes = row_bytes(s.store, s.dim);
    bool fits = true;
    for (long c = 0; c < s.count; ++c) {
        const plait::AttentionSpan& span = s.spans[c];
#pragma omp parallel for schedule(static) reduction(&& : fits) if (span.n * s.heads * s.dim >= 65536)
        for (long i = 0; i < span.n; ++i) {
            long at = span.start + i;
            char* slab = reinterpret_cast<char*>(s.addresses[span.table + at / 64 - span.first_block]) + s.offset;
            for (long h = 0; h < s.heads; ++h) {
                const float* x = s.rows + (span.row + i) * s.row_stride + h * s.dim;
                char* to = slab + (h * 64 + at % 64) * bytes;
                auto* halves = reinterpret_cast<std::uint16_t*>(to);
                if (s.store == plait::Store::f32) {
                    std::memcpy(to, x, sizeof(float) * s.dim);
                } else if (s.store == plait::Store::bf16) {
                    for (long d = 0; d < s.dim; ++d) halves[d] = to_bf16(x[d]);
                } else if (s.store == plait::Store::f16) {
                    for (long d = 0; d < s.dim; ++d) {
                        halves[d] = to_f16(x[d]);
                        if ((halves[d] & 0x7c00u) != 0x7c00u) continue;
                        // An infinite row would reach others by way of 0 * infinity, which is not 0.
                        halves[d] = 0;
                        fits = false;
                    }
                } else {
                    fits = put_codes(x, s.dim, to) && fits;
                }
            }
        }
    }
    return fits;
}

}  // namespace PLAIT_LEVEL

// Rows as integers of 15 bits: of each 32 columns s = max |x| / 16256 and q = round(x / s), kept as two planes of
// signed bytes, q = 128 high + low with low in [-64, 63]. What the weights' integers make of q is then exact.
#pragma once

#include <new>

#include "blocks.hpp"
#include "bytes.hpp"

namespace PLAIT_LEVEL {

constexpr float TOP = 127.0f * 128.0f;

// Written before it is read.
template <class T>
struct Held {
    T* at;
    explicit Held(long n) : at(static_cast<T*>(::operator new(sizeof(T) * n, std::align_val_t(64)))) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { ::operator delete(at, std::align_val_t(64)); }
};

// All rows of a call, in strips of `height`: [strip][group][row of the strip], for each 32 bytes high and 32 low, its
// scale, scale * sum of q, and the sums of q over its first and its last 16 columns. Rows beyond the last are zeros.
struct Planes {
    long height, groups, strips;
    Held<std::int8_t> bytes;
    Held<float> scale, offset;
    Held<std::int32_t> sums;

    Planes(long rows, long in, long height)
        : height(height),
          groups(in / plait::GROUP),
          strips((rows + height - 1) / height),
          bytes(strips * height * groups * 64),
          scale(strips * height * groups),
          offset(strips * height * groups),
          sums(strips * height * groups * 2) {}

    // The place of a group of a strip: its first row's.
    long place(long strip, long group) const { return (strip * groups + group) * height; }
};

// 32 numbers to planes. A group with a number that is none, or infinite, has a scale that is no number, so that it
// comes through; one that is all but zero is zero.
PLAIT_INLINE void quantise(const float* x, std::int8_t* bytes, float& scale, float& offset, std::int32_t* sums) {
    std::uint32_t bits[32], most = 0;
    std::memcpy(bits, x, sizeof bits);
    // Of positive floats the bits are in order; what is no number is above all that are.
    for (int i = 0; i < 32; ++i) {
        std::uint32_t size = bits[i] & 0x7fffffffu;
        most = size > most ? size : most;
    }
    if (most < 0x0d800000u || most >= 0x7f800000u) {  // 2^-100
        scale = most < 0x7f800000u ? 0.0f : __builtin_nanf("");
        offset = scale;
        sums[0] = sums[1] = 0;
        std::memset(bytes, 0, 64);
        return;
    }
    float top;
    std::memcpy(&top, &most, sizeof top);
    float inverse = TOP / top;
    scale = top / TOP;
    std::int32_t q[32];
#if defined(__AVX512F__)
    for (int i = 0; i < 32; i += 16)
        _mm512_storeu_si512(q + i, _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse))));
#elif defined(__AVX2__)
    for (int i = 0; i < 32; i += 8)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i),
                            _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse))));
#else
    // Adding and taking off 1.5 * 2^23 rounds to the nearest, ties to even.
    for (int i = 0; i < 32; ++i) q[i] = std::int32_t((x[i] * inverse + 0x1.8p23f) - 0x1.8p23f);
#endif
    std::int32_t first = 0, last = 0;
    for (int i = 0; i < 16; ++i) first += q[i];
    for (int i = 16; i < 32; ++i) last += q[i];
    for (int i = 0; i < 32; ++i) {
        std::int32_t high = (q[i] + 64) >> 7;
        bytes[i] = std::int8_t(high);
        bytes[32 + i] = std::int8_t(q[i] - high * 128);
    }
    sums[0] = first;
    sums[1] = last;
    offset = scale * float(first + last);
}

static void quantise(const plait::BlockProduct& p, const Planes& planes) {
#pragma omp parallel for schedule(static) if (p.rows * p.in >= 32768)
    for (long item = 0; item < planes.strips * planes.groups; ++item) {
        long strip = item / planes.groups, g = item % planes.groups;
        for (long r = 0; r < planes.height; ++r) {
            long at = planes.place(strip, g) + r, row = strip * planes.height + r;
            if (row < p.rows) {
                quantise(p.x + row * p.x_stride + g * plait::GROUP, planes.bytes.at + at * 64, planes.scale.at[at],
                         planes.offset.at[at], planes.sums.at + at * 2);
                continue;
            }
            std::memset(planes.bytes.at + at * 64, 0, 64);
            planes.scale.at[at] = planes.offset.at[at] = 0.0f;
            planes.sums.at[at * 2] = planes.sums.at[at * 2 + 1] = 0;
        }
    }
}

}  // namespace PLAIT_LEVEL

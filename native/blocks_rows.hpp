// Rows as integers of 16 bits or of 8: of each 32 columns q = round(x / s). What the weights' integers make of q is exact.
//
// Of 16 bits, two planes of signed bytes, q = 256 high + low: s is the least power of two with |q| < 32512 for all, so that
// products with s are exact as well. Where the sum of a group's |q| could pass the product's limit, s is twice as large, or
// 4 or 8 times: see blocks.hpp. Of 8 bits, one plane: s is the 127th of the largest number
// or the next larger of eight steps between powers of two.
#pragma once

#include <new>

#include "blocks.hpp"
#include "bytes.hpp"

namespace PLAIT_LEVEL {

// Written before it is read.
template <class T>
struct Held {
    T* at;
    explicit Held(long n) : at(static_cast<T*>(::operator new(sizeof(T) * n, std::align_val_t(64)))) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { ::operator delete(at, std::align_val_t(64)); }
};

// A group of a strip's rows as integers: which columns, and where its first row's are.
struct Entry {
    long group, place;
};

// 2^-100 and 2^108: between them no product with scales is lost or beyond what floats hold, in whatever order.
constexpr std::uint32_t LEAST = 0x0d800000u, MOST = 0x75800000u;

// The bits of the largest of 32 numbers; of positive floats bits are in order, and what is no number is above all.
PLAIT_INLINE std::uint32_t largest(const float* x) {
#if defined(__AVX512F__)
    auto sizes = [](const float* from) {
        return _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32(0x7fffffff));
    };
    return std::uint32_t(_mm512_reduce_max_epi32(_mm512_max_epi32(sizes(x), sizes(x + 16))));
#else
    std::uint32_t bits[32], most = 0;
    std::memcpy(bits, x, sizeof bits);
    for (int i = 0; i < 32; ++i) {
        std::uint32_t size = bits[i] & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most;
#endif
}

PLAIT_INLINE float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// By how many bits integers must be shorter so that their sizes add up to `limit` at most.
PLAIT_INLINE int bits_over(const std::int32_t* q, long limit) {
    std::int32_t sum = 0;
    for (int i = 0; i < 32; ++i) sum += q[i] < 0 ? -q[i] : q[i];
    if (sum <= limit) return 0;
    int less = 1;
    // Rounding the numbers anew adds a half each, where rounding them before may have taken one.
    while (((sum + 16) >> less) + 17 > limit) ++less;
    return less;
}

// Scales of 8 bits have so many fractions: (1 + i / FRACTIONS) 2^power.
constexpr int FRACTIONS = 8, FRACTION_BITS = 3;

// The least such scale that is no smaller.
PLAIT_INLINE float few_bits(float scale) {
    std::uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    constexpr std::uint32_t rest = (1u << (23 - FRACTION_BITS)) - 1u;
    return from_bits((bits + rest) & ~rest);
}

// Which fraction a scale has.
PLAIT_INLINE std::int32_t fraction_of(float scale) {
    std::uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    return std::int32_t(bits >> (23 - FRACTION_BITS)) & (FRACTIONS - 1);
}

// 32 numbers as integers of 8 bits, q; their scale. See below.
PLAIT_INLINE float whole_bytes(const float* x, std::uint32_t most, std::int32_t* q, float* rest) {
    float scale = few_bits(from_bits(most) / 127.0f);
    Vec inverse = set1(1.0f / scale);
    for (int i = 0; i < 32; i += LANES) {
        Vec value = load(x + i), whole = round(mul(value, inverse));
        if (rest != nullptr) store(rest + i, fma(whole, set1(-scale), value));
        store_whole(q + i, whole);
    }
    return scale;
}

// 32 numbers, the largest with the bits `most`, as integers, q, of 16 bits whose sizes add up to `limit` at most, or of 8;
// their scale. `rest` [32], where it is wanted: what rounding leaves. A group with a number that is none, or of 2^108 and
// more, has a scale that is no number, so that it comes through; one that is all but zero is zero.
PLAIT_INLINE float whole_of(const float* x, std::uint32_t most, int planes, std::int32_t* q, long limit, float* rest) {
    if (most < LEAST || most >= MOST) {
        std::memset(q, 0, 32 * sizeof(std::int32_t));
        if (rest != nullptr) std::memset(rest, 0, 32 * sizeof(float));
        return most < MOST ? 0.0f : __builtin_nanf("");
    }
    if (planes == 1) return whole_bytes(x, most, q, rest);
    // The exponent of 2^14 / s; one more where the largest number is all but the next power of two.
    std::uint32_t exponent = (most + 0x20000u) >> 23;
    auto scale = [&] { return from_bits((exponent - 14u) << 23); };
    auto take = [&] {
        Vec inverse = set1(from_bits((268u - exponent) << 23));
        for (int i = 0; i < 32; i += LANES) {
            Vec value = load(x + i), whole = round(mul(value, inverse));
            if (rest != nullptr) store(rest + i, fma(whole, set1(-scale()), value));
            store_whole(q + i, whole);
        }
    };
    take();
    if (limit < 32 * plait::LARGEST)
        if (int less = bits_over(q, limit)) {
            exponent += std::uint32_t(less);
            take();
        }
    return scale();
}

// The power of two in a scale; of zero it does not matter, and what is no number stays none.
PLAIT_INLINE float power_of(float scale) {
    std::uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    return scale > 0.0f ? float(int(bits >> 23) - 127) : scale;
}

// How the 32 numbers of a row's group lie: as bytes, high ones before low ones; as 16 bits, of each four columns the first
// and third, then the second and fourth; as bytes with 128 added, so that they have no sign.
enum class Laid { bytes, words, raised };

// All rows of a call, in strips of `height`: [strip][group][row of the strip], for each 32 bytes high (where there are two
// planes) and 32 low, its scale, scale * sum of q, and the sums of q over its first and its last 16 columns. Rows beyond the
// last are zeros.
//
// Where the largest number of a group is more than three times as large as such are in its row on average, what rounding
// has left of the group's numbers follows as a second entry, rounded in the same way: outliers do not make their
// neighbours coarse (of 8 bits, up to more than 220 times their size). Rows of the strip that need no such entry have zeros
// there, which change no sum.
struct Planes {
    long height, groups, strips;
    int planes;
    Laid laid;
    bool asks;
    long each;  // bytes of a row's group
    Held<std::int8_t> bytes;
    // Of words of two planes scale = 2^power; of raised bytes that times a fraction, of which there are 64 bytes each.
    Held<float> scale, offset, power;
    Held<std::int32_t> fraction, sums;
    Held<Entry> entries;
    Held<long> counts;
    Held<float> limit;         // of each row, see limit_of
    Held<std::uint32_t> tops;  // of each row and group the bits of its largest number
    Held<bool> over;           // of each strip and group: there is a second entry

    Planes(long rows, long in, long height, int planes, Laid laid, bool asks)
        : height(height),
          groups(in / plait::GROUP),
          strips((rows + height - 1) / height),
          planes(planes),
          laid(laid),
          asks(asks),
          each(laid == Laid::words ? 64 : 32 * planes),
          bytes(2 * strips * height * groups * each),
          scale(2 * strips * height * groups),
          offset(2 * strips * height * groups),
          power(laid != Laid::bytes ? 2 * strips * height * groups : 0),
          fraction(laid == Laid::raised ? 2 * strips * height * groups : 0),
          sums(2 * strips * height * groups * 2),
          entries(2 * strips * groups),
          counts(strips),
          limit(strips * height),
          tops(strips * height * groups),
          over(strips * groups) {}

    // The place of a group of a strip, of what it leaves over or not.
    long place(long strip, long group, bool over) const { return ((over * strips + strip) * groups + group) * height; }
    const Entry* of(long strip) const { return entries.at + 2 * strip * groups; }

    // Row r of a place: 32 numbers, see whole_of.
    void put(long at, long r, const float* x, std::uint32_t most, long sum_limit, float* rest) {
        alignas(64) std::int32_t q[32];
        std::int32_t first, last;
        at += r;
        float s = whole_of(x, most, planes, q, sum_limit, rest);
        std::int8_t* to = bytes.at + at * each;
        if (laid == Laid::words) {
            order_words(q, reinterpret_cast<std::int16_t*>(to), first, last);
        } else if (planes == 2) {
            first = split(q, to, to + 32), last = split(q + 16, to + 16, to + 48);
        } else {
            int flip = laid == Laid::raised ? 128 : 0;
            first = narrow(q, to, flip), last = narrow(q + 16, to + 16, flip);
        }
        if (laid != Laid::bytes) power.at[at] = power_of(s);
        if (laid == Laid::raised) fraction.at[at] = fraction_of(s) * 64;
        sums.at[at * 2] = first;
        sums.at[at * 2 + 1] = last;
        scale.at[at] = s;
        offset.at[at] = s * float(first + last);
    }

    void put_nothing(long at, long r) {
        at += r;
        std::memset(bytes.at + at * each, laid == Laid::raised ? 128 : 0, each);
        scale.at[at] = offset.at[at] = 0.0f;
        if (laid != Laid::bytes) power.at[at] = 0.0f;
        if (laid == Laid::raised) fraction.at[at] = 0;
        sums.at[at * 2] = sums.at[at * 2 + 1] = 0;
    }
};

// Of each group of a row the bits of its largest number, to `tops`; above what size such a number is an outlier.
PLAIT_INLINE float limit_of(const plait::BlockProduct& p, long row, std::uint32_t* tops) {
    float total = 0.0f;
    for (long g = 0; g < p.in / plait::GROUP; ++g) {
        tops[g] = largest(p.x + row * p.x_stride + g * plait::GROUP);
        total += from_bits(tops[g]);
    }
    return 3.0f * total / float(p.in / plait::GROUP);
}

// Rows of strips [low, low + count) go to their places; shared among the threads of a region, which all come here.
template <class To>
static void fill_strips(const plait::BlockProduct& p, To& to, long low, long count) {
    long first = low * to.height, given = smaller(count * to.height, p.rows - first);
#if defined(_OPENMP)
#pragma omp for schedule(static)
#endif
    for (long r = 0; r < given; ++r) to.limit.at[r] = limit_of(p, first + r, to.tops.at + r * to.groups);
#if defined(_OPENMP)
#pragma omp for schedule(static) collapse(2)
#endif
    for (long strip = 0; strip < count; ++strip)
        for (long g = 0; g < to.groups; ++g) {
            long at = to.place(strip, g, false), over_at = to.place(strip, g, true), row = strip * to.height;
            const float* x = p.x + (first + row) * p.x_stride + g * plait::GROUP;
            const std::uint32_t* tops = to.tops.at + row * to.groups + g;
            long rows = smaller(to.height, given - row);
            bool over[16], any = false;
            for (long r = 0; r < rows; ++r) {
                over[r] = from_bits(tops[r * to.groups]) > to.limit.at[row + r];
                any = any || over[r];
            }
            for (long r = 0; r < to.height; ++r) {
                if (r >= rows) {
                    to.put_nothing(at, r);
                    if (any) to.put_nothing(over_at, r);
                    continue;
                }
                float rest[32];
                to.put(at, r, x + r * p.x_stride, tops[r * to.groups], p.sum_limit, over[r] ? rest : nullptr);
                if (over[r]) to.put(over_at, r, rest, largest(rest), p.sum_limit, nullptr);
                else if (any) to.put_nothing(over_at, r);
            }
            to.over.at[strip * to.groups + g] = any;
        }
#if defined(_OPENMP)
#pragma omp for schedule(static)
#endif
    for (long strip = 0; strip < count; ++strip) {
        Entry* entry = to.entries.at + 2 * strip * to.groups;
        long found = 0;
        for (long g = 0; g < to.groups; ++g) {
            entry[found++] = {g, to.place(strip, g, false)};
            if (to.over.at[strip * to.groups + g]) entry[found++] = {g, to.place(strip, g, true)};
        }
        to.counts.at[strip] = found;
    }
}

}  // namespace PLAIT_LEVEL

// Products with packed blocks, many rows at a time, for processors without matrix tiles: codes are taken out of their
// panel once for all rows, and meet the rows' integers. Sums over a group are whole numbers and exact, so an output is the
// chain of blocks_few.hpp, bit for bit.
#pragma once

#include "blocks_strips.hpp"

namespace PLAIT_LEVEL {

#if defined(PLAIT_X86_VECTORS)

// Rows of a strip: their sums lie in registers.
#if defined(__AVX512F__)
constexpr int MANY_ROWS = 12;
#else
constexpr int MANY_ROWS = 6;
#endif
// Products of bytes take in four columns at a time where one instruction does it; otherwise, and of integers of 16 bits,
// products of words take in two.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define PLAIT_MANY_BYTES
#endif

// Fewer rows are sooner done with codes as they lie.
PLAIT_INLINE long many([[maybe_unused]] int planes) {
#if defined(__AVX512VNNI__)
    return 33;
#elif defined(PLAIT_MANY_BYTES)
    return planes == 1 ? 9 : 33;
#elif defined(__AVX512F__)
    return planes == 1 ? 13 : 9;
#else
    return planes == 1 ? 7 : 5;
#endif
}

// Bytes of codes that are taken out before the rows pass by; a part of a core's second cache.
constexpr long TAKEN_OUT = 1 << 18;

// Codes as numbers of 16 bits less their zero, 16 times the same two columns of 16 outputs: operand j's columns 0 and 2 of
// 4, then 1 and 3.
struct Words {
    static constexpr Laid LAID = Laid::words;
    static constexpr long PIECES = 16, ROW = 64;

    template <plait::Form F>
    static constexpr long size() {
        return PIECES * 64;
    }

    template <plait::Form F>
    PLAIT_INLINE void put(std::uint8_t* to, long j, Ints codes) {
        constexpr int zero = plait::shape_of(F).zero;
        store_words(reinterpret_cast<std::int16_t*>(to + 2 * j * 64), even_bytes(codes), zero);
        store_words(reinterpret_cast<std::int16_t*>(to + (2 * j + 1) * 64), odd_bytes(codes), zero);
    }
    PLAIT_INLINE Ints dot(Ints sum, Ints codes, std::int32_t two) { return dot_words(sum, codes, two); }
    template <plait::Form F>
    PLAIT_INLINE void end(std::uint8_t*, Vec, Vec) {}
    template <plait::Form F>
    PLAIT_INLINE Ints begin(const std::uint8_t*, int) {
        return zeros();
    }
    // acc + float(sum) * s * by, s the scale of the row at `at`, by that of its weights. Where s is a power of two all but the
    // sum with acc is exact, s times by too, which is a multiple of 2^-27 at least (see LEAST and MOST): then exponents are
    // added, by units that do not multiply.
    template <plait::Form F, int PLANES>
    PLAIT_INLINE Vec add_scaled(const Planes& planes, long at, Ints sum, Vec by, const std::uint8_t*, int, Vec acc) {
#if defined(__AVX512F__)
        if constexpr (PLANES == 2) return fma(as_floats(sum), times_power(by, set1(planes.power.at[at])), acc);
#endif
        return fma(mul(as_floats(sum), set1(planes.scale.at[at])), by, acc);
    }
};

#if defined(PLAIT_MANY_BYTES)
// Codes less their zero, 8 times the same four columns of 16 outputs, then where sums begin: rows have no sign, and what
// 128 more of each number make is known beforehand, for all rows together. With AVX-512 the weights' scales follow, times
// each fraction that a row's scale may have. Two of each where each half of the columns has a sum of its own.
struct Codes {
    static constexpr Laid LAID = Laid::raised;
    static constexpr long PIECES = 8, ROW = 32;
#if defined(__AVX512F__)
    static constexpr bool BY_POWER = true;
#else
    static constexpr bool BY_POWER = false;
#endif
    static constexpr long SUM = 64, SCALES = BY_POWER ? FRACTIONS * 64 : 0;

    template <plait::Form F>
    static constexpr long size() {
        return PIECES * 64 + (has_halves(F) ? 2 : 1) * (SUM + SCALES);
    }
    template <plait::Form F>
    static constexpr long scales_at(int half) {
        return PIECES * 64 + (has_halves(F) ? 2 : 1) * SUM + half * SCALES;
    }

    template <plait::Form F>
    PLAIT_INLINE void put(std::uint8_t* to, long j, Ints codes) {
        store_bytes(to + j * 64, minus_byte(codes, plait::shape_of(F).zero));
    }
    template <plait::Form F>
    PLAIT_INLINE void end(std::uint8_t* to, Vec first, Vec last) {
        constexpr std::int32_t all = std::int32_t(0x80808080u);
        Ints sums[2] = {zeros(), zeros()};
        for (long j = 0; j < PIECES; ++j) {
            Ints& sum = sums[has_halves(F) ? j / 4 : 0];
            sum = dot_signed(sum, load_bytes(to + j * 64), all);
        }
        for (int half = 0; half < (has_halves(F) ? 2 : 1); ++half) {
            store_bytes(to + PIECES * 64 + half * SUM, negative(sums[half]));
            float* scales = reinterpret_cast<float*>(to + scales_at<F>(half));
            for (long i = 0; BY_POWER && i < FRACTIONS; ++i)
                store(scales + i * LANES, mul(half == 0 ? first : last, set1(1.0f + float(i) / FRACTIONS)));
        }
    }
    PLAIT_INLINE Ints dot(Ints sum, Ints codes, std::int32_t four) { return dot_signed(sum, codes, four); }
    template <plait::Form F>
    PLAIT_INLINE Ints begin(const std::uint8_t* codes, int half) {
        return load_bytes(codes + PIECES * 64 + half * SUM);
    }
    // See Words: the fraction of the row's scale is in that of the weights.
    template <plait::Form F, int PLANES>
    PLAIT_INLINE Vec add_scaled(const Planes& planes, long at, Ints sum, [[maybe_unused]] Vec by,
                                [[maybe_unused]] const std::uint8_t* codes, [[maybe_unused]] int half, Vec acc) {
#if defined(__AVX512F__)
        const float* scales = reinterpret_cast<const float*>(codes + scales_at<F>(half) + planes.fraction.at[at]);
        return fma(as_floats(sum), times_power(load(scales), set1(planes.power.at[at])), acc);
#else
        return fma(mul(as_floats(sum), set1(planes.scale.at[at])), by, acc);
#endif
    }
};
#endif

// A panel's codes, [group][size bytes].
template <class As, plait::Form F>
static void take_out(const std::uint8_t* panel, long groups, std::uint8_t* to) {
    for (long g = 0; g < groups; ++g, to += As::template size<F>()) {
        const std::uint8_t* record = panel + plait::record_at(F, g);
        auto both = [&](auto j) {
            Ints low, high;
            operands<F, decltype(j)::value>(record, low, high);
            As::template put<F>(to, j, low);
            As::template put<F>(to, j + 4, high);
        };
        both(std::integral_constant<int, 0>());
        both(std::integral_constant<int, 1>());
        both(std::integral_constant<int, 2>());
        both(std::integral_constant<int, 3>());
        Vec first, last, offset;
        scales<F>(panel, g, first, last, offset);
        As::template end<F>(to, first, last);
    }
}

// Pieces [FROM, STOP) of a group's codes times those of an entry's rows.
template <class As, int FROM, int STOP>
PLAIT_INLINE void add_pieces(const std::uint8_t* codes, const std::int8_t* x, Ints (&sums)[MANY_ROWS]) {
    PLAIT_UNROLL for (int t = FROM; t < STOP; ++t) {
        Ints columns = load_bytes(codes + 64 * t);
        PLAIT_UNROLL for (int r = 0; r < MANY_ROWS; ++r) {
            std::int32_t some;
            std::memcpy(&some, x + r * As::ROW + 4 * t, sizeof some);
            sums[r] = As::dot(sums[r], columns, some);
        }
    }
}

// A strip times a panel, whose codes are taken out.
template <class As, plait::Form F, int PLANES>
static void meet_taken(const Planes& planes, long strip, const std::uint8_t* panel, const std::uint8_t* codes,
                       Vec (&made)[MANY_ROWS]) {
    Vec acc[MANY_ROWS];
    for (int r = 0; r < MANY_ROWS; ++r) acc[r] = set1(0.0f);
    const Entry *entry = planes.of(strip), *stop = entry + planes.counts.at[strip];
    for (; entry < stop; ++entry) {
        long g = entry->group, at = entry->place;
        const std::int8_t* x = planes.bytes.at + at * As::ROW;
        const std::uint8_t* w = codes + g * As::template size<F>();
        Vec first, last, offset;
        scales<F>(panel, g, first, last, offset);
        Ints sums[MANY_ROWS];
        auto join = [&](Vec by, int half) {
            for (int r = 0; r < MANY_ROWS; ++r)
                acc[r] = As::template add_scaled<F, PLANES>(planes, at + r, sums[r], by, w, half, acc[r]);
        };
        for (int r = 0; r < MANY_ROWS; ++r) sums[r] = As::template begin<F>(w, 0);
        add_pieces<As, 0, As::PIECES / 2>(w, x, sums);
        if constexpr (has_halves(F)) {
            join(first, 0);
            for (int r = 0; r < MANY_ROWS; ++r) sums[r] = As::template begin<F>(w, 1);
        }
        add_pieces<As, As::PIECES / 2, As::PIECES>(w, x, sums);
        join(has_halves(F) ? last : first, has_halves(F));
        if constexpr (has_offset(F))
            for (int r = 0; r < MANY_ROWS; ++r) acc[r] = fma(set1(planes.offset.at[at + r]), offset, acc[r]);
    }
    for (int r = 0; r < MANY_ROWS; ++r) made[r] = acc[r];
}

// All strips and the panels of a share, of gated products pairs of panels.
template <class As, plait::Form F, int PLANES>
static void many_strips(const plait::BlockProduct& p, const Planes& planes, const Share& share) {
    long size = plait::panel_bytes(F, p.in), each = p.gated ? 2 : 1, bytes = planes.groups * As::template size<F>();
    long together = smaller(larger(1, TAKEN_OUT / (bytes * each)), share.stop - share.first);
    Held<std::uint8_t> taken(together * each * bytes);
    for (long begin = share.first; begin < share.stop; begin += together) {
        long count = smaller(together, share.stop - begin);
        const std::uint8_t* panels = share.part->w + begin * each * size;
        for (long i = 0; i < count * each; ++i)
            take_out<As, F>(panels + i * size, planes.groups, taken.at + i * bytes);
        // The panels that are taken out next are asked for meanwhile, some lines each time.
        const std::uint8_t* next = panels + count * each * size;
        const std::uint8_t* end = next + smaller(together, share.stop - begin - count) * each * size;
        long lines = ((end - next) / (planes.strips * count) + 63) / 64;
        for (long strip = 0; strip < planes.strips; ++strip)
            for (long i = 0; i < count; ++i) {
                for (long line = 0; line < lines && next < end; ++line, next += 64) __builtin_prefetch(next, 0, 2);
                Vec made[MANY_ROWS], up[MANY_ROWS];
                const std::uint8_t *panel = panels + i * each * size, *codes = taken.at + i * each * bytes;
                meet_taken<As, F, PLANES>(planes, strip, panel, codes, made);
                if (p.gated) meet_taken<As, F, PLANES>(planes, strip, panel + size, codes + bytes, up);
                long low = (begin + i) * LANES, width = smaller(LANES, share.outputs - low);
                for (int r = 0; r < MANY_ROWS && strip * MANY_ROWS + r < p.rows; ++r)
                    put_row(p, strip * MANY_ROWS + r, share.column + low, width, made[r], p.gated ? &up[r] : nullptr);
            }
    }
}

template <class As, int PLANES>
static void blocks_many_as(const plait::BlockProduct& p) {
    blocks_by_strips(p, MANY_ROWS, As::LAID, 1, [&](auto form, const Planes& planes, const Share* shares, long) {
        many_strips<As, decltype(form)::value, PLANES>(p, planes, *shares);
    });
}

static void blocks_many(const plait::BlockProduct& p) {
#if defined(PLAIT_MANY_BYTES)
    using One = Codes;
#else
    using One = Words;
#endif
    if (p.planes == 1) blocks_many_as<One, 1>(p);
    else blocks_many_as<Words, 2>(p);
}

#endif

}  // namespace PLAIT_LEVEL

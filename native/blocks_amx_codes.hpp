// A piece of a panel taken out of its packing for matrix tiles: codes with sign as bf16, which holds them exactly.
#pragma once

#include "blocks_amx_rows.hpp"
#include "blocks_codes.hpp"

namespace PLAIT_LEVEL {

// Codes of a group: [pair of columns][output][2], columns 0 and 2 of four first; and for 16 outputs each A of its first
// columns, A of its last, O.
struct alignas(64) Piece {
    std::uint16_t codes[PIECE * 512];
    float scales[PIECE * 48];
};

// bf16 numbers of the codes: 32 or 64 entries.
struct alignas(64) Table {
    std::uint16_t of[64];
    constexpr Table(int bits, int zero) : of() {
        for (int u = 0; u < 64; ++u) {
            int code = u % (1 << bits) - zero, size = code < 0 ? -code : code, exponent = 0;
            while (size >> exponent > 1) ++exponent;
            int bits_of = size == 0 ? 0 : (exponent + 127) << 7 | (size << (7 - exponent) & 0x7f);
            of[u] = std::uint16_t(bits_of | (code < 0 ? 0x8000 : 0));
        }
    }
};

// bf16 numbers of the codes in the even bytes of `u`.
template <plait::Form F>
PLAIT_INLINE __m512i halves_of(__m512i u) {
    constexpr plait::Shape shape = plait::shape_of(F);
    if constexpr (shape.bits == 8) {
        auto whole = [](__m512i x) { return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(x, 24))); };
        __m512i code = _mm512_xor_si512(u, _mm512_set1_epi8(-128));
        __m512i first = whole(_mm512_slli_epi32(code, 24)), second = whole(_mm512_slli_epi32(code, 8));
        return _mm512_mask_mov_epi16(second, 0x55555555, _mm512_srli_epi32(first, 16));
    } else {
        static constexpr Table table(shape.bits, shape.zero);
        __m512i low = _mm512_load_si512(table.of);
        if constexpr (shape.bits < 6) return _mm512_permutexvar_epi16(u, low);
        return _mm512_permutex2var_epi16(low, u, _mm512_load_si512(table.of + 32));
    }
}

template <plait::Form F, int J>
PLAIT_INLINE void take_operands(const std::uint8_t* record, std::uint16_t* to) {
    Ints low, high;
    operands<F, J>(record, low, high);
    auto put = [&](int operand, __m512i u) {
        _mm512_store_si512(to + operand * 64, halves_of<F>(u));
        _mm512_store_si512(to + operand * 64 + 32, halves_of<F>(_mm512_srli_epi16(u, 8)));
    };
    put(J, low.v);
    put(J + 4, high.v);
}

// Groups [first, stop) of a panel.
template <plait::Form F>
PLAIT_INLINE void take(const std::uint8_t* panel, long first, long stop, Piece& to) {
    constexpr long size = plait::record_bytes(F);
    for (long g = first; g < stop; ++g) {
        const std::uint8_t* record = panel + plait::record_at(F, g);
        for (long ahead = 0; ahead < size; ahead += 64) __builtin_prefetch(record + 4096 + ahead);
        std::uint16_t* codes = to.codes + (g - first) * 512;
        take_operands<F, 0>(record, codes);
        take_operands<F, 1>(record, codes);
        take_operands<F, 2>(record, codes);
        take_operands<F, 3>(record, codes);
        Vec a, b, offset;
        scales<F>(panel, g, a, b, offset);
        float* scale = to.scales + (g - first) * 48;
        store(scale, a);
        if constexpr (has_halves(F)) store(scale + 16, b);
        if constexpr (has_offset(F)) store(scale + 32, offset);
    }
}

}  // namespace PLAIT_LEVEL

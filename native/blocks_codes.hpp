// What a packed panel holds, taken out, and where a panel's outputs go.
#pragma once

#include <type_traits>

#include "activate.hpp"
#include "blocks.hpp"
#include "bytes.hpp"

namespace PLAIT_LEVEL {

constexpr bool has_offset(plait::Form form) {
    plait::Side side = plait::shape_of(form).side;
    return side == plait::Side::scale_offset || side == plait::Side::super;
}
constexpr bool has_halves(plait::Form form) { return plait::shape_of(form).side == plait::Side::super_halves; }

// `work` with the form as a type.
template <class Work>
PLAIT_INLINE void with_form(plait::Form form, Work&& work) {
    using plait::Form;
    switch (form) {
        case Form::q4_0: return work(std::integral_constant<Form, Form::q4_0>());
        case Form::q4_1: return work(std::integral_constant<Form, Form::q4_1>());
        case Form::q5_0: return work(std::integral_constant<Form, Form::q5_0>());
        case Form::q5_1: return work(std::integral_constant<Form, Form::q5_1>());
        case Form::q8_0: return work(std::integral_constant<Form, Form::q8_0>());
        case Form::q4_k: return work(std::integral_constant<Form, Form::q4_k>());
        case Form::q5_k: return work(std::integral_constant<Form, Form::q5_k>());
        case Form::q6_k: return work(std::integral_constant<Form, Form::q6_k>());
    }
}

// Operands J and J + 4 of a record.
template <plait::Form F, int J>
PLAIT_INLINE void operands(const std::uint8_t* record, Ints& low, Ints& high) {
    constexpr int bits = plait::shape_of(F).bits;
    if constexpr (bits == 8) {
        low = load_bytes(record + 64 * J);
        high = load_bytes(record + 64 * (J + 4));
        return;
    }
    Ints both = load_bytes(record + 64 * J);
    low = low_nibbles(both);
    high = high_nibbles(both);
    if constexpr (bits == 5) {
        Ints plane = load_bytes(record + 256);
        low = with_bits<4 - J, 0x10>(low, plane);
        high = with_bits<-J, 0x10>(high, plane);
    }
    if constexpr (bits == 6) {
        low = with_bits<4 - 2 * J, 0x30>(low, load_bytes(record + 256));
        high = with_bits<4 - 2 * J, 0x30>(high, load_bytes(record + 320));
    }
}

// A of a group's columns (of its first and last 16 where scales are so fine), and O where there is one.
template <plait::Form F>
PLAIT_INLINE void scales(const std::uint8_t* panel, long g, Vec& first, Vec& last, Vec& offset) {
    constexpr plait::Side kind = plait::shape_of(F).side;
    const std::uint8_t* side = panel + plait::chunk_at(F, g);
    long at = plait::in_chunk(F, g);
    auto half = [](const std::uint8_t* p) { return load_f16(reinterpret_cast<const std::uint16_t*>(p)); };
    if constexpr (kind == plait::Side::scale) {
        first = half(side + at * 32);
    } else if constexpr (kind == plait::Side::scale_offset) {
        first = half(side + at * 64);
        offset = half(side + at * 64 + 32);
    } else if constexpr (kind == plait::Side::super) {
        const std::uint8_t* own = side + 64 + at * 32;
        first = mul(half(side), load_u8(own));
        offset = sub(set1(0.0f), mul(half(side + 32), load_u8(own + 16)));
    } else {
        const std::uint8_t* own = side + 32 + at * 32;
        Vec d = half(side);
        first = mul(d, load_i8(own));
        last = mul(d, load_i8(own + 16));
    }
}

// A panel's outputs of one row go to their place, or what a gate makes of its own and of `up`.
PLAIT_INLINE void put_row(const plait::BlockProduct& p, long row, long column, long width, Vec made, const Vec* up) {
    if (up != nullptr) made = mul(activate(p.activation, made), *up);
    float* to = p.y + row * p.y_stride + column;
    if (width >= LANES) store(to, made);
    else store_n(to, made, int(width));
}

}  // namespace PLAIT_LEVEL

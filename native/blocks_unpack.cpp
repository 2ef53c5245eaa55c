// Blocks of a file to floats, bit for bit what the reference makes of them: products of a scale and a code are exact,
// so that an offset's sum rounds once. Layouts of the file: ggml-common.h of the ggml project.
#include <cstring>

#include "blocks.hpp"

namespace plait {

namespace {

using Byte = std::uint8_t;

float half_at(const Byte* p) {
    std::uint16_t h;
    std::memcpy(&h, p, 2);
    // The exponent's bias grows by 112; what is infinite or none keeps all its exponent's bits.
    std::uint32_t bits = std::uint32_t(h & 0x7fff) << 13, sign = std::uint32_t(h & 0x8000) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    x *= 0x1p112f;
    std::memcpy(&bits, &x, 4);
    if ((h & 0x7c00) == 0x7c00) bits = 0x7f800000u | std::uint32_t(h & 0x3ff) << 13;
    bits |= sign;
    std::memcpy(&x, &bits, 4);
    return x;
}

// Codes of 32 columns, 16 bytes of low halves and the fifth bits.
void codes_of(const Byte* low, std::uint32_t fifth, int* u) {
    for (int i = 0; i < 16; ++i) {
        u[i] = (low[i] & 15) | (fifth >> i & 1) << 4;
        u[i + 16] = low[i] >> 4 | (fifth >> (i + 16) & 1) << 4;
    }
}

template <Form F>
void unpack_small(const Byte* b, float* to) {
    constexpr Shape shape = shape_of(F);
    float d = half_at(b);
    if constexpr (F == Form::q8_0) {
        for (int i = 0; i < 32; ++i) to[i] = d * float(std::int8_t(b[2 + i]));
        return;
    }
    int u[32];
    std::uint32_t fifth = 0;
    if (shape.bits == 5) std::memcpy(&fifth, b + shape.block_bytes - 20, 4);
    codes_of(b + shape.block_bytes - 16, fifth, u);
    if constexpr (shape.side == Side::scale_offset) {
        float m = half_at(b + 2);
        for (int i = 0; i < 32; ++i) to[i] = d * float(u[i]) + m;
    } else {
        for (int i = 0; i < 32; ++i) to[i] = d * float(u[i] - shape.zero);
    }
}

template <Form F>
void unpack_super(const Byte* b, float* to) {
    float d = half_at(b), least = half_at(b + 2);
    const Byte *scale = b + 4, *min = b + 8, *both = b + 12, *low = b + (F == Form::q5_k ? 48 : 16);
    for (int g = 0; g < 8; ++g) {
        int s = g < 4 ? scale[g] & 63 : (both[g - 4] & 15) | scale[g - 4] >> 6 << 4;
        int m = g < 4 ? min[g] & 63 : both[g - 4] >> 4 | min[g - 4] >> 6 << 4;
        float a = d * float(s), o = least * float(m);
        for (int i = 0; i < 32; ++i) {
            int u = g % 2 == 0 ? low[g / 2 * 32 + i] & 15 : low[g / 2 * 32 + i] >> 4;
            if (F == Form::q5_k) u |= (b[16 + i] >> g & 1) << 4;
            to[32 * g + i] = a * float(u) - o;
        }
    }
}

void unpack_q6_k(const Byte* b, float* to) {
    float d = half_at(b + 208);
    for (int g = 0; g < 8; ++g) {
        const Byte *low = b + g / 4 * 64 + g % 2 * 32, *high = b + 128 + g / 4 * 32;
        for (int i = 0; i < 32; ++i) {
            int u = (g % 4 < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> 2 * (g % 4) & 3) << 4;
            float a = d * float(std::int8_t(b[192 + 2 * g + i / 16]));
            to[32 * g + i] = a * float(u - 32);
        }
    }
}

template <Form F>
void unpack(const Byte* blocks, long count, float* to) {
    constexpr Shape shape = shape_of(F);
#pragma omp parallel for schedule(static) if (count * shape.block >= 1 << 16)
    for (long i = 0; i < count; ++i) {
        const Byte* b = blocks + i * shape.block_bytes;
        if constexpr (F == Form::q6_k) unpack_q6_k(b, to + i * shape.block);
        else if constexpr (shape.side == Side::super) unpack_super<F>(b, to + i * shape.block);
        else unpack_small<F>(b, to + i * shape.block);
    }
}

}  // namespace

void unpack_blocks(const std::uint8_t* blocks, long count, Form form, float* to) {
    switch (form) {
        case Form::q4_0: return unpack<Form::q4_0>(blocks, count, to);
        case Form::q4_1: return unpack<Form::q4_1>(blocks, count, to);
        case Form::q5_0: return unpack<Form::q5_0>(blocks, count, to);
        case Form::q5_1: return unpack<Form::q5_1>(blocks, count, to);
        case Form::q8_0: return unpack<Form::q8_0>(blocks, count, to);
        case Form::q4_k: return unpack<Form::q4_k>(blocks, count, to);
        case Form::q5_k: return unpack<Form::q5_k>(blocks, count, to);
        case Form::q6_k: return unpack<Form::q6_k>(blocks, count, to);
    }
}

}  // namespace plait

// Packing of block formats: bytes move, no number changes. Layouts of the file: ggml-common.h of the ggml project.
#include <cstring>

#include "blocks.hpp"

namespace plait {

namespace {

using Byte = std::uint8_t;

// Codes of one block in order of the columns, one a byte.
template <Form F>
void codes_of(const Byte* b, Byte* u) {
    if constexpr (F == Form::q8_0) {
        for (int i = 0; i < 32; ++i) u[i] = b[2 + i] ^ 0x80;
    } else if constexpr (F == Form::q6_k) {
        for (int half = 0; half < 2; ++half) {
            const Byte *low = b + 64 * half, *high = b + 128 + 32 * half;
            Byte* to = u + 128 * half;
            for (int i = 0; i < 32; ++i) {
                to[i] = Byte((low[i] & 15) | (high[i] << 4 & 0x30));
                to[i + 32] = Byte((low[i + 32] & 15) | (high[i] << 2 & 0x30));
                to[i + 64] = Byte(low[i] >> 4 | (high[i] & 0x30));
                to[i + 96] = Byte(low[i + 32] >> 4 | (high[i] >> 2 & 0x30));
            }
        }
    } else if constexpr (shape_of(F).block == 256) {
        const Byte* low = b + (F == Form::q5_k ? 48 : 16);
        for (int c = 0; c < 4; ++c)
            for (int i = 0; i < 32; ++i) {
                u[64 * c + i] = low[32 * c + i] & 15;
                u[64 * c + 32 + i] = low[32 * c + i] >> 4;
            }
        if constexpr (F == Form::q5_k)
            for (int g = 0; g < 8; ++g)
                for (int i = 0; i < 32; ++i) u[32 * g + i] |= Byte((b[16 + i] >> g & 1) << 4);
    } else {
        constexpr int at = shape_of(F).block_bytes - 16;
        for (int i = 0; i < 16; ++i) {
            u[i] = b[at + i] & 15;
            u[i + 16] = b[at + i] >> 4;
        }
        if constexpr (shape_of(F).bits == 5) {
            std::uint32_t fifth;
            std::memcpy(&fifth, b + at - 4, 4);
            for (int i = 0; i < 32; ++i) u[i] |= Byte((fifth >> i & 1) << 4);
        }
    }
}

// The codes of 32 columns of one output go to their places in a record.
template <Form F>
void place(const Byte* u, Byte* record, int output) {
    constexpr int bits = shape_of(F).bits;
    Byte* to = record + 4 * output;
    if constexpr (bits == 8) {
        for (int j = 0; j < 8; ++j) std::memcpy(to + 64 * j, u + 4 * j, 4);
        return;
    }
    Byte nibbles[16];
    for (int i = 0; i < 16; ++i) nibbles[i] = Byte((u[i] & 15) | u[i + 16] << 4);
    for (int j = 0; j < 4; ++j) std::memcpy(to + 64 * j, nibbles + 4 * j, 4);
    if constexpr (bits == 5) {
        std::uint32_t plane = 0;
        for (int j = 0; j < 8; ++j) {
            std::uint32_t four;
            std::memcpy(&four, u + 4 * j, 4);
            plane |= (four >> 4 & 0x01010101u) << j;
        }
        std::memcpy(to + 256, &plane, 4);
    }
    if constexpr (bits == 6) {
        for (int p = 0; p < 2; ++p) {
            std::uint32_t plane = 0;
            for (int f = 0; f < 4; ++f) {
                std::uint32_t four;
                std::memcpy(&four, u + 16 * p + 4 * f, 4);
                plane |= (four >> 4 & 0x03030303u) << 2 * f;
            }
            std::memcpy(to + 256 + 64 * p, &plane, 4);
        }
    }
}

// Scales of one block of one output go to their places beside the codes.
template <Form F>
void place_scales(const Byte* b, Byte* side, long block, int output) {
    constexpr Shape shape = shape_of(F);
    if constexpr (shape.side == Side::scale) {
        std::memcpy(side + block * 32 + 2 * output, b, 2);
    } else if constexpr (shape.side == Side::scale_offset) {
        std::memcpy(side + block * 64 + 2 * output, b, 2);
        std::memcpy(side + block * 64 + 32 + 2 * output, b + 2, 2);
    } else if constexpr (shape.side == Side::super) {
        Byte* to = side + block * 320;
        std::memcpy(to + 2 * output, b, 2);
        std::memcpy(to + 32 + 2 * output, b + 2, 2);
        const Byte *scale = b + 4, *least = b + 8, *low = b + 12;
        for (int g = 0; g < 4; ++g) {
            to[64 + 32 * g + output] = scale[g] & 63;
            to[64 + 32 * g + 16 + output] = least[g] & 63;
            to[64 + 32 * (g + 4) + output] = Byte((low[g] & 15) | scale[g] >> 6 << 4);
            to[64 + 32 * (g + 4) + 16 + output] = Byte(low[g] >> 4 | least[g] >> 6 << 4);
        }
    } else {
        Byte* to = side + block * 288;
        std::memcpy(to + 2 * output, b + 208, 2);
        for (int g = 0; g < 16; ++g) to[32 + 16 * g + output] = b[192 + g];
    }
}

template <Form F>
void pack(const BlockRows& r) {
    constexpr Shape shape = shape_of(F);
    constexpr int groups = shape.block / 32;
    long blocks = r.in / shape.block, row_bytes = blocks * shape.block_bytes, size = panel_bytes(F, r.in);
#pragma omp parallel for schedule(static)
    for (long p = 0; p < (r.out + PANEL - 1) / PANEL; ++p) {
        Byte* panel = r.to + (r.first + p * r.step) * size;
        Byte* side = panel + r.in / GROUP * record_bytes(F);
        long count = r.out - p * PANEL < PANEL ? r.out - p * PANEL : PANEL;
        if (count < PANEL || side_bytes(F, r.in) % 64) std::memset(panel, 0, size);
        Byte u[shape.block];
        for (long block = 0; block < blocks; ++block)
            for (int output = 0; output < count; ++output) {
                const Byte* b = r.rows + (p * PANEL + output) * row_bytes + block * shape.block_bytes;
                codes_of<F>(b, u);
                for (int g = 0; g < groups; ++g)
                    place<F>(u + 32 * g, panel + (block * groups + g) * record_bytes(F), output);
                place_scales<F>(b, side, block, output);
            }
    }
}

}  // namespace

void pack_blocks(const BlockRows& r) {
    switch (r.form) {
        case Form::q4_0: return pack<Form::q4_0>(r);
        case Form::q4_1: return pack<Form::q4_1>(r);
        case Form::q5_0: return pack<Form::q5_0>(r);
        case Form::q5_1: return pack<Form::q5_1>(r);
        case Form::q8_0: return pack<Form::q8_0>(r);
        case Form::q4_k: return pack<Form::q4_k>(r);
        case Form::q5_k: return pack<Form::q5_k>(r);
        default: return pack<Form::q6_k>(r);
    }
}

}  // namespace plait

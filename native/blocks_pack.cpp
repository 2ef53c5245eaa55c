// Packing of block formats: bytes move, no number changes. Layouts of the file: ggml-common.h of the ggml project.
#include <cstring>

#include "blocks.hpp"
#include "pages.hpp"

namespace plait {

namespace {

using Byte = std::uint8_t;

std::uint32_t four(const Byte* p) {
    std::uint32_t x;
    std::memcpy(&x, p, 4);
    return x;
}

// Of a group of 32 columns the low halves of the codes: byte i holds column i's and, above it, column i + 16's.
template <Form F>
void nibbles_of(const Byte* b, int group, Byte* to) {
    if constexpr (shape_of(F).block == 32) {
        std::memcpy(to, b + shape_of(F).block_bytes - 16, 16);
        return;
    }
    // 64 columns share 32 bytes: the first 32 of them their low halves (of Q6_K: of 128 each second 32).
    const Byte* low = b + (F == Form::q5_k ? 48 : F == Form::q4_k ? 16 : 0);
    low += F == Form::q6_k ? group / 4 * 64 + group % 2 * 32 : group / 2 * 32;
    if (F == Form::q6_k ? group % 4 < 2 : group % 2 == 0)
        for (int i = 0; i < 16; ++i) to[i] = Byte((low[i] & 15) | low[i + 16] << 4);
    else
        for (int i = 0; i < 16; ++i) to[i] = Byte(low[i] >> 4 | (low[i + 16] & 0xf0));
}

// Of a group of 32 columns the fifth bits of the codes: bit j of byte i is column 4 j + i's.
template <Form F>
std::uint32_t fifth_of(const Byte* b, int group) {
    std::uint32_t plane = 0;
    for (int j = 0; j < 8; ++j) {
        if constexpr (F == Form::q5_k) {
            plane |= (four(b + 16 + 4 * j) >> group & 0x01010101u) << j;
        } else {
            std::uint32_t bits = four(b + shape_of(F).block_bytes - 20) >> 4 * j & 15u;
            plane |= (bits * 0x00204081u & 0x01010101u) << j;
        }
    }
    return plane;
}

// The codes of a group of one output go to their places in a record.
template <Form F>
void place(const Byte* b, int group, Byte* record, int output) {
    constexpr int bits = shape_of(F).bits;
    Byte* to = record + 4 * output;
    if constexpr (bits == 8) {
        for (int j = 0; j < 8; ++j) {
            std::uint32_t codes = four(b + 2 + 4 * j) ^ 0x80808080u;
            std::memcpy(to + 64 * j, &codes, 4);
        }
        return;
    }
    Byte nibbles[16];
    nibbles_of<F>(b, group, nibbles);
    for (int j = 0; j < 4; ++j) std::memcpy(to + 64 * j, nibbles + 4 * j, 4);
    if constexpr (bits == 5) {
        std::uint32_t plane = fifth_of<F>(b, group);
        std::memcpy(to + 256, &plane, 4);
    }
    if constexpr (bits == 6) {
        const Byte* high = b + 128 + group / 4 * 32;
        for (int p = 0; p < 2; ++p) {
            std::uint32_t plane = 0;
            for (int f = 0; f < 4; ++f)
                plane |= (four(high + 16 * p + 4 * f) >> 2 * (group % 4) & 0x03030303u) << 2 * f;
            std::memcpy(to + 256 + 64 * p, &plane, 4);
        }
    }
}

// Scales of one block of one output go to their places in a chunk.
template <Form F>
void place_scales(const Byte* b, Byte* to, long block, int output) {
    constexpr Shape shape = shape_of(F);
    if constexpr (shape.side == Side::scale) {
        std::memcpy(to + block % 2 * 32 + 2 * output, b, 2);
    } else if constexpr (shape.side == Side::scale_offset) {
        std::memcpy(to + block % 2 * 64 + 2 * output, b, 2);
        std::memcpy(to + block % 2 * 64 + 32 + 2 * output, b + 2, 2);
    } else if constexpr (shape.side == Side::super) {
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
        std::memcpy(to + 2 * output, b + 208, 2);
        for (int g = 0; g < 16; ++g) to[32 + 16 * g + output] = b[192 + g];
    }
}

template <Form F>
void pack(const BlockRows& r) {
    constexpr Shape shape = shape_of(F);
    constexpr int groups = shape.block / 32;
    long blocks = r.in / shape.block, row_bytes = file_row_bytes(F, r.in), size = panel_bytes(F, r.in);
    make_ready(r.rows, r.out * row_bytes);
    for (long p = 0; p < (r.out + PANEL - 1) / PANEL; ++p) {
        Byte* panel = r.to + (r.first + p * r.step) * size;
        long count = r.out - p * PANEL < PANEL ? r.out - p * PANEL : PANEL;
        if (count < PANEL || shape.side == Side::super_halves || blocks * groups % chunk_groups(F))
            std::memset(panel, 0, size);
        for (long block = 0; block < blocks; ++block)
            for (int output = 0; output < count; ++output) {
                const Byte* b = r.rows + (p * PANEL + output) * row_bytes + block * shape.block_bytes;
                for (int g = 0; g < groups; ++g)
                    place<F>(b, g, panel + record_at(F, block * groups + g), output);
                place_scales<F>(b, panel + chunk_at(F, block * groups), block, output);
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

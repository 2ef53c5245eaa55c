// Weights in blocks of integers, as GGUF stores them: what is packed, and products with it.
//
// A weight is A (u - zero) + O: u a code of 4, 5, 6 or 8 bits without sign, A and O numbers of its group of columns.
// Packed are panels of 16 outputs. A panel is a row of chunks, read from front to back: of 2 groups, or of 8 where the
// file has blocks of 256 columns, first their scales, then a record of codes for each. In a record operand j (0..7) is
// 16 outputs x 4 columns from 4 j on; 64 bytes hold the low halves of operand j in their low nibbles, those of operand
// j + 4 in their high ones, for j = 0..3. The fifth bits follow as 64 bytes whose bit j is operand j's, fifth and sixth
// bits as 2 x 64 bytes with two bits for each of four operands. 8-bit codes are 8 x 64 bytes.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace plait {

enum class Form : int { q4_0 = 0, q4_1 = 1, q5_0 = 2, q5_1 = 3, q8_0 = 4, q4_k = 5, q5_k = 6, q6_k = 7 };

// What lies before the codes of a chunk, f16 and bytes each for 16 outputs.
enum class Side {
    scale,         // of each 32 columns d
    scale_offset,  // of each 32 columns d, m
    super,         // of 256 columns: d, dmin, then 8 x (scale, min) bytes without sign
    super_halves,  // of 256 columns: d, then 8 x 2 bytes with sign, a scale for each 16 columns, then 32 bytes of nothing
};

struct Shape {
    int bits, zero;
    Side side;
    int block, block_bytes;  // of the file: columns and bytes of a block
};

constexpr Shape shape_of(Form form) {
    switch (form) {
        case Form::q4_0: return {4, 8, Side::scale, 32, 18};
        case Form::q4_1: return {4, 0, Side::scale_offset, 32, 20};
        case Form::q5_0: return {5, 16, Side::scale, 32, 22};
        case Form::q5_1: return {5, 0, Side::scale_offset, 32, 24};
        case Form::q8_0: return {8, 128, Side::scale, 32, 34};
        case Form::q4_k: return {4, 0, Side::super, 256, 144};
        case Form::q5_k: return {5, 0, Side::super, 256, 176};
        default: return {6, 32, Side::super_halves, 256, 210};
    }
}

constexpr long PANEL = 16, GROUP = 32;

// The largest of a row's integers of 16 bits: its high byte has room for what the low one carries.
constexpr long LARGEST = 32512;

// What the integers of a group of a row may add up to, without their signs, where they meet this form, so that no sum of
// products passes 2^24: up to there float32 adds whole numbers exactly, in any order, as matrix tiles of bf16 do.
constexpr long sum_limit(Form form) {
    Shape shape = shape_of(form);
    long top = (1 << shape.bits) - 1 - shape.zero, code = top > shape.zero ? top : shape.zero;
    long columns = shape.side == Side::super_halves ? 16 : GROUP;
    return columns * LARGEST * code < 1 << 24 ? GROUP * LARGEST : ((1 << 24) - 1) / code;
}

constexpr long record_bytes(Form form) { return 64 * shape_of(form).bits; }

constexpr long chunk_groups(Form form) {
    Side side = shape_of(form).side;
    return side == Side::scale || side == Side::scale_offset ? 2 : 8;
}

constexpr long side_bytes(Form form) {
    switch (shape_of(form).side) {
        case Side::scale: return 64;
        case Side::scale_offset: return 128;
        default: return 320;
    }
}

constexpr long chunk_bytes(Form form) { return side_bytes(form) + chunk_groups(form) * record_bytes(form); }

// Where in a panel the chunk of a group begins, which of the chunk's it is, and where its record is.
constexpr long chunk_at(Form form, long group) { return long(std::uint64_t(group) / chunk_groups(form) * chunk_bytes(form)); }
constexpr long in_chunk(Form form, long group) { return group & (chunk_groups(form) - 1); }
constexpr long record_at(Form form, long group) {
    return chunk_at(form, group) + side_bytes(form) + in_chunk(form, group) * record_bytes(form);
}

// The last chunk may have fewer groups.
constexpr long panel_bytes(Form form, long in) {
    return in < GROUP ? 0 : record_at(form, in / GROUP - 1) + record_bytes(form);
}

// Of a row in the file.
constexpr long file_row_bytes(Form form, long in) { return in / shape_of(form).block * shape_of(form).block_bytes; }

// One packed weight: `out` outputs, of gated products those of gate and of up together.
struct BlockPart {
    const std::uint8_t* w;
    long out;
    Form form;
};

// y [rows, outputs of all parts end to end] = x [rows, in] W^T; gated: see Product, with one part. `planes`: bytes of the
// integers that rows become, 1 or 2; beside 2 all parts' forms have the sum limit. `asks`: memory is asked for weights
// before their turn for one or two rows too, see asks_ahead. `own_rows`: row i meets part i alone, and y_stride is 0: the
// outputs of all lie end to end.
struct BlockProduct {
    const float* x;
    float* y;
    long x_stride, y_stride, rows, in;
    const BlockPart* parts;
    long count;
    long sum_limit;
    int planes;
    bool asks, gated, own_rows;
    Activation activation;
};

// Rows of a file, [out, row bytes], to panels first, first + step, ... of `to`.
struct BlockRows {
    const std::uint8_t* rows;
    std::uint8_t* to;
    long out, in, first, step;
    Form form;
};

using BlockKernel = void (*)(const BlockProduct&);

void blocks_portable(const BlockProduct&);
void blocks_avx2(const BlockProduct&);
void blocks_avxvnni(const BlockProduct&);
void blocks_avx512(const BlockProduct&);
void blocks_avx512vnni(const BlockProduct&);
void blocks_amx(const BlockProduct&);

// Exact whatever they are compiled for.
void pack_blocks(const BlockRows&);
// `count` blocks of a file, one after the other, to floats.
void unpack_blocks(const std::uint8_t* blocks, long count, Form form, float* to);

}  // namespace plait

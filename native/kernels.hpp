// What a level offers. Sizes are counts of elements; strides are in elements of what they step over.
#pragma once

#include <cstdint>

namespace plait {

enum class Store : int { f32 = 0, bf16 = 1, f16 = 2 };
enum class Activation : int { silu = 0, gelu_tanh = 1, sigmoid = 2, gelu = 3 };

// Softmax attention of n queries at positions start.. over blocks of 64 keys; see ops/attention.py.
struct Attention {
    const float* queries;  // [n, heads, dim], row stride `query_stride`
    float* out;            // [n, heads, v_dim]
    const float* sinks;    // [heads] or null
    const void* const* keys;    // of each block: [kv_heads, 64, dim]
    const void* const* values;  // of each block: [kv_heads, 64, v_dim]
    long n, heads, kv_heads, dim, v_dim, query_stride;
    long start, first_block, window;  // window: at most start + n where there is none
    float scale, cap;                 // cap 0: no softcap
    Store store;
};

// y = heads of queries and keys, each normalised (where there is a weight) and turned by its position.
struct Heads {
    const float* x;       // [rows, groups, width], row stride `x_stride`
    float* y;             // [rows, groups, width]
    const float* weight;  // [groups, width] or null: not normalised
    const float* cosine;  // [rows, pairs]
    const float* sine;
    float eps;
    long x_stride, rows, groups, width;
    long pairs, start, distance;  // pair i: (start + i, start + i + distance), or where adjacent start + 2 i and the next
    bool adjacent;
};

// y [rows, out] = x [rows, in] W^T. A gate product instead has panels of gate and up in turn, [gate][up][gate]..., and
// y [rows, out] = activation(gate) * up with `out` outputs of each. Rows of y lie `y_stride` apart.
template <class Weight>
struct Product {
    const float* x;
    const Weight* w;
    float* y;
    long x_stride, y_stride, rows, out, in;
    bool gated;
    Activation activation;
};

struct Kernels {
    const char* name;
    // W packed: panels of 16 outputs, [panel][in][16]
    void (*linear_f32)(const Product<float>&);
    // The same with x rounded to bf16, W packed in pairs: [panel][in / 2][16][2], `in` padded to a multiple of 32
    void (*linear_bf16)(const Product<std::uint16_t>&);
    void (*attention)(const Attention&);
    // y = x / sqrt(mean(x^2) + eps) * weight; rows of `groups` consecutive vectors, weight [groups, width] or null
    void (*rms_norm)(const float* x, long x_stride, const float* weight, float eps, float* y, long rows, long groups,
                     long width);
    void (*heads)(const Heads&);
    // y [rows, width] = activation(x[:, :width]) * x[:, width:2 width]
    void (*gated)(Activation activation, const float* x, long x_stride, float* y, long rows, long width);
};

extern const Kernels portable_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;

// Other forms of linear_bf16 over the same packed weights.
void linear_bf16_avx512bf16(const Product<std::uint16_t>&);
void linear_bf16_amx(const Product<std::uint16_t>&);

// Rows [rows, in] rounded to bf16 (to nearest, ties to even), padded with zeros to `padded` columns.
void round_rows(const float* x, long x_stride, std::uint16_t* y, long rows, long in, long padded);

}  // namespace plait

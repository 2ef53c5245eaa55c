// What a level offers. Sizes are counts of elements; strides are in elements of what they step over.
#pragma once

#include <cstdint>

namespace plait {

enum class Store : int { f32 = 0, bf16 = 1, f16 = 2, int8 = 3 };
enum class Activation : int { silu = 0, gelu_tanh = 1, sigmoid = 2, gelu = 3 };

// New tokens of one sequence in a call: rows [row, row + n), at positions start... Its slabs, 64 positions each from slab
// `first_block` on, have their addresses from `table` on.
struct AttentionSpan {
    std::int64_t row, n, start, first_block, table;
};

// One of the products that make a score. In a slab its keys lie `offset` bytes from the beginning: [kv_heads, 64, dim].
struct AttentionPart {
    const float* queries;  // [rows, heads, dim], row stride `stride`
    std::int64_t stride, dim, offset;
};

// Softmax attention of all spans of a call over slabs; see ops/attention.py.
struct Attention {
    const AttentionSpan* spans;
    long count;
    const std::uintptr_t* addresses;
    const AttentionPart* parts;
    long part_count;
    long value_offset, v_dim;     // values in a slab: [kv_heads, 64, v_dim]
    float* out;                   // [rows, heads, v_dim]
    const float* sinks;           // [heads] or null
    const std::uint8_t* chosen;   // [rows, positions], row stride `chosen_stride`, or null: all keys
    long chosen_stride;
    long heads, kv_heads, window;  // window 0: none
    float scale, cap;              // cap 0: no softcap
    Store store;
    bool exact;  // queries and weights are not rounded to the type of the rows
};

// Rows [rows, heads, dim], row stride `row_stride`, of the spans of a call, on their way to [heads, 64, dim] in slabs.
struct StoredRows {
    const float* rows;
    long row_stride, heads, dim, offset;
    const AttentionSpan* spans;
    long count;
    const std::uintptr_t* addresses;
    Store store;
};

// y = heads of queries and keys, each normalised (where there is a weight) and turned by its position.
struct Heads {
    const float* x;       // [rows, groups, width], row stride `x_stride`, groups `x_apart` from each other
    float* y;             // [rows, groups, width]
    const float* weight;  // [groups, width] or null: not normalised
    const float* cosine;  // [rows, pairs]
    const float* sine;
    float eps;
    long x_stride, x_apart, rows, groups, width;
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
    bool exact;  // 16-bit weights: x is not rounded to bf16
};

// The rows of one sequence in a call, and its layer's value: `now` before them (null: zeros), `next` after them.
struct Span {
    long rows;
    const float* now;
    float* next;
};

// The gated delta rule with what prepares its inputs. Sequences lie end to end.
struct Delta {
    const float* qkv;    // [rows, (2 key_heads) key_dim + value_heads value_dim]: queries, keys, values
    const float* beta;   // [rows, value_heads], before the sigmoid
    const float* decay;  // [rows, value_heads]: log of what is kept = -rate softplus(decay + bias)
    const float* rate;   // [value_heads]
    const float* bias;
    float* y;  // [rows, value_heads, value_dim]
    const Span* spans;  // values [value_heads, key_dim, value_dim]
    long count, qkv_stride, beta_stride, decay_stride;
    long key_heads, value_heads, key_dim, value_dim;
    float eps, scale;  // of the lengths of queries and keys; factor on the queries
};

// y[t] = activation(sum over i of weight[i] x[t - kernel + 1 + i]), each channel by itself.
struct Convolution {
    const float* x;       // [rows, channels], row stride `x_stride`
    const float* weight;  // [kernel, channels]
    float* y;             // [rows, channels]
    const Span* spans;    // values: the last kernel - 1 inputs, [channels, kernel - 1]
    long count, x_stride, channels, kernel;
    bool activated;
    Activation activation;
};

// y = norm(x) * activation(gate) of heads; the norm is that of rms_norm.
struct HeadGate {
    const float* x;       // [rows, heads, width], row stride `x_stride`
    const float* gate;    // [rows, heads, width] or, with `per_head`, [rows, heads]; row stride `gate_stride`
    const float* weight;  // [width] or null
    float* y;             // [rows, heads, width]
    long x_stride, gate_stride, rows, heads, width;
    float eps;
    bool normed, per_head;
    Activation activation;
};

// h += norm(y), or y itself; then, where `out` is not null, out = norm(h). Norms are those of rms_norm.
struct Join {
    float* h;        // [rows, width]
    const float* y;  // [rows, width], row stride `y_stride`
    const float* y_weight;  // [width] or null
    const float* weight;
    float* out;  // [rows, width] or null
    long y_stride, rows, width;
    float y_eps, eps;
    bool y_normed;
};

// The largest number of a row and its lowest index; nothing of the two where one is no number.
struct Peak {
    long index;
    float value;
    bool broken;
};

// Numbers of a row that are summed together.
constexpr long SUMMED = 1024;

// A row of logits under a temperature; no number is above `peak`, and none is NaN.
struct Tempered {
    const float* row;
    long n;
    double peak, temperature;
};

// Buckets of scores: so many for every temperature below the peak, and in all; the last takes all beyond, e^-40 and less.
constexpr double BUCKETS_EACH = 102.4;
constexpr long BUCKETS = 4096;

// Numbers above `edge`, or equal to it and not behind `last`, with weights of `least` and more.
struct Kept {
    double edge;
    long last;
    double least;
};

struct Kernels {
    const char* name;
    // W packed: panels of 16 outputs, [panel][in][16], `in` padded to an even number
    void (*linear_f32)(const Product<float>&);
    void (*linear_f16)(const Product<std::uint16_t>&);
    // W packed in pairs: [panel][in / 2][16][2], `in` padded to a multiple of 32; x rounded to bf16 unless `exact`
    void (*linear_bf16)(const Product<std::uint16_t>&);
    void (*attention)(const Attention&);
    // False: a number is beyond what the store holds
    bool (*store_rows)(const StoredRows&);
    // y = x / sqrt(mean(x^2) + eps) * weight; rows of `groups` consecutive vectors, weight [groups, width] or null
    void (*rms_norm)(const float* x, long x_stride, const float* weight, float eps, float* y, long rows, long groups,
                     long width);
    void (*heads)(const Heads&);
    // y [rows, width] = activation(x[:, :width]) * x[:, width:2 width]
    void (*gated)(Activation activation, const float* x, long x_stride, float* y, long rows, long width);
    void (*delta)(const Delta&);
    void (*convolution)(const Convolution&);
    void (*gate)(const HeadGate&);
    void (*join)(const Join&);
    // y [rows, width] = cap tanh(x / cap)
    void (*softcap)(const float* x, float* y, long rows, long width, float cap);
    void (*peak)(const float* row, long n, Peak* found);
    // The sum of e^(x - peak)
    double (*sum_exp)(const float* row, long n, float peak);
    // most[16 g + lane] = the largest of x[16 t + lane], t in [g depth, (g + 1) depth); n a multiple of 16 depth
    void (*maxima)(const float* row, long n, long depth, float* most);
    // The sum of the weights that are kept, of each SUMMED numbers
    void (*masses)(const Tempered&, const Kept&, double* to);
    // The sum of each bucket's weights
    void (*bucket_masses)(const Tempered&, double* to);
    // Indices of numbers in [lowest, highest], ascending, to `to`, which has room for n; how many there are
    long (*between)(const float* row, long n, double lowest, double highest, std::int64_t* to);
};

extern const Kernels portable_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;

// Other forms of linear_bf16 over the same packed weights.
void linear_bf16_avx512bf16(const Product<std::uint16_t>&);
void linear_bf16_amx(const Product<std::uint16_t>&);

// Other forms of attention: over bf16 rows by products of bf16 pairs, over bf16 rows and codes by matrix tiles.
void attention_avx512bf16(const Attention&);
void attention_amx(const Attention&);

// Whether one or two rows read weights faster where memory is asked for them a little before their turn: by a tenth where
// Intel made the processor; AMD's own foresight is disturbed and loses up to a quarter. Others are left to themselves.
// How attention asks ahead depends on it too.
bool asks_ahead();

// Rows [rows, in] rounded to bf16 (to nearest, ties to even), padded with zeros to `padded` columns.
void round_rows(const float* x, long x_stride, std::uint16_t* y, long rows, long in, long padded);

}  // namespace plait

// A part of a step plan as a list of operations that run in one call.
//
// Operations read and write registers: matrices of one row for each token of the call, in buffers of the program's own
// or in tensors of the caller. An operation is told where things are by a Frame and keeps nothing of a call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "mixture.hpp"
#include "prepared.hpp"

namespace plait {

// Columns of a register from `column` on. buffer < 0: tensor -1 - buffer of the caller.
struct Place {
    long buffer, column;
    bool operator==(const Place&) const = default;
};

// Tokens of one session: rows [row, row + count) of the call, at positions from `position` on.
struct Part {
    long row, count, position;
};

// A session's slabs of one class, consecutive from slab `first` on.
struct Slabs {
    long first;
    std::vector<std::uintptr_t> at;
};

// A session's value of one class: as it was before the call (0: there was none) and as the call leaves it.
struct Change {
    std::uintptr_t now, next;
};

// Cosines and sines [positions, pairs] of one rotation.
struct Turns {
    const float *cosine, *sine;
};

// What a call knows of its sessions: slabs by class and session, values by class and session.
struct Ragged {
    long rows = 0;
    std::vector<Part> parts;
    std::vector<std::vector<Slabs>> slabs;
    std::vector<std::vector<Change>> values;
    std::vector<Turns> turns;
};

struct Matrix {
    float* data;
    long stride;
    float* row(long r) const { return data + r * stride; }
};

struct Frame {
    const Kernels& kernels;
    const Ragged& call;
    long rows;
    std::vector<Matrix> own, others;  // buffers, the caller's tensors
    Matrix operator[](Place p) const {
        const Matrix& m = p.buffer < 0 ? others[-1 - p.buffer] : own[p.buffer];
        return {m.data + p.column, m.stride};
    }
};

struct Operation {
    Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    // False: keys or values are beyond what float16 holds.
    virtual bool run(const Frame&) const = 0;
    // This operation and the norm of rows [rows, width] that follows it in one; null: they stay two.
    virtual std::unique_ptr<Operation> with_norm(Place, Place, const float*, float, long) const { return nullptr; }
    virtual ~Operation() = default;
};

struct Program {
    const Kernels& kernels;
    std::vector<std::unique_ptr<Operation>> operations;
    explicit Program(const Kernels& kernels) : kernels(kernels) {}
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    void add(std::unique_ptr<Operation> made) { operations.push_back(std::move(made)); }
    // y = norm(x), in one with the operation before it where that can.
    void norm(Place x, Place y, const float* weight, float eps, long groups, long width);
    // -1: done; otherwise the operation that could not.
    long run(const Frame& frame) const;
};

// Attention of one layer over the slabs of a class, whose rows it stores first where they are its own.
struct AttendPlan {
    // Vectors of `dim` for each head, and the part of the slabs they go to, or meet: bytes from a slab's beginning.
    struct Vectors {
        Place at;
        long dim, offset;
    };
    std::vector<Vectors> stored, queries;  // [rows, kv_heads * dim], [rows, heads * dim]
    Place out;                             // [rows, heads * v_dim]
    long slab_class, values_at;
    long heads, kv_heads, v_dim;
    long window;  // 0: none
    float scale, cap;
    const float* sinks;
    Store store;
    bool exact;
};

// A mixture of experts: rows of x visit the `active` experts that `chosen` names, by their numbers as floats.
struct MixPlan {
    struct Expert {
        std::shared_ptr<Prepared> fused, down;  // gate and up side by side
    };
    Place x, chosen, weights, y;
    long active;
    Activation activation;
    std::vector<Expert> experts;
};

std::unique_ptr<Operation> norm_rows(Place x, Place y, const float* weight, float eps, long groups, long width);
std::unique_ptr<Operation> add_rows(Place to, Place x, long width);
std::unique_ptr<Operation> add_vector(Place to, const float* vector, long width);
std::unique_ptr<Operation> scale_rows(Place to, float factor, long width);
std::unique_ptr<Operation> cap_rows(Place to, float cap, long width);
std::unique_ptr<Operation> copy_rows(Place x, Place y, long width);
std::unique_ptr<Operation> multiply(Place x, Place y, std::shared_ptr<Prepared> product);
// Product i takes x from column i * x_apart on; outputs lie end to end.
std::unique_ptr<Operation> multiply_each(Place x, long x_apart, Place y, std::vector<std::shared_ptr<Prepared>> products);
std::unique_ptr<Operation> gate_rows(Place x, Place y, Activation activation, long width);
std::unique_ptr<Operation> fetch_turns(Place cosine, Place sine, long table, long pairs);
std::unique_ptr<Operation> ready_heads(Place x, Place y, Place cosine, Place sine, const Heads& shape);
std::unique_ptr<Operation> attend(AttendPlan plan);
std::unique_ptr<Operation> route_rows(Place logits, Place chosen, Place weights, const Routing& shape);
std::unique_ptr<Operation> mix(MixPlan plan);
// A layer's value lies `offset` bytes into its class's.
std::unique_ptr<Operation> convolve(Place x, Place y, long value_class, long offset, const Convolution& shape);
std::unique_ptr<Operation> delta_rule(Place qkv, Place beta, Place decay, Place y, long value_class, long offset,
                                      const Delta& shape);
std::unique_ptr<Operation> gate_heads(Place x, Place gate, Place y, const HeadGate& shape);

}  // namespace plait

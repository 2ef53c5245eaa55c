// A product with a prepared weight, whatever form it is in: what the native program calls.
#pragma once

namespace plait {

// y [rows, out] = x [rows, in] W^T; rows of x and y lie `x_stride` and `y_stride` elements apart. A gated product gives
// activation(gate) * up. A row's bits depend on its own inputs alone.
struct Prepared {
    long out = 0, in = 0;
    Prepared(long out, long in) : out(out), in(in) {}
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;
    virtual void run(const float* x, long x_stride, float* y, long y_stride, long rows) const = 0;
    virtual ~Prepared() = default;
};

}  // namespace plait

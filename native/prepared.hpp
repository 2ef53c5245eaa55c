// A product with a prepared weight, whatever form it is in: what the native program calls.
#pragma once

#include <vector>

namespace plait {

// y [rows, out] = x [rows, in] W^T; rows of x and y lie `x_stride` and `y_stride` elements apart. A gated product gives
// activation(gate) * up. A row's bits depend on its own inputs alone.
struct Prepared {
    long out = 0, in = 0;
    Prepared(long out, long in) : out(out), in(in) {}
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;
    virtual void run(const float* x, long x_stride, float* y, long y_stride, long rows) const = 0;
    // Row i of x through product i of `all`, this the first of them, their outputs end to end in y; with a stride of 0 all
    // take the first row. False: these do not go together, and nothing is done.
    virtual bool run_each([[maybe_unused]] const std::vector<const Prepared*>& all, [[maybe_unused]] const float* x,
                          [[maybe_unused]] long x_stride, [[maybe_unused]] float* y) const {
        return false;
    }
    virtual ~Prepared() = default;
};

}  // namespace plait

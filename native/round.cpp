// Rounding to bf16, compiled for every machine: integer work that compilers vectorise.
#include "halves.hpp"
#include "kernels.hpp"

namespace plait {

void round_rows(const float* x, long x_stride, std::uint16_t* y, long rows, long in, long padded) {
#pragma omp parallel for schedule(static) if (rows * in >= 65536)
    for (long r = 0; r < rows; ++r) {
        for (long i = 0; i < in; ++i) y[r * padded + i] = to_bf16(x[r * x_stride + i]);
        for (long i = in; i < padded; ++i) y[r * padded + i] = 0;
    }
}

}  // namespace plait

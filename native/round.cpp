// Rounding to bf16, compiled for every machine: integer work that compilers vectorise.
#include <cstring>

#include "kernels.hpp"

namespace plait {

void round_rows(const float* x, long x_stride, std::uint16_t* y, long rows, long in, long padded) {
#pragma omp parallel for schedule(static) if (rows * in >= 65536)
    for (long r = 0; r < rows; ++r) {
        const float* from = x + r * x_stride;
        std::uint16_t* to = y + r * padded;
        for (long i = 0; i < in; ++i) {
            std::uint32_t bits;
            std::memcpy(&bits, from + i, sizeof bits);
            // Not-a-number stays one; everything else goes to the nearest, ties to even.
            std::uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
            std::uint32_t nan = bits >> 16 | 0x40u;
            to[i] = std::uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? nan : nearest);
        }
        for (long i = in; i < padded; ++i) to[i] = 0;
    }
}

}  // namespace plait

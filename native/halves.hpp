// Numbers of 16 bits, for code that is compiled for every machine.
#pragma once

#include <cstdint>
#include <cstring>

namespace plait {

static inline float from_bf16(std::uint16_t bits) {
    std::uint32_t wide = std::uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
}

// To nearest, ties to even; what is no number stays none.
static inline std::uint16_t to_bf16(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    std::uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    std::uint32_t nan = bits >> 16 | 0x40u;
    return std::uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? nan : nearest);
}

}  // namespace plait

// Weights [out, in] put into the panels that the products read: 16 outputs side by side, zeros beyond the last output
// and column. `packed` holds bytes for all panels; nothing else may have touched it yet.
#pragma once

#include <cstdint>

namespace plait {

// [panel][in][16], `in` padded to an even number
void pack_f32(std::uintptr_t weight, std::uintptr_t packed, long out, long in);
void pack_f16(std::uintptr_t weight, std::uintptr_t packed, long out, long in);
// [panel][in / 2][16][2], `in` padded to a multiple of 32
void pack_bf16(std::uintptr_t weight, std::uintptr_t packed, long out, long in);

}  // namespace plait

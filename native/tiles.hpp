// Configuring the processor's matrix tiles.
#pragma once

#include <immintrin.h>

namespace plait {

// GCC 12's intrinsic names 8 of the 64 bytes it reads as its input: the compiler may leave the others unwritten. So it
// is told first that all memory is read.
inline __attribute__((always_inline)) void configure_tiles(const void* config) {
    __asm__ volatile("" : : "r"(config) : "memory");
    _tile_loadconfig(config);
}

}  // namespace plait

// Configuring the processor's matrix tiles.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "checked.hpp"

#if defined(__SANITIZE_ADDRESS__) && defined(_tile_loadd_internal)
#define PLAIT_CHECKED_TILES
#include <cstring>
#endif

namespace plait {

// Rows of each tile, and their bytes.
struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes_per_row[16] = {};
    std::uint8_t rows[16] = {};
};

#if defined(PLAIT_CHECKED_TILES)
// How this thread's tiles are configured.
static thread_local unsigned char configured[64];

static inline void check_tile(int tile, const void* at, long stride) {
    std::uint16_t width;
    std::memcpy(&width, configured + 16 + 2 * tile, sizeof width);
    for (long r = 0; r < configured[48 + tile]; ++r) check_bytes(static_cast<const char*>(at) + r * stride, width);
}

#undef _tile_loadd
#undef _tile_stored
#define PLAIT_CHECKED_TILE(access, tile, at, stride)    \
    do {                                                \
        ::plait::check_tile(tile, at, long(stride));    \
        access(tile, at, stride);                       \
    } while (0)
#define _tile_loadd(tile, at, stride) PLAIT_CHECKED_TILE(_tile_loadd_internal, tile, at, stride)
#define _tile_stored(tile, at, stride) PLAIT_CHECKED_TILE(_tile_stored_internal, tile, at, stride)
#endif

// What was put down is in memory: the compiler does not know that tiles are loaded from it.
inline __attribute__((always_inline)) void written() { __asm__ volatile("" : : : "memory"); }

// GCC 12's intrinsic names 8 of the 64 bytes it reads as its input: the compiler may leave the others unwritten. So it
// is told first that all memory is read.
inline __attribute__((always_inline)) void configure_tiles(const TileConfig& config) {
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
#if defined(PLAIT_CHECKED_TILES)
    std::memcpy(configured, &config, sizeof configured);
#endif
}

}  // namespace plait

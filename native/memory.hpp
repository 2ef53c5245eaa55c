// Memory for what a kernel puts down on its way. Nothing of the standard library that has code of its own is used in
// levels: the linker keeps one copy of it, maybe the one compiled for a processor this is not.
#pragma once

#include <cstdint>

namespace PLAIT_LEVEL {

// Memory that is written before it is read. It begins where a line of the cache does.
template <class T>
struct Memory {
    char* all;
    T* held;
    explicit Memory(long n) : all(new char[n * sizeof(T) + 64]) {
        held = reinterpret_cast<T*>((reinterpret_cast<std::uintptr_t>(all) + 63) / 64 * 64);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { delete[] all; }
    T* data() const { return held; }
};
using Room = Memory<float>;

}  // namespace PLAIT_LEVEL

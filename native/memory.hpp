// Memory for what a kernel puts down on its way. Nothing of the standard library that has code of its own is used in
// levels: the linker keeps one copy of it, maybe the one compiled for a processor this is not.
#pragma once

#include <new>

namespace PLAIT_LEVEL {

// Memory that is written before it is read. It begins where a line of the cache does.
template <class T>
struct Memory {
    T* held;
    explicit Memory(long n) : held(static_cast<T*>(::operator new(sizeof(T) * n, std::align_val_t(64)))) {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { ::operator delete(held, std::align_val_t(64)); }
    T* data() const { return held; }
};
using Room = Memory<float>;

}  // namespace PLAIT_LEVEL

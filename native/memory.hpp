// Scratch memory.
#pragma once

namespace PLAIT_LEVEL {

// Memory that is written before it is read. Nothing of the standard library that has code of its own is used here: the
// linker keeps one copy of it, maybe the one compiled for a processor this is not.
template <class T>
struct Memory {
    T* held;
    explicit Memory(long n) : held(new T[n]) {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { delete[] held; }
    T* data() const { return held; }
};

}  // namespace PLAIT_LEVEL

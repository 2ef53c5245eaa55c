// What the parts of the Python module share. Each part binds the methods of one kind of kernel.
// Tensors come as addresses: their owner (runtime/kernels.py and the ops) has checked type, shape and layout.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "blocks.hpp"
#include "kernels.hpp"

namespace plait {

namespace nb = nanobind;
using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// A level of this machine: its kernels, and which of their forms it takes where there are several.
struct Level {
    std::string name;
    const Kernels* kernels;
    decltype(Kernels::linear_bf16) linear_bf16;
    std::string bf16_form;
    BlockKernel blocks;
    std::string blocks_form;
};

// Levels this machine can run, the plainest first.
std::vector<Level> levels();

// The kernels of one level, as Python sees them.
struct Native {
    Level level;
    explicit Native(const std::string& name);
    const Kernels& kernels() const { return *level.kernels; }
};

using Bound = nb::class_<Native>;

void bind_products(nb::module_& m, Bound& native);
void bind_attention(Bound& native);
void bind_rows(Bound& native);
void bind_measure(nb::module_& m);
void bind_program(nb::module_& m, Bound& native);
void bind_delta(Bound& native);
void bind_joins(Bound& native);
void bind_sample(Bound& native);
void bind_mixture(nb::module_& m);
void bind_blocks(nb::module_& m, Bound& native);

}  // namespace plait

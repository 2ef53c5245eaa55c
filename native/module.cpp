// The Python module.
#include "module.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

NB_MODULE(_native, m) {
    using namespace plait;
    // An engine that lives until the process ends is no fault of its user's.
    nb::set_leak_warnings(false);
    m.doc() = "Kernels of the CPU; see plait.runtime.kernels.";
    m.def("levels", [] {
        std::vector<std::string> names;
        for (const Level& level : levels()) names.push_back(level.name);
        return names;
    });
    m.def("trim", [] {
#if defined(__GLIBC__)
        malloc_trim(0);
#endif
    });
    Bound native(m, "Native");
    native.def(nb::init<const std::string&>())
        .def_prop_ro("name", [](const Native& n) { return n.level.name; })
        .def_prop_ro("bf16_form", [](const Native& n) { return n.level.bf16_form; })
        .def_prop_ro("blocks_form", [](const Native& n) { return n.level.blocks_form; });
    bind_products(m, native);
    bind_attention(native);
    bind_rows(native);
    bind_measure(m);
    bind_program(m, native);
    bind_delta(native);
    bind_joins(native);
    bind_sample(native);
    bind_mixture(m);
    bind_blocks(m, native);
}

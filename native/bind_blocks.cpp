// Products with weights in blocks, and their packing.
#include "blocks.hpp"
#include "module.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace plait {

namespace {

// Packed weights that meet one input.
struct Blocks {
    long in;
    std::vector<BlockPart> parts;
};

void add(Blocks& blocks, Address w, long out, int form) {
    blocks.parts.push_back({at<const std::uint8_t>(w), out, Form(form)});
}

// activation: -1: plain products
void product(const Native& native, const Blocks& blocks, Address x, long x_stride, Address y, long y_stride, long rows,
             int activation) {
    nb::gil_scoped_release released;
    BlockProduct p{};
    p.x = at<float>(x);
    p.y = at<float>(y);
    p.x_stride = x_stride;
    p.y_stride = y_stride;
    p.rows = rows;
    p.in = blocks.in;
    p.parts = blocks.parts.data();
    p.count = long(blocks.parts.size());
    p.gated = activation >= 0;
    p.activation = Activation(p.gated ? activation : 0);
    native.level.blocks(p);
}

long packed_bytes(int form, long out, long in) { return (out + PANEL - 1) / PANEL * panel_bytes(Form(form), in); }

// Weights are read from end to end for every token: large pages spare most of the look-ups of addresses.
void in_large_pages([[maybe_unused]] Address address, [[maybe_unused]] long bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr Address PAGE = 1 << 21;
    Address first = (address + PAGE - 1) / PAGE * PAGE, stop = (address + Address(bytes)) / PAGE * PAGE;
    if (first < stop) madvise(at<void>(first), stop - first, MADV_HUGEPAGE);
#endif
}

void pack(Address rows, Address to, long out, long in, int form, long first, long step) {
    nb::gil_scoped_release released;
    pack_blocks({at<const std::uint8_t>(rows), at<std::uint8_t>(to), out, in, first, step, Form(form)});
}

}  // namespace

void bind_blocks(nb::module_& m, Bound& native) {
    nb::class_<Blocks>(m, "Blocks")
        .def("__init__", [](Blocks* self, long in) { new (self) Blocks{in, {}}; })
        .def("add", &add);
    m.def("packed_bytes", &packed_bytes);
    m.def("in_large_pages", &in_large_pages);
    m.def("pack_blocks", &pack);
    native.def("blocks", &product);
}

}  // namespace plait

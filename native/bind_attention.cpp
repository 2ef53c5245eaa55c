// Attention over slabs, and rows on their way into them.
#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include "module.hpp"

namespace plait {

namespace {

// A part of the queries: their address and row stride, the size of a head, where its keys begin in a slab.
using Part = std::array<long, 4>;

void attention(const Native& native, const std::vector<Part>& parts, Address spans, long count, Address addresses,
               long value_offset, long v_dim, Address chosen, long chosen_stride, Address sinks, Address out,
               long heads, long kv_heads, long window, float scale, float cap, int store, bool exact) {
    nb::gil_scoped_release released;
    std::vector<AttentionPart> taken;
    for (const Part& p : parts) taken.push_back({at<const float>(Address(p[0])), p[1], p[2], p[3]});
    Attention a{};
    a.spans = at<const AttentionSpan>(spans);
    a.count = count;
    a.addresses = at<const std::uintptr_t>(addresses);
    a.parts = taken.data();
    a.part_count = long(taken.size());
    a.value_offset = value_offset;
    a.v_dim = v_dim;
    a.out = at<float>(out);
    a.sinks = at<const float>(sinks);
    a.chosen = at<const std::uint8_t>(chosen);
    a.chosen_stride = chosen_stride;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.window = window;
    a.scale = scale;
    a.cap = cap;
    a.store = Store(store);
    a.exact = exact;
    native.kernels().attention(a);
}

bool store_rows(const Native& native, Address rows, long row_stride, long heads, long dim, long offset, Address spans,
                long count, Address addresses, int store) {
    nb::gil_scoped_release released;
    return native.kernels().store_rows({at<const float>(rows), row_stride, heads, dim, offset,
                                        at<const AttentionSpan>(spans), count, at<const std::uintptr_t>(addresses),
                                        Store(store)});
}

}  // namespace

void bind_attention(Bound& native) { native.def("attention", &attention).def("store_rows", &store_rows); }

}  // namespace plait

// Attention over slabs.
#include <nanobind/stl/vector.h>

#include "module.hpp"

namespace plait {

namespace {

void attention(const Native& native, Address queries, long query_stride, const std::vector<Address>& keys,
               const std::vector<Address>& values, Address sinks, Address out, long n, long heads, long kv_heads,
               long dim, long v_dim, long start, long first_block, long window, float scale, float cap,
               int store) {
    nb::gil_scoped_release released;
    Attention a{};
    a.queries = at<float>(queries);
    a.out = at<float>(out);
    a.sinks = at<float>(sinks);
    a.keys = reinterpret_cast<const void* const*>(keys.data());
    a.values = reinterpret_cast<const void* const*>(values.data());
    a.n = n;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.dim = dim;
    a.v_dim = v_dim;
    a.query_stride = query_stride;
    a.start = start;
    a.first_block = first_block;
    a.window = window;
    a.scale = scale;
    a.cap = cap;
    a.store = Store(store);
    native.kernels().attention(a);
}

}  // namespace

void bind_attention(Bound& native) { native.def("attention", &attention); }

}  // namespace plait

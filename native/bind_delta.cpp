// The gated delta rule and the convolution before it.
#include <nanobind/stl/vector.h>

#include "module.hpp"

namespace plait {

namespace {

// Per sequence: rows, the address of its value before them or 0, that of its value after them.
std::vector<Span> spans_of(const std::vector<Address>& flat) {
    std::vector<Span> spans;
    for (std::size_t i = 0; i + 2 < flat.size(); i += 3)
        spans.push_back({long(flat[i]), at<const float>(flat[i + 1]), at<float>(flat[i + 2])});
    return spans;
}

void delta(const Native& native, Address qkv, long qkv_stride, Address beta, long beta_stride, Address decay,
           long decay_stride, Address rate, Address bias, Address y, const std::vector<Address>& sequences,
           long key_heads, long value_heads, long key_dim, long value_dim, float eps, float scale) {
    nb::gil_scoped_release released;
    auto spans = spans_of(sequences);
    Delta d{};
    d.qkv = at<float>(qkv);
    d.beta = at<float>(beta);
    d.decay = at<float>(decay);
    d.rate = at<float>(rate);
    d.bias = at<float>(bias);
    d.y = at<float>(y);
    d.spans = spans.data();
    d.count = long(spans.size());
    d.qkv_stride = qkv_stride;
    d.beta_stride = beta_stride;
    d.decay_stride = decay_stride;
    d.key_heads = key_heads;
    d.value_heads = value_heads;
    d.key_dim = key_dim;
    d.value_dim = value_dim;
    d.eps = eps;
    d.scale = scale;
    native.kernels().delta(d);
}

// activation: -1: none
void convolution(const Native& native, Address x, long x_stride, Address weight, Address y,
                 const std::vector<Address>& sequences, long channels, long kernel, int activation) {
    nb::gil_scoped_release released;
    auto spans = spans_of(sequences);
    Convolution c{};
    c.x = at<float>(x);
    c.weight = at<float>(weight);
    c.y = at<float>(y);
    c.spans = spans.data();
    c.count = long(spans.size());
    c.x_stride = x_stride;
    c.channels = channels;
    c.kernel = kernel;
    c.activated = activation >= 0;
    c.activation = Activation(c.activated ? activation : 0);
    native.kernels().convolution(c);
}

}  // namespace

void bind_delta(Bound& native) { native.def("delta", &delta).def("convolution", &convolution); }

}  // namespace plait

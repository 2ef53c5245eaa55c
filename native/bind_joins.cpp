// What stands between products.
#include "module.hpp"

namespace plait {

namespace {

void gate(const Native& native, int activation, Address x, long x_stride, Address gate, long gate_stride, bool per_head,
          bool normed, Address weight, float eps, Address y, long rows, long heads, long width) {
    nb::gil_scoped_release released;
    HeadGate g{};
    g.x = at<float>(x);
    g.gate = at<float>(gate);
    g.weight = at<float>(weight);
    g.y = at<float>(y);
    g.x_stride = x_stride;
    g.gate_stride = gate_stride;
    g.rows = rows;
    g.heads = heads;
    g.width = width;
    g.eps = eps;
    g.normed = normed;
    g.per_head = per_head;
    g.activation = Activation(activation);
    native.kernels().gate(g);
}

void join(const Native& native, Address h, Address y, long y_stride, bool y_normed, Address y_weight, float y_eps,
          Address weight, float eps, Address out, long rows, long width) {
    nb::gil_scoped_release released;
    Join j{};
    j.h = at<float>(h);
    j.y = at<float>(y);
    j.y_weight = at<float>(y_weight);
    j.weight = at<float>(weight);
    j.out = at<float>(out);
    j.y_stride = y_stride;
    j.rows = rows;
    j.width = width;
    j.y_eps = y_eps;
    j.eps = eps;
    j.y_normed = y_normed;
    native.kernels().join(j);
}

void softcap(const Native& native, Address x, Address y, long rows, long width, float cap) {
    nb::gil_scoped_release released;
    native.kernels().softcap(at<float>(x), at<float>(y), rows, width, cap);
}

}  // namespace

void bind_joins(Bound& native) { native.def("gate", &gate).def("join", &join).def("softcap", &softcap); }

}  // namespace plait

// Norms, heads and gates.
#include "module.hpp"

namespace plait {

namespace {

void rms_norm(const Native& native, Address x, long x_stride, Address weight, float eps, Address y, long rows, long groups,
              long width) {
    nb::gil_scoped_release released;
    native.kernels().rms_norm(at<float>(x), x_stride, at<float>(weight), eps, at<float>(y), rows, groups, width);
}

void heads(const Native& native, Address x, long x_stride, Address weight, float eps, Address cosine, Address sine, long pairs, long start,
           long distance, bool adjacent, Address y, long rows, long groups, long width) {
    nb::gil_scoped_release released;
    Heads h{};
    h.x = at<float>(x);
    h.y = at<float>(y);
    h.weight = at<float>(weight);
    h.cosine = at<float>(cosine);
    h.sine = at<float>(sine);
    h.eps = eps;
    h.x_stride = x_stride;
    h.x_apart = width;
    h.rows = rows;
    h.groups = groups;
    h.width = width;
    h.pairs = pairs;
    h.start = start;
    h.distance = distance;
    h.adjacent = adjacent;
    native.kernels().heads(h);
}

void gated(const Native& native, int activation, Address x, long x_stride, Address y, long rows, long width) {
    nb::gil_scoped_release released;
    native.kernels().gated(Activation(activation), at<float>(x), x_stride, at<float>(y), rows, width);
}

}  // namespace

void bind_rows(Bound& native) {
    native.def("rms_norm", &rms_norm).def("heads", &heads).def("gated", &gated);
}

}  // namespace plait

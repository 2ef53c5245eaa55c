// Products with packed weights, and the packing.
#include <nanobind/stl/shared_ptr.h>

#include "module.hpp"
#include "prepared.hpp"

namespace plait {

namespace {

// activation: -1: a plain product
template <class Weight>
Product<Weight> product(Address x, long x_stride, Address w, Address y, long rows, long out, long in, int activation) {
    Product<Weight> p{};
    p.x = at<float>(x);
    p.w = at<Weight>(w);
    p.y = at<float>(y);
    p.x_stride = x_stride;
    p.y_stride = out;
    p.rows = rows;
    p.out = out;
    p.in = in;
    p.gated = activation >= 0;
    p.activation = Activation(p.gated ? activation : 0);
    return p;
}

void linear_f32(const Native& native, Address x, long x_stride, Address w, Address y, long rows, long out, long in,
                int activation) {
    nb::gil_scoped_release released;
    native.kernels().linear_f32(product<float>(x, x_stride, w, y, rows, out, in, activation));
}

void linear_bf16(const Native& native, Address x, long x_stride, Address w, Address y, long rows, long out, long in,
                 int activation) {
    nb::gil_scoped_release released;
    native.level.linear_bf16(product<std::uint16_t>(x, x_stride, w, y, rows, out, in, activation));
}

// A weight of the float forms, as programs call it.
template <class Weight>
struct Dense : Prepared {
    using Kernel = void (*)(const Product<Weight>&);
    Product<Weight> product;
    Kernel kernel;
    Dense(Kernel kernel, const Product<Weight>& product)
        : Prepared(product.out, product.in), product(product), kernel(kernel) {}
    void run(const float* x, long x_stride, float* y, long y_stride, long rows) const override {
        Product<Weight> p = product;
        p.x = x;
        p.y = y;
        p.x_stride = x_stride;
        p.y_stride = y_stride;
        p.rows = rows;
        kernel(p);
    }
};

std::shared_ptr<Prepared> prepared_f32(const Native& native, Address w, long out, long in, int activation) {
    auto p = product<float>(0, 0, w, 0, 0, out, in, activation);
    return std::make_shared<Dense<float>>(native.kernels().linear_f32, p);
}

std::shared_ptr<Prepared> prepared_bf16(const Native& native, Address w, long out, long in, int activation) {
    auto p = product<std::uint16_t>(0, 0, w, 0, 0, out, in, activation);
    return std::make_shared<Dense<std::uint16_t>>(native.level.linear_bf16, p);
}

// Panels of 16 outputs, zeros beyond the last: [panel][in][16].
void pack_f32(Address weight, Address packed, long out, long in) {
    nb::gil_scoped_release released;
    const auto* w = at<const float>(weight);
    auto* to = at<float>(packed);
#pragma omp parallel for schedule(static)
    for (long p = 0; p < (out + 15) / 16; ++p)
        for (long k = 0; k < in; ++k)
            for (long i = 0; i < 16; ++i)
                to[(p * in + k) * 16 + i] = p * 16 + i < out ? w[(p * 16 + i) * in + k] : 0.0f;
}

// Panels of 16 outputs in pairs of columns: [panel][in / 2][16][2].
void pack_bf16(Address weight, Address packed, long out, long in) {
    nb::gil_scoped_release released;
    const auto* w = at<const std::uint16_t>(weight);
    auto* to = at<std::uint16_t>(packed);
    long padded = (in + 31) / 32 * 32;
#pragma omp parallel for schedule(static)
    for (long p = 0; p < (out + 15) / 16; ++p)
        for (long k = 0; k < padded; k += 2)
            for (long i = 0; i < 16; ++i)
                for (long j = 0; j < 2; ++j) {
                    bool there = p * 16 + i < out && k + j < in;
                    to[(p * padded + k) * 16 + 2 * i + j] = there ? w[(p * 16 + i) * in + k + j] : 0;
                }
}

}  // namespace

void bind_products(nb::module_& m, Bound& native) {
    m.def("pack_f32", &pack_f32);
    m.def("pack_bf16", &pack_bf16);
    nb::class_<Prepared>(m, "Prepared")
        .def_ro("out", &Prepared::out)
        .def_ro("width", &Prepared::in)
        .def("run", [](const Prepared& p, Address x, long x_stride, Address y, long y_stride, long rows) {
            nb::gil_scoped_release released;
            p.run(at<float>(x), x_stride, at<float>(y), y_stride, rows);
        });
    native.def("linear_f32", &linear_f32).def("linear_bf16", &linear_bf16);
    native.def("prepared_f32", &prepared_f32).def("prepared_bf16", &prepared_bf16);
}

}  // namespace plait

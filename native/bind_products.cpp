// Products with packed weights.
#include <nanobind/stl/shared_ptr.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "module.hpp"
#include "pack.hpp"
#include "prepared.hpp"

namespace plait {

namespace {

// Elements of a weight that several threads are not worth.
constexpr long SMALL = 1 << 18;

long threads() {
#if defined(_OPENMP)
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// A weight of the float forms.
template <class Weight>
struct Dense : Prepared {
    using Kernel = void (*)(const Product<Weight>&);
    Product<Weight> product;
    Kernel kernel;

    // activation: -1: a plain product
    Dense(Kernel kernel, Address w, long out, long in, int activation, bool exact)
        : Prepared(out, in), product{}, kernel(kernel) {
        product.w = at<const Weight>(w);
        product.out = out;
        product.in = in;
        product.gated = activation >= 0;
        product.activation = Activation(product.gated ? activation : 0);
        product.exact = exact;
    }

    void run(const float* x, long x_stride, float* y, long y_stride, long rows) const override {
        Product<Weight> p = product;
        p.x = x;
        p.y = y;
        p.x_stride = x_stride;
        p.y_stride = y_stride;
        p.rows = rows;
        kernel(p);
    }

    // Small products, of heads, are shared among threads whole, where there is one for each.
    bool run_each(const std::vector<const Prepared*>& all, const float* x, long x_stride, float* y) const override {
        if (long(all.size()) < threads()) return false;
        for (const Prepared* one : all)
            if (dynamic_cast<const Dense*>(one) == nullptr || one->out != out || in * out > SMALL) return false;
#pragma omp parallel for schedule(static)
        for (std::size_t i = 0; i < all.size(); ++i) all[i]->run(x + long(i) * x_stride, 0, y + long(i) * out, out, 1);
        return true;
    }
};

std::shared_ptr<Prepared> prepared_f32(const Native& native, Address w, long out, long in, int activation) {
    return std::make_shared<Dense<float>>(native.kernels().linear_f32, w, out, in, activation, true);
}

std::shared_ptr<Prepared> prepared_f16(const Native& native, Address w, long out, long in, int activation) {
    return std::make_shared<Dense<std::uint16_t>>(native.kernels().linear_f16, w, out, in, activation, true);
}

std::shared_ptr<Prepared> prepared_bf16(const Native& native, Address w, long out, long in, int activation,
                                        bool exact) {
    return std::make_shared<Dense<std::uint16_t>>(native.level.linear_bf16, w, out, in, activation, exact);
}

template <auto pack>
void packed(Address weight, Address to, long out, long in) {
    nb::gil_scoped_release released;
    pack(weight, to, out, in);
}

}  // namespace

void bind_products(nb::module_& m, Bound& native) {
    m.def("pack_f32", &packed<pack_f32>);
    m.def("pack_f16", &packed<pack_f16>);
    m.def("pack_bf16", &packed<pack_bf16>);
    nb::class_<Prepared>(m, "Prepared")
        .def_ro("out", &Prepared::out)
        .def_ro("width", &Prepared::in)
        .def("run", [](const Prepared& p, Address x, long x_stride, Address y, long y_stride, long rows) {
            nb::gil_scoped_release released;
            p.run(at<float>(x), x_stride, at<float>(y), y_stride, rows);
        });
    native.def("prepared_f32", &prepared_f32);
    native.def("prepared_f16", &prepared_f16);
    native.def("prepared_bf16", &prepared_bf16, nb::arg("w"), nb::arg("out"), nb::arg("width"), nb::arg("activation"),
               nb::arg("exact"));
}

}  // namespace plait

// Programs: Python adds operations once and runs them call by call. It holds the tensors whose addresses it gives.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "module.hpp"
#include "program.hpp"

namespace plait {

namespace {

using At = std::pair<long, long>;  // a Place

Place place(At at) { return {at.first, at.second}; }

using Vectors = std::tuple<At, long, long>;  // AttendPlan's

std::vector<AttendPlan::Vectors> vectors(const std::vector<Vectors>& given) {
    std::vector<AttendPlan::Vectors> made;
    for (const auto& [at, dim, offset] : given) made.push_back({place(at), dim, offset});
    return made;
}

std::vector<Matrix> matrices(const std::vector<std::pair<Address, long>>& given) {
    std::vector<Matrix> made;
    made.reserve(given.size());
    for (const auto& [data, stride] : given) made.push_back({at<float>(data), stride});
    return made;
}

void bind_ragged(nb::module_& m) {
    nb::class_<Ragged>(m, "Ragged")
        .def(nb::init<>())
        .def("add_part",
             [](Ragged& call, long position, long count) {
                 call.parts.push_back({call.rows, count, position});
                 call.rows += count;
             })
        // Slabs of the next class: of each session the first slab's number and the addresses.
        .def("add_slabs",
             [](Ragged& call, const std::vector<std::pair<long, std::vector<Address>>>& sessions) {
                 auto& made = call.slabs.emplace_back();
                 for (const auto& [first, at] : sessions) made.push_back({first, at});
             })
        .def("add_values",
             [](Ragged& call, const std::vector<std::pair<Address, Address>>& sessions) {
                 auto& made = call.values.emplace_back();
                 for (const auto& [now, next] : sessions) made.push_back({now, next});
             })
        .def("add_turns", [](Ragged& call, Address cosine, Address sine) {
            call.turns.push_back({at<float>(cosine), at<float>(sine)});
        });
}

}  // namespace

void bind_program(nb::module_& m, Bound& native) {
    bind_ragged(m);
    native.def("program", [](const Native& n) { return new Program(n.kernels()); }, nb::rv_policy::take_ownership);
    nb::class_<Program>(m, "Program")
        .def_prop_ro("operations", [](const Program& p) { return p.operations.size(); })
        .def("run",
             [](const Program& p, const Ragged& call, long rows, const std::vector<std::pair<Address, long>>& own,
                const std::vector<std::pair<Address, long>>& tensors) {
                 nb::gil_scoped_release released;
                 return p.run({p.kernels, call, rows, matrices(own), matrices(tensors)});
             })
        .def("norm",
             [](Program& p, At x, At y, Address weight, float eps, long groups, long width) {
                 p.norm(place(x), place(y), at<float>(weight), eps, groups, width);
             })
        .def("add", [](Program& p, At to, At x, long width) { p.add(add_rows(place(to), place(x), width)); })
        .def("add_vector",
             [](Program& p, At to, Address vector, long width) {
                 p.add(add_vector(place(to), at<float>(vector), width));
             })
        .def("scale", [](Program& p, At to, float by, long width) { p.add(scale_rows(place(to), by, width)); })
        .def("softcap", [](Program& p, At to, float cap, long width) { p.add(cap_rows(place(to), cap, width)); })
        .def("copy", [](Program& p, At x, At y, long width) { p.add(copy_rows(place(x), place(y), width)); })
        .def("product",
             [](Program& p, At x, At y, std::shared_ptr<Prepared> product) {
                 p.add(multiply(place(x), place(y), std::move(product)));
             })
        .def("gated",
             [](Program& p, At x, At y, int activation, long width) {
                 p.add(gate_rows(place(x), place(y), Activation(activation), width));
             })
        .def("turns",
             [](Program& p, At cosine, At sine, long table, long pairs) {
                 p.add(fetch_turns(place(cosine), place(sine), table, pairs));
             })
        .def("heads",
             [](Program& p, At x, long x_apart, At y, At cosine, At sine, Address weight, float eps, long pairs,
                long start, long distance, bool adjacent, long groups, long width) {
                 Heads h{};
                 h.x_apart = x_apart;
                 h.weight = at<float>(weight);
                 h.eps = eps;
                 h.groups = groups;
                 h.width = width;
                 h.pairs = pairs;
                 h.start = start;
                 h.distance = distance;
                 h.adjacent = adjacent;
                 p.add(ready_heads(place(x), place(y), place(cosine), place(sine), h));
             })
        .def("products",
             [](Program& p, At x, long x_apart, At y, std::vector<std::shared_ptr<Prepared>> products) {
                 p.add(multiply_each(place(x), x_apart, place(y), std::move(products)));
             })
        .def("route",
             [](Program& p, At logits, At chosen, At weights, const Routing& routing) {
                 p.add(route_rows(place(logits), place(chosen), place(weights), routing));
             })
        .def("mix",
             [](Program& p, At x, At chosen, At weights, At y, long active, int activation,
                const std::vector<std::pair<std::shared_ptr<Prepared>, std::shared_ptr<Prepared>>>& experts) {
                 MixPlan plan{place(x), place(chosen), place(weights), place(y), active, Activation(activation), {}};
                 for (const auto& [fused, down] : experts) plan.experts.push_back({fused, down});
                 p.add(mix(std::move(plan)));
             })
        // activation: -1: none
        .def("convolve",
             [](Program& p, At x, At y, long value_class, long offset, Address weight, long channels, long kernel,
                int activation) {
                 Convolution c{};
                 c.weight = at<float>(weight);
                 c.channels = channels;
                 c.kernel = kernel;
                 c.activated = activation >= 0;
                 c.activation = Activation(c.activated ? activation : 0);
                 p.add(convolve(place(x), place(y), value_class, offset, c));
             })
        .def("delta",
             [](Program& p, At qkv, At beta, At decay, At y, long value_class, long offset, Address rate, Address bias,
                long key_heads, long value_heads, long key_dim, long value_dim, float eps, float scale) {
                 Delta d{};
                 d.rate = at<float>(rate);
                 d.bias = at<float>(bias);
                 d.key_heads = key_heads;
                 d.value_heads = value_heads;
                 d.key_dim = key_dim;
                 d.value_dim = value_dim;
                 d.eps = eps;
                 d.scale = scale;
                 p.add(delta_rule(place(qkv), place(beta), place(decay), place(y), value_class, offset, d));
             })
        .def("gate",
             [](Program& p, At x, At gate, At y, int activation, bool per_head, bool normed, Address weight, float eps,
                long heads, long width) {
                 HeadGate g{};
                 g.weight = at<float>(weight);
                 g.eps = eps;
                 g.normed = normed;
                 g.per_head = per_head;
                 g.heads = heads;
                 g.width = width;
                 g.activation = Activation(activation);
                 p.add(gate_heads(place(x), place(gate), place(y), g));
             })
        .def("attend", [](Program& p, const std::vector<Vectors>& stored, const std::vector<Vectors>& queries, At out,
                          long slab_class, long values_at, long heads, long kv_heads, long v_dim, long window, float scale,
                          float cap, Address sinks, int store, bool exact) {
            p.add(attend({vectors(stored), vectors(queries), place(out), slab_class, values_at, heads, kv_heads, v_dim,
                          window, scale, cap, at<float>(sinks), Store(store), exact}));
        });
}

}  // namespace plait

// Routing of a mixture of experts.
#include "mixture.hpp"

#include "module.hpp"

namespace plait {

void bind_mixture(nb::module_& m) {
    nb::class_<Routing>(m, "Routing")
        .def("__init__",
             [](Routing* made, long experts, long active, long groups, long kept_groups, bool softmax,
                bool renormalise, float scale, Address bias, Address factors) {
                 new (made) Routing{experts,     active, groups,          kept_groups,       softmax,
                                    renormalise, scale,  at<float>(bias), at<float>(factors)};
             })
        .def("__call__", [](const Routing& r, Address logits, long logits_stride, Address chosen, Address weights,
                            long rows) {
            nb::gil_scoped_release released;
            route(r, at<float>(logits), logits_stride, at<float>(chosen), at<float>(weights), rows);
        });
}

}  // namespace plait

// Products with weights in blocks, and their packing.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "blocks.hpp"
#include "module.hpp"
#include "packer.hpp"
#include "pages.hpp"
#include "prepared.hpp"

namespace plait {

namespace {

// Packed weights that meet one input: a product for each run of parts that have the same sum limit, where there is one,
// whose outputs begin at `column`.
struct Blocks : Prepared {
    BlockKernel kernel;
    std::vector<BlockPart> parts;
    struct Run {
        BlockProduct product;
        long column;
    };
    std::vector<Run> runs;
    Blocks(BlockKernel kernel, std::vector<BlockPart> given, long out, long in, int activation, int planes)
        : Prepared(out, in), kernel(kernel), parts(std::move(given)) {
        long column = 0;
        for (const BlockPart& part : parts) {
            bool alike = !runs.empty() && (planes == 1 || runs.back().product.sum_limit == sum_limit(part.form));
            if (!alike) {
                BlockProduct product{};
                product.in = in;
                product.parts = &part;
                product.sum_limit = sum_limit(part.form);
                product.planes = planes;
                product.asks = asks_ahead();
                product.gated = activation >= 0;
                product.activation = Activation(product.gated ? activation : 0);
                runs.push_back({product, column});
            }
            ++runs.back().product.count;
            column += part.out;
        }
    }
    void run(const float* x, long x_stride, float* y, long y_stride, long rows) const override {
        for (const Run& run : runs) {
            BlockProduct p = run.product;
            p.x = x;
            p.x_stride = x_stride;
            p.y = y + run.column;
            p.y_stride = y_stride;
            p.rows = rows;
            kernel(p);
        }
    }

    bool run_each(const std::vector<const Prepared*>& all, const float* x, long x_stride, float* y) const override {
        std::vector<BlockPart> every;
        for (const Prepared* one : all) {
            const auto* other = dynamic_cast<const Blocks*>(one);
            if (other == nullptr || other->kernel != kernel || other->runs.size() != 1) return false;
            const BlockProduct& mine = runs.front().product;
            const BlockProduct& its = other->runs.front().product;
            if (its.gated || its.in != mine.in || its.planes != mine.planes || its.sum_limit != mine.sum_limit) return false;
            if (x_stride != 0 && other->parts.size() != 1) return false;
            every.insert(every.end(), other->parts.begin(), other->parts.end());
        }
        BlockProduct p = runs.front().product;
        p.x = x;
        p.x_stride = x_stride;
        p.y = y;
        p.y_stride = 0;
        p.rows = x_stride == 0 ? 1 : long(all.size());
        p.own_rows = x_stride != 0;
        p.parts = every.data();
        p.count = long(every.size());
        kernel(p);
        return true;
    }
};

// parts: address, outputs, form; activation: -1: plain products; planes: bytes of the integers that rows become
std::shared_ptr<Prepared> prepared_blocks(const Native& native, const std::vector<std::tuple<Address, long, int>>& parts,
                                          long in, int activation, int planes) {
    if (planes < 1 || planes > 2) throw std::invalid_argument("rows become integers of 1 or 2 bytes");
    std::vector<BlockPart> given;
    long out = 0;
    for (auto [w, outputs, form] : parts) {
        given.push_back({at<const std::uint8_t>(w), outputs, Form(form)});
        out += outputs;
    }
    if (activation >= 0) out /= 2;
    return std::make_shared<Blocks>(native.level.blocks, std::move(given), out, in, activation, planes);
}

// Products of one input in different forms, outputs end to end.
struct Joined : Prepared {
    std::vector<std::shared_ptr<Prepared>> parts;
    Joined(std::vector<std::shared_ptr<Prepared>> given, long out, long in)
        : Prepared(out, in), parts(std::move(given)) {}
    void run(const float* x, long x_stride, float* y, long y_stride, long rows) const override {
        for (const auto& part : parts) {
            part->run(x, x_stride, y, y_stride, rows);
            y += part->out;
        }
    }
};

std::shared_ptr<Prepared> prepared_joined(std::vector<std::shared_ptr<Prepared>> parts) {
    long out = 0, in = parts.at(0)->in;
    for (const auto& part : parts) out += part->out;
    return std::make_shared<Joined>(std::move(parts), out, in);
}

long packed_bytes(int form, long out, long in) { return (out + PANEL - 1) / PANEL * panel_bytes(Form(form), in); }

void pack(Packer& packer, Address rows, Address to, long out, long in, int form, long first, long step) {
    nb::gil_scoped_release released;
    packer.add({at<const std::uint8_t>(rows), at<std::uint8_t>(to), out, in, first, step, Form(form)});
}

void unpack(Address blocks, long count, int form, Address to) {
    nb::gil_scoped_release released;
    unpack_blocks(at<const std::uint8_t>(blocks), count, Form(form), at<float>(to));
}

}  // namespace

void bind_blocks(nb::module_& m, Bound& native) {
    m.def("packed_bytes", &packed_bytes);
    m.def("sum_limit", [](int form) { return sum_limit(Form(form)); });
    m.def("in_large_pages", &in_large_pages);
    m.def("can_gather", &can_gather);
    m.def("gather", &gather);
    m.def("settle_pages", &settle, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Packer>(m, "Packer")
        .def(nb::init<long>())
        .def("add", &pack)
        .def("wait", &Packer::wait, nb::call_guard<nb::gil_scoped_release>());
    m.def("unpack_blocks", &unpack);
    m.def("prepared_joined", &prepared_joined);
    native.def("prepared_blocks", &prepared_blocks);
}

}  // namespace plait

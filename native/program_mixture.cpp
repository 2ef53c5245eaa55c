// Operations of mixtures of experts.
#include <cstring>
#include <utility>

#include "program.hpp"

namespace plait {

namespace {

// Loops over fewer elements than this stay on one thread.
constexpr long SMALL = 16384;

struct Routes : Operation {
    Place logits, chosen, weights;
    Routing shape;
    Routes(Place logits, Place chosen, Place weights, const Routing& shape)
        : logits(logits), chosen(chosen), weights(weights), shape(shape) {}
    bool run(const Frame& f) const override {
        route(shape, f[logits].data, f[logits].stride, f[chosen].data, f[weights].data, f.rows);
        return true;
    }
};

// y = the sum of the chosen experts' outputs of x, each times its weight, in ascending order of the experts, from zero.
struct Mixing : Operation {
    MixPlan plan;
    explicit Mixing(MixPlan plan) : plan(std::move(plan)) {}

    bool run(const Frame& f) const override {
        if (f.rows == 1) one_row(f);
        else by_experts(f);
        return true;
    }

  private:
    static void run_all(const std::vector<const Prepared*>& products, const float* x, long x_stride, float* y) {
        if (products.front()->run_each(products, x, x_stride, y)) return;
        for (const Prepared* product : products) {
            product->run(x, x_stride, y, product->out, 1);
            x += x_stride;
            y += product->out;
        }
    }

    // Of one row all experts are one product, and one more: threads meet twice, and not for each.
    void one_row(const Frame& f) const {
        long both = plan.experts.front().fused->out, hidden = plan.experts.front().down->out;
        std::vector<const Prepared*> fused, down;
        for (long k = 0; k < plan.active; ++k) {
            const MixPlan::Expert& expert = plan.experts[std::size_t(f[plan.chosen].row(0)[k])];
            fused.push_back(expert.fused.get());
            down.push_back(expert.down.get());
        }
        std::vector<float> wide(plan.active * both), inner(plan.active * both / 2), out(plan.active * hidden);
        run_all(fused, f[plan.x].row(0), 0, wide.data());
        f.kernels.gated(plan.activation, wide.data(), both, inner.data(), plan.active, both / 2);
        run_all(down, inner.data(), both / 2, out.data());
        float* y = f[plan.y].row(0);
        std::memset(y, 0, sizeof(float) * hidden);
        for (long k = 0; k < plan.active; ++k) add(y, out.data() + k * hidden, f[plan.weights].row(0)[k], hidden);
    }

    static void add(float* to, const float* from, float weight, long n) {
        for (long j = 0; j < n; ++j) to[j] += from[j] * weight;
    }

    void by_experts(const Frame& f) const {
        Matrix y = f[plan.y];
        long hidden = plan.experts.front().down->out;
        for (long r = 0; r < f.rows; ++r) std::memset(y.row(r), 0, sizeof(float) * hidden);
        // Of each expert the visits, in order of the rows.
        struct Visit {
            long row;
            float weight;
        };
        std::vector<std::vector<Visit>> visits(plan.experts.size());
        std::size_t most = 0;
        for (long r = 0; r < f.rows; ++r)
            for (long k = 0; k < plan.active; ++k) {
                auto& own = visits[std::size_t(f[plan.chosen].row(r)[k])];
                own.push_back({r, f[plan.weights].row(r)[k]});
                most = own.size() > most ? own.size() : most;
            }
        long in = plan.experts.front().fused->in, both = plan.experts.front().fused->out;
        std::vector<float> x(most * in), wide(most * both), inner(most * both / 2), out(most * hidden);
        for (std::size_t e = 0; e < visits.size(); ++e) {
            const auto& own = visits[e];
            long count = long(own.size());
            if (count == 0) continue;
#pragma omp parallel for schedule(static) if (count * in >= SMALL)
            for (long i = 0; i < count; ++i)
                std::memcpy(x.data() + i * in, f[plan.x].row(own[i].row), sizeof(float) * in);
            plan.experts[e].fused->run(x.data(), in, wide.data(), both, count);
            f.kernels.gated(plan.activation, wide.data(), both, inner.data(), count, both / 2);
            plan.experts[e].down->run(inner.data(), both / 2, out.data(), hidden, count);
            // A row visits an expert at most once.
#pragma omp parallel for schedule(static) if (count * hidden >= SMALL)
            for (long i = 0; i < count; ++i)
                add(y.row(own[i].row), out.data() + i * hidden, own[i].weight, hidden);
        }
    }
};

}  // namespace

std::unique_ptr<Operation> route_rows(Place logits, Place chosen, Place weights, const Routing& shape) {
    return std::make_unique<Routes>(logits, chosen, weights, shape);
}

std::unique_ptr<Operation> mix(MixPlan plan) { return std::make_unique<Mixing>(std::move(plan)); }

}  // namespace plait

// Attention as a program runs it: rows are stored in their slabs, then every session's queries see its slabs.
#include <utility>

#include "program.hpp"

namespace plait {

namespace {

struct Attend : Operation {
    AttendPlan p;
    explicit Attend(AttendPlan plan) : p(std::move(plan)) {}

    bool run(const Frame& f) const override {
        std::vector<AttentionSpan> spans;
        std::vector<std::uintptr_t> addresses;
        for (std::size_t s = 0; s < f.call.parts.size(); ++s) {
            const Part& part = f.call.parts[s];
            const Slabs& slabs = f.call.slabs[p.slab_class][s];
            spans.push_back({part.row, part.count, part.position, slabs.first, std::int64_t(addresses.size())});
            addresses.insert(addresses.end(), slabs.at.begin(), slabs.at.end());
        }
        long count = long(spans.size());
        for (const auto& rows : p.stored)
            if (!f.kernels.store_rows({f[rows.at].data, f[rows.at].stride, p.kv_heads, rows.dim, rows.offset, spans.data(),
                                       count, addresses.data(), p.store}))
                return false;
        std::vector<AttentionPart> parts;
        for (const auto& q : p.queries) parts.push_back({f[q.at].data, f[q.at].stride, q.dim, q.offset});
        Attention a{};
        a.spans = spans.data();
        a.count = count;
        a.addresses = addresses.data();
        a.parts = parts.data();
        a.part_count = long(parts.size());
        a.value_offset = p.values_at;
        a.v_dim = p.v_dim;
        a.out = f[p.out].data;
        a.sinks = p.sinks;
        a.heads = p.heads;
        a.kv_heads = p.kv_heads;
        a.window = p.window;
        a.scale = p.scale;
        a.cap = p.cap;
        a.store = p.store;
        a.exact = p.exact;
        f.kernels.attention(a);
        return true;
    }
};

}  // namespace

std::unique_ptr<Operation> attend(AttendPlan plan) { return std::make_unique<Attend>(std::move(plan)); }

}  // namespace plait

// Attention as a program runs it: rows are stored in their slabs, then every session's queries see its slabs.
#include "program.hpp"

namespace plait {

namespace {

struct Attend : Operation {
    AttendPlan p;
    explicit Attend(const AttendPlan& plan) : p(plan) {}

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
        auto put = [&](Place rows, long dim, long offset) {
            return f.kernels.store_rows({f[rows].data, f[rows].stride, p.kv_heads, dim, offset, spans.data(), count,
                                         addresses.data(), p.store});
        };
        if (p.stores && !(put(p.keys, p.dim, p.keys_at) && put(p.values, p.v_dim, p.values_at))) return false;
        AttentionPart part{f[p.queries].data, f[p.queries].stride, p.dim, p.keys_at};
        Attention a{};
        a.spans = spans.data();
        a.count = count;
        a.addresses = addresses.data();
        a.parts = &part;
        a.part_count = 1;
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

std::unique_ptr<Operation> attend(const AttendPlan& plan) { return std::make_unique<Attend>(plan); }

}  // namespace plait

// Attention as a program runs it: rows are stored in their slabs, then every session's queries see its slabs.
#include <cstring>

#include "program.hpp"

namespace plait {

namespace {

constexpr long BLOCK = 64;

long smaller(long a, long b) { return a < b ? a : b; }

struct Attend : Operation {
    AttendPlan p;
    explicit Attend(const AttendPlan& plan) : p(plan) {}

    long bytes() const { return p.store == Store::f32 ? 4 : 2; }

    // Rows [count] of each head go to lanes from `position` on of the slabs that hold them.
    void put(const Slabs& slabs, long offset, long position, long count, const float* from, long stride,
             long dim) const {
        for (long done = 0; done < count;) {
            long at = position + done, lane = at % BLOCK, n = smaller(count - done, BLOCK - lane);
            char* slab = reinterpret_cast<char*>(slabs.at[at / BLOCK - slabs.first]) + offset;
            for (long head = 0; head < p.kv_heads; ++head) {
                char* to = slab + (head * BLOCK + lane) * dim * bytes();
                const float* rows = from + done * stride + head * dim;
                if (p.store == Store::bf16) {
                    round_rows(rows, stride, reinterpret_cast<std::uint16_t*>(to), n, dim, dim);
                    continue;
                }
                for (long r = 0; r < n; ++r)
                    std::memcpy(to + r * dim * 4, rows + r * stride, sizeof(float) * dim);
            }
            done += n;
        }
    }

    bool run(const Frame& f) const override {
        const std::vector<Slabs>& all = f.call.slabs[p.slab_class];
        Matrix queries = f[p.queries], out = f[p.out];
        std::vector<const void*> keys, values;
        for (std::size_t s = 0; s < f.call.parts.size(); ++s) {
            const Part& part = f.call.parts[s];
            const Slabs& slabs = all[s];
            if (p.stores) {
                Matrix k = f[p.keys], v = f[p.values];
                put(slabs, p.keys_at, part.position, part.count, k.row(part.row), k.stride, p.dim);
                put(slabs, p.values_at, part.position, part.count, v.row(part.row), v.stride, p.v_dim);
            }
            long low = slabs.first, seen = part.position - p.window + 1;
            if (p.window != 0 && seen > 0 && seen / BLOCK > low) low = seen / BLOCK;
            keys.clear();
            values.clear();
            for (std::size_t b = low - slabs.first; b < slabs.at.size(); ++b) {
                keys.push_back(reinterpret_cast<const char*>(slabs.at[b]) + p.keys_at);
                values.push_back(reinterpret_cast<const char*>(slabs.at[b]) + p.values_at);
            }
            Attention a{};
            a.queries = queries.row(part.row);
            a.query_stride = queries.stride;
            a.out = out.row(part.row);
            a.sinks = p.sinks;
            a.keys = keys.data();
            a.values = values.data();
            a.n = part.count;
            a.heads = p.heads;
            a.kv_heads = p.kv_heads;
            a.dim = p.dim;
            a.v_dim = p.v_dim;
            a.start = part.position;
            a.first_block = low;
            a.window = p.window != 0 ? p.window : part.position + part.count;
            a.scale = p.scale;
            a.cap = p.cap;
            a.store = p.store;
            f.kernels.attention(a);
        }
        return true;
    }
};

}  // namespace

std::unique_ptr<Operation> attend(const AttendPlan& plan) { return std::make_unique<Attend>(plan); }

}  // namespace plait

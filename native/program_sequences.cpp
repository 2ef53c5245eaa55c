// Gated DeltaNet and gates as a program runs them.
#include "program.hpp"

namespace plait {

namespace {

// Each session's value of a layer, `offset` bytes into its class's.
std::vector<Span> spans_of(const Ragged& call, long value_class, long offset) {
    std::vector<Span> spans;
    for (std::size_t s = 0; s < call.parts.size(); ++s) {
        const Change& change = call.values[value_class][s];
        const char* now = reinterpret_cast<const char*>(change.now);
        char* next = reinterpret_cast<char*>(change.next);
        spans.push_back({call.parts[s].count, now == nullptr ? nullptr : reinterpret_cast<const float*>(now + offset),
                         reinterpret_cast<float*>(next + offset)});
    }
    return spans;
}

struct Convolve : Operation {
    Place x, y;
    long value_class, offset;
    Convolution shape;
    Convolve(Place x, Place y, long value_class, long offset, const Convolution& shape)
        : x(x), y(y), value_class(value_class), offset(offset), shape(shape) {}
    bool run(const Frame& f) const override {
        std::vector<Span> spans = spans_of(f.call, value_class, offset);
        Convolution c = shape;
        c.x = f[x].data;
        c.x_stride = f[x].stride;
        c.y = f[y].data;
        c.spans = spans.data();
        c.count = long(spans.size());
        f.kernels.convolution(c);
        return true;
    }
};

struct DeltaRule : Operation {
    Place qkv, beta, decay, y;
    long value_class, offset;
    Delta shape;
    DeltaRule(Place qkv, Place beta, Place decay, Place y, long value_class, long offset, const Delta& shape)
        : qkv(qkv), beta(beta), decay(decay), y(y), value_class(value_class), offset(offset), shape(shape) {}
    bool run(const Frame& f) const override {
        std::vector<Span> spans = spans_of(f.call, value_class, offset);
        Delta d = shape;
        d.qkv = f[qkv].data;
        d.qkv_stride = f[qkv].stride;
        d.beta = f[beta].data;
        d.beta_stride = f[beta].stride;
        d.decay = f[decay].data;
        d.decay_stride = f[decay].stride;
        d.y = f[y].data;
        d.spans = spans.data();
        d.count = long(spans.size());
        f.kernels.delta(d);
        return true;
    }
};

struct GateHeads : Operation {
    Place x, gate, y;
    HeadGate shape;
    GateHeads(Place x, Place gate, Place y, const HeadGate& shape) : x(x), gate(gate), y(y), shape(shape) {}
    bool run(const Frame& f) const override {
        HeadGate g = shape;
        g.x = f[x].data;
        g.x_stride = f[x].stride;
        g.gate = f[gate].data;
        g.gate_stride = f[gate].stride;
        g.y = f[y].data;
        g.rows = f.rows;
        f.kernels.gate(g);
        return true;
    }
};

}  // namespace

std::unique_ptr<Operation> convolve(Place x, Place y, long value_class, long offset, const Convolution& shape) {
    return std::make_unique<Convolve>(x, y, value_class, offset, shape);
}

std::unique_ptr<Operation> delta_rule(Place qkv, Place beta, Place decay, Place y, long value_class, long offset,
                                      const Delta& shape) {
    return std::make_unique<DeltaRule>(qkv, beta, decay, y, value_class, offset, shape);
}

std::unique_ptr<Operation> gate_heads(Place x, Place gate, Place y, const HeadGate& shape) {
    return std::make_unique<GateHeads>(x, gate, y, shape);
}

}  // namespace plait

// Operations that are no kernel's own, and how a program runs.
#include "program.hpp"

#include <cstring>
#include <utility>

namespace plait {

namespace {

// Loops over fewer elements than this stay on one thread.
constexpr long SMALL = 16384;

struct Norm : Operation {
    Place x, y;
    const float* weight;
    float eps;
    long groups, width;
    Norm(Place x, Place y, const float* weight, float eps, long groups, long width)
        : x(x), y(y), weight(weight), eps(eps), groups(groups), width(width) {}
    bool run(const Frame& f) const override {
        f.kernels.rms_norm(f[x].data, f[x].stride, weight, eps, f[y].data, f.rows, groups, width);
        return true;
    }
};

// One function of each row, in place: `Each` is given the row of `to` and that of `x`.
template <class Each>
struct Rows : Operation {
    Place to, x;
    long width;
    Each each;
    Rows(Place to, Place x, long width, Each each) : to(to), x(x), width(width), each(each) {}
    bool run(const Frame& f) const override {
        Matrix a = f[to], b = f[x];
#pragma omp parallel for schedule(static) if (f.rows * width >= SMALL)
        for (long r = 0; r < f.rows; ++r) each(a.row(r), b.row(r), width);
        return true;
    }
};

template <class Each>
std::unique_ptr<Operation> rows_of(Place to, Place x, long width, Each each) {
    return std::make_unique<Rows<Each>>(to, x, width, each);
}

struct Add : Operation {
    Place to, x;
    long width;
    Add(Place to, Place x, long width) : to(to), x(x), width(width) {}
    bool run(const Frame& f) const override {
        Matrix a = f[to], b = f[x];
#pragma omp parallel for schedule(static) if (f.rows * width >= SMALL)
        for (long r = 0; r < f.rows; ++r)
            for (long i = 0; i < width; ++i) a.row(r)[i] += b.row(r)[i];
        return true;
    }
    std::unique_ptr<Operation> with_norm(Place from, Place y, const float* weight, float eps, long n) const override;
};

// to += x, y = norm(to) in one pass, where the rows of `to` lie side by side.
struct Joined : Operation {
    Add first;
    Norm second;
    Joined(const Add& add, Place y, const float* weight, float eps)
        : first(add.to, add.x, add.width), second(add.to, y, weight, eps, 1, add.width) {}
    bool run(const Frame& f) const override {
        if (f[first.to].stride != first.width) return first.run(f) && second.run(f);
        Join j{};
        j.h = f[first.to].data;
        j.y = f[first.x].data;
        j.weight = second.weight;
        j.out = f[second.y].data;
        j.y_stride = f[first.x].stride;
        j.rows = f.rows;
        j.width = first.width;
        j.eps = second.eps;
        f.kernels.join(j);
        return true;
    }
};

std::unique_ptr<Operation> Add::with_norm(Place from, Place y, const float* weight, float eps, long n) const {
    if (!(from == to) || n != width || y.buffer == to.buffer) return nullptr;
    return std::make_unique<Joined>(*this, y, weight, eps);
}

struct Multiply : Operation {
    Place x, y;
    std::shared_ptr<Prepared> product;
    Multiply(Place x, Place y, std::shared_ptr<Prepared> product) : x(x), y(y), product(std::move(product)) {}
    bool run(const Frame& f) const override {
        product->run(f[x].data, f[x].stride, f[y].data, f[y].stride, f.rows);
        return true;
    }
};

struct MultiplyEach : Operation {
    Place x, y;
    long x_apart;
    std::vector<std::shared_ptr<Prepared>> held;
    std::vector<const Prepared*> products;
    MultiplyEach(Place x, long x_apart, Place y, std::vector<std::shared_ptr<Prepared>> given)
        : x(x), y(y), x_apart(x_apart), held(std::move(given)) {
        for (const auto& product : held) products.push_back(product.get());
    }
    bool run(const Frame& f) const override {
        if (f.rows == 1 && products.front()->run_each(products, f[x].data, x_apart, f[y].data)) return true;
        const float* from = f[x].data;
        float* to = f[y].data;
        for (const Prepared* product : products) {
            product->run(from, f[x].stride, to, f[y].stride, f.rows);
            from += x_apart;
            to += product->out;
        }
        return true;
    }
};

// Of a matrix whose rows lie side by side.
struct Cap : Operation {
    Place to;
    float cap;
    long width;
    Cap(Place to, float cap, long width) : to(to), cap(cap), width(width) {}
    bool run(const Frame& f) const override {
        f.kernels.softcap(f[to].data, f[to].data, f.rows, width, cap);
        return true;
    }
};

struct Gate : Operation {
    Place x, y;
    Activation activation;
    long width;
    Gate(Place x, Place y, Activation activation, long width) : x(x), y(y), activation(activation), width(width) {}
    bool run(const Frame& f) const override {
        f.kernels.gated(activation, f[x].data, f[x].stride, f[y].data, f.rows, width);
        return true;
    }
};

// The rows of a rotation's table that a call's tokens need.
struct Fetch : Operation {
    Place cosine, sine;
    long table, pairs;
    Fetch(Place cosine, Place sine, long table, long pairs) : cosine(cosine), sine(sine), table(table), pairs(pairs) {}
    bool run(const Frame& f) const override {
        const Turns& turns = f.call.turns[table];
        for (const Part& part : f.call.parts) {
            std::size_t bytes = sizeof(float) * part.count * pairs;
            std::memcpy(f[cosine].data + part.row * pairs, turns.cosine + part.position * pairs, bytes);
            std::memcpy(f[sine].data + part.row * pairs, turns.sine + part.position * pairs, bytes);
        }
        return true;
    }
};

struct Ready : Operation {
    Place x, y, cosine, sine;
    Heads shape;
    Ready(Place x, Place y, Place cosine, Place sine, const Heads& shape)
        : x(x), y(y), cosine(cosine), sine(sine), shape(shape) {}
    bool run(const Frame& f) const override {
        Heads h = shape;
        h.x = f[x].data;
        h.x_stride = f[x].stride;
        h.y = f[y].data;
        h.cosine = f[cosine].data;
        h.sine = f[sine].data;
        h.rows = f.rows;
        f.kernels.heads(h);
        return true;
    }
};

}  // namespace

std::unique_ptr<Operation> norm_rows(Place x, Place y, const float* weight, float eps, long groups, long width) {
    return std::make_unique<Norm>(x, y, weight, eps, groups, width);
}

std::unique_ptr<Operation> add_rows(Place to, Place x, long width) {
    return std::make_unique<Add>(to, x, width);
}

std::unique_ptr<Operation> add_vector(Place to, const float* vector, long width) {
    return rows_of(to, to, width, [vector](float* a, const float*, long n) {
        for (long i = 0; i < n; ++i) a[i] += vector[i];
    });
}

std::unique_ptr<Operation> scale_rows(Place to, float factor, long width) {
    return rows_of(to, to, width, [factor](float* a, const float*, long n) {
        for (long i = 0; i < n; ++i) a[i] *= factor;
    });
}

std::unique_ptr<Operation> cap_rows(Place to, float cap, long width) {
    return std::make_unique<Cap>(to, cap, width);
}

std::unique_ptr<Operation> copy_rows(Place x, Place y, long width) {
    return rows_of(y, x, width, [](float* a, const float* b, long n) { std::memcpy(a, b, sizeof(float) * n); });
}

std::unique_ptr<Operation> multiply_each(Place x, long x_apart, Place y, std::vector<std::shared_ptr<Prepared>> products) {
    return std::make_unique<MultiplyEach>(x, x_apart, y, std::move(products));
}

std::unique_ptr<Operation> multiply(Place x, Place y, std::shared_ptr<Prepared> product) {
    return std::make_unique<Multiply>(x, y, std::move(product));
}

std::unique_ptr<Operation> gate_rows(Place x, Place y, Activation activation, long width) {
    return std::make_unique<Gate>(x, y, activation, width);
}

std::unique_ptr<Operation> fetch_turns(Place cosine, Place sine, long table, long pairs) {
    return std::make_unique<Fetch>(cosine, sine, table, pairs);
}

std::unique_ptr<Operation> ready_heads(Place x, Place y, Place cosine, Place sine, const Heads& shape) {
    return std::make_unique<Ready>(x, y, cosine, sine, shape);
}

void Program::norm(Place x, Place y, const float* weight, float eps, long groups, long width) {
    if (groups == 1 && !operations.empty()) {
        if (auto joined = operations.back()->with_norm(x, y, weight, eps, width)) {
            operations.back() = std::move(joined);
            return;
        }
    }
    add(norm_rows(x, y, weight, eps, groups, width));
}

long Program::run(const Frame& frame) const {
    for (std::size_t i = 0; i < operations.size(); ++i)
        if (!operations[i]->run(frame)) return long(i);
    return -1;
}

}  // namespace plait

// The Python module: picks the level once, checks nothing but what memory safety needs, and calls the kernels.
// Tensors come as addresses: their owner (runtime/kernels.py) has checked type, shape and layout.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nb = nanobind;
using Address = std::uintptr_t;

namespace {

// The kernel lets a process use matrix tiles only after it has asked for them.
bool may_use_tiles() {
#if defined(PLAIT_HAS_AMX) && defined(__linux__)
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    if (!__builtin_cpu_supports("avx512f")) return false;
    unsigned a = 7, b = 0, c = 0, d = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    bool there = (d >> 22 & 1) && (d >> 24 & 1);  // AMX-BF16, AMX-TILE
    return there && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
#else
    return false;
#endif
}

bool has_bf16_products() {
#if defined(PLAIT_HAS_AVX512BF16)
    if (!__builtin_cpu_supports("avx512f")) return false;
    unsigned a = 7, b = 0, c = 1, d = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return a >> 5 & 1;
#else
    return false;
#endif
}

using LinearBf16 = decltype(plait::Kernels::linear_bf16);

struct Level {
    std::string name;
    const plait::Kernels* kernels;
    LinearBf16 linear_bf16;
    std::string bf16_form;
};

std::vector<Level> levels() {
    std::vector<Level> found;
    auto plain = [&](const plait::Kernels& k) { found.push_back({k.name, &k, k.linear_bf16, k.name}); };
    plain(plait::portable_kernels);
#if defined(PLAIT_HAS_X86_LEVELS)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        plain(plait::avx2_kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        plain(plait::avx512_kernels);
#if defined(PLAIT_HAS_AVX512BF16)
        if (has_bf16_products())
            found.push_back({"avx512bf16", &plait::avx512_kernels, plait::linear_bf16_avx512bf16, "avx512bf16"});
#endif
#if defined(PLAIT_HAS_AMX)
        if (has_bf16_products() && may_use_tiles()) found.push_back({"amx", &plait::avx512_kernels, plait::linear_bf16_amx, "amx"});
#endif
    }
#endif
    return found;
}

class Native {
  public:
    explicit Native(const std::string& name) {
        for (const Level& level : levels())
            if (level.name == name) {
                level_ = level;
                return;
            }
        throw std::invalid_argument("this machine has no level " + name);
    }

    // activation: -1: a plain product
    void linear_f32(Address x, long x_stride, Address w, Address y, long rows, long out, long in,
                    int activation) const {
        nb::gil_scoped_release released;
        level_.kernels->linear_f32(product<float>(x, x_stride, w, y, rows, out, in, activation));
    }

    void linear_bf16(Address x, long x_stride, Address w, Address y, long rows, long out, long in,
                     int activation) const {
        nb::gil_scoped_release released;
        level_.linear_bf16(product<std::uint16_t>(x, x_stride, w, y, rows, out, in, activation));
    }

    void rms_norm(Address x, long x_stride, Address weight, float eps, Address y, long rows, long groups,
                  long width) const {
        nb::gil_scoped_release released;
        level_.kernels->rms_norm(at<float>(x), x_stride, at<float>(weight), eps, at<float>(y), rows, groups, width);
    }

    void heads(Address x, long x_stride, Address weight, float eps, Address cosine, Address sine, long pairs, long start,
               long distance, bool adjacent, Address y, long rows, long groups, long width) const {
        nb::gil_scoped_release released;
        plait::Heads h{};
        h.x = at<float>(x);
        h.y = at<float>(y);
        h.weight = at<float>(weight);
        h.cosine = at<float>(cosine);
        h.sine = at<float>(sine);
        h.eps = eps;
        h.x_stride = x_stride;
        h.rows = rows;
        h.groups = groups;
        h.width = width;
        h.pairs = pairs;
        h.start = start;
        h.distance = distance;
        h.adjacent = adjacent;
        level_.kernels->heads(h);
    }

    void gated(int activation, Address x, long x_stride, Address y, long rows, long width) const {
        nb::gil_scoped_release released;
        level_.kernels->gated(plait::Activation(activation), at<float>(x), x_stride, at<float>(y), rows, width);
    }

    void attention(Address queries, long query_stride, const std::vector<Address>& keys,
                   const std::vector<Address>& values, Address sinks, Address out, long n, long heads, long kv_heads,
                   long dim, long v_dim, long start, long first_block, long window, float scale, float cap,
                   int store) const {
        nb::gil_scoped_release released;
        plait::Attention a{};
        a.queries = at<float>(queries);
        a.out = at<float>(out);
        a.sinks = at<float>(sinks);
        a.keys = reinterpret_cast<const void* const*>(keys.data());
        a.values = reinterpret_cast<const void* const*>(values.data());
        a.n = n;
        a.heads = heads;
        a.kv_heads = kv_heads;
        a.dim = dim;
        a.v_dim = v_dim;
        a.query_stride = query_stride;
        a.start = start;
        a.first_block = first_block;
        a.window = window;
        a.scale = scale;
        a.cap = cap;
        a.store = plait::Store(store);
        level_.kernels->attention(a);
    }

    const std::string& name() const { return level_.name; }
    const std::string& bf16_form() const { return level_.bf16_form; }

  private:
    template <class Weight>
    static plait::Product<Weight> product(Address x, long x_stride, Address w, Address y, long rows, long out, long in,
                                          int activation) {
        plait::Product<Weight> p{};
        p.x = at<float>(x);
        p.w = at<Weight>(w);
        p.y = at<float>(y);
        p.x_stride = x_stride;
        p.rows = rows;
        p.out = out;
        p.in = in;
        p.gated = activation >= 0;
        p.activation = plait::Activation(p.gated ? activation : 0);
        return p;
    }

    template <class T>
    static T* at(Address address) {
        return reinterpret_cast<T*>(address);
    }

    Level level_;
};

// Panels of 16 outputs, zeros beyond the last: [panel][in][16].
void pack_f32(Address weight, Address packed, long out, long in) {
    nb::gil_scoped_release released;
    const auto* w = reinterpret_cast<const float*>(weight);
    auto* to = reinterpret_cast<float*>(packed);
#pragma omp parallel for schedule(static)
    for (long p = 0; p < (out + 15) / 16; ++p)
        for (long k = 0; k < in; ++k)
            for (long i = 0; i < 16; ++i)
                to[(p * in + k) * 16 + i] = p * 16 + i < out ? w[(p * 16 + i) * in + k] : 0.0f;
}

// Panels of 16 outputs in pairs of columns: [panel][in / 2][16][2].
void pack_bf16(Address weight, Address packed, long out, long in) {
    nb::gil_scoped_release released;
    const auto* w = reinterpret_cast<const std::uint16_t*>(weight);
    auto* to = reinterpret_cast<std::uint16_t*>(packed);
    long padded = (in + 31) / 32 * 32;
#pragma omp parallel for schedule(static)
    for (long p = 0; p < (out + 15) / 16; ++p)
        for (long k = 0; k < padded; k += 2)
            for (long i = 0; i < 16; ++i)
                for (long j = 0; j < 2; ++j) {
                    bool there = p * 16 + i < out && k + j < in;
                    to[(p * padded + k) * 16 + 2 * i + j] = there ? w[(p * 16 + i) * in + k + j] : 0;
                }
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Kernels of the CPU; see plait.runtime.kernels.";
    m.def("levels", [] {
        std::vector<std::string> names;
        for (const Level& level : levels()) names.push_back(level.name);
        return names;
    });
    m.def("pack_f32", &pack_f32);
    m.def("pack_bf16", &pack_bf16);
    nb::class_<Native>(m, "Native")
        .def(nb::init<const std::string&>())
        .def_prop_ro("name", &Native::name)
        .def_prop_ro("bf16_form", &Native::bf16_form)
        .def("linear_f32", &Native::linear_f32)
        .def("linear_bf16", &Native::linear_bf16)
        .def("rms_norm", &Native::rms_norm)
        .def("heads", &Native::heads)
        .def("gated", &Native::gated)
        .def("attention", &Native::attention);
}

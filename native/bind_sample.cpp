// Choosing from a row of logits.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "module.hpp"

namespace plait {

namespace {

constexpr long LANES = 16;

// The largest number, its lowest index, whether one is no number, and the sum of e^(x - largest) where all are finite or
// below.
std::tuple<long, float, bool, double> peak(const Native& native, Address row, long n) {
    nb::gil_scoped_release released;
    Peak found{};
    native.kernels().peak(at<float>(row), n, &found);
    double total = 0.0;
    if (!found.broken && std::isfinite(found.value)) total = native.kernels().sum_exp(at<float>(row), n, found.value);
    return {found.index, found.value, found.broken, total};
}

// Indices of the `count` largest numbers above -infinity, ascending, of equal ones the lowest; at most `count` are
// written to `out`. Returns how many. There is no not-a-number among them.
//
// The largest of each of many groups are found first. At least `count` elements are as large as the `count`-th largest
// of those, so all that are smaller are out, and only groups with a larger one are looked at.
long largest(const Native& native, Address row_at, long n, long count, Address out_at) {
    nb::gil_scoped_release released;
    const float* row = at<const float>(row_at);
    auto* out = at<std::int64_t>(out_at);
    long depth = 32;
    while (depth > 1 && n / depth < 2 * count) depth /= 2;
    long whole = n / (LANES * depth) * LANES * depth;
    std::vector<float> most(whole / depth);
    native.kernels().maxima(row, whole, depth, most.data());
    constexpr float NONE = -__builtin_inff();
    float edge = NONE;
    if (count <= long(most.size())) {
        std::vector<float> sorted = most;
        std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(), std::greater<float>());
        edge = sorted[count - 1];
    }
    std::vector<long> found;
    auto take = [&](long i) {
        if (row[i] >= edge && row[i] > NONE) found.push_back(i);
    };
    for (long m = 0; m < long(most.size()); ++m)
        if (most[m] >= edge)
            for (long t = 0; t < depth; ++t) take((m / LANES * depth + t) * LANES + m % LANES);
    for (long i = whole; i < n; ++i) take(i);
    if (long(found.size()) > count) {
        auto before = [row](long a, long b) { return row[a] > row[b] || (row[a] == row[b] && a < b); };
        std::nth_element(found.begin(), found.begin() + count, found.end(), before);
        found.resize(count);
    }
    std::sort(found.begin(), found.end());
    std::copy(found.begin(), found.end(), out);
    return long(found.size());
}

}  // namespace

void bind_sample(Bound& native) { native.def("peak", &peak).def("largest", &largest); }

}  // namespace plait

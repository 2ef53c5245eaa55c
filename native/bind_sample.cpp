// Choosing from a row of logits.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "module.hpp"
#include "weights.hpp"

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

// Numbers that are sorted at once.
constexpr long FEW = 64;

struct Scored {
    double score;
    long token;
};

// A row under a temperature and, ascending, tokens with scores of their own: what penalties have made of them. The row has
// -infinity there.
struct Scores {
    const Kernels& kernels;
    Tempered row;
    std::vector<Scored> own;

    double weight(double score) const { return exp_below(above_peak(row, score)); }

    // The last token of the smallest set of most probable ones whose weights reach `share` of all.
    Scored nucleus(double share) const {
        std::vector<double> sums(BUCKETS);
        kernels.bucket_masses(row, sums.data());
        for (const Scored& s : own) sums[bucket_of(row, s.score)] += weight(s.score);
        double total = 0.0, before = 0.0;
        for (double sum : sums) total += sum;
        double goal = share * total;
        long bucket = 0;
        while (bucket + 1 < BUCKETS && before + sums[bucket] < goal) before += sums[bucket++];
        std::vector<Scored> found = members(bucket);
        auto first = found.begin(), stop = found.end();
        auto likelier = [](const Scored& a, const Scored& b) {
            return a.score > b.score || (a.score == b.score && a.token < b.token);
        };
        // The half in which the goal is reached, as long as there are many: flat rows have all in one bucket.
        while (stop - first > FEW) {
            auto middle = first + (stop - first) / 2;
            std::nth_element(first, middle, stop, likelier);
            double half = before;
            for (auto s = first; s < middle; ++s) half += weight(s->score);
            if (half >= goal) stop = middle;
            else before = half, first = middle;
        }
        std::sort(first, stop, likelier);
        // Rounding may leave the goal just beyond all that are kept.
        Scored last{row.peak, row.n};
        for (; first < stop; ++first) {
            last = *first;
            if ((before += weight(first->score)) >= goal) break;
        }
        return last;
    }

    std::vector<Scored> members(long bucket) const {
        // A little more than the bucket: what lies there is asked.
        double top = row.peak - row.temperature * (double(bucket) / BUCKETS_EACH);
        double slack = 1e-6 * (row.temperature + std::fabs(top)), lowest = top - row.temperature / BUCKETS_EACH - slack;
        if (bucket == BUCKETS - 1) lowest = -INFINITY;
        std::unique_ptr<std::int64_t[]> tokens(new std::int64_t[row.n]);
        long count = kernels.between(row.row, row.n, lowest, top + slack, tokens.get());
        std::vector<Scored> found;
        for (long i = 0; i < count; ++i)
            if (double score = row.row[tokens[i]]; bucket_of(row, score) == bucket) found.push_back({score, tokens[i]});
        for (const Scored& s : own)
            if (bucket_of(row, s.score) == bucket) found.push_back(s);
        return found;
    }

    // The first token that is kept whose running sum exceeds `fraction` of all; a weight of 0 is never it.
    long pick(const Kept& kept, double fraction) const {
        std::vector<double> sums((row.n + SUMMED - 1) / SUMMED);
        kernels.masses(row, kept, sums.data());
        auto stays = [&](double score, long token) {
            double its = weight(score);
            return is_kept(kept, score, token, its) ? its : 0.0;
        };
        for (const Scored& s : own) sums[s.token / SUMMED] += stays(s.score, s.token);
        double total = 0.0, before = 0.0;
        for (double sum : sums) total += sum;
        double goal = fraction * total;
        long last = long(sums.size()) - 1, piece = 0;
        while (last > 0 && sums[last] == 0.0) --last;
        while (piece < last && before + sums[piece] <= goal) before += sums[piece++];
        auto s = std::lower_bound(own.begin(), own.end(), piece * SUMMED,
                                  [](const Scored& a, long token) { return a.token < token; });
        long chosen = piece * SUMMED;
        for (long token = piece * SUMMED; token < std::min((piece + 1) * SUMMED, row.n); ++token) {
            double score = s != own.end() && s->token == token ? (s++)->score : double(row.row[token]);
            double its = stays(score, token);
            if (its == 0.0) continue;
            chosen = token;
            if ((before += its) > goal) break;
        }
        return chosen;
    }
};

// The token that `fraction` of the weights leads to, in the order of tokens, among the smallest set of most probable ones
// whose weights reach `share`, with weights of `least` and more beside the peak's. `tokens`, `scores` [count]: see Scores,
// int64 and float64.
long choose(const Native& native, Address row, long n, double peak, double temperature, Address tokens, Address scores,
            long count, double share, double least, double fraction) {
    nb::gil_scoped_release released;
    Scores found{native.kernels(), {at<const float>(row), n, peak, temperature}, {}};
    for (long i = 0; i < count; ++i)
        found.own.push_back({at<const double>(scores)[i], long(at<const std::int64_t>(tokens)[i])});
    Scored last{-INFINITY, n};
    if (share < 1.0) last = found.nucleus(share);
    return found.pick({last.score, last.token, least}, fraction);
}

}  // namespace

void bind_sample(Bound& native) { native.def("peak", &peak).def("largest", &largest).def("choose", &choose); }

}  // namespace plait

#include "mixture.hpp"

#include <cmath>
#include <limits>
#include <vector>

namespace plait {

namespace {

constexpr float NONE = -std::numeric_limits<float>::infinity();
// See ops/router.py.
constexpr float TINY = 1e-20f;

// The position of the largest of `n` numbers that is not taken yet, of equal ones the lowest. `taken` is as long.
long best_of(const float* x, const std::vector<char>& taken, long n) {
    long best = -1;
    for (long i = 0; i < n; ++i)
        if (!taken[i] && (best < 0 || x[i] > x[best])) best = i;
    return best;
}

struct Row {
    std::vector<float> scores, wanted, group_scores;
    std::vector<char> taken, kept;
    explicit Row(const Routing& r)
        : scores(r.experts), wanted(r.experts), group_scores(r.groups), taken(r.experts), kept(r.groups) {}

    void score(const Routing& r, const float* logits) {
        if (r.softmax) {
            float most = NONE;
            for (long e = 0; e < r.experts; ++e) most = logits[e] > most ? logits[e] : most;
            double total = 0.0;
            for (long e = 0; e < r.experts; ++e) total += double(scores[e] = std::exp(logits[e] - most));
            for (float& s : scores) s = float(s / total);
        } else {
            for (long e = 0; e < r.experts; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
        }
        for (long e = 0; e < r.experts; ++e) wanted[e] = r.bias == nullptr ? scores[e] : scores[e] + r.bias[e];
    }

    // Experts outside the best groups are below any other. A group's score is the sum of its two best.
    void limit(const Routing& r) {
        long size = r.experts / r.groups;
        for (long g = 0; g < r.groups; ++g) {
            float first = NONE, second = NONE;
            for (long i = g * size; i < (g + 1) * size; ++i) {
                if (wanted[i] > first) second = first, first = wanted[i];
                else if (wanted[i] > second) second = wanted[i];
            }
            group_scores[g] = size > 1 ? first + second : first;
        }
        kept.assign(r.groups, 0);
        for (long k = 0; k < r.kept_groups; ++k) kept[best_of(group_scores.data(), kept, r.groups)] = 1;
        for (long e = 0; e < r.experts; ++e)
            if (!kept[e / size]) wanted[e] = NONE;
    }

    void choose(const Routing& r, float* chosen, float* weights) {
        taken.assign(r.experts, 0);
        for (long k = 0; k < r.active; ++k) taken[best_of(wanted.data(), taken, r.experts)] = 1;
        float total = 0.0f;
        long at = 0;
        for (long e = 0; e < r.experts; ++e) {
            if (!taken[e]) continue;
            chosen[at] = float(e);
            weights[at++] = scores[e];
            total += scores[e];
        }
        for (long k = 0; k < r.active; ++k) {
            if (r.renormalise) weights[k] /= total + TINY;
            weights[k] *= r.scale;
            if (r.factors != nullptr) weights[k] *= r.factors[long(chosen[k])];
        }
    }
};

}  // namespace

void route(const Routing& r, const float* logits, long logits_stride, float* chosen, float* weights, long rows) {
#pragma omp parallel if (rows * r.experts >= 8192)
    {
        Row row(r);
#pragma omp for schedule(static)
        for (long i = 0; i < rows; ++i) {
            row.score(r, logits + i * logits_stride);
            if (r.kept_groups < r.groups) row.limit(r);
            row.choose(r, chosen + i * r.active, weights + i * r.active);
        }
    }
}

}  // namespace plait

// Mixtures of experts: which experts a row visits. Level by level the same.
#pragma once

namespace plait {

struct Routing {
    long experts, active, groups, kept_groups;
    bool softmax, renormalise;  // scores: softmax over all experts, else a sigmoid of each
    float scale;
    const float* bias;     // [experts], on the scores for the choice only; or null
    const float* factors;  // [experts], on the weights in the end; or null
};

// Of each row of logits the `active` experts, ascending, and their weights; see ops/router.py.
void route(const Routing& r, const float* logits, long logits_stride, float* chosen, float* weights, long rows);

}  // namespace plait

// The weight of a logit under a temperature, e^((x - peak) / temperature), in float64: for every level and for what is
// compiled for none, with the same bits.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace {

// e^d for d <= 0, to 3e-16 of itself; 0 below -700. d = n ln 2 + r: a series in r, and n added to its exponent.
[[gnu::always_inline]] inline double exp_below(double d) {
    constexpr double SHIFT = 0x1.8p52, LOG2_E = 0x1.71547652b82fep0;
    constexpr double LN2_HIGH = 0x1.62e42feep-1, LN2_LOW = 0x1.a39ef35793c76p-33;
    double held = d < -700.0 ? -700.0 : d;
    double shifted = held * LOG2_E + SHIFT, n = shifted - SHIFT;
    double r = held - n * LN2_HIGH - n * LN2_LOW;
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    double scaled = __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, p) + (__builtin_bit_cast(std::uint64_t, shifted) << 52));
    return d < -700.0 ? 0.0 : scaled;
}

// In temperatures, how far a score lies above the peak: 0 or less.
[[gnu::always_inline]] inline double above_peak(const plait::Tempered& t, double score) {
    return (score - t.peak) / t.temperature;
}

// The bucket of a score: the further below the peak the higher, the last for all beyond.
[[gnu::always_inline]] inline std::int32_t bucket_of(const plait::Tempered& t, double score) {
    double at = -above_peak(t, score) * plait::BUCKETS_EACH, most = double(plait::BUCKETS - 1);
    return std::int32_t(at < most ? at : most);
}

[[gnu::always_inline]] inline bool is_kept(const plait::Kept& kept, double score, long token, double weight) {
    return ((score > kept.edge) | ((score == kept.edge) & (token <= kept.last))) & (weight >= kept.least);
}

}  // namespace

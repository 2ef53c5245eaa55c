// Reading memory as fast as it comes: what a bound on tokens per second is made of.
#include "module.hpp"

namespace plait {

namespace {

constexpr long LINE = 8, AHEAD = 16;  // words of a line; lines that are asked for before they are read

// Two streams side by side: one alone does not always fill the path to memory.
std::uint64_t folded(const std::uint64_t* words, long count) {
    const long half = count / (2 * LINE) * LINE;
    std::uint64_t sums[LINE] = {};
    for (long i = 0; i < half; i += LINE)
        for (long stream = 0; stream < 2; ++stream) {
            const std::uint64_t* line = words + stream * half + i;
            __builtin_prefetch(line + AHEAD * LINE);
            for (long j = 0; j < LINE; ++j) sums[j] ^= line[j];
        }
    std::uint64_t all = 0;
    for (std::uint64_t sum : sums) all ^= sum;
    for (long i = 2 * half; i < count; ++i) all ^= words[i];
    return all;
}

// The exclusive or of `count` words of 8 bytes, read by all threads, a run of pieces each.
std::uint64_t fold(Address address, long count) {
    nb::gil_scoped_release released;
    const auto* words = at<const std::uint64_t>(address);
    constexpr long PIECES = 256;
    const long piece = (count / PIECES + LINE) / LINE * LINE;
    std::uint64_t all = 0;
#pragma omp parallel for schedule(static) reduction(^ : all)
    for (long i = 0; i < PIECES; ++i) {
        const long start = i * piece < count ? i * piece : count;
        const long stop = start + piece < count ? start + piece : count;
        all ^= folded(words + start, stop - start);
    }
    return all;
}

}  // namespace

void bind_measure(nb::module_& m) { m.def("fold", &fold); }

}  // namespace plait

// Softmax attention over slabs of 64 keys: what all forms share.
//
// Keys are taken in chunks of 8 slabs counted from position 0. In a chunk a row has its own maximum, its own sum of
// weights and its own mix of values; chunks are joined in order. So a row's bits depend on its position and the keys
// it sees, not on which rows are computed beside it or which thread takes which chunk.
//
// A form says how scores of one slab are made (`score`), how weights are put down (`keep`), how a chunk's values are mixed
// (`mix`), and what order two vectors of a mix have (`order`): see attention_fma.hpp and attention_amx.cpp.
#pragma once

#include "kernels.hpp"
#include "memory.hpp"
#include "simd.hpp"
#include "stored.hpp"

namespace PLAIT_LEVEL {

constexpr long BLOCK = 64, CHUNK = 8, CHUNK_KEYS = BLOCK * CHUNK;
// Scores of a row lie this far from the next row's. Lines 2048 bytes apart would share sets of the cache.
constexpr long STRIDE = CHUNK_KEYS + 32;
constexpr float NONE = -__builtin_inff();

PLAIT_INLINE long clamped(long x, long low, long high) { return smaller(larger(x, low), high); }
PLAIT_INLINE void fill(float* from, float* stop, float value) {
    for (; from < stop; ++from) *from = value;
}
PLAIT_INLINE long ceil_to(long n, long step) { return (n + step - 1) / step * step; }

// Rows of one span that meet the keys of one KV head: row r is query head `r % group` of it at position `r / group`.
struct Rows {
    const plait::Attention& a;
    const plait::AttentionSpan& span;
    long head, first, count;

    long group() const { return a.heads / a.kv_heads; }
    long row(long r) const { return span.row + (first + r) / group(); }
    long query_head(long r) const { return head * group() + (first + r) % group(); }
    long position(long r) const { return span.start + (first + r) / group(); }
    long lowest(long r) const { return a.window == 0 ? 0 : larger(0, position(r) - a.window + 1); }
    long begin() const { return lowest(0) / CHUNK_KEYS; }
    long stop() const { return position(count - 1) / CHUNK_KEYS + 1; }
    const char* slab(long block) const {
        return reinterpret_cast<const char*>(a.addresses[span.table + block - span.first_block]);
    }
    // The head's rows of a part (of the values) in a slab.
    const char* keys(long block, const plait::AttentionPart& part) const {
        return slab(block) + part.offset + head * BLOCK * row_bytes(a.store, part.dim);
    }
    const char* values(long block) const {
        return slab(block) + a.value_offset + head * BLOCK * row_bytes(a.store, a.v_dim);
    }
};

// What a chunk leaves behind: for each row its maximum, its sum and its mix.
struct Partial {
    float* most;
    float* total;
    float* mixed;
};

// Slabs [low, high) of a chunk, and which of them hold a key that a row sees.
struct Seen {
    long chunk, low, high;
    bool used[CHUNK];
    bool uses(long block) const { return used[block - chunk * CHUNK]; }
    long column(long block) const { return (block - chunk * CHUNK) * BLOCK; }
};

static Seen seen_of(const Rows& rows, long chunk) {
    const plait::Attention& a = rows.a;
    Seen seen{chunk, larger(chunk * CHUNK, rows.lowest(0) / BLOCK),
              smaller((chunk + 1) * CHUNK, rows.position(rows.count - 1) / BLOCK + 1), {}};
    for (long b = seen.low; b < seen.high; ++b) {
        bool used = a.chosen == nullptr;
        for (long i = rows.row(0); !used && i <= rows.row(rows.count - 1); ++i) {
            const std::uint8_t* bytes = a.chosen + i * a.chosen_stride + b * BLOCK;
            std::uint8_t any = 0;
            for (long j = 0; j < BLOCK; ++j) any |= bytes[j];
            used = any != 0;
        }
        seen.used[b - chunk * CHUNK] = used;
    }
    return seen;
}

// Scores of row r become weights.
template <class Form>
PLAIT_INLINE void weigh(const Rows& rows, long r, const Seen& seen, float* row, Partial out) {
    const plait::Attention& a = rows.a;
    long key = seen.chunk * CHUNK_KEYS, from = seen.column(seen.low), stop = seen.column(seen.high);
    if (a.cap != 0.0f)
        for (long j = from; j < stop; j += LANES)
            store(row + j, mul(tanh(div(load(row + j), set1(a.cap))), set1(a.cap)));
    // Keys [first, last) of the chunk are visible.
    long first = clamped(rows.lowest(r) - key, from, stop), last = clamped(rows.position(r) + 1 - key, from, stop);
    fill(row + from, row + first, NONE);
    fill(row + larger(last, first), row + stop, NONE);
    if (a.chosen != nullptr) {
        const std::uint8_t* chosen = a.chosen + rows.row(r) * a.chosen_stride + key;
        for (long b = seen.low; b < seen.high; ++b)
            if (!seen.uses(b)) fill(row + seen.column(b), row + seen.column(b) + BLOCK, NONE);
        for (long j = from; j < stop; ++j) row[j] = chosen[j] ? row[j] : NONE;
    }
    Vec most = set1(NONE), more = set1(NONE);
    for (long j = from; j < stop; j += 2 * LANES) {
        most = max(most, load(row + j));
        more = max(more, load(row + j + LANES));
    }
    float top = out.most[r] = highest(max(most, more));
    Vec total = set1(0.0f);
    if (top == NONE) {
        fill(row + from, row + stop, 0.0f);
    } else {
        Vec shift = set1(top);
        for (long j = from; j < stop; j += 2 * LANES) {
            Vec low = exp(sub(load(row + j), shift)), high = exp(sub(load(row + j + LANES), shift));
            Form::keep(row + j, low, high);
            total = add(add(total, low), high);
        }
    }
    out.total[r] = sum(total);
}

// A chunk of some rows; none where `rows` is null.
struct Turn {
    const Rows* rows;
    long chunk;
};

// A chunk, after which the same thread takes `next`.
template <class Form>
static void one_chunk(Form& form, const Rows& rows, long chunk, Turn next, float* scores, Partial out) {
    Seen seen = seen_of(rows, chunk);
    form.begin(rows, seen, next);
    for (long b = seen.low; b < seen.high; ++b)
        if (seen.uses(b)) form.score(rows, b, scores + seen.column(b));
    for (long r = 0; r < rows.count; ++r) weigh<Form>(rows, r, seen, scores + r * STRIDE, out);
    form.mix(rows, seen, scores, out.mixed);
}

// Takes a chunk into what the chunks before it made. e^(a - b) of equal numbers is exactly 1.
static void join(Partial into, Partial part, long rows, long padded, bool first) {
    for (long r = 0; r < rows; ++r) {
        float* mixed = into.mixed + r * padded;
        const float* more = part.mixed + r * padded;
        if (first || into.most[r] == NONE) {
            into.most[r] = part.most[r];
            into.total[r] = part.total[r];
            std::memcpy(mixed, more, sizeof(float) * padded);
            continue;
        }
        if (part.most[r] == NONE) continue;
        float most = into.most[r] > part.most[r] ? into.most[r] : part.most[r];
        float scales[LANES] = {into.most[r] - most, part.most[r] - most};
        store(scales, exp(load(scales)));
        into.most[r] = most;
        into.total[r] = into.total[r] * scales[0] + part.total[r] * scales[1];
        Vec keep = set1(scales[0]), take = set1(scales[1]);
        for (long d = 0; d < padded; d += LANES)
            store(mixed + d, fma(load(more + d), take, mul(load(mixed + d), keep)));
    }
}

template <class Form>
static void finish(const Rows& rows, Partial made, long padded) {
    const plait::Attention& a = rows.a;
    for (long r = 0; r < rows.count; ++r) {
        long head = rows.query_head(r);
        float total = made.total[r], keep = 1.0f;
        if (a.sinks != nullptr) {
            float most = made.most[r] > a.sinks[head] ? made.most[r] : a.sinks[head];
            float scales[LANES] = {made.most[r] - most, a.sinks[head] - most};
            store(scales, exp(load(scales)));
            keep = scales[0];
            total = total * keep + scales[1];
        }
        float* to = a.out + (rows.row(r) * a.heads + head) * a.v_dim;
        const float* from = made.mixed + r * padded;
        Vec by = set1(keep), of = set1(total);
        auto put = [&](long d, Vec x) {
            if (d + LANES <= a.v_dim)
                store(to + d, div(mul(x, by), of));
            else if (d < a.v_dim)
                store_n(to + d, div(mul(x, by), of), int(a.v_dim - d));
        };
        for (long d = 0; d < a.v_dim; d += 2 * LANES) {
            Vec low = load(from + d), high = d + LANES < padded ? load(from + d + LANES) : set1(0.0f);
            Form::order(low, high);
            put(d, low);
            put(d + LANES, high);
        }
    }
}

// Partials of `count` rows for each of several chunks, in one piece of memory.
struct Partials {
    Room all;
    long count, padded;
    Partials(long chunks, long count, long padded)
        : all(chunks * count * (padded + 2)), count(count), padded(padded) {}
    Partial at(long chunk) {
        float* mixed = all.data() + chunk * count * (padded + 2);
        return {mixed + count * padded, mixed + count * padded + count, mixed};
    }
};

}  // namespace PLAIT_LEVEL

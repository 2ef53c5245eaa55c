// Products with packed blocks on the processor's matrix tiles (AMX), for more rows than a few. The sums of a group are
// those of the other forms, exactly, and so are the float operations that follow: the bits are theirs.
#include <immintrin.h>

#include "blocks_codes.hpp"
#include "blocks_rows.hpp"
#include "blocks_share.hpp"

namespace plait {

namespace {

using namespace PLAIT_LEVEL;

// Rows from which on tiles are faster, and bytes of rows that stay in the cache while panels pass by.
constexpr long LEAST_ROWS = 5, NEAR = 1 << 20;

struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes_per_row[16] = {};
    std::uint8_t rows[16] = {};
};

// Tiles 0 to 3: sums of `height` rows by 16 outputs. 4, 5: rows' bytes. 6, 7: codes.
void configure(long height, bool halves) {
    Config config;
    for (int t = 0; t < 6; ++t) config.rows[t] = std::uint8_t(height);
    for (int t : {6, 7}) config.rows[t] = halves ? 4 : 8;
    for (int t : {0, 1, 2, 3, 6, 7}) config.bytes_per_row[t] = 64;
    for (int t : {4, 5}) config.bytes_per_row[t] = halves ? 16 : 32;
    _tile_loadconfig(&config);
}

// A panel taken out: codes with sign, [group][operand][16][4], and its scales as floats, [group][first, last, offset].
struct Panel {
    Held<std::int8_t> codes;
    Held<float> scales;
    explicit Panel(long groups) : codes(groups * 512), scales(groups * 48) {}
};

template <Form F, int J>
PLAIT_INLINE void take_operands(const std::uint8_t* record, std::int8_t* to) {
    Ints low, high;
    operands<F, J>(record, low, high);
    store_bytes(to + 64 * J, minus_byte(low, shape_of(F).zero));
    store_bytes(to + 64 * (J + 4), minus_byte(high, shape_of(F).zero));
}

template <Form F>
void take(const std::uint8_t* panel, long groups, Panel& to) {
    const std::uint8_t* side = panel + groups * record_bytes(F);
    for (long g = 0; g < groups; ++g) {
        const std::uint8_t* record = panel + g * record_bytes(F);
        for (long ahead = 0; ahead < record_bytes(F); ahead += 64) __builtin_prefetch(record + 4096 + ahead);
        std::int8_t* codes = to.codes.at + g * 512;
        take_operands<F, 0>(record, codes);
        take_operands<F, 1>(record, codes);
        take_operands<F, 2>(record, codes);
        take_operands<F, 3>(record, codes);
        Vec first, last, offset;
        scales<F>(side, g, first, last, offset);
        store(to.scales.at + g * 48, first);
        if (has_halves(F)) store(to.scales.at + g * 48 + 16, last);
        if (has_offset(F)) store(to.scales.at + g * 48 + 32, offset);
    }
}

void take(const BlockPart& part, const std::uint8_t* panel, long groups, Panel& to) {
    switch (part.form) {
        case Form::q4_0: return take<Form::q4_0>(panel, groups, to);
        case Form::q4_1: return take<Form::q4_1>(panel, groups, to);
        case Form::q5_0: return take<Form::q5_0>(panel, groups, to);
        case Form::q5_1: return take<Form::q5_1>(panel, groups, to);
        case Form::q8_0: return take<Form::q8_0>(panel, groups, to);
        case Form::q4_k: return take<Form::q4_k>(panel, groups, to);
        case Form::q5_k: return take<Form::q5_k>(panel, groups, to);
        case Form::q6_k: return take<Form::q6_k>(panel, groups, to);
    }
}

struct alignas(64) Tiles {
    std::int32_t high[256], low[256];
};

// Sums of one group, or of half a group: tiles 0 and 1 or 2 and 3, so that one may be emptied while the other fills.
template <bool ODD>
PLAIT_INLINE void multiply(const std::int8_t* rows, const std::int8_t* codes, Tiles& to) {
    if constexpr (ODD) {
        _tile_loadd(7, codes, 64);
        _tile_loadd(4, rows, 64);
        _tile_zero(2);
        _tile_dpbssd(2, 4, 7);
        _tile_loadd(5, rows + 32, 64);
        _tile_zero(3);
        _tile_dpbssd(3, 5, 7);
        _tile_stored(2, to.high, 64);
        _tile_stored(3, to.low, 64);
    } else {
        _tile_loadd(6, codes, 64);
        _tile_loadd(4, rows, 64);
        _tile_zero(0);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(5, rows + 32, 64);
        _tile_zero(1);
        _tile_dpbssd(1, 5, 6);
        _tile_stored(0, to.high, 64);
        _tile_stored(1, to.low, 64);
    }
}

template <int HEIGHT, bool OFFSET>
PLAIT_INLINE void take_in(const Tiles& made, const float* scale, const float* sums, const float* weights,
                          const float* offsets, __m512 (&acc)[HEIGHT]) {
    __m512 weight = _mm512_loadu_ps(weights), offset = _mm512_setzero_ps();
    if constexpr (OFFSET) offset = _mm512_loadu_ps(offsets);
#pragma GCC unroll 16
    for (int r = 0; r < HEIGHT; ++r) {
        __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(made.high + 16 * r), 8),
                                         _mm512_load_si512(made.low + 16 * r));
        __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(scale[r]));
        acc[r] = _mm512_fmadd_ps(scaled, weight, acc[r]);
        if constexpr (OFFSET) acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(sums[r]), offset, acc[r]);
    }
}

// One strip times one panel, to [HEIGHT][16]. A group's sums are made while those of the one before are taken in.
template <int HEIGHT, bool OFFSET, bool HALVES>
void block(const Planes& planes, long strip, const Panel& panel, float* made) {
    Tiles even, odd;
    __m512 acc[HEIGHT];
#pragma GCC unroll 16
    for (int r = 0; r < HEIGHT; ++r) acc[r] = _mm512_setzero_ps();
    const Entry* entries = planes.of(strip);
    const std::int8_t *rows = planes.bytes.at, *codes = panel.codes.at;
    const float *scale = planes.scale.at, *sums = planes.offset.at, *weights = panel.scales.at;
    long count = planes.counts.at[strip];
    auto in = [&](const Tiles& tiles, const Entry& entry, long half) __attribute__((always_inline)) {
        const float* weight = weights + entry.group * 48;
        take_in<HEIGHT, OFFSET>(tiles, scale + entry.place, sums + entry.place, weight + half * 16, weight + 32, acc);
    };
    auto even_of = [&](const Entry& entry) __attribute__((always_inline)) {
        multiply<false>(rows + entry.place * 64, codes + entry.group * 512, even);
    };
    even_of(entries[0]);
    if constexpr (HALVES) {
        for (long i = 0; i < count; ++i) {
            multiply<true>(rows + entries[i].place * 64 + 16, codes + entries[i].group * 512 + 256, odd);
            in(even, entries[i], 0);
            if (i + 1 < count) even_of(entries[i + 1]);
            in(odd, entries[i], 1);
        }
    } else {
        for (long i = 0; i < count; i += 2) {
            bool more = i + 1 < count;
            if (more) multiply<true>(rows + entries[i + 1].place * 64, codes + entries[i + 1].group * 512, odd);
            in(even, entries[i], 0);
            if (i + 2 < count) even_of(entries[i + 2]);
            if (more) in(odd, entries[i + 1], 0);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < HEIGHT; ++r) _mm512_storeu_ps(made + r * 16, acc[r]);
}

template <int HEIGHT>
void strip_of(const Planes& planes, long strip, Form form, const Panel& panel, float* made) {
    if (has_halves(form)) block<HEIGHT, false, true>(planes, strip, panel, made);
    else if (has_offset(form)) block<HEIGHT, true, false>(planes, strip, panel, made);
    else block<HEIGHT, false, false>(planes, strip, panel, made);
}

void strip_of(const Planes& planes, long strip, Form form, const Panel& panel, float* made) {
    switch (planes.height) {
        case 8: return strip_of<8>(planes, strip, form, panel, made);
        case 12: return strip_of<12>(planes, strip, form, panel, made);
        default: return strip_of<16>(planes, strip, form, panel, made);
    }
}

void strips(const BlockProduct& p, const Planes& planes, const Share& share, Panel& own, Panel& up) {
    Form form = share.part->form;
    long size = panel_bytes(form, p.in), near = larger(1, NEAR / (planes.groups * planes.height * 64));
    alignas(64) float made[2][256];
    configure(planes.height, has_halves(form));
    for (long low = 0; low < planes.strips; low += near)
        for (long i = share.first; i < share.stop; ++i) {
            const std::uint8_t* panel = share.part->w + i * (p.gated ? 2 : 1) * size;
            take(*share.part, panel, planes.groups, own);
            if (p.gated) take(*share.part, panel + size, planes.groups, up);
            long width = smaller(LANES, share.outputs - i * LANES), column = share.column + i * LANES;
            for (long strip = low; strip < smaller(low + near, planes.strips); ++strip) {
                strip_of(planes, strip, form, own, made[0]);
                if (p.gated) strip_of(planes, strip, form, up, made[1]);
                long row = strip * planes.height;
                for (long r = 0; r < smaller(planes.height, p.rows - row); ++r) {
                    Vec other = load(made[1] + 16 * r);
                    put_row(p, row + r, column, width, load(made[0] + 16 * r), p.gated ? &other : nullptr);
                }
            }
        }
    _tile_release();
}

}  // namespace

void blocks_amx(const BlockProduct& p) {
    if (p.rows < LEAST_ROWS) return blocks_avx512vnni(p);
    Planes planes(p.rows, p.in, p.rows > 12 ? 16 : p.rows > 8 ? 12 : 8);
    quantise(p, planes);
    shared(p, [&](const Share& share) {
        Panel own(planes.groups), up(p.gated ? planes.groups : 0);
        strips(p, planes, share, own, up);
    });
}

}  // namespace plait

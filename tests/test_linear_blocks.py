"""Products with weights in blocks, level by level: against exact arithmetic, and bit for bit over every cut."""

from __future__ import annotations

import os

import pytest
import torch
from block_weights import FORMATS, packed_weight
from by_threads import printed
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.dtypes import BY_NAME
from plait.runtime import blocks, kernels
from plait.runtime.ops.activation import ACTIVATIONS
from plait.runtime.ops.linear_blocks import Blocks, block_bytes, quantised, reference, rounded, sum_limit
from plait.runtime.packed import Packed

LEVELS = kernels.levels()
BITS = (8, 16)

pytestmark = pytest.mark.skipif(not LEVELS, reason="the package was built without its native kernels")


def _native(level):
    from plait.runtime._native import Native

    return Native(level)


def _rows(count, width, seed=1):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def _allowed(x, weight):
    """Rounding of the float chain, of all that is summed up; a weight may be a difference of larger numbers."""
    whole = blocks.unpack(weight.format, weight.data).double().abs().amax()
    return 3e-6 * x.double().abs().sum(1, keepdim=True) * whole


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=8, deadline=None)
@given(out=st.integers(1, 70), pieces=st.integers(1, 5), rows=st.integers(1, 40), data=st.data())
def test_products_are_exact_but_for_the_chain_and_rows_are_their_own(bits, level, name, out, pieces, rows, data):
    width = pieces * BY_NAME[name].block
    weight, x = packed_weight(name, out, width), _rows(rows, width)
    product = Blocks(_native(level), [weight], bits=bits)
    whole = product(x)
    assert ((whole - reference(x, weight, bits)).abs() <= _allowed(x, weight)).all()
    first = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(first + 1, rows))
    assert torch.equal(product(x[first:stop]), whole[first:stop])
    wide = torch.cat((x, x), 1)
    assert torch.equal(product(wide[:, width:]), whole)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 30, 40])
def test_levels_with_fused_multiply_adds_agree_bit_for_bit(bits, name, rows):
    width = 512
    weight, x = packed_weight(name, 40, width), _rows(rows, width)
    made = [Blocks(_native(level), [weight], bits=bits)(x) for level in LEVELS if level != "portable"]
    assert all(torch.equal(found, made[0]) for found in made)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", FORMATS)
def test_sums_are_exact_where_they_are_largest(bits, name):
    """All codes at one end and all rows at the top of their range: no sum of a group may round before it is scaled."""
    form, width = BY_NAME[name], 512
    full = packed_weight(name, 16, width).data.reshape(-1, form.block_bytes).clone()
    halves = {"q4_1": 4, "q5_1": 4, "q4_k": 4, "q5_k": 4, "q6_k": 0}.get(name, 2)
    full[:, halves:208] = torch.tensor([0x7F, 0xFF])[torch.arange(full.shape[1] - halves)[: 208 - halves] % 2]
    weight = Packed(form, full.reshape(16, -1), (16, width))
    x = torch.full((40, width), 1.98) - torch.rand(40, width, generator=torch.Generator().manual_seed(0)) / 1000
    one, *others = [Blocks(_native(level), [weight], bits=bits) for level in LEVELS if level != "portable"]
    rows = torch.cat([one(x[at : at + 1]) for at in range(40)])
    for made in (one, *others):
        assert torch.equal(made(x), rows)
        assert torch.equal(torch.cat([made(x[at : at + 8]) for at in range(0, 40, 8)]), rows)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q5_k", "q6_k"])
def test_many_rows_of_many_columns(bits, level, name):
    """More rows than stay in a cache: they are worked on in several runs."""
    weight, x = packed_weight(name, 100, 4096), _rows(270, 4096)
    product = Blocks(_native(level), [weight], bits=bits)
    whole = product(x)
    for at in (0, 63, 64, 200, 269):
        assert torch.equal(product(x[at : at + 1])[0], whole[at])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 2, 5, 37])
def test_weights_of_one_input_in_several_formats_are_one_product(bits, level, rows):
    weights = [packed_weight(name, 9 + 10 * seed, 512, seed) for seed, name in enumerate(FORMATS)]
    x = _rows(rows, 512)
    apart = [Blocks(_native(level), [weight], bits=bits)(x) for weight in weights]
    assert torch.equal(Blocks(_native(level), weights, bits=bits)(x), torch.cat(apart, 1))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q5_k", "q6_k"])
@pytest.mark.parametrize("rows", [1, 2, 8, 21])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_and_up_in_turn(bits, level, name, rows, activation):
    gate, up = packed_weight(name, 48, 256), packed_weight(name, 48, 256, seed=1)
    x = _rows(rows, 256) / 100
    found = Blocks(_native(level), [gate, up], bits=bits, in_turn=True).gated(activation, x)
    alone = [Blocks(_native(level), [weight], bits=bits)(x).double() for weight in (gate, up)]
    expected = ACTIVATIONS[activation](alone[0]) * alone[1]
    assert ((found - expected).abs() <= 1e-5 * expected.abs() + 1e-6 * alone[1].abs()).all()


def test_gate_and_up_must_be_alike():
    with pytest.raises(ValueError, match="in turn"):
        Blocks(_native(LEVELS[0]), [packed_weight("q4_0", 16, 32), packed_weight("q8_0", 16, 32)], bits=8, in_turn=True)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [8, 20, 40])
def test_what_is_no_number_comes_through_and_stays_in_its_row(bits, level, name, rows):
    weight = packed_weight(name, 20, 256)
    x = _rows(rows, 256)
    clean = Blocks(_native(level), [weight], bits=bits)(x)
    for bad in (torch.nan, torch.inf, -torch.inf, 2.0**108, -1e38):
        spoilt = x.clone()
        spoilt[7, 100] = bad
        found = Blocks(_native(level), [weight], bits=bits)(spoilt)
        assert not found[7].isfinite().any()
        others = torch.arange(rows) != 7
        assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_any_size(bits, level):
    """Groups as large and as small as floats are, zeros, and one large number among small ones."""
    weight = packed_weight("q5_0", 20, 128)
    for size in (6e31, 1e30, 1e-20, 1e-29, 0.0):
        x = _rows(6, 128) * size
        product = Blocks(_native(level), [weight], bits=bits)
        found = product(x).double()
        assert ((found - reference(x, weight, bits)).abs() <= _allowed(x, weight)).all()
        # Among many rows they keep their bits.
        assert torch.equal(product(x.repeat(8, 1)).double(), found.repeat(8, 1))
    x = _rows(6, 128) * 1e-3
    x[:, 40] = 1e6
    found = Blocks(_native(level), [weight], bits=bits)(x).double()
    assert ((found - reference(x, weight, bits)).abs() <= _allowed(x, weight)).all()


# Columns with a scale in common, and the size of the largest code.
CODES = {
    "q4_0": (32, 8),
    "q4_1": (32, 15),
    "q5_0": (32, 16),
    "q5_1": (32, 31),
    "q8_0": (32, 128),
    "q4_k": (32, 15),
    "q5_k": (32, 31),
    "q6_k": (16, 32),
}


@pytest.mark.parametrize("name", FORMATS)
def test_rows_keep_sixteen_bits_where_sums_stay_exact(name):
    columns, code = CODES[name]
    limit, most_bits = sum_limit(BY_NAME[name]), 32 * 32512
    # Numbers of all sizes, groups all at the top of their range, and groups of one number.
    x = torch.cat((_rows(50, 96), 1.9 + _rows(50, 96).sign() / 20, _rows(50, 96) * (torch.arange(96) % 32 == 3)))
    x *= torch.logspace(-10, 10, 150)[:, None]
    q, scales = quantised(x, 16, limit)
    assert (code * q.reshape(150, -1, columns).abs().sum(-1) < 2**24).all()
    assert torch.equal(q, (x.reshape(150, 3, 32).double() / scales).round())
    most = x.reshape(150, 3, 32).abs().amax(-1, keepdim=True).double()
    # Half as large a scale would not do.
    full = (most / scales >= 16256) | (2 * q.abs().sum(-1, keepdim=True) + 33 > limit)
    assert full.all()
    assert (limit < most_bits) == (name in ("q5_1", "q5_k", "q8_0"))


def test_rows_of_eight_bits_are_as_near_as_steps_between_powers_of_two_allow():
    x = torch.cat((_rows(50, 96), _rows(50, 96) * (torch.arange(96) % 32 == 3), torch.zeros(1, 96)))
    x *= torch.logspace(-10, 10, 101)[:, None]
    q, scales = quantised(x, 8)
    largest = q.abs().amax(-1)[:100]
    assert largest.max() == 127
    assert largest.min() >= 127 * 8 // 9
    most = x.reshape(101, 3, 32).double().abs().amax(-1, keepdim=True)
    assert ((most - 1e-6 * most <= 127 * scales.double()) & (scales.double() <= 9 / 8 * (1 + 1e-6) * most / 127)).all()
    mantissa, _ = scales.frexp()
    assert (mantissa * 16 == (mantissa * 16).round()).all()
    assert ((q * scales.double() - x.reshape(101, 3, 32).double()).abs() <= (0.5 + 1e-4) * scales).all()


def test_outliers_cost_no_bits_of_others():
    for bits, limit, lost in ((16, 32 * 32512, 1e-5), (16, sum_limit(BY_NAME["q8_0"]), 4e-5), (8, 32 * 127, 4e-3)):
        x = _rows(8, 256)
        # What is left of it is rounded in the same way: with 8 bits it must not be so large itself.
        x[:, 5] = 1e4 if bits == 16 else 50.0
        error = (rounded(x, bits, limit) - x.double()).abs()
        assert error[:, :32].max() < lost
        assert error[:, 32:].max() > lost


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_outliers_of_some_rows_change_no_bit_of_others(bits, level, name, rows):
    weight, x = packed_weight(name, 33, 512), _rows(rows, 512)
    x[::3, 77] = 300.0
    x[1::4, 501] = -2000.0
    product = Blocks(_native(level), [weight], bits=bits)
    whole = product(x)
    assert ((whole - reference(x, weight, bits)).abs() <= _allowed(x, weight)).all()
    for at in range(rows):
        assert torch.equal(product(x[at : at + 1])[0], whole[at])


def test_bits_do_not_depend_on_the_number_of_threads():
    """More threads than panels, and parts of unlike sizes that threads take from each other."""
    script = """
import hashlib, itertools, sys
sys.path.insert(0, sys.argv[1])
from test_linear_blocks import BITS, FORMATS, LEVELS, Blocks, _native, _rows, packed_weight
for level, bits in itertools.product(LEVELS, BITS):
    for rows in (1, 3, 50):
        for sizes in ((16,), (3, 1000, 40), (500, 7)):
            weights = [packed_weight(FORMATS[(at + rows) % 8], out, 512, at) for at, out in enumerate(sizes)]
            made = Blocks(_native(level), weights, bits=bits)(_rows(rows, 512))
            print(level, bits, rows, sizes, hashlib.sha256(made.numpy().tobytes()).hexdigest())
        gate, up = packed_weight("q4_k", 320, 512), packed_weight("q4_k", 320, 512, 1)
        made = Blocks(_native(level), [gate, up], bits=bits, in_turn=True).gated("silu", _rows(rows, 512))
        print(level, bits, rows, "gated", hashlib.sha256(made.numpy().tobytes()).hexdigest())
"""
    found = [printed(script, threads, os.path.dirname(__file__)) for threads in (1, 2, 5)]
    assert found[0] == found[1] == found[2]
    assert found[0].count("\n") == 12 * len(LEVELS) * len(BITS)


@pytest.mark.parametrize("name", FORMATS)
def test_packed_weights_are_as_large_as_the_file(name):
    form = BY_NAME[name]
    packed, stored = block_bytes(form, 4096, 2048), 4096 * form.nbytes(2048)
    assert stored <= packed <= 1.03 * stored
    # Outputs are padded to whole panels.
    assert block_bytes(form, 4081, 2048) == packed

"""Products with float weights, level by level: against float64, and bit for bit over every cut of the rows."""

from __future__ import annotations

import pytest
import torch
from by_threads import printed
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.runtime import kernels
from plait.runtime.ops import linear
from plait.runtime.ops.activation import ACTIVATIONS

LEVELS = kernels.levels()
# Types of weights, and whether inputs are to stay as they are.
KINDS = [(torch.float32, False), (torch.float16, False), (torch.bfloat16, False), (torch.bfloat16, True)]

pytestmark = pytest.mark.skipif(not LEVELS, reason="the package was built without its native kernels")


def _made(level, weight, exact):
    from plait.runtime._native import Native

    return linear.Native(Native(level), weight, exact=exact)


def _normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _read(x, dtype, exact):
    """Inputs as a product sees them: bf16 products round them unless they are to be exact."""
    return (x.to(dtype) if dtype == torch.bfloat16 and not exact else x).double()


def _share(exact, product):
    """What may be off, of the sum of the addends' sizes; two planes of bf16 leave 2^-17 of an input."""
    return 2e-6 + (2**-17 if exact and product.form.endswith("x2") else 0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("dtype", "exact"), KINDS)
@settings(max_examples=25, deadline=None)
@given(out=st.integers(1, 130), width=st.integers(1, 200), rows=st.integers(1, 80), data=st.data())
def test_products_are_right_and_rows_are_their_own(level, dtype, exact, out, width, rows, data):
    weight, x = _normal(out, width).to(dtype), _normal(rows, width, seed=1)
    product = _made(level, weight, exact)
    whole = product(x)
    read = _read(x, dtype, exact)
    # Of what is summed up: where it cancels, the sum itself may be small.
    allowed = _share(exact, product) * (read.abs() @ weight.double().abs().T)
    assert ((whole - read @ weight.double().T).abs() <= allowed).all()
    first = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(first + 1, rows))
    assert torch.equal(product(x[first:stop]), whole[first:stop])
    # Rows at a distance from each other, as parts of a wider tensor are.
    wide = torch.cat((x, x), 1)
    assert torch.equal(product(wide[:, width:]), whole)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("dtype", "exact"), KINDS)
@pytest.mark.parametrize("width", [1000, 1025, 2100])
def test_sums_go_on_from_block_to_block(level, dtype, exact, width):
    """Blocks of 128 rows, 1024 columns and 512 outputs: what is beyond each has the bits of a row of its own."""
    weight, x = _normal(600, width).to(dtype), _normal(140, width, seed=1)
    product = _made(level, weight, exact)
    whole = product(x)
    read = _read(x, dtype, exact)
    allowed = _share(exact, product) * (read.abs() @ weight.double().abs().T)
    assert ((whole - read @ weight.double().T).abs() <= allowed).all()
    for row in (0, 11, 12, 119, 127, 128, 139):
        assert torch.equal(product(x[row : row + 1]), whole[row : row + 1])


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "amx"])
@settings(max_examples=15, deadline=None)
@given(out=st.integers(1, 70), width=st.integers(1, 90), rows=st.integers(1, 30))
def test_widened_weights_give_the_bits_of_float32(level, out, width, rows):
    x = _normal(rows, width, seed=1)
    for dtype in (torch.float16, torch.bfloat16):
        weight = _normal(out, width).to(dtype)
        assert torch.equal(_made(level, weight, True)(x), _made(level, weight.float(), True)(x))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("dtype", "exact"), KINDS)
@settings(max_examples=15, deadline=None)
@given(
    panels=st.integers(1, 5),
    columns=st.integers(1, 90),
    rows=st.integers(1, 70),
    activation=st.sampled_from(["silu", "gelu_tanh", "gelu"]),
    data=st.data(),
)
def test_gate_products_are_right_and_rows_are_their_own(level, dtype, exact, panels, columns, rows, activation, data):
    width = 16 * panels
    both, x = _normal(2 * width, columns).to(dtype), _normal(rows, columns, seed=1)
    product = _made(level, linear.in_turn(both), exact)
    whole = product.gated(activation, x)
    wide = _read(x, dtype, exact) @ both.double().T
    expected = ACTIVATIONS[activation](wide[:, :width]) * wide[:, width:]
    allowed = 4e-5 if exact else 2e-5
    assert (whole - expected).abs().max() < allowed * max(1.0, expected.abs().max())
    first = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(first + 1, rows))
    assert torch.equal(product.gated(activation, x[first:stop]), whole[first:stop])


@pytest.mark.parametrize("level", LEVELS)
def test_inputs_of_any_size_come_through(level):
    """The unit matrix gives inputs back, 2^-16 of them off where they are sums of two bf16 numbers."""
    sizes = torch.tensor([[1.0, -1.0, 3e38, 1e-30, 1 + 2**-9, 1 + 2**-20, 0.0, 65504.0, 1 / 3, -(1 - 2**-24)]])
    product = _made(level, torch.eye(10).bfloat16(), True)
    assert ((product(sizes) - sizes).abs() <= 2**-16 * sizes.abs()).all()
    ones = _made(level, torch.ones(3, 10).bfloat16(), True)
    for beyond in (float("inf"), -float("inf"), float("nan")):
        sizes[0, 2] = beyond
        assert not ones(sizes).isfinite().any()
    sizes[0, 2] = float("inf")
    assert (ones(sizes) == float("inf")).all()


def test_bits_do_not_depend_on_the_number_of_threads():
    """Few panels and many, few rows and many, by one thread and by three."""
    script = """
import hashlib, torch
from plait.runtime.kernels import levels
from plait.runtime._native import Native
from plait.runtime.ops import linear
seed = lambda n: torch.Generator().manual_seed(n)
for dtype, exact in ((torch.float32, False), (torch.float16, False), (torch.bfloat16, False), (torch.bfloat16, True)):
    for level in levels():
        for out, width, rows in ((40, 300, 150), (1100, 1100, 33), (520, 64, 1)):
            weight = torch.randn(out, width, generator=seed(0)).to(dtype)
            made = linear.Native(Native(level), weight, exact=exact)(torch.randn(rows, width, generator=seed(1)))
            print(dtype, exact, level, out, hashlib.sha256(made.numpy().tobytes()).hexdigest())
"""
    found = [printed(script, threads) for threads in (1, 3)]
    assert found[0] == found[1]
    assert found[0].count("\n") == 12 * len(LEVELS)


@settings(max_examples=10, deadline=None)
@given(out=st.integers(1, 70), width=st.integers(1, 100))
def test_packing_loses_nothing(out, width):
    """Every stored bit comes back from its panel, and the rest is zero."""
    for dtype, as_bits, columns in (
        (torch.float32, torch.int32, -(-width // 2) * 2),
        (torch.float16, torch.int16, -(-width // 2) * 2),
        (torch.bfloat16, torch.int16, -(-width // 32) * 32),
    ):
        bits = torch.randint(-(2**15), 2**15, (out, width), generator=torch.Generator().manual_seed(0)).to(as_bits)
        packed = _made(LEVELS[0], bits.view(dtype), True)._packed.view(as_bits)
        panels = packed.view(-1, columns // 2, 16, 2) if dtype == torch.bfloat16 else packed.view(-1, columns, 16, 1)
        back = panels.transpose(1, 2).reshape(-1, columns)
        assert torch.equal(back[:out, :width], bits)
        assert not back[out:].any()
        assert not back[:, width:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_without_kernels_exact_products_are_of_float32(monkeypatch, dtype):
    monkeypatch.setattr(linear, "native", lambda: None)
    weight, x = _normal(20, 30).to(dtype), _normal(5, 30, seed=1)
    for made in (linear.make_linear(weight, exact=True), *linear.make_linears([weight], exact=True)):
        assert (made(x) - x.double() @ weight.double().T).abs().max() < 1e-5
        assert made.nbytes == linear.prepared_bytes(20, 30, dtype, torch.device("cpu"), exact=True)

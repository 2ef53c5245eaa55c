"""Kernels of a Gated DeltaNet and of what stands between products, level by level: against float64, and bit for bit
over every cut of the rows, in company and with any number of threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.runtime import kernels
from plait.runtime.ops import gated_delta as delta
from plait.runtime.ops.activation import ACTIVATIONS, softcap
from plait.runtime.ops.convolution import convolution_reference, native_convolve
from plait.runtime.ops.joins import RmsNorm, native_gate_heads, native_join
from plait.runtime.ops.norm import rms_norm_reference
from plait.runtime.ops.sequences import Stretch, fits

LEVELS = kernels.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="the package was built without its native kernels")

each_level = pytest.mark.parametrize("level", LEVELS)


def _native(level):
    from plait.runtime._native import Native

    return Native(level)


def _normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _gap(found, expected):
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item()


def _cut(data, n):
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=4))) if n > 1 else []
    return [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]


def _in_calls(run, split, first):
    """Outputs and last value of one sequence's rows in calls of the lengths `split`; `run(slice, stretch)`."""
    outs, at, now = [], 0, first
    for n in split:
        following = torch.full_like(first, torch.nan)
        before = now.clone()
        outs.append(run(slice(at, at + n), Stretch(n, now, following)))
        assert torch.equal(before, now), "the value before the call was written"
        now, at = following, at + n
    return torch.cat(outs), now


@each_level
@settings(max_examples=25, deadline=None)
@given(
    heads=st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 2)]),
    dims=st.tuples(st.sampled_from([1, 5, 16, 33, 128]), st.sampled_from([1, 15, 16, 31, 33, 64, 130])),
    rows=st.sampled_from([1, 2, 5, 63, 64, 65, 130]),
    fresh=st.booleans(),
    data=st.data(),
)
def test_the_delta_rule_is_right_and_rows_are_their_own(level, heads, dims, rows, fresh, data):
    key_heads, repeats = heads
    shape = delta.DeltaShape(key_heads, key_heads * repeats, *dims, 1e-6)
    count = shape.value_heads
    # Parts of a wider tensor, as a projection gives them.
    wide = _normal(rows, shape.width + 2 * count)
    qkv, beta, decay = torch.split(wide, [shape.width, count, count], 1)
    rate, bias, state = _normal(count, seed=1).exp(), _normal(count, seed=2), _normal(shape.elements, seed=3)
    level_kernels = _native(level)

    def run(rows_of, *stretches):
        inputs = (x[rows_of] for x in (qkv, beta, decay))
        return delta.native_gated_delta(level_kernels, *inputs, rate, bias, shape, stretches)

    now, following = None if fresh else state, torch.full_like(state, torch.nan)
    whole = run(slice(None), Stretch(rows, now, following))
    expected_state = torch.empty(shape.elements, dtype=torch.float64)
    last = Stretch(rows, None if fresh else state.double(), expected_state)
    inputs = (x.double() for x in (qkv, beta, decay, rate, bias))
    expected = delta.reference(*inputs, shape, [last])
    assert _gap(whole, expected) < 1e-5
    assert _gap(following, expected_state) < 1e-5
    if not fresh:
        found = _in_calls(run, _cut(data, rows), state)
        assert all(torch.equal(a, b) for a, b in zip(found, (whole, following), strict=True))
    # Two sequences in one call: each as if it were alone.
    first = data.draw(st.integers(1, max(1, rows - 1)))
    if first < rows:
        ends = [torch.empty_like(state) for _ in range(4)]
        both = run(slice(None), Stretch(first, state, ends[0]), Stretch(rows - first, now, ends[1]))
        alone = run(slice(first), Stretch(first, state, ends[2]))
        other = run(slice(first, None), Stretch(rows - first, now, ends[3]))
        assert torch.equal(both, torch.cat((alone, other)))
        assert torch.equal(ends[0], ends[2])
        assert torch.equal(ends[1], ends[3])


@each_level
def test_the_delta_rule_forgets_and_keeps_as_told(level):
    shape = delta.DeltaShape(1, 2, 8, 20, 1e-6)
    qkv, state = _normal(9, shape.width), _normal(shape.elements, seed=1)
    off, on = torch.full((9, 2), -200.0), torch.full((9, 2), 200.0)
    rate, bias = torch.ones(2), torch.zeros(2)

    def run(beta, decay, now):
        following = torch.empty_like(state)
        stretch = Stretch(9, now, following)
        y = delta.native_gated_delta(_native(level), qkv, beta, decay, rate, bias, shape, [stretch])
        return y, following

    kept = run(off, off, state)[1]
    assert torch.equal(kept, state)
    # A state of which nothing is kept is as good as none.
    assert all(torch.equal(a, b) for a, b in zip(run(on, on, state), run(on, on, None), strict=True))
    # What is no number comes through, to its own head only.
    broken = state.clone()
    broken[0] = torch.nan
    y, following = run(on, off, broken)
    assert y[:, 0, 0].isnan().all()
    assert not y[:, 1].isnan().any()
    assert not following[shape.elements // 2 :].isnan().any()


@each_level
def test_rates_are_right_far_out_too(level):
    """A state of ones read by a query: what is left of it after a row is the decay itself."""
    x = torch.cat((torch.linspace(-60, 60, 481), torch.tensor([0.0, -0.0, 1e-20, -1e-20])))
    shape = delta.DeltaShape(1, len(x), 1, 1, 0.0)
    following = torch.empty(len(x))
    qkv = torch.cat((torch.ones(1, 2), torch.zeros(1, len(x))), 1)
    rate = torch.linspace(0.01, 3.0, len(x))
    beta = torch.full((1, len(x)), -200.0)
    stretch = Stretch(1, torch.ones(len(x)), following)
    delta.native_gated_delta(_native(level), qkv, beta, x[None], rate, torch.zeros(len(x)), shape, [stretch])
    expected = (-rate.double() * torch.nn.functional.softplus(x.double())).exp()
    # An error of one part in 10^7 in an exponent of 180.
    assert ((following - expected).abs() <= 3e-5 * expected + 1e-37).all()


@each_level
@settings(max_examples=25, deadline=None)
@given(
    channels=st.sampled_from([1, 15, 16, 40, 512, 530]),
    kernel=st.integers(1, 6),
    rows=st.integers(1, 12),
    activation=st.sampled_from(["silu", "sigmoid"]),
    data=st.data(),
)
def test_convolutions_are_right_and_rows_are_their_own(level, channels, kernel, rows, activation, data):
    wide, weight = _normal(rows, channels + 3), _normal(kernel, channels, seed=1)
    x, tail = wide[:, 2 : channels + 2], _normal(channels, kernel - 1, seed=2)

    def run(rows_of, *stretches):
        return native_convolve(_native(level), x[rows_of], weight, activation, stretches)

    expected_tail = torch.empty(channels, kernel - 1, dtype=torch.float64)
    expected = convolution_reference(x.double(), weight.double(), tail.double(), expected_tail)
    expected = ACTIVATIONS[activation](expected)
    following = torch.full_like(tail, torch.nan)
    whole = run(slice(None), Stretch(rows, tail, following))
    assert (whole - expected).abs().max() < 3e-6 * (1 + expected.abs().max())
    assert torch.equal(following, expected_tail.float())
    found = _in_calls(run, _cut(data, rows), tail)
    assert all(torch.equal(a, b) for a, b in zip(found, (whole, following), strict=True))
    if rows > 1:
        ends = [torch.empty_like(tail) for _ in range(3)]
        both = run(slice(None), Stretch(1, tail, ends[0]), Stretch(rows - 1, None, ends[1]))
        zeros = torch.zeros_like(tail)
        assert torch.equal(both[1:], run(slice(1, None), Stretch(rows - 1, zeros, ends[2])))
        assert torch.equal(both[:1], whole[:1])
        assert torch.equal(ends[1], ends[2])


@each_level
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 20),
    heads=st.integers(1, 3),
    width=st.integers(1, 70),
    normed=st.sampled_from(["no", "plain", "weighted"]),
    per_head=st.booleans(),
    activation=st.sampled_from(["silu", "sigmoid", "gelu_tanh", "gelu"]),
)
def test_gates_of_heads_are_right_and_rows_are_their_own(level, rows, heads, width, normed, per_head, activation):
    x = _normal(rows, heads + 1, width)[:, :heads]
    gate = _normal(rows, heads * (1 if per_head else width) + 2, seed=1)[:, 2:]
    weight = _normal(width, seed=2) if normed == "weighted" else None
    norm = None if normed == "no" else RmsNorm(weight, 1e-6)
    found = native_gate_heads(_native(level), x, gate, activation, norm)
    expected = x.double()
    if norm is not None:
        expected = rms_norm_reference(expected, None if weight is None else weight.double(), 1e-6)
    factor = ACTIVATIONS[activation](gate.double()).view(rows, heads, -1)
    assert _gap(found, (expected * factor).flatten(1)) < 3e-6
    half = rows // 2
    assert torch.equal(native_gate_heads(_native(level), x[half:], gate[half:], activation, norm), found[half:])


@each_level
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 20),
    width=st.sampled_from([1, 15, 16, 33, 1000]),
    before=st.booleans(),
    after=st.booleans(),
    weighted=st.booleans(),
)
def test_joins_are_right_and_rows_are_their_own(level, rows, width, before, after, weighted):
    h, y = _normal(rows, width), _normal(rows, width + 1, seed=1)[:, 1:]
    weights = [_normal(width, seed=seed) if weighted else None for seed in (2, 3)]
    norms = [RmsNorm(w, 1e-6) if there else None for w, there in zip(weights, (before, after), strict=True)]

    def norm(x, which):
        return rms_norm_reference(x, None if which.weight is None else which.weight.double(), which.eps)

    stream = h.clone()
    out = native_join(_native(level), stream, y, *norms)
    expected = h.double() + (y.double() if norms[0] is None else norm(y.double(), norms[0]))
    assert _gap(stream, expected) < 2e-6
    assert (out is None) == (not after)
    if out is not None:
        assert _gap(out, norm(expected, norms[1])) < 1e-5
    rest = h[rows // 2 :].clone()
    again = native_join(_native(level), rest, y[rows // 2 :], *norms)
    assert torch.equal(rest, stream[rows // 2 :])
    assert out is None or torch.equal(again, out[rows // 2 :])


@each_level
def test_caps_are_right_and_rows_are_their_own(level, monkeypatch):
    x = torch.cat((_normal(40, 1003) * 30, torch.full((1, 1003), torch.nan)))
    monkeypatch.setattr("plait.runtime.ops.activation.native", lambda: _native(level))
    found = softcap(x, 30.0)
    assert _gap(found[:40], 30 * (x[:40].double() / 30).tanh()) < 2e-6
    assert found[40].isnan().all()
    assert torch.equal(softcap(x[7:9], 30.0), found[7:9])


def test_sizes_that_do_not_belong_together_are_refused():
    value = torch.zeros(6)
    assert fits(3, 6, [Stretch(1, None, value), Stretch(2, value, value)])
    assert not fits(1, 6, [Stretch(1, None, value.double())])
    assert not fits(1, 6, [Stretch(1, torch.zeros(6, 2)[:, 0], value)])
    for rows, elements, counts in ((2, 6, [1]), (3, 5, [3]), (3, 6, [0, 3])):
        with pytest.raises(ValueError, match="expected|in a call of"):
            fits(rows, elements, [Stretch(n, None, value) for n in counts])
    shape = delta.DeltaShape(1, 2, 4, 4, 1e-6)
    stretch = Stretch(1, None, torch.zeros(shape.elements))
    with pytest.raises(ValueError, match="inputs"):
        delta.native_gated_delta(
            _native(LEVELS[0]),
            torch.zeros(1, shape.width - 1),
            torch.zeros(1, 2),
            torch.zeros(1, 2),
            torch.zeros(2),
            torch.zeros(2),
            shape,
            [stretch],
        )

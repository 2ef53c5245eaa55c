"""Each fast form of an operator against its reference, and the exactness contract row by row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.blueprint.spec import FactorScaling, LinearScaling, Llama3Scaling, Rope, YarnScaling
from plait.blueprint.state import SLAB
from plait.runtime.ops import activation, attention, exact, linear, norm, rope

ROWS = (1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 64, 65, 100)


def split_equal(function, x, rows=ROWS):
    """`function` of x in calls of several sizes gives the same bits."""
    whole = function(x)
    for n in rows:
        parts = torch.cat([function(x[i : i + n]) for i in range(0, x.shape[0], n)])
        assert torch.equal(parts, whole), f"calls of {n} rows"


@pytest.mark.parametrize("name", activation.ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 7, 32, 100, 640, 2048])
def test_activations_keep_bits_for_any_number_of_rows(name, width):
    exact.settle()
    x = torch.randn(130, width, generator=torch.Generator().manual_seed(width)) * 3
    split_equal(lambda y: activation.activate(name, y), x)


def test_activations_are_the_functions_they_are_named_after():
    x = torch.randn(9, 50, dtype=torch.float64)
    cases = {
        "silu": x * torch.sigmoid(x),
        "gelu": 0.5 * x * (1 + torch.erf(x / 2**0.5)),
        "gelu_tanh": 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "sigmoid": 1 / (1 + torch.exp(-x)),
    }
    assert cases.keys() == activation.ACTIVATIONS.keys()
    for name, expected in cases.items():
        assert torch.allclose(activation.activate(name, x), expected, rtol=0, atol=1e-12)


def test_softcap_bounds_and_keeps_bits():
    x = torch.randn(70, 300) * 100
    y = activation.softcap(x, 30.0)
    assert y.abs().max() <= 30
    assert torch.allclose(y, 30 * torch.tanh(x / 30), atol=1e-5)
    split_equal(lambda z: activation.softcap(z, 30.0), x)


@pytest.mark.parametrize(("out", "width"), [(33, 17), (48, 64), (300, 100), (256, 1536), (640, 2048), (96, 5000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_linear_forms_keep_bits_and_match_the_reference(out, width, dtype):
    generator = torch.Generator().manual_seed(out)
    weight = (torch.randn(out, width, generator=generator) / width**0.5).to(dtype)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn(130, width, generator=generator, dtype=compute)
    made = linear.make_linear(weight)
    assert made.out_features == out
    split_equal(made, x)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype]
    expected = linear.reference(x.double(), weight.double())
    assert (made(x).double() - expected).abs().max() < tolerance * expected.abs().max()


def test_both_linear_forms_agree():
    weight, x = torch.randn(64, 200), torch.randn(40, 200)
    reordered = linear.Reordered.of(weight)
    if reordered is not None:
        assert torch.allclose(reordered(x), linear.Tiled(weight)(x), atol=1e-4)


def test_large_weights_take_calls_of_bounded_rows(monkeypatch):
    weight, x = torch.randn(40, 100), torch.randn(150, 100)
    expected = linear.make_linear(weight)(x)
    monkeypatch.setattr(linear, "_LARGE", 1)
    monkeypatch.setattr(linear, "_LARGE_ROWS", 7)
    assert torch.equal(linear.make_linear(weight)(x), expected)


def test_a_form_that_loses_bits_is_not_chosen(monkeypatch):
    monkeypatch.setattr(linear, "native", lambda: None)
    monkeypatch.setattr(linear.Reordered, "keeps_bits", lambda self: False)
    assert linear.make_linear(torch.randn(8, 8)).form == "tiled"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_form_of_a_stack_is_chosen_once(dtype, monkeypatch):
    """On values of its own, so that a first weight of zeros, whose products show no difference, decides nothing."""
    chosen_on = []
    real = linear._fastest
    monkeypatch.setattr(linear, "_fastest", lambda weight, exact: chosen_on.append(weight) or real(weight, exact))
    weights = [torch.zeros(24, 100, dtype=dtype), *(torch.randn(24, 100).to(dtype) for _ in range(4))]
    made = list(linear.make_linears(iter(weights)))
    assert len(chosen_on) == 1
    assert (chosen_on[0] != 0).all()
    x = torch.randn(70, 100, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    assert not made[0](x).any()
    for one, weight in zip(made[1:], weights[1:], strict=True):
        alone = linear.make_linear(weight)
        assert (one.form, one.nbytes, one.out_features) == (alone.form, alone.nbytes, alone.out_features)
        assert torch.equal(one(x), alone(x))
        split_equal(one, x)


def test_a_stack_is_prepared_weight_by_weight_and_of_one_shape():
    taken = []

    def weights():
        for rows in (8, 8, 9):
            taken.append(rows)
            yield torch.zeros(rows, 5)

    made = linear.make_linears(weights())
    next(made)
    assert taken == [8]
    next(made)
    with pytest.raises(ValueError, match=r"\(9, 5\)"):
        next(made)


@pytest.mark.parametrize("width", [1, 48, 100, 640])
def test_rms_norm_matches_its_reference_and_keeps_bits(width):
    x, weight = torch.randn(130, width), torch.randn(width)
    assert torch.allclose(norm.rms_norm(x, weight, 1e-6), norm.rms_norm_reference(x, weight, 1e-6), atol=1e-5)
    assert torch.allclose(norm.rms_norm(x, None, 1e-6), norm.rms_norm_reference(x, None, 1e-6), atol=1e-5)
    split_equal(lambda y: norm.rms_norm(y, weight, 1e-6), x)
    exact64 = norm.rms_norm(x.double(), weight.double(), 1e-6)
    assert torch.allclose(exact64, norm.rms_norm_reference(x.double(), weight.double(), 1e-6), rtol=0, atol=1e-12)


@given(
    heads=st.sampled_from([(1, 1), (4, 1), (4, 2), (9, 3)]),
    dim=st.sampled_from([16, 48, 64]),
    past=st.integers(0, 200),
    n=st.integers(1, 150),
    window=st.sampled_from([None, 1, 2, 16, 63, 64, 65, 100, 1000]),
    cap=st.sampled_from([None, 5.0]),
    sink=st.sampled_from([None, -40.0, 0.0, 40.0]),
    wider=st.sampled_from([8, -8]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_attention_over_blocks_is_attention(heads, dim, past, n, window, cap, sink, wider, seed):
    """`sink`: around which scores the sinks lie, far above all others and far below them included."""
    generator = torch.Generator().manual_seed(seed)
    heads, kv_heads = heads
    sinks = None if sink is None else sink + torch.randn(heads, generator=generator, dtype=torch.float64)
    total = past + n
    q = torch.randn(n, heads, dim, generator=generator, dtype=torch.float64)
    k = torch.randn(total, kv_heads, dim, generator=generator, dtype=torch.float64)
    v = torch.randn(total, kv_heads, dim + wider, generator=generator, dtype=torch.float64)
    blocks = _blocks(k, v)
    out = torch.empty(n, heads, dim + wider, dtype=torch.float64)
    attention.attention(
        (q,), blocks, start=past, first_block=0, scale=dim**-0.5, window=window, cap=cap, sinks=sinks, out=out
    )
    expected = attention.attention_reference(
        q, k, v, start=past, first=0, scale=dim**-0.5, window=window, cap=cap, sinks=sinks
    )
    assert torch.isfinite(out).all()
    assert torch.allclose(out, expected, rtol=0, atol=1e-12)
    out32 = torch.empty(n, heads, dim + wider)
    blocks32 = _blocks(k.float(), v.float())
    arguments = {"scale": dim**-0.5, "window": window, "cap": cap, "sinks": None if sinks is None else sinks.float()}
    attention.attention((q.float(),), blocks32, start=past, first_block=0, out=out32, **arguments)
    assert torch.allclose(out32.double(), expected, rtol=0, atol=1e-4)
    single = torch.empty_like(out32)
    for i in range(n):
        low = 0 if window is None else max(0, past + i - window + 1) // SLAB
        attention.attention(
            (q[i : i + 1].float(),), blocks32[low:], start=past + i, first_block=low, out=single[i : i + 1], **arguments
        )
    assert torch.equal(single, out32), "a token alone, from its first block on, gives the same bits"
    attention.attention(
        (q.float(),), blocks32, start=past, first_block=0, out=single, one_by_one=True, **arguments
    )
    assert torch.equal(single, out32)


def _blocks(k, v):
    count = -(-k.shape[0] // SLAB)
    keys = k.new_zeros(count * SLAB, *k.shape[1:])
    values = v.new_zeros(count * SLAB, *v.shape[1:])
    keys[: k.shape[0]], values[: v.shape[0]] = k, v
    return [
        (
            keys[j * SLAB : (j + 1) * SLAB].transpose(0, 1).contiguous(),
            values[j * SLAB : (j + 1) * SLAB].transpose(0, 1).contiguous(),
        )
        for j in range(count)
    ]


def test_a_sink_takes_its_share_and_adds_nothing():
    """Two keys of score 0 beside a sink of ln 2: each weighs 1/4."""
    q, k = torch.zeros(1, 1, 4, dtype=torch.float64), torch.zeros(2, 1, 4, dtype=torch.float64)
    v, out = torch.tensor([[[8.0]], [[4.0]]], dtype=torch.float64), torch.empty(1, 1, 1, dtype=torch.float64)
    sinks = torch.tensor([2.0], dtype=torch.float64).log()
    arguments = {"scale": 1.0, "window": None, "cap": None, "sinks": sinks}
    attention.attention((q,), _blocks(k, v), start=1, first_block=0, out=out, **arguments)
    assert out.item() == pytest.approx(3.0, abs=1e-12)
    assert attention.attention_reference(q, k, v, start=1, first=0, **arguments).item() == pytest.approx(3.0, abs=1e-12)


def test_keeps_bits_is_a_real_check(monkeypatch):
    assert attention.keeps_bits(4, 1, (64,), 64)
    real = attention._tile

    def lossy(queries, *rest):
        return real(queries, *rest) + (1e-7 if queries[0].shape[2] > 1 else 0.0)

    monkeypatch.setattr(attention, "_tile", lossy)
    assert not attention.keeps_bits(4, 1, (64,), 64)


def _angles(rope_, positions):
    table = rope.RopeTable(rope_, torch.float64, torch.device("cpu"))
    return table(torch.tensor(positions), max(positions))


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
def test_rotation_is_a_complex_product_of_its_pairs(pairing):
    plan = Rope(theta=10_000.0, pairs=3, divisor=6, pairing=pairing, distance=4 if pairing == "half" else 0, start=1)
    x = torch.randn(5, 2, 9, dtype=torch.float64)
    positions = [0, 1, 7, 1023, 1500]
    cos, sin = _angles(plan, positions)
    y = rope.rotate(x.clone(), plan, cos, sin)
    for row, position in enumerate(positions):
        for i in range(3):
            a, b = (1 + i, 1 + i + 4) if pairing == "half" else (1 + 2 * i, 2 + 2 * i)
            angle = position * 10_000.0 ** (-2 * i / 6)
            turn = complex(math.cos(angle), math.sin(angle))
            expected = torch.complex(x[row, :, a], x[row, :, b]) * turn
            assert torch.allclose(torch.complex(y[row, :, a], y[row, :, b]), expected, rtol=0, atol=1e-12)
    fixed = [0, 8] if pairing == "half" else [0, 7, 8]
    assert torch.equal(y[..., fixed], x[..., fixed])


def test_rope_scalings():
    plain = Rope(theta=10_000.0, pairs=8, divisor=16, distance=8)
    base = rope.frequencies(plain)

    def scaled(scaling):
        return rope.frequencies(Rope(theta=10_000.0, pairs=8, divisor=16, distance=8, scaling=scaling))

    assert torch.allclose(scaled(LinearScaling(8.0)), base / 8)
    factors = tuple(float(i + 1) for i in range(8))
    assert torch.allclose(scaled(FactorScaling(factors)), base / torch.tensor(factors, dtype=torch.float64))
    llama3 = scaled(Llama3Scaling(8.0, 1.0, 4.0, 64))
    assert llama3[0] == base[0], "short wavelengths stay"
    assert llama3[-1] == base[-1] / 8, "long wavelengths are divided"
    assert ((llama3 <= base) & (llama3 >= base / 8)).all()


@given(
    dims=st.integers(1, 40).map(lambda half: 2 * half),
    theta=st.sampled_from([20.0, 500.0, 1e4, 1e6]),
    context=st.integers(1, 2**20),
    fast=st.floats(1.0, 64.0),
    slow=st.floats(0.1, 4.0),
    truncate=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_yarn_frequencies_are_those_of_transformers(dims, theta, context, fast, slow, truncate):
    """Contexts so short or long that both ends of the ramp lie beyond the same end of the head are among them."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    keys = {"factor": 4.0, "original_max_position_embeddings": context, "beta_fast": fast, "beta_slow": slow}
    config = LlamaConfig(
        head_dim=dims,
        max_position_embeddings=4 * context,
        rope_parameters={"rope_type": "yarn", "rope_theta": theta, "truncate": truncate, **keys},
    )
    expected, _ = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    scaling = YarnScaling(4.0, context, fast, slow, 1.0, 1.0, truncate)
    found = rope.frequencies(Rope(theta, dims // 2, dims, distance=dims // 2, scaling=scaling))
    # The ramp is made in float32 there; where it is steep its ends are told apart by rounding.
    assert torch.allclose(found.float(), expected, rtol=1e-3)


def test_proportional_rope_of_large_heads():
    """Gemma 4: 64 frequencies over a head of 512, pairs (i, i + 256)."""
    plan = Rope(theta=1e6, pairs=64, divisor=512, distance=256)
    assert torch.allclose(rope.frequencies(plan), 1e6 ** (-torch.arange(64).double() * 2 / 512))
    x = torch.zeros(1, 1, 512, dtype=torch.float64)
    x[..., 5] = 1
    cos, sin = _angles(plan, [3])
    y = rope.rotate(x, plan, cos, sin)
    assert y.nonzero()[:, -1].tolist() == [5, 261]

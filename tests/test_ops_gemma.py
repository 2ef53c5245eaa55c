"""Ops of Gemma 3n and 4 against their references: alternating updates, sparse activations, keys that are values."""

from __future__ import annotations

from statistics import NormalDist

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise import first_difference

import plait
from plait.blueprint.spec import Rope
from plait.blueprint.state import SLAB
from plait.runtime.ops.attention import attention, attention_reference
from plait.runtime.ops.keys_are_values import Folding
from plait.runtime.ops.rope import RopeTable, rotate
from plait.runtime.ops.sparse import keep_largest, keep_largest_reference, quantile
from plait.runtime.ops.streams import (
    correct,
    correct_reference,
    mean,
    mean_reference,
    predict,
    predict_reference,
    to_magnitude,
)

SEEDS = st.integers(0, 2**31)
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 70))


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(shape=SHAPES, seed=SEEDS)
@settings(deadline=None, max_examples=40)
def test_streams_against_einsum(shape, seed):
    s, n, hidden = shape
    streams, computed = draw(seed, s, n, hidden), draw(seed + 1, n, hidden)
    mixing, correction = draw(seed + 2, n, s, s), draw(seed + 3, n, s)
    close = {"rtol": 1e-9, "atol": 1e-9}
    assert torch.allclose(predict(streams, mixing), predict_reference(streams, mixing), **close)
    active = seed % s
    expected = correct_reference(streams, computed, active, correction)
    assert torch.allclose(correct(streams, computed, active, correction), expected, **close)
    assert torch.allclose(mean(streams), mean_reference(streams), **close)
    scaled = to_magnitude(streams[0] * 7, computed)
    assert torch.allclose(scaled.square().mean(-1), computed.square().mean(-1), **close)


def test_a_stream_of_nothing_stays_nothing():
    """The mean square it is divided by is at least 1e-5."""
    like = draw(0, 3, 8)
    assert torch.equal(to_magnitude(torch.zeros(3, 8), like), torch.zeros(3, 8, dtype=torch.float64))
    small = torch.full((1, 8), 1e-4, dtype=torch.float64)
    root = like[:1].square().mean().sqrt()
    assert torch.allclose(to_magnitude(small, like[:1]), small * root / 1e-5**0.5, rtol=1e-12)


@given(n=st.integers(1, 30), width=st.integers(1, 300), share=st.floats(0.01, 0.99), seed=SEEDS)
@settings(deadline=None, max_examples=60)
def test_sparse_activations_against_torch(n, width, share, seed):
    x = draw(seed, n, width)
    expected = keep_largest_reference(x, quantile(share))
    assert torch.allclose(keep_largest(x, quantile(share)), expected, rtol=1e-9, atol=1e-9)


def test_the_share_that_is_kept_is_the_share_that_was_asked_for():
    """Of normally distributed elements 5 in 100 exceed the 0.95 quantile, 1.6449 deviations above the mean."""
    assert quantile(0.95) == pytest.approx(1.6448536269514722, abs=1e-12)
    assert NormalDist().cdf(quantile(0.7)) == pytest.approx(0.7, abs=1e-12)
    kept = keep_largest(draw(1, 4, 50_000) * 3 + 2, quantile(0.95)) > 0
    assert torch.allclose(kept.double().mean(1), torch.full((4,), 0.05, dtype=torch.float64), atol=4e-3)


@pytest.mark.parametrize("width", [37, 16384, 40_000])
def test_sparse_rows_keep_their_bits(width):
    x = draw(2, 9, width, dtype=torch.float32)
    whole = keep_largest(x, 1.6)
    for first, stop in ((0, 1), (3, 5), (8, 9)):
        assert torch.equal(keep_largest(x[first:stop].clone(), 1.6), whole[first:stop])


def test_stream_rows_keep_their_bits():
    streams, mixing, computed = (
        draw(3, 4, 50, 70).float(),
        draw(4, 50, 4, 4).float(),
        draw(5, 50, 70).float(),
    )
    whole = correct(predict(streams, mixing), computed, 1, mixing[:, 0])
    for rows in (slice(0, 1), slice(7, 20), slice(49, 50)):
        own = predict(streams[:, rows].clone(), mixing[rows])
        assert torch.equal(correct(own, computed[rows], 1, mixing[rows, 0]), whole[:, rows])


ROPES = st.one_of(
    st.none(),
    st.builds(
        lambda pairs, apart, start: Rope(100.0, pairs, 24, distance=pairs + apart, start=start),
        st.integers(0, 5),
        st.integers(1, 3),
        st.integers(0, 4),
    ),
    st.just(Rope(100.0, 12, 24, distance=12)),
    st.builds(
        lambda pairs, start: Rope(100.0, pairs, 24, pairing="adjacent", start=start),
        st.integers(1, 8),
        st.integers(0, 8),
    ),
)


@given(rope=ROPES, n=st.integers(1, 20), start=st.integers(0, 100), window=st.sampled_from([None, 7, 70]), seed=SEEDS)
@settings(deadline=None, max_examples=60)
def test_one_vector_gives_what_keys_and_values_give(rope, n, start, window, seed):
    """K = rotate(V * w) made whole, and only its rotated dims stored: the same scores to rounding."""
    heads, kv_heads, dim, total = 4, 2, 24, start + n
    q, v, w = draw(seed, n, heads, dim), draw(seed + 1, total, kv_heads, dim), draw(seed + 2, dim)
    keys, folding = v * w, Folding.of(rope, w)
    stored = [v]
    if rope is not None:
        table = RopeTable(rope, torch.float64, torch.device("cpu"))
        cos, sin = table(torch.arange(total), total)
        keys, q = rotate(keys, rope, cos, sin), rotate(q, rope, cos[start:], sin[start:])
        if folding.rope is not None:
            stored.append(folding.rotated_keys(v, cos, sin))
            assert stored[1].shape[-1] == rope.rotated
    sizes = {"start": start, "scale": 1.0, "window": window, "cap": None}
    expected = attention_reference(q, keys, v, first=0, **sizes)
    padding = -total % SLAB
    slabs = [torch.nn.functional.pad(x, (0, 0, 0, 0, 0, padding)).transpose(0, 1).split(SLAB, 1) for x in stored]
    low = 0 if window is None else max(0, start - window + 1) // SLAB
    blocks = [(*(parts[i] for i in folding.keys), parts[0]) for parts in zip(*slabs, strict=True)][low:]
    out = torch.empty_like(q)
    attention(folding.queries(q), blocks, first_block=low, out=out, **sizes)
    assert torch.allclose(out, expected, rtol=1e-9, atol=1e-9)


def test_gemma_3n_without_what_its_sizes_have(monkeypatch, tmp_path):
    """Nothing shared, nothing sparse, an output that is not scaled, a head of its own, another active stream."""
    plain = {
        **tiny.SETTINGS["gemma3n"],
        "vocab_size_per_layer_input": 211,
        "intermediate_size": 52,
        "num_kv_shared_layers": 0,
        "altup_correct_scale": False,
        "altup_num_inputs": 4,
        "altup_active_idx": 2,
        "activation_sparsity_pattern": [0.0] * 4,
        "tie_word_embeddings": False,
        "attention_bias": True,
    }
    made = tiny.Tiny("Gemma3nTextConfig", "Gemma3nForCausalLM", plain, window=tiny.WINDOW)
    monkeypatch.setattr(tiny, "MODELS", {"plain": made})
    model = tiny.reference_model("plain")
    model.save_pretrained(tmp_path)
    engine = plait.load(tmp_path)
    ids = tiny.tokens(90)
    assert first_difference(engine, model, ids, [40, 1, 49], 1e-4) is None
    with torch.no_grad():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
    assert (engine.logits(ids) - expected).abs().max() < 1e-4 * (expected.max() - expected.min())

"""Logits against transformers on tiny random models, in float32 and float64, whole and in pieces."""

from __future__ import annotations

import pytest
import tiny
import torch
from layerwise import first_difference
from lifted import Lifted

import plait

LENGTH = 3 * tiny.WINDOW + 80


def _logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("name", tiny.SETTINGS)
def test_float32_logits_match_transformers(name, tmp_path):
    model = tiny.reference_model(name)
    model.save_pretrained(tmp_path)
    ids = tiny.tokens(LENGTH)
    expected = _logits(model, ids)
    span = expected.max() - expected.min()
    engine = plait.load(tmp_path)
    for split in (None, [1] * LENGTH, [7, 60, LENGTH - 67]):
        assert (engine.logits(ids, split) - expected).abs().max() < 1e-4 * span, f"split {split}"
        assert first_difference(engine, model, ids, split or [LENGTH], 1e-4) is None


@pytest.mark.parametrize("name", tiny.SETTINGS)
def test_float64_logits_match_transformers(name, tmp_path):
    model = tiny.reference_model(name, dtype=torch.float64)
    model.save_pretrained(tmp_path)
    ids = tiny.tokens(LENGTH)
    with Lifted():
        expected = _logits(model, ids)
    engine = plait.load(tmp_path, dtype="float64")
    span = expected.max() - expected.min()
    assert (engine.logits(ids) - expected).abs().max() < 1e-6 * span


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near(dtype, tmp_path):
    model = tiny.reference_model("gemma3")
    model.save_pretrained(tmp_path)
    ids = tiny.tokens(LENGTH)
    expected = _logits(model, ids)
    engine = plait.load(tmp_path, dtype=dtype)
    error = (engine.logits(ids) - expected).abs()
    assert 1e-5 < error.max() < 0.15 * (expected.max() - expected.min())
    assert error.mean() < 0.01 * (expected.max() - expected.min())


def test_a_real_gguf_of_the_llama_architecture_matches_transformers(smollm_gguf):
    """SmolLM2: rows of q and k are stored permuted, weights in Q4_1 and Q8_0."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm_gguf.parent,
        gguf_file=smollm_gguf.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    )
    ids = tiny.tokens(90, vocabulary=49152)
    expected = _logits(model, ids)
    for dtype, share in (("float32", 1e-4), ("stored", 1e-3)):
        found = plait.load(smollm_gguf, dtype=dtype).logits(ids)
        assert (found - expected).abs().max() < share * (expected.max() - expected.min()), dtype

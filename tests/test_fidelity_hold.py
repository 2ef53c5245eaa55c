"""Weights as they are used by default, against the float32 model on real text: all but the same distributions."""

from __future__ import annotations

from pathlib import Path

import pytest

import plait

TEXT = Path(__file__).parent / "data" / "pride_and_prejudice.txt"
TOKENS = 96


@pytest.mark.parametrize("name", ["smollm_gguf", "gemma_gguf"])
def test_the_default_is_the_float32_model_but_for_rounding(name, request):
    path = request.getfixturevalue(name)
    exact, stored = plait.load(path, dtype="float32", cache=0), plait.load(path, cache=0)
    tokens = exact.tokenizer.encode(TEXT.read_text(encoding="utf-8")[:1000])[:TOKENS]
    assert len(tokens) == TOKENS
    expected, found = (engine.logits(tokens).double().log_softmax(-1) for engine in (exact, stored))
    divergence = (expected.exp() * (expected - found)).sum(-1)
    # Inputs of 8 bits, as other runtimes take them, are about 1e-3 off, and change one choice in fifty.
    assert divergence.mean() <= 1e-5
    assert divergence.max() <= 1e-4
    agree = (expected.argmax(-1) == found.argmax(-1)).float().mean()
    assert agree >= 0.99

"""Logits against reference data made outside the project."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import plait

DATA = Path(__file__).parent / "data"
SPARK = DATA / "spark-tiny"


@pytest.fixture(scope="module")
def gemma(gemma_gguf):
    return plait.load(gemma_gguf)


@pytest.mark.parametrize("container", [SPARK, SPARK / "model-f32.gguf"], ids=["safetensors", "gguf"])
def test_spark_in_both_containers(container):
    tokens = [int(word) for word in (SPARK / "tokens.txt").read_text().split()]
    expected = torch.from_numpy(np.load(SPARK / "logits_f64.npy"))
    span = expected.max() - expected.min()
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-6)):
        logits = plait.load(container, dtype=dtype).logits(tokens)
        assert (logits - expected).abs().max() < tolerance * span


def test_spark_containers_hold_one_model():
    tokens = [int(word) for word in (SPARK / "tokens.txt").read_text().split()]
    first, second = (plait.load(path).logits(tokens) for path in (SPARK, SPARK / "model-f32.gguf"))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["license", "mixed"])
def test_gemma_log_probabilities(gemma, name):
    oracle = json.loads((DATA / "gemma3-270m.json").read_text())["texts"][name]
    tokens = oracle["tokens"]
    session = gemma.model.session()
    found = []
    top = {}
    step = 100
    from plait.runtime.session import Span

    for at in range(0, len(tokens), step):
        piece = tuple(tokens[at : at + step])
        logits = gemma.model.run([Span(session, piece)], want="all")[0].log_softmax(-1)
        for row, position in enumerate(range(at, at + len(piece))):
            if position + 1 < len(tokens):
                found.append(logits[row, tokens[position + 1]].item())
            if position in oracle["positions"]:
                top[position] = logits[row].topk(5)
    session.close()
    expected = torch.tensor(oracle["next_token_logprobs"])
    # Weights stay the blocks they are, and rows that meet them are rounded to 15 or 16 bits of their groups' largest.
    assert (torch.tensor(found) - expected).abs().max() < 4e-3
    for i, position in enumerate(oracle["positions"]):
        assert (top[position].values - torch.tensor(oracle["top5_logprobs"][i])).abs().max() < 4e-3


def test_gemma_greedy_texts(gemma):
    oracle = json.loads((DATA / "gemma3-270m.json").read_text())["greedy"]
    for prompt, expected in oracle.items():
        assert gemma.tokenizer.encode(prompt) == expected["prompt_tokens"]
        *_, result = gemma.generate(prompt, max_tokens=len(expected["greedy_tokens"]))
        assert list(result.tokens) == expected["greedy_tokens"]
        assert result.text == expected["greedy_text"]

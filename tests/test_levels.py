"""Whole models with each level of the kernels forced: what the choice of a level may change, and what it may not."""

from __future__ import annotations

import pytest
import qwen_configs
import tiny
import torch
from configs import qwen3, read

import plait
from plait.runtime import kernels
from plait.runtime.checkpoint import write_random

LEVELS = kernels.levels()
# Multiply-adds with two roundings, and without kernels sums in torch's order.
ALONE = ("off", "portable")
DENSE = ("gemma3", "gemma2", "qwen3_5", "qwen3_moe", "deepseek_v3")
BLOCKS = {"blocks": (qwen3(), "q4_0"), "blocks of experts": (qwen_configs.qwen3_5_moe(), "q8_0")}

pytestmark = pytest.mark.skipif(not LEVELS, reason="the package was built without its native kernels")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Attention of windows and of latents, the delta rule, experts; dense weights, and blocks as stored."""
    made = {name: tiny.save(name, tmp_path_factory.mktemp(name)) for name in DENSE}
    for name, (config, form) in BLOCKS.items():
        out = tmp_path_factory.mktemp("blocks")
        made[name] = write_random(read(config), config, out, seed=3, gguf=True, format=form).path
    return made


def _greedy(engine, prompt):
    *_, result = engine.generate(prompt, max_tokens=8)
    return result.tokens


def _with_level(level, monkeypatch, run):
    monkeypatch.setenv(kernels.VARIABLE, level)
    kernels.chosen.cache_clear()
    try:
        assert (kernels.native().name if kernels.native() else "off") == level
        return run()
    finally:
        monkeypatch.undo()
        kernels.chosen.cache_clear()


def _on_every_level(path, monkeypatch, **options):
    """For each level logits of a prompt, the same in any cut, and the tokens that greedy choice goes on with."""
    ids = tiny.tokens(70)

    def run():
        engine = plait.load(path, cache=0, **options)
        logits = engine.logits(ids)
        assert torch.equal(engine.logits(ids, [40, 1, 29]), logits)
        return logits, _greedy(engine, ids[:20])

    return {level: _with_level(level, monkeypatch, run) for level in ("off", *LEVELS)}


def _near(made, share):
    """All are `share` of the logits' span from those of torch."""
    expected = made["off"][0]
    assert expected.std() > 0.05
    span = expected.max() - expected.min()
    return all((logits - expected).abs().max() < share * span for logits, _ in made.values())


def _alike(made):
    """Levels with fused multiply-adds give one result, bit for bit, and all the same tokens."""
    fused = [logits for level, (logits, _) in made.items() if level not in ALONE]
    return all(torch.equal(x, fused[0]) for x in fused) and len({tokens for _, tokens in made.values()}) == 1


@pytest.mark.parametrize("name", [*DENSE, *BLOCKS])
def test_float32_is_one_result_of_every_fused_level(paths, name, monkeypatch):
    made = _on_every_level(paths[name], monkeypatch, dtype="float32", kv_dtype="float32")
    assert _alike(made) and _near(made, 1e-5)


@pytest.mark.parametrize("name", BLOCKS)
def test_stored_blocks_are_one_result_of_every_fused_level(paths, name, monkeypatch):
    made = _on_every_level(paths[name], monkeypatch, kv_dtype="float32")
    assert _alike(made) and _near(made, 2e-3)


# Tiles and instructions for bf16 add up in an order of their own.
@pytest.mark.parametrize("name", ["gemma3", "gemma2", "qwen3_5"])
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"dtype": "float32", "kv_dtype": "int8"}])
def test_types_that_round_are_near_on_every_level(paths, name, options, monkeypatch):
    assert _near(_on_every_level(paths[name], monkeypatch, **options), 0.1)

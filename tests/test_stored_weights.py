"""Models whose weights stay in the blocks of their GGUF file: close to those that expand them, and exact in any cut."""

from __future__ import annotations

import pytest
import qwen_configs
import tiny
import torch
from configs import llama, qwen3, read

import plait
from plait.engine.load import opened
from plait.errors import PlaitError
from plait.runtime import kernels
from plait.runtime.checkpoint import write_random
from plait.runtime.session import Span
from plait.runtime.steps import rows
from plait.runtime.steps.attend import Attend

pytestmark = pytest.mark.skipif(not kernels.levels(), reason="the package was built without its native kernels")

# Rows of 256 where whole K blocks are wanted: the rest is expanded, and joins the blocks of the same product.
WIDE = {"hidden_size": 256, "intermediate_size": 512, "rope_scaling": None}
CASES = {
    **{f"llama {form}": ({**llama(), **WIDE}, form) for form in ("q4_k", "q5_k", "q6_k")},
    **{f"qwen3 {form}": (qwen3(), form) for form in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")},
    "hybrid": (qwen_configs.qwen3_5(), "q4_0"),
    "mixture": (qwen_configs.qwen3_5_moe(), "q8_0"),
    "halves": (qwen_configs.qwen3_5(), "bf16"),
    "mixture of halves": (qwen_configs.qwen3_5_moe(), "f16"),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    made = {}
    for name, (config, form) in CASES.items():
        out = tmp_path_factory.mktemp("stored")
        made[name] = write_random(read(config), config, out, seed=3, gguf=True, format=form).path
    return made


@pytest.mark.parametrize("name", CASES)
def test_stored_weights_are_the_expanded_ones(paths, name):
    kept, expanded = plait.load(paths[name]), plait.load(paths[name], dtype="float32")
    assert any(CASES[name][1] in form.split() for form in kept.stats()["forms"])
    assert kept.model.weight_bytes < expanded.model.weight_bytes
    ids = tiny.tokens(90)
    found, expected = kept.logits(ids), expanded.logits(ids)
    assert expected.std() > 0.05
    span = expected.max() - expected.min()
    assert (found - expected).abs().max() < 1e-3 * span
    # With inputs of 8 bits they are near, and no nearer than that: weights in float16 alone meet inputs as they are. A
    # router of random weights chooses other experts at some positions, and what follows differs.
    rough = (plait.load(paths[name], dtype="stored8").logits(ids) - expected).abs().amax(-1)
    assert rough.median() < 5e-2 * span
    assert rough.max() < (0.5 if name == "mixture" else 0.1) * span
    assert (rough.max() > 1e-3 * span) == (CASES[name][1] != "f16")


@pytest.mark.parametrize(("dtype", "kv"), [("stored", None), ("stored8", None), ("stored8", "bfloat16")])
@pytest.mark.parametrize("name", CASES)
def test_any_split_and_company_gives_the_same_bits(paths, name, dtype, kv):
    engine = plait.load(paths[name], cache=0, dtype=dtype, kv_dtype=kv)
    ids = tiny.tokens(133)
    whole = engine.logits(ids)
    for size in (1, 3, 5, 16, 64, 90):
        cut = [min(size, 133 - at) for at in range(0, 133, size)]
        assert torch.equal(engine.logits(ids, cut), whole), f"calls of {size}"
    model = engine.model
    spans = [Span(model.session(), tuple(tiny.tokens(count, seed=count))) for count in (7, 1, 30)]
    together = model.run([*spans, Span(model.session(), tuple(ids))], want="all")[-1]
    assert torch.equal(together, whole)


@pytest.mark.parametrize("name", ["llama q4_k", "qwen3 q5_0", "mixture"])
def test_threads_change_no_bit(paths, name):
    engine = plait.load(paths[name], cache=0)
    ids, threads = tiny.tokens(40), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = engine.logits(ids)
        torch.set_num_threads(2)
        assert torch.equal(engine.logits(ids), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_planned_to_the_byte(paths, name):
    needed = plait.load(paths[name]).model.weight_bytes
    assert plait.load(paths[name], memory=needed).model.weight_bytes == needed
    with pytest.raises(PlaitError, match="as stored"):
        plait.load(paths[name], memory=needed - 1)


def test_without_kernels_weights_are_expanded(paths, monkeypatch):
    from plait.runtime.ops import linear_blocks

    monkeypatch.setattr(linear_blocks, "native", lambda: None)
    path = paths["qwen3 q4_0"]
    kept, expanded = plait.load(path), plait.load(path, dtype="float32")
    assert kept.stats()["forms"] == expanded.stats()["forms"]
    ids = tiny.tokens(20)
    assert torch.equal(kept.logits(ids), expanded.logits(ids))


@pytest.mark.parametrize(
    ("dtype", "exact"),
    [("stored", True), ("stored8", False), ("float32", True), ("bfloat16", False), ("float16", False)],
)
def test_rows_of_bf16_are_met_by_what_is_as_exact_as_the_run(paths, dtype, exact, monkeypatch):
    """Attention by itself and in a native program is told, both alike, whether queries and weights may be rounded."""
    path, ids = paths["qwen3 q4_0"], tiny.tokens(90)
    assert opened(path, dtype=dtype).numbers.exact is exact
    engine = plait.load(path, cache=0, dtype=dtype, kv_dtype="bfloat16")
    whole = engine.logits(ids)
    told, original = [], rows.attention_native

    def watched(*given, exact, **words):
        told.append(exact)
        return original(*given, exact=exact, **words)

    monkeypatch.setattr(rows, "attention_native", watched)
    monkeypatch.setattr(Attend, "lower", lambda *_: False)
    alone = plait.load(path, cache=0, dtype=dtype, kv_dtype="bfloat16").logits(ids)
    assert set(told) == {exact}
    assert torch.equal(alone, whole)

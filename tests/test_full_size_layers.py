"""One layer of every kind of every family, at its published width: any split gives equal bits, all of them finite.

What is cut: the vocabulary to 512, experts to twice the active ones (two in each group), windows and what an indexer
chooses so that the prompt goes beyond them. Widths, heads, ranks, states and widths of experts are as published.

Of several sizes of a family the smallest is taken; with the environment variable PLAIT_TEST_WIDEST=1 the widest, which
takes some minutes and up to 6 GiB.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

import plait
from plait.blueprint.catalog import entries, entry
from plait.blueprint.shrink import layer_words
from plait.blueprint.source import from_config, open_entry
from plait.blueprint.spec import Attention, Blueprint, Both, LatentAttention, Layer, Mixture
from plait.blueprint.tensors import inventory
from plait.dtypes import BY_NAME
from plait.runtime.checkpoint import write_random
from plait.runtime.model import Model, Numbers
from plait.runtime.packed import Packed
from plait.runtime.random_values import neutral
from plait.runtime.session import Span

VOCABULARY = 512
LENGTH = 70
SPLIT = (1, 3, 60, 6)
WINDOW = 24
TOP_K = 32


def few_experts(part: Mixture) -> Mixture:
    groups = part.router.groups
    return replace(part, experts=min(part.experts, -(-max(2 * part.active, 2 * groups) // groups) * groups))


def cut(layer: Layer, source: int | None) -> Layer:
    """The layer at full width; of another layer's rows or choice it takes those of layer `source`."""
    mixer, part = layer.mixer, layer.feed_forward
    if isinstance(mixer, Attention):
        window = None if mixer.window is None else min(mixer.window, WINDOW)
        mixer = replace(mixer, window=window, kv_source=None if mixer.kv_source is None else source)
    elif isinstance(mixer, LatentAttention) and mixer.indexer is not None:
        shared = None if mixer.indexer.source is None else source
        mixer = replace(mixer, indexer=replace(mixer.indexer, top_k=TOP_K, source=shared))
    if isinstance(part, Mixture):
        part = few_experts(part)
    elif isinstance(part, Both):
        part = replace(part, mixture=few_experts(part.mixture))
    return replace(layer, mixer=mixer, feed_forward=part)


def source_of(layer: Layer) -> int | None:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return mixer.kv_source
    return mixer.indexer.source if isinstance(mixer, LatentAttention) and mixer.indexer is not None else None


def cases() -> dict[str, Blueprint]:
    """A blueprint for each kind of layer of each family, of its smallest model that has the kind, or of its widest."""
    sign = -1 if os.environ.get("PLAIT_TEST_WIDEST") else 1
    found: dict[tuple[str, object], tuple[str, int, Blueprint]] = {}
    for item in entries():
        blueprint = open_entry(item).blueprint
        for index, layer in enumerate(blueprint.layers):
            kind = (blueprint.family, layer_words(layer))
            if kind not in found or sign * blueprint.hidden < sign * found[kind][2].hidden:
                found[kind] = item.name, index, blueprint
    made = {}
    for name, index, blueprint in found.values():
        layer = blueprint.layers[index]
        source = source_of(layer)
        first = () if source is None else (cut(blueprint.layers[source], None),)
        table = blueprint.per_layer_embeddings
        made[f"{name} layer {index}"] = replace(
            blueprint,
            vocabulary=VOCABULARY,
            layers=(*first, cut(layer, 0)),
            per_layer_embeddings=None if table is None else replace(table, vocabulary=VOCABULARY),
            mtp=None,
            towers=(),
        )
    return made


CASES = cases()


class Tiled:
    """Weights that repeat a block of random numbers, so that a layer of gigabytes is there at once."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._wanted = {tensor.role: tensor for tensor in inventory(blueprint) if tensor.part == "text"}
        self.roles = tuple(self._wanted)
        # No matrix has rows of this many columns, or a divisor of it: no two rows are alike.
        self._block = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))

    def _filled(self, shape: tuple[int, ...], role: str, dtype: torch.dtype) -> torch.Tensor:
        tensor = self._wanted[role]
        values = self._block.mul(shape[-1] ** -0.5 if not tensor.vector else 0.1)
        if tensor.use == "norm":
            values += neutral(self._blueprint, role)
        elif role.endswith(("scalar", "scale")):
            values += 1.0
        elif role.endswith("decay_log"):
            values -= 2.0
        values = values.to(dtype)
        count = torch.Size(shape).numel()
        return values.repeat(-(-count // values.numel()))[:count].view(shape)

    def dense(self, role: str, dtype: torch.dtype) -> torch.Tensor:
        return self._filled(self._wanted[role].shape, role, dtype)

    def dense_at(self, role: str, index: int, dtype: torch.dtype) -> torch.Tensor:
        return self._filled(self._wanted[role].shape[1:], role, dtype).roll(index, 0)

    def packed(self, role: str) -> Packed:
        return Packed(BY_NAME["bf16"], self.dense(role, torch.bfloat16), self._wanted[role].shape)


@pytest.mark.parametrize("case", CASES)
def test_any_split_gives_equal_bits(case: str) -> None:
    blueprint = CASES[case]
    numbers = Numbers(torch.bfloat16, torch.bfloat16)
    model = Model(blueprint, Tiled(blueprint), numbers, torch.device("cpu"))
    tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()

    def run(split: tuple[int, ...]) -> torch.Tensor:
        session, at, parts = model.session(), 0, []
        for size in split:
            parts.extend(model.run([Span(session, tuple(tokens[at : at + size]))], want="all"))
            at += size
        session.close()
        return torch.cat(parts)

    whole = run((LENGTH,))
    assert torch.isfinite(whole).all()
    assert whole.std() > 1e-3
    assert torch.equal(run(SPLIT), whole)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("qwen3-4b", None),
        ("gemma-2-2b", None),
        ("qwen3.5-2b", ["linear_attention"]),
        ("gemma-3-1b", ["sliding_attention"]),
    ],
)
def test_a_layer_is_that_of_transformers(name: str, layers: list[str] | None, tmp_path: Any) -> None:
    import transformers

    found = entry(name)
    assert found is not None
    config = deepcopy(dict(found.config))
    nested = config.pop("text_config", None)
    if nested is not None:
        config = {**config, **nested, "model_type": f"{config['model_type']}_text"}
    config.pop("vision_config", None)
    special = {"eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
    changes = {"num_hidden_layers": 1, "vocab_size": VOCABULARY}
    config |= changes | special | ({} if layers is None else {"layer_types": layers})
    blueprint, _ = from_config(config, file="one layer")
    write_random(blueprint, config, tmp_path / "model", seed=0, gguf=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, attn_implementation="eager"
    )
    tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(2)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0]
    difference = (plait.load(tmp_path / "model").logits(tokens, SPLIT) - expected).abs().max()
    assert difference < 1e-4 * (expected.max() - expected.min())

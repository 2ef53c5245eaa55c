"""Every published model at its real shapes, without memory: the reference's tensors, and our own plan.

The reference is transformers' model of the published config on the meta device; transformers joins the experts of a
layer in memory, so the comparison is with what it would save. MTP layers are no part of its models, and Gemma 3n's
vision tower is another package's: for these the text model is held against the reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from copy import deepcopy
from math import prod
from typing import Any

import pytest
import torch
import transformers
from gemma_configs import misfits
from transformers.core_model_loading import revert_weight_conversion

from plait.account.parameters import parameters
from plait.blueprint.catalog import entry, names
from plait.blueprint.source import open_model
from plait.blueprint.tensors import inventory
from plait.dtypes import BY_NAME
from plait.runtime.model import Model, Numbers
from plait.runtime.ops import linear
from plait.runtime.packed import Packed

# transformers 5.24 does not know the family.
UNKNOWN = ("spark2_5",)
KNOWN = tuple(name for name in names() if open_model(name).blueprint.family not in UNKNOWN)


def reference(name: str) -> Any:
    """transformers' model of a catalogue entry, without memory."""
    found = entry(name)
    assert found is not None
    config = deepcopy(dict(found.config))
    if config["model_type"] == "gemma3n":
        config = {**config["text_config"], "model_type": "gemma3n_text"}
    kind = config.pop("model_type")
    config.pop("quantization_config", None)
    made = transformers.AutoConfig.for_model(kind, **config)
    images, text = transformers.AutoModelForImageTextToText, transformers.AutoModelForCausalLM
    table = next(auto._model_mapping for auto in (images, text) if type(made) in auto._model_mapping)
    classes = table[type(made)]
    with torch.device("meta"):
        return (classes[0] if isinstance(classes, tuple) else classes)(made)


def part_of(name: str) -> str:
    for part, words in (("vision", ("vision", "visual", "multi_modal_projector")), ("audio", ("audio",))):
        if any(word in name for word in words):
            return part
    return "text"


@pytest.mark.parametrize("name", KNOWN)
def test_tensors_are_those_of_the_reference(name: str) -> None:
    """Every name is bound or known to be no part of the graph, every role is found, rows and columns and counts fit."""
    model = reference(name)
    saved = revert_weight_conversion(model, model.state_dict())
    blueprint = open_model(name).blueprint
    assert misfits(blueprint, {key: tuple(value.shape) for key, value in saved.items()}) == []
    seen: Counter[str] = Counter()
    for key, parameter in model.named_parameters():
        seen[part_of(key)] += parameter.numel()
    counted = parameters(blueprint).parts
    parts = ("text",) if blueprint.family == "gemma3n" else ("text", "vision", "audio")
    assert {part: counted[part] for part in parts} == {part: seen[part] for part in parts}


class Shapes:
    """Weights without memory, and how often each was asked for; of a stack each expert counts by itself."""

    def __init__(self, blueprint: Any) -> None:
        self.wanted = {tensor.role: tensor.shape for tensor in inventory(blueprint) if tensor.part == "text"}
        self.roles = tuple(self.wanted)
        self.asked: Counter[tuple[str, int | None]] = Counter()
        self._experts: dict[str, torch.Tensor] = {}

    def dense(self, role: str, dtype: torch.dtype) -> torch.Tensor:
        self.asked[role, None] += 1
        return torch.empty(self.wanted[role], dtype=dtype, device="meta")

    def dense_at(self, role: str, index: int, dtype: torch.dtype) -> torch.Tensor:
        self.asked[role, index] += 1
        if role not in self._experts:
            self._experts[role] = torch.empty(self.wanted[role][1:], dtype=dtype, device="meta")
        return self._experts[role]

    def packed(self, role: str) -> Packed:
        self.asked[role, None] += 1
        shape = self.wanted[role]
        return Packed(BY_NAME["bf16"], torch.empty(shape, dtype=torch.bfloat16, device="meta"), shape)


def alike(weights: Iterable[torch.Tensor], *, exact: bool = False) -> Iterator[linear.Linear]:
    """Products of weights of one shape, which hold no numbers: one stands for all."""
    made: linear.Linear | None = None
    shapes = set()
    for weight in weights:
        shapes.add(weight.shape)
        made = linear.Tiled(weight) if made is None else made
        yield made
    assert len(shapes) == 1


@pytest.mark.parametrize("name", names())
def test_the_plan_of_the_published_model_takes_every_weight_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Which form a machine's products take is asked of real numbers; see test_full_size_layers.
    monkeypatch.setattr("plait.runtime.build.builder.make_linears", alike)
    monkeypatch.setattr("plait.runtime.build.builder.keeps_bits", lambda *shape: True)
    monkeypatch.setattr("plait.runtime.build.latent.keeps_bits", lambda *shape: True)
    blueprint = open_model(name).blueprint
    source = Shapes(blueprint)
    meta = torch.device("meta")
    model = Model(blueprint, source, Numbers(torch.bfloat16, torch.bfloat16), meta)
    stacks = {role for role, _ in source.asked if (role, 0) in source.asked}
    expected = Counter({(role, None): 1 for role in source.wanted if role not in stacks})
    expected.update((role, i) for role in stacks for i in range(source.wanted[role][0]))
    if blueprint.head.tied:
        expected["embedding", None] += 1  # for rows, and as the head
    more = Counter(source.asked)
    more.subtract(expected)
    # Layers that read another's rows take the weight of its keys' norm, too.
    shared = {role for (role, _), count in more.items() if count > 0}
    assert all(role.endswith("attention.key_norm") for role in shared)
    assert not [key for key, count in more.items() if count < 0]
    assert not shared or any(getattr(layer.mixer, "keys_are_values", False) for layer in blueprint.layers)
    # All but the tables is prepared, in bfloat16 or, where small, in float32.
    tables = [role for role in ("embedding", "per_layer_embedding") if role in source.wanted]
    elements = sum(prod(shape) for role, shape in source.wanted.items() if role not in tables)
    elements += prod(source.wanted["embedding"]) if blueprint.head.tied else 0
    assert 2 * elements <= model.weight_bytes < 2.1 * elements + 2**20

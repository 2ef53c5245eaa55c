"""Which form each step of a model runs in on this machine, seen by running a small model of the same kinds of layers.

Nothing is stated from a table: the small model's plan says which steps are in native programs, and the others are run
while their calls of kernels are watched. Products are tried in the formats the model's own weights are stored in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.families import family
from plait.blueprint.shrink_blueprint import tiny_blueprint
from plait.blueprint.source import Source
from plait.blueprint.spec import Blueprint
from plait.blueprint.tensors import inventory
from plait.dtypes import BY_NAME, Format
from plait.runtime.blocks import DENSE, pack, packable
from plait.runtime.build.builder import Builder, Numbers
from plait.runtime.kernels import watching
from plait.runtime.model import Model
from plait.runtime.packed import Packed
from plait.runtime.session import Span
from plait.runtime.slabs import SlabPool
from plait.runtime.steps.call import Call, EndLayer, Step
from plait.runtime.weight_source import RandomWeights

__all__ = ["ProductForm", "StepForm", "product_forms", "step_forms"]

_CPU: Final = torch.device("cpu")
_TOKENS: Final = 80
_ROLE: Final = "weight"
_SHAPE: Final = (64, 256)
_WORDS: Final = MappingProxyType(
    {
        "AddInput": "per-layer inputs",
        "AddTo": "sums",
        "Attend": "softmax attention",
        "AttendLatent": "latent attention",
        "AttendValues": "attention, keys are values",
        "Choose": "indexer",
        "Convolve": "convolution",
        "DeltaRule": "delta rule",
        "Embed": "embedding",
        "Feed": "feed-forward",
        "GateHeads": "gate of heads",
        "GateRows": "gate of shared experts",
        "Inputs": "per-layer embeddings",
        "Mix": "experts",
        "NormGate": "norm and gate of delta",
        "Normalise": "norms",
        "Project": "projections",
        "Route": "router",
        "Scale": "layer scalars",
    }
)


@dataclass(frozen=True, slots=True)
class StepForm:
    """Steps of one kind.

    count    of them in the small model
    program  those that are operations of a native program, beside their neighbours
    kernels  the others' calls of kernels, each once; none: torch computes. Products are not among them
    """

    step: str
    count: int
    program: int
    kernels: tuple[str, ...]

    @property
    def runs_in(self) -> str:
        """In words."""
        if self.program == self.count:
            return "native program"
        alone = "kernels " + ", ".join(self.kernels) if self.kernels else "torch"
        return alone if not self.program else f"native program, or {alone}"


@dataclass(frozen=True, slots=True)
class ProductForm:
    """Weights of one use in one format.

    use      mixer, feed_forward, experts, router or head
    stored   the format of the file; of a model without one, of the published weights
    weights  how many
    form     what the products with them run in
    """

    use: str
    stored: str
    weights: int
    form: str


def step_forms(blueprint: Blueprint, numbers: Numbers) -> tuple[StepForm, ...]:
    """The kinds of steps in the order of a plan. UnsupportedError: no small model has the same kinds of layers."""
    small = tiny_blueprint(blueprint)
    model = Model(small, RandomWeights(small, 0), numbers, _CPU)
    plan = model.plan()
    lowered = set(map(id, model.steps)) - set(map(id, plan.parts if plan is not None else model.steps))
    counts: dict[str, list[int]] = {}
    kernels: dict[str, dict[str, None]] = {}
    for step, called in _watched(model):
        name = type(step).__name__
        count = counts.setdefault(name, [0, 0])
        count[0] += 1
        count[1] += id(step) in lowered
        noted = kernels.setdefault(name, {})
        if id(step) not in lowered:
            noted.update(dict.fromkeys(called))
    return tuple(StepForm(_words(name), made[0], made[1], tuple(kernels[name])) for name, made in counts.items())


@torch.inference_mode()
def _watched(model: Model) -> list[tuple[Step, list[str]]]:
    """Each step, run in Python, with the kernels it asked for."""
    count = min(_TOKENS, model.blueprint.max_context)
    tokens = tuple(index % model.blueprint.vocabulary for index in range(count))
    session = model.session()
    session.prepare(count)
    call = Call((Span(session, tokens),), torch.tensor(tokens), [])
    found = []
    try:
        for step in model.steps:
            with watching() as called:
                step(call)
            if not isinstance(step, EndLayer):
                found.append((step, called))
    finally:
        session.trim()
        session.close()
    return found


def _words(name: str) -> str:
    """A kind of step as people call it; of one that has no words here, its class's name."""
    return _WORDS.get(name, re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower())


def product_forms(source: Source, numbers: Numbers) -> tuple[ProductForm, ...]:
    """The forms of a model's products, each tried with a small weight of the same format."""
    blueprint = source.blueprint
    formats = _formats(source)
    counts: dict[tuple[str, str], int] = {}
    for tensor in inventory(blueprint):
        use = "head" if tensor.role == "embedding" and blueprint.head.tied else tensor.use
        if tensor.part != "text" or tensor.vector or use in ("embedding", "norm", "other"):
            continue
        key = use, formats.get(tensor.role, blueprint.stored_format)
        counts[key] = counts.get(key, 0) + 1
    return tuple(ProductForm(*key, count, _tried(blueprint, *key, numbers)) for key, count in counts.items())


def _formats(source: Source) -> Mapping[str, str]:
    """The format of each role's tensors in a GGUF file."""
    if source.header is None:
        return {}
    stored, found = source.header.tensors, dict[str, str]()
    for binding in family(source.blueprint.family).gguf_layout(source.blueprint).bindings:
        there = [stored[name].format.name for name in binding.names if name in stored]
        found |= dict.fromkeys(binding.roles, there[0]) if there else {}
    return found


def _tried(blueprint: Blueprint, use: str, stored: str, numbers: Numbers) -> str:
    weights = _OneWeight(BY_NAME[stored])
    build = Builder(blueprint, weights, numbers, _CPU, SlabPool(blueprint, numbers.kv, _CPU))
    if use == "router":
        # Scores are computed in the compute type, whatever the weights are in.
        return build.prepared(weights.dense(_ROLE, numbers.compute)).form
    return build.linear([_ROLE]).form


class _OneWeight:
    """A small random weight under any role."""

    roles: tuple[str, ...] = (_ROLE,)

    def __init__(self, form: Format) -> None:
        values = torch.randn(_SHAPE, generator=torch.Generator().manual_seed(0))
        dtype = DENSE.get(form.name)
        self._values = values
        self._packed: Packed | None = None
        if dtype is not None:
            self._packed = Packed(form, values.to(dtype), _SHAPE)
        elif form.name in packable():
            self._packed = Packed(form, pack(form, values), _SHAPE)

    def dense(self, role: str, dtype: torch.dtype) -> Tensor:
        return self._values.to(dtype)

    def dense_at(self, role: str, index: int, dtype: torch.dtype) -> Tensor:
        return self._values.to(dtype)

    def packed(self, role: str) -> Packed | None:
        return self._packed

    def packed_at(self, role: str, index: int) -> Packed | None:
        return self._packed

    def stored(self, role: str) -> Format | None:
        return None if self._packed is None else self._packed.format

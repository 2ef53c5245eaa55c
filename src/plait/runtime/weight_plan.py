"""What a model's weights take in memory, known before any of them is read.

The model is built as always, of tensors that have shapes and one element: the parts that choose, join and pad weights
are the same, so the figure is that of the model which is built later. Torch's `meta` tensors would do too, but joining
two of them imports some 800 modules, which stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from plait.blueprint.spec import Blueprint
from plait.blueprint.tensors import inventory
from plait.dtypes import BY_NAME, Format
from plait.runtime.build.builder import Builder, Numbers
from plait.runtime.kernels import native
from plait.runtime.lower import Lowering, NativePart
from plait.runtime.model import CALL_ROWS, Model
from plait.runtime.ops.joined import Joined
from plait.runtime.ops.linear import Linear, prepared_bytes
from plait.runtime.ops.linear_blocks import block_bytes
from plait.runtime.packed import PIECE, Packed
from plait.runtime.slabs import SlabPool
from plait.runtime.steps.call import EndLayer, Step
from plait.runtime.steps.mixture import Mix
from plait.runtime.steps.stream import Embed
from plait.runtime.weight_source import WeightSource

if TYPE_CHECKING:
    from plait.runtime._native import Prepared, Program

__all__ = ["WeightPlan", "formats_of", "weight_plan"]

_HERE: Final = torch.device("cpu")
# Bytes an element needs at most while a block format is expanded.
_EXPANDING: Final = 16
# Of one layer's products, what is held at once beside them: gated halves, what attention mixes, sums.
_BESIDE: Final = 1.5
# Registers as wide as the stream: the stream itself, its norm, sums, inputs and outputs of parts.
_STREAMS: Final = 6


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Bytes.

    prepared  of the prepared weights, exactly: the `weight_bytes` of the model
    loading   the most that prepared weights, and those being prepared, take while they are read
    rows      about what the registers of one call of `CALL_ROWS` tokens take, attention's scores apart; exactly the
              scratch of native programs
    """

    prepared: int
    loading: int
    rows: int


def weight_plan(
    blueprint: Blueprint,
    numbers: Numbers,
    device: torch.device,
    formats: Mapping[str, Format] = MappingProxyType({}),
) -> WeightPlan:
    """The plan for a model on a device. UnsupportedError: this version cannot run it.

    formats  by role, how weights are stored that may be kept so (see `formats_of`); the others are expanded
    """
    counts: list[_Counting] = []

    def counting(
        blueprint: Blueprint, weights: WeightSource, numbers: Numbers, here: torch.device, pool: SlabPool
    ) -> _Counting:
        counts.append(_Counting(blueprint, weights, numbers, here, pool, device))
        return counts[-1]

    with _Joined():
        model = Model(blueprint, _Shapes(blueprint, formats), numbers, _HERE, builder=counting)
    (made,) = counts
    streams = 1 if blueprint.altup is None else blueprint.altup.streams
    width = _STREAMS * streams * blueprint.hidden
    beside = int(_BESIDE * made.widest)
    if native() is not None and device.type == "cpu" and numbers.compute == torch.float32:
        lowering = _Planning(model.pool, blueprint.hidden)
        lowering.take(model.steps)
        width += sum(lowering.slots)
        # What the embedding makes is as wide as the stream.
        if all(isinstance(part, NativePart | Embed) for part in lowering.parts):
            beside = 0
    rows = (CALL_ROWS * (width + beside) + 2 * blueprint.vocabulary) * numbers.compute.itemsize
    return WeightPlan(made.bytes, made.peak, rows)


def formats_of(weights: WeightSource) -> dict[str, Format]:
    """The formats of weights that can be kept as they are stored, by role."""
    found = {role: weights.stored(role) for role in weights.roles}
    return {role: form for role, form in found.items() if form is not None}


def _shaped(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of a shape whose elements are one and the same in memory."""
    return torch.zeros((), dtype=dtype).expand(*shape)


class _Joined(TorchFunctionMode):
    """Tensors that are joined stay without memory of their own."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not torch.cat or len(args) != 1 or kwargs:
            return func(*args, **(kwargs or {}))
        parts = list(args[0])
        rows = sum(part.shape[0] for part in parts)
        return _shaped((rows, *parts[0].shape[1:]), parts[0].dtype)


class _Shapes:
    """The weights of a blueprint's text model without elements."""

    def __init__(self, blueprint: Blueprint, formats: Mapping[str, Format] = MappingProxyType({})) -> None:
        self._formats = formats
        self._shapes = {tensor.role: tensor.shape for tensor in inventory(blueprint) if tensor.part == "text"}
        self.roles: tuple[str, ...] = tuple(self._shapes)

    def dense(self, role: str, dtype: torch.dtype) -> Tensor:
        return _shaped(self._shapes[role], dtype)

    def dense_at(self, role: str, index: int, dtype: torch.dtype) -> Tensor:
        return _shaped(self._shapes[role][1:], dtype)

    def packed(self, role: str) -> Packed:
        return Packed(BY_NAME["f32"], self.dense(role, torch.float32), self._shapes[role])

    def packed_at(self, role: str, index: int) -> Packed:
        return Packed(BY_NAME["f32"], self.dense_at(role, index, torch.float32), self._shapes[role][1:])

    def stored(self, role: str) -> Format | None:
        return self._formats.get(role)


class _Nowhere:
    """A program that keeps no operation."""

    operations = 1

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


@dataclass(frozen=True, slots=True)
class _Product:
    """What a lowered step asks of a product."""

    out: int


class _Planning(Lowering):
    """Finds the slots of a plan whose products are planned."""

    def __init__(self, pool: SlabPool, hidden: int) -> None:
        super().__init__(lambda: cast("Program", _Nowhere()), pool, hidden)

    def prepared(self, linear: Linear, activation: str | None = None) -> Prepared | None:
        parts = linear.parts if isinstance(linear, Joined) else (linear,)
        if not all(isinstance(part, _Planned) and part.native for part in parts):
            return None
        return cast("Prepared", _Product(linear.out_features if activation is None else linear.out_features // 2))

    def address(self, vector: Tensor | None) -> int:
        return 0


@dataclass(slots=True)
class _Planned:
    """A product that is not made.

    native  programs will be able to call it
    """

    out_features: int
    nbytes: int
    native: bool
    form: str = "planned"

    def __call__(self, x: Tensor) -> Tensor:
        raise AssertionError("a planned product computes nothing")


class _Counting(Builder):
    """Counts the bytes of what it is asked to prepare.

    peak    the most there is at a time, with the dense weights beside those that are made of them
    widest  outputs a token of one layer's products, of experts those of one
    """

    def __init__(
        self,
        blueprint: Blueprint,
        weights: WeightSource,
        numbers: Numbers,
        device: torch.device,
        pool: SlabPool,
        target: torch.device,
    ) -> None:
        super().__init__(blueprint, weights, numbers, device, pool)
        self.peak = 0
        self.widest = 0
        self._target = target
        self._layer = 0
        self._made = 0

    @property
    def target(self) -> torch.device:
        return self._target

    def blocks(self, roles: Sequence[str], *, index: int | None = None, in_turn: bool = False) -> Linear:
        formats = [form for form in map(self.weights.stored, roles) if form is not None]
        shapes = [self.weights.dense(role, self.numbers.weights).shape[-2:] for role in roles]
        sizes = [block_bytes(form, *shape) for form, shape in zip(formats, shapes, strict=True)]
        for role, size in zip(roles, sizes, strict=True):
            self.keep(role, size)
        # What is stored in another order is put in order first, a weight at a time.
        return self._add(sum(rows for rows, _ in shapes), sum(sizes), max(sizes), lowers=True)

    def expanded(self, roles: Sequence[str]) -> Linear:
        return self._count(self.dense(roles, self.used(roles)), len(roles) > 1)

    def prepared(self, weight: Tensor) -> Linear:
        return self._count(weight, joined=False)

    def stack(self, weights: Iterable[Tensor]) -> tuple[Linear, ...]:
        return tuple(self._count(weight, joined=True) for weight in weights)

    def one_by_one(self, heads: int, kv_heads: int, dims: tuple[int, ...], v_dim: int) -> bool:
        return False

    def add(self, step: Step) -> None:
        if isinstance(step, Mix):
            self._made = max(expert.fused.out_features + expert.down.out_features for expert in step.experts)
        self._layer += self._made
        self._made = 0
        if isinstance(step, EndLayer):
            self.widest, self._layer = max(self.widest, self._layer), 0
        super().add(step)

    def _count(self, weight: Tensor, joined: bool) -> Linear:
        rows, columns = weight.shape
        lowers = weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        dense = weight.numel() * weight.element_size() * (2 if joined else 1)
        size = prepared_bytes(rows, columns, weight.dtype, self._target, exact=self.numbers.exact)
        return self._add(rows, size, dense + _EXPANDING * min(PIECE, weight.numel()), lowers)

    def _add(self, rows: int, size: int, beside: int, lowers: bool) -> Linear:
        """A product of so many outputs and bytes, and what there is beside it while it is made."""
        made = _Planned(rows, size, lowers)
        self.bytes += size
        self.forms[made.form] = self.forms.get(made.form, 0) + 1
        self.peak = max(self.peak, self.bytes + beside)
        self._made += rows
        return made

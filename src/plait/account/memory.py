"""Memory of a model's state at any context, from the state laws, and of its weights.

Two figures per category: `need`, the rows the last token reads (a window needs min(context, W)), and `reserved`,
what this runtime holds: whole slabs of `SLAB` rows over everything a session keeps. Bytes are a function of the
context, never a rate; `per_token_bytes` is the growth at one context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from plait.blueprint.source import Source
from plait.blueprint.spec import Blueprint
from plait.blueprint.state import SLAB, Category, Part, Rows, Snapshot, WindowRows, laws, row_classes, slab_span
from plait.blueprint.tensors import Tensor, inventory
from plait.dtypes import BY_NAME, Format
from plait.errors import UnsupportedError, UsageError

__all__ = [
    "CATEGORIES",
    "KV_FORMATS",
    "Bytes",
    "Largest",
    "MemoryAccount",
    "largest_context",
    "memory",
    "stored_bytes",
    "weights_bytes",
    "weights_of",
]

CATEGORIES: Final[tuple[Category, ...]] = ("rows", "windows", "indexer", "recurrent", "convolution")
KV_FORMATS: Final = ("f64", "f32", "f16", "bf16")
_F32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes the architecture needs, and bytes this runtime reserves."""

    need_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Bytes at one context, for `batch` sequences of it.

    total_bytes      need of all state, weights apart
    reserved_bytes   what a session reserves for it
    per_token_bytes  growth of the need when every sequence gets one token longer
    weights_bytes    the used parameters as stored
    """

    context: int
    batch: int
    kv_format: str
    kv_layout: bool
    max_context: int
    total_bytes: int
    reserved_bytes: int
    per_token_bytes: int
    weights_bytes: int
    categories: Mapping[Category, Bytes]


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest context that fits a budget.

    context  None where none fits
    limit    what ends it: the budget; the model's own `max_context`; `weights`: they alone do not fit; `state`: the
             weights fit, the state of one token beside them does not
    """

    budget: int
    context: int | None
    limit: Literal["budget", "max_context", "weights", "state"]


class _State:
    """Bytes of all laws as a function of the context."""

    def __init__(self, blueprint: Blueprint, batch: int, kv_format: str, kv_layout: bool) -> None:
        kv = _kv_bytes(kv_format)
        batch = _at_least_one(batch, "batch")

        def size(parts: tuple[Part, ...]) -> int:
            return batch * sum(part.elements * (kv if part.store == "kv" else _F32_BYTES) for part in parts)

        found = laws(blueprint, kv_layout=kv_layout)
        self._fixed = [(item.category, size(item.law.parts)) for item in found if isinstance(item.law, Snapshot)]
        # Laws of one class share their slabs: one law speaks for all, their rows lie side by side.
        self._growing: list[tuple[Category, Rows | WindowRows, int]] = []
        for members in row_classes(found):
            rows = [item.law for item in members if isinstance(item.law, Rows | WindowRows)]
            self._growing.append((members[0].category, rows[0], sum(size(law.parts) for law in rows)))

    def categories(self, context: int) -> Mapping[Category, Bytes]:
        need = dict.fromkeys(CATEGORIES, 0)
        reserved = dict.fromkeys(CATEGORIES, 0)
        for category, size in self._fixed:
            need[category] += size
            reserved[category] += size
        for category, law, size in self._growing:
            need[category] += len(law.read(context)) * size
            reserved[category] += len(slab_span(law.kept(context))) * SLAB * size
        return MappingProxyType({category: Bytes(need[category], reserved[category]) for category in CATEGORIES})

    def need(self, context: int) -> int:
        return sum(item.need_bytes for item in self.categories(context).values())


def _at_least_one(value: int, what: str) -> int:
    if value < 1:
        raise UsageError(f"{what} must be at least 1, not {value}")
    return value


def _kv_bytes(name: str) -> int:
    if name in KV_FORMATS:
        return BY_NAME[name].block_bytes
    if name == "q8" or name in BY_NAME:
        raise UnsupportedError(f"keys and values in {name}: this version keeps them in {', '.join(KV_FORMATS)}")
    raise UsageError(f"key/value format {name!r} is not known; choose one of {', '.join(KV_FORMATS)}")


def stored_bytes(tensor: Tensor, stored: Format) -> int:
    """Bytes of one tensor in a checkpoint of `stored`.

    A block format holds matrices whose rows fill whole blocks; everything else lies beside them in f32.
    """
    if stored.dense:
        return tensor.elements * stored.block_bytes
    if tensor.vector or len(tensor.shape) < 2 or tensor.shape[-1] % stored.block:
        return tensor.elements * _F32_BYTES
    return stored.nbytes(tensor.elements)


def weights_bytes(blueprint: Blueprint, weights_format: str | None = None) -> int:
    """Bytes of the used parameters; None: in the format the blueprint's source is published in."""
    name = blueprint.stored_format if weights_format is None else weights_format
    if name not in BY_NAME:
        raise UsageError(f"weight format {name!r} is not known; choose one of {', '.join(BY_NAME)}")
    used = (tensor for tensor in inventory(blueprint) if tensor.part != "mtp" and not tensor.buffer)
    return sum(stored_bytes(tensor, BY_NAME[name]) for tensor in used)


def weights_of(source: Source) -> int:
    """Bytes of the weights of what a user named: of a GGUF file with tensors, those of all its tensors."""
    if source.header is not None and source.header.tensors:
        return sum(tensor.nbytes for tensor in source.header.tensors.values())
    return weights_bytes(source.blueprint)


def memory(
    blueprint: Blueprint,
    context: int,
    *,
    batch: int = 1,
    kv_format: str = "bf16",
    kv_layout: bool = False,
    weights_format: str | None = None,
    weights: int | None = None,
) -> MemoryAccount:
    """Memory of `batch` sequences of `context` tokens. A context above `max_context` is counted all the same.

    kv_format       format of keys and values: f64, f32, f16 or bf16; UnsupportedError for other formats
    kv_layout       count keys-are-values layers with K and V both stored, as the textbook does
    weights_format  format of the weights, None: as published
    weights         bytes of the weights where a file tells them (`weights_of`); then `weights_format` must be None
    """
    if weights is not None and weights_format is not None:
        raise UsageError("give the bytes of the weights or their format, not both")
    context = _at_least_one(context, "context")
    state = _State(blueprint, batch, kv_format, kv_layout)
    categories = state.categories(context)
    total = sum(item.need_bytes for item in categories.values())
    return MemoryAccount(
        context=context,
        batch=batch,
        kv_format=kv_format,
        kv_layout=kv_layout,
        max_context=blueprint.max_context,
        total_bytes=total,
        reserved_bytes=sum(item.reserved_bytes for item in categories.values()),
        per_token_bytes=state.need(context + 1) - total,
        weights_bytes=weights_bytes(blueprint, weights_format) if weights is None else weights,
        categories=categories,
    )


def largest_context(
    blueprint: Blueprint,
    budget: int,
    *,
    batch: int = 1,
    kv_format: str = "bf16",
    kv_layout: bool = False,
    weights: int | None = None,
) -> Largest:
    """The largest context whose need fits `budget` bytes beside the weights (None: as published)."""
    state = _State(blueprint, batch, kv_format, kv_layout)
    left = budget - (weights_bytes(blueprint) if weights is None else weights)
    if left < 0:
        return Largest(budget, None, "weights")
    if state.need(1) > left:
        return Largest(budget, None, "state")
    if state.need(blueprint.max_context) <= left:
        return Largest(budget, blueprint.max_context, "max_context")
    fits, too_large = 1, blueprint.max_context
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if state.need(middle) <= left:
            fits = middle
        else:
            too_large = middle
    return Largest(budget, fits, "budget")

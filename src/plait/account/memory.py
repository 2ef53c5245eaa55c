"""Memory of a model's state at any context, from the state laws, and of its weights.

Two figures per category: `need`, the rows the last token reads (a window needs min(context, W)), and `reserved`,
what this runtime holds: whole slabs of `SLAB` rows over everything a session keeps. Bytes are a function of the
context, never a rate; `per_token_bytes` is the growth at one context.

Keys and values, latents and indexer keys are counted in the format asked for; recurrent states and convolution tails
are float32, and float64 beside f64. In `q8` each head's vector of a row is padded to whole blocks of 32 elements of 34
bytes, as GGUF's q8_0 stores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Final, Literal

from plait.blueprint.families import family
from plait.blueprint.layout import resolved
from plait.blueprint.source import Source
from plait.blueprint.spec import Blueprint, Quantization
from plait.blueprint.state import (
    SLAB,
    Alias,
    Category,
    LayerLaw,
    Part,
    Rows,
    Snapshot,
    WindowRows,
    laws,
    row_classes,
    slab_span,
)
from plait.blueprint.tensors import Tensor, inventory
from plait.dtypes import BY_NAME, Format
from plait.errors import UnsupportedError, UsageError

__all__ = [
    "CATEGORIES",
    "KV_FORMATS",
    "Bytes",
    "Largest",
    "Layers",
    "MemoryAccount",
    "Weights",
    "block_scales",
    "format_weights",
    "largest_context",
    "largest_of_laws",
    "memory",
    "memory_of_laws",
    "part_bytes",
    "stored_bytes",
    "stored_weights",
    "weights_bytes",
    "weights_of",
]

CATEGORIES: Final[tuple[Category, ...]] = ("rows", "windows", "indexer", "recurrent", "convolution")
KV_FORMATS: Final = ("f64", "f32", "f16", "bf16")
_COUNTED: Final = MappingProxyType({name: BY_NAME[name] for name in KV_FORMATS} | {"q8": BY_NAME["q8_0"]})
_F32_BYTES: Final = 4
_TABLE: Final = "per_layer_embedding"
# Matrices a checkpoint of declared blocks stores in them; routers, embeddings and heads stay whole.
_QUANTISED: Final = ("mixer", "feed_forward", "experts")


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes the architecture needs, and bytes this runtime reserves."""

    need_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the weights as stored.

    table_bytes  of these, the table of per-layer embeddings: a token reads one row of it, so it can stay on disk
    """

    total_bytes: int
    table_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Layers:
    """How many layers keep what.

    states         of each category
    shared_kv      layers that read another layer's keys and values, and store none
    shared_choice  layers that use another layer's choice of keys, and store no indexer keys
    """

    states: Mapping[Category, int]
    shared_kv: int
    shared_choice: int


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Bytes at one context, for `batch` sequences of it.

    max_context      of the model; None: not known
    total_bytes      need of all state, weights apart
    reserved_bytes   what a session reserves for it
    per_token_bytes  growth of the need when every sequence gets one token longer
    weights_bytes    the used parameters as stored
    table_bytes      of `weights_bytes`, the table of per-layer embeddings
    """

    context: int
    batch: int
    kv_format: str
    kv_layout: bool
    max_context: int | None
    total_bytes: int
    reserved_bytes: int
    per_token_bytes: int
    weights_bytes: int
    table_bytes: int
    categories: Mapping[Category, Bytes]
    layers: Layers


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

    def __init__(self, found: tuple[LayerLaw, ...], batch: int, kv_format: str) -> None:
        _kv_format(kv_format)
        batch = _at_least_one(batch, "batch")

        def size(parts: tuple[Part, ...]) -> int:
            return batch * sum(part_bytes(part, kv_format) for part in parts)

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


def _kv_format(name: str) -> Format:
    if name in _COUNTED:
        return _COUNTED[name]
    if name in BY_NAME:
        raise UnsupportedError(f"keys and values in {name}: this version counts them in {', '.join(_COUNTED)}")
    raise UsageError(f"key/value format {name!r} is not known; choose one of {', '.join(_COUNTED)}")


def part_bytes(part: Part, kv_format: str) -> int:
    """Bytes of one part of a law: of a row, or of a whole snapshot. Each head's vector is padded to whole blocks."""
    if part.store == "f32":
        return part.elements * BY_NAME["f64" if kv_format == "f64" else "f32"].block_bytes
    stored = _kv_format(kv_format)
    return part.heads * -(-part.dim // stored.block) * stored.block_bytes


def stored_bytes(tensor: Tensor, stored: Format) -> int:
    """Bytes of one tensor in a checkpoint of `stored`.

    A block format holds matrices whose rows fill whole blocks; everything else lies beside them in f32.
    """
    if stored.dense:
        return tensor.elements * stored.block_bytes
    if tensor.vector or len(tensor.shape) < 2 or tensor.shape[-1] % stored.block:
        return tensor.elements * _F32_BYTES
    return stored.nbytes(tensor.elements)


def block_scales(tensor: Tensor, quantization: Quantization | None) -> int:
    """Scales of a tensor's declared blocks, one for each started block of its last axes; 0: it is stored whole."""
    if quantization is None or not quantization.block or tensor.use not in _QUANTISED or tensor.vector:
        return 0
    block = quantization.block
    whole = any(f".{words}." in f".{tensor.role}." for words in quantization.excluded)
    if whole or len(tensor.shape) < len(block):
        return 0
    rest, last = tensor.shape[: -len(block)], tensor.shape[-len(block) :]
    return tensor.copies * prod(rest) * prod(-(-n // b) for n, b in zip(last, block, strict=True))


def _sizes(blueprint: Blueprint, weights_format: str | None) -> Iterator[tuple[Tensor, int]]:
    name = blueprint.stored_format if weights_format is None else weights_format
    if name not in BY_NAME:
        raise UsageError(f"weight format {name!r} is not known; choose one of {', '.join(BY_NAME)}")
    declared = blueprint.quantization if weights_format is None else None
    blocks = None if declared is None else BY_NAME.get(declared.format)
    for tensor in inventory(blueprint):
        scales = 0 if blocks is None else block_scales(tensor, declared)
        if blocks is None or not scales:
            yield tensor, stored_bytes(tensor, BY_NAME[name])
        else:
            yield tensor, blocks.nbytes(tensor.elements) + _F32_BYTES * scales


def format_weights(blueprint: Blueprint, weights_format: str | None = None) -> Mapping[str, int]:
    """Bytes of each role, those beyond the graph included, in a checkpoint of one format.

    None: as published, which is `stored_format`, and for matrices in declared blocks the blocks' format and a float32
    scale a block. UsageError: a format that is not known.
    """
    return MappingProxyType({tensor.role: size for tensor, size in _sizes(blueprint, weights_format)})


def _weights(blueprint: Blueprint, weights_format: str | None = None) -> Weights:
    total = table = 0
    for tensor, size in _sizes(blueprint, weights_format):
        if tensor.part != "mtp" and not tensor.buffer:
            total += size
            table += size if tensor.role == _TABLE else 0
    return Weights(total, table)


def weights_bytes(blueprint: Blueprint, weights_format: str | None = None) -> int:
    """Bytes of the used parameters in one format; None: as the blueprint's source is published."""
    return _weights(blueprint, weights_format).total_bytes


def stored_weights(source: Source) -> Weights:
    """The weights of what a user named: of a GGUF file with tensors, all of its tensors; else as published."""
    if source.header is None or not source.header.tensors:
        return _weights(source.blueprint)
    stored = source.header.tensors
    table = 0
    if source.blueprint.per_layer_embeddings is not None:
        for binding in resolved(family(source.blueprint.family).gguf_layout(source.blueprint), stored):
            if _TABLE in binding.roles:
                table += sum(stored[name].nbytes for name in binding.names if name in stored)
    return Weights(sum(tensor.nbytes for tensor in stored.values()), table)


def weights_of(source: Source) -> int:
    """Bytes of the weights of what a user named, `stored_weights` in all."""
    return stored_weights(source).total_bytes


def _layers(found: tuple[LayerLaw, ...]) -> Layers:
    states = dict.fromkeys(CATEGORIES, 0)
    for item in found:
        if item.category in states:
            states[item.category] += 1
    # A layer that reads another's keys and values keeps nothing; one that takes over a choice keeps its own rows.
    keeping = {item.layer for item in found if not isinstance(item.law, Alias)}
    aliases = [item.layer for item in found if isinstance(item.law, Alias)]
    chosen = sum(layer in keeping for layer in aliases)
    return Layers(MappingProxyType(states), len(aliases) - chosen, chosen)


def _given(weights: Weights | int) -> Weights:
    return weights if isinstance(weights, Weights) else Weights(weights)


def memory(
    blueprint: Blueprint,
    context: int,
    *,
    batch: int = 1,
    kv_format: str = "bf16",
    kv_layout: bool = False,
    weights_format: str | None = None,
    weights: Weights | int | None = None,
) -> MemoryAccount:
    """Memory of `batch` sequences of `context` tokens. A context above `max_context` is counted all the same.

    kv_format       format of keys and values: f64, f32, f16, bf16 or q8; UnsupportedError for other formats
    kv_layout       count keys-are-values layers with K and V both stored, as the textbook does
    weights_format  format of the weights, None: as published
    weights         the weights where a file tells them (`stored_weights`, or bytes of which none are a table); then
                    `weights_format` must be None
    """
    if weights is not None and weights_format is not None:
        raise UsageError("give the bytes of the weights or their format, not both")
    found, limit = laws(blueprint, kv_layout=kv_layout), blueprint.max_context
    given = _weights(blueprint, weights_format) if weights is None else weights
    account = memory_of_laws(found, context, max_context=limit, weights=given, batch=batch, kv_format=kv_format)
    return replace(account, kv_layout=kv_layout)


def memory_of_laws(
    found: tuple[LayerLaw, ...],
    context: int,
    *,
    max_context: int | None,
    weights: Weights | int,
    batch: int = 1,
    kv_format: str = "bf16",
) -> MemoryAccount:
    """`memory` of what keeps its state by these laws, whether or not a blueprint tells them."""
    context = _at_least_one(context, "context")
    state = _State(found, batch, kv_format)
    categories = state.categories(context)
    total = sum(item.need_bytes for item in categories.values())
    given = _given(weights)
    return MemoryAccount(
        context=context,
        batch=batch,
        kv_format=kv_format,
        kv_layout=False,
        max_context=max_context,
        total_bytes=total,
        reserved_bytes=sum(item.reserved_bytes for item in categories.values()),
        per_token_bytes=state.need(context + 1) - total,
        weights_bytes=given.total_bytes,
        table_bytes=given.table_bytes,
        categories=categories,
        layers=_layers(found),
    )


def largest_context(
    blueprint: Blueprint,
    budget: int,
    *,
    batch: int = 1,
    kv_format: str = "bf16",
    kv_layout: bool = False,
    weights: Weights | int | None = None,
) -> Largest:
    """The largest context whose need fits `budget` bytes beside the weights (None: as published).

    The need never falls as the context grows, so everything shorter fits too and everything longer does not.
    """
    found, limit = laws(blueprint, kv_layout=kv_layout), blueprint.max_context
    given = _weights(blueprint) if weights is None else weights
    return largest_of_laws(found, budget, max_context=limit, weights=given, batch=batch, kv_format=kv_format)


def largest_of_laws(
    found: tuple[LayerLaw, ...],
    budget: int,
    *,
    max_context: int,
    weights: Weights | int,
    batch: int = 1,
    kv_format: str = "bf16",
) -> Largest:
    """`largest_context` of what keeps its state by these laws."""
    state = _State(found, batch, kv_format)
    left = budget - _given(weights).total_bytes
    if left < 0:
        return Largest(budget, None, "weights")
    if state.need(1) > left:
        return Largest(budget, None, "state")
    if state.need(max_context) <= left:
        return Largest(budget, max_context, "max_context")
    fits, too_large = 1, max_context
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if state.need(middle) <= left:
            fits = middle
        else:
            too_large = middle
    return Largest(budget, fits, "budget")

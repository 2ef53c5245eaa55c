"""State laws: what must exist to resume at position p (p tokens processed, the next has index p).

The same law objects give bytes (accounting), buffers (sessions) and coverage (prefix store):

    Rows            rows [0, p)
    WindowRows(W)   rows [max(0, p - W + 1), p)
    Snapshot        the value exactly at p
    Alias(source)   nothing: another layer's rows are read

Rows live in slabs of `SLAB` tokens; windows keep `SLACK` rows behind what resuming needs, so that the last tokens
can be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet, LatentAttention, Layer

__all__ = [
    "SLAB",
    "SLACK",
    "Alias",
    "Category",
    "Law",
    "LayerLaw",
    "Part",
    "Rows",
    "Snapshot",
    "WindowRows",
    "laws",
    "row_classes",
    "slab_span",
]

SLAB: Final = 64
SLACK: Final = 64

Category = Literal["rows", "windows", "indexer", "recurrent", "convolution", "alias"]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a law: [heads, dim] per token for rows, whole for snapshots.

    store `kv`: the key/value type the session was made with; `f32`: float32, or float64 where keys and values are.
    """

    name: str
    heads: int
    dim: int
    store: Literal["kv", "f32"] = "kv"

    @property
    def elements(self) -> int:
        return self.heads * self.dim


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of every token."""

    parts: tuple[Part, ...]

    def required(self, p: int) -> range:
        """Rows that must exist to resume at p."""
        return range(p)

    def kept(self, p: int) -> range:
        """Rows a session at p keeps."""
        return range(p)

    def read(self, p: int) -> range:
        """Rows the token before p looked at: what the architecture needs at context p."""
        return range(p)


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Rows of the last tokens; `window` counts the current token."""

    window: int
    parts: tuple[Part, ...]

    def required(self, p: int) -> range:
        return range(max(0, p - self.window + 1), p)

    def kept(self, p: int) -> range:
        return range(max(0, p - self.window + 1 - SLACK), p)

    def read(self, p: int) -> range:
        return range(max(0, p - self.window), p)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A value that exists at one position only."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Alias:
    """Rows of an earlier layer are read; nothing is stored."""

    source: int


Law = Rows | WindowRows | Snapshot | Alias


@dataclass(frozen=True, slots=True)
class LayerLaw:
    """A law of one layer and the line of the memory account it belongs to."""

    layer: int
    category: Category
    law: Law


def _attention(layer: int, mixer: Attention, kv_layout: bool) -> Iterator[LayerLaw]:
    if mixer.kv_source is not None:
        yield LayerLaw(layer, "alias", Alias(mixer.kv_source))
        return
    if mixer.keys_are_values and not kv_layout:
        # V = norm(kx) and K = RoPE(V * w): one vector and the rotated dims of K determine both.
        rotated = mixer.rope.rotated if mixer.rope is not None else 0
        parts = [Part("value", mixer.kv_heads, mixer.v_dim)]
        if rotated:
            parts.append(Part("rotated_key", mixer.kv_heads, rotated))
    else:
        parts = [Part("key", mixer.kv_heads, mixer.qk_dim), Part("value", mixer.kv_heads, mixer.v_dim)]
    if mixer.window is None:
        yield LayerLaw(layer, "rows", Rows(tuple(parts)))
    else:
        yield LayerLaw(layer, "windows", WindowRows(mixer.window, tuple(parts)))


def _latent(layer: int, mixer: LatentAttention) -> Iterator[LayerLaw]:
    yield LayerLaw(layer, "rows", Rows((Part("latent", 1, mixer.kv_rank), Part("rope_key", 1, mixer.rope_dim))))
    if mixer.indexer is not None:
        if mixer.indexer.source is None:
            yield LayerLaw(layer, "indexer", Rows((Part("index_key", 1, mixer.indexer.dim),)))
        else:
            yield LayerLaw(layer, "alias", Alias(mixer.indexer.source))


def _delta(layer: int, mixer: GatedDeltaNet) -> Iterator[LayerLaw]:
    yield LayerLaw(
        layer, "recurrent", Snapshot((Part("state", mixer.value_heads, mixer.key_dim * mixer.value_dim, "f32"),))
    )
    yield LayerLaw(
        layer, "convolution", Snapshot((Part("tail", mixer.conv_channels, mixer.conv_kernel - 1, "f32"),))
    )


def _of_layer(index: int, layer: Layer, kv_layout: bool) -> Iterator[LayerLaw]:
    match layer.mixer:
        case Attention():
            yield from _attention(index, layer.mixer, kv_layout)
        case LatentAttention():
            yield from _latent(index, layer.mixer)
        case GatedDeltaNet():
            yield from _delta(index, layer.mixer)


def laws(blueprint: Blueprint, *, kv_layout: bool = False) -> tuple[LayerLaw, ...]:
    """All laws of a model, in layer order.

    kv_layout  count keys-are-values layers as the textbook does, with K and V both stored
    """
    return tuple(
        law for index, layer in enumerate(blueprint.layers) for law in _of_layer(index, layer, kv_layout)
    )


def row_classes(layer_laws: tuple[LayerLaw, ...]) -> tuple[tuple[LayerLaw, ...], ...]:
    """Row laws that share slabs: all `Rows` of one category together, all windows of one size together."""
    classes: dict[tuple[Category, int | None], list[LayerLaw]] = {}
    for item in layer_laws:
        if isinstance(item.law, Rows):
            classes.setdefault((item.category, None), []).append(item)
        elif isinstance(item.law, WindowRows):
            classes.setdefault((item.category, item.law.window), []).append(item)
    return tuple(tuple(items) for items in classes.values())


def slab_span(rows: range) -> range:
    """Numbers of the slabs that hold `rows` (rows of slab i: [i * SLAB, i * SLAB + SLAB))."""
    if not rows:
        return range(0)
    return range(rows.start // SLAB, (rows.stop - 1) // SLAB + 1)

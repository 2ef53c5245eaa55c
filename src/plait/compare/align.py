"""Two models layer by layer: which layers correspond, and in what fields they differ.

Layers correspond in order. A pair of layers that mix tokens in different ways is none; among the rest as many pairs as
possible are made, then as equal ones as possible, and where that leaves a choice the earlier layers are paired. So a
model that is another one without some of its layers is recognised as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from plait.blueprint.pattern import layer_kind, layer_numbers
from plait.blueprint.spec import Attention, Blueprint, LatentAttention, Layer
from plait.compare.leaves import leaves_of_layer
from plait.compare.words import value_text

__all__ = ["Alignment", "FieldDifference", "Group", "align"]

# Pairs beyond this are not searched for the best ones; layers then correspond by number.
_SEARCHED = 250_000


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field of corresponding layers, by name, and its two values; None also where one layer has no such field."""

    name: str
    first: object
    second: object

    def __str__(self) -> str:
        return f"{self.name} {value_text(self.first)} -> {value_text(self.second)}"


@dataclass(frozen=True, slots=True)
class Group:
    """Corresponding layers that differ in the same way; `pairs` are (layer of the first, layer of the second)."""

    pairs: tuple[tuple[int, int], ...]
    differences: tuple[FieldDifference, ...]


@dataclass(frozen=True, slots=True)
class Alignment:
    """Two models aligned.

    equal        pairs of layers that are equal
    groups       pairs that are not
    only_first   layers of the first model that correspond to none, and `only_second` of the second
    """

    equal: tuple[tuple[int, int], ...]
    groups: tuple[Group, ...]
    only_first: tuple[int, ...]
    only_second: tuple[int, ...]

    def lines(self, first: str, second: str) -> Iterator[str]:
        """The alignment in words, one line for each statement; `first` and `second` are the models' names."""
        if self.equal:
            yield f"{_numbered(self.equal)}: equal"
        for group in self.groups:
            yield f"{_numbered(group.pairs)}: {'; '.join(map(str, group.differences))}"
        for name, other, found in ((first, second, self.only_first), (second, first, self.only_second)):
            if found:
                yield f"layers {layer_numbers(found)} of {name} have no counterpart in {other}"


def _numbered(pairs: Sequence[tuple[int, int]]) -> str:
    first, second = layer_numbers([i for i, _ in pairs]), layer_numbers([j for _, j in pairs])
    word = "layer" if len(pairs) == 1 else "layers"
    return f"{word} {first}" if first == second else f"{word} {first} and {second}"


def _sourced(layer: Layer, own: int | None) -> Layer:
    """The layer with another number for the layer it takes keys and values, or a choice of keys, from."""
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return replace(layer, mixer=replace(mixer, kv_source=own))
    if isinstance(mixer, LatentAttention) and mixer.indexer is not None:
        return replace(layer, mixer=replace(mixer, indexer=replace(mixer.indexer, source=own)))
    return layer


def _source(layer: Layer) -> int | None:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return mixer.kv_source
    return mixer.indexer.source if isinstance(mixer, LatentAttention) and mixer.indexer is not None else None


def _differences(first: Layer, second: Layer) -> tuple[FieldDifference, ...]:
    one, other = dict(leaves_of_layer(first)), dict(leaves_of_layer(second))
    return tuple(
        FieldDifference(name, one.get(name), other.get(name))
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    )


def _pairs(first: Sequence[Layer], second: Sequence[Layer]) -> list[tuple[int, int]]:
    """The best correspondence, by dynamic programming from the ends of both models."""
    n, m = len(first), len(second)
    if first == second or n * m > _SEARCHED:
        both = zip(first, second, strict=False)
        return [(i, i) for i, (a, b) in enumerate(both) if layer_kind(a) == layer_kind(b)]
    kinds, others = list(dict.fromkeys(first)), list(dict.fromkeys(second))
    fields = {
        (i, j): len(_differences(a, b))
        for i, a in enumerate(kinds)
        for j, b in enumerate(others)
        if layer_kind(a) == layer_kind(b)
    }
    rows = [kinds.index(layer) for layer in first]
    columns = [others.index(layer) for layer in second]
    # (pairs, less their differing fields) of the layers from i and j on.
    best = [[(0, 0)] * (m + 1) for _ in range(n + 1)]

    def paired(i: int, j: int) -> tuple[int, int] | None:
        differing = fields.get((rows[i], columns[j]))
        pairs, alike = best[i + 1][j + 1]
        return None if differing is None else (pairs + 1, alike - differing)

    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], paired(i, j) or (0, 0))
    chosen, i, j = [], 0, 0
    while i < n and j < m:
        if best[i][j] == paired(i, j):
            chosen.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return chosen


def align(first: Blueprint, second: Blueprint) -> Alignment:
    """The layers of two models held against each other; a shared source is equal where the sources correspond."""
    # A source counts by whether there is one, until it is known which layers correspond.
    one, other = (
        [_sourced(layer, None if _source(layer) is None else 0) for layer in b.layers] for b in (first, second)
    )
    pairs = _pairs(one, other)
    partner = dict(pairs)
    equal: list[tuple[int, int]] = []
    groups: dict[tuple[FieldDifference, ...], list[tuple[int, int]]] = {}
    for i, j in pairs:
        a, b = first.layers[i], second.layers[j]
        source = _source(a)
        if source is not None and partner.get(source) == _source(b):
            a, b = one[i], other[j]
        found = _differences(a, b)
        if found:
            groups.setdefault(found, []).append((i, j))
        else:
            equal.append((i, j))
    met = {j for _, j in pairs}
    return Alignment(
        tuple(equal),
        tuple(Group(tuple(at), found) for found, at in groups.items()),
        tuple(i for i in range(len(first.layers)) if i not in partner),
        tuple(j for j in range(len(second.layers)) if j not in met),
    )

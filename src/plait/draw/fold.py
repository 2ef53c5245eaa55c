"""Layers folded for drawing: runs of equal layers and repeated periods become repeats, everything else stays as it is.

Two layers fold only where they are equal as layers of the blueprint, apart from one thing: where a layer reads keys and
values (or an indexer's choice) of an earlier layer, "the nearest layer below that keeps such keys and values" counts as
the same source, whichever number it has. Any other source counts by its number.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Final

from plait.blueprint.spec import Attention, LatentAttention, Layer

__all__ = ["Leaf", "Node", "Repeat", "fold", "leaves", "nearest_source", "ranges", "source_of"]

# Costs of what is drawn: a box, a frame around boxes.
_BOX: Final = 10
_FRAME: Final = 3
# Longer lists of runs are folded by a scan, since trying every cut of them takes cubic time.
_EXHAUSTIVE: Final = 96
_LONGEST_PERIOD: Final = 64
_NEAREST: Final = "nearest"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One box: equal layers, and the zero-based numbers of all layers it stands for, ascending."""

    layer: Layer
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A frame: `parts`, lowest first, `times` times in a row."""

    times: int
    parts: tuple[Node, ...]


Node = Leaf | Repeat


def source_of(layer: Layer) -> int | None:
    """The layer whose keys and values, or whose choice of keys, `layer` uses; None where it has its own."""
    match layer.mixer:
        case Attention():
            return layer.mixer.kv_source
        case LatentAttention():
            return None if layer.mixer.indexer is None else layer.mixer.indexer.source
        case _:
            return None


def _serves(layer: Layer, source: Layer) -> bool:
    """Whether `source` keeps what `layer` would keep if it had its own."""
    one, other = layer.mixer, source.mixer
    if isinstance(one, Attention) and isinstance(other, Attention):
        kept = (one.window, one.kv_heads, one.qk_dim, one.v_dim, one.keys_are_values)
        return other.kv_source is None and kept == (
            other.window,
            other.kv_heads,
            other.qk_dim,
            other.v_dim,
            other.keys_are_values,
        )
    if isinstance(one, LatentAttention) and isinstance(other, LatentAttention):
        return other.indexer is not None and other.indexer.source is None
    return False


def nearest_source(layers: Sequence[Layer], index: int) -> int | None:
    """The nearest layer below `index` that keeps what this layer would keep; None where there is none."""
    return next((i for i in range(index - 1, -1, -1) if _serves(layers[index], layers[i])), None)


def _key(layers: Sequence[Layer], index: int) -> Hashable:
    """Equal for layers that fold."""
    layer = layers[index]
    source, mixer = source_of(layer), layer.mixer
    if source is None:
        return layer, None
    if isinstance(mixer, Attention):
        mixer = replace(mixer, kv_source=0)
    elif isinstance(mixer, LatentAttention) and mixer.indexer is not None:
        mixer = replace(mixer, indexer=replace(mixer.indexer, source=0))
    return replace(layer, mixer=mixer), _NEAREST if source == nearest_source(layers, index) else source


@dataclass(frozen=True, slots=True)
class _Run:
    """Runs [start, stop) of the list, `period` of them drawn; period None: one run as it is."""

    start: int
    stop: int
    period: int | None = None
    parts: tuple[_Run, ...] = ()


def _matches(runs: Sequence[Hashable], longest: int) -> list[list[int]]:
    """[i][p]: how many runs from i on equal the run p places further."""
    count = len(runs)
    found = [[0] * (longest + 1) for _ in range(count + 1)]
    for i in range(count - 1, -1, -1):
        for p in range(1, min(longest, count - 1 - i) + 1):
            found[i][p] = found[i + 1][p] + 1 if runs[i] == runs[i + p] else 0
    return found


def _best(runs: Sequence[Hashable]) -> tuple[_Run, ...]:
    """The cheapest folding of all; of equal ones the first found."""
    count = len(runs)
    equal = _matches(runs, count)

    @cache
    def best(start: int, stop: int) -> tuple[int, tuple[_Run, ...]]:
        if stop - start == 1:
            return _BOX, (_Run(start, stop),)
        size = stop - start
        cost, parts = min((best(start, cut)[0] + best(cut, stop)[0], cut) for cut in range(start + 1, stop))
        chosen = (*best(start, parts)[1], *best(parts, stop)[1])
        for period in range(1, size // 2 + 1):
            if size % period == 0 and equal[start][period] >= size - period:
                inner, inside = best(start, start + period)
                if inner + _FRAME < cost:
                    cost, chosen = inner + _FRAME, (_Run(start, stop, period, inside),)
        return cost, chosen

    # Short stretches first, so that no call is deeper than one level.
    for size in range(1, count + 1):
        for start in range(count - size + 1):
            best(start, start + size)
    return best(0, count)[1]


def _scan(runs: Sequence[Hashable]) -> tuple[_Run, ...]:
    """A folding found from left to right: at each place the repeat that saves most."""
    equal = _matches(runs, _LONGEST_PERIOD)
    found: list[_Run] = []
    at = 0
    while at < len(runs):
        saved, period = max((equal[at][p] // p * p, -p) for p in range(1, _LONGEST_PERIOD + 1))
        if saved:
            inside = tuple(_Run(i, i + 1) for i in range(at, at - period))
            found.append(_Run(at, at - period + saved, -period, inside))
            at += saved - period
        else:
            found.append(_Run(at, at + 1))
            at += 1
    return tuple(found)


def fold(layers: Sequence[Layer]) -> tuple[Node, ...]:
    """The layers as boxes and nested frames, lowest first; every layer is in exactly one leaf."""
    keys = [_key(layers, index) for index in range(len(layers))]
    runs = [(key, len(list(same))) for key, same in groupby(keys)]
    firsts = [0]
    for _, length in runs:
        firsts.append(firsts[-1] + length)

    def built(part: _Run, shifts: tuple[int, ...]) -> Node:
        """A part whose first copy lies at its own place, the others `shifts` layers further."""
        first = firsts[part.start]
        if part.period is None:
            length = runs[part.start][1]
            indexes = tuple(sorted(first + shift + i for shift in shifts for i in range(length)))
            leaf = Leaf(layers[first], indexes)
            return leaf if length == 1 else Repeat(length, (leaf,))
        times = (part.stop - part.start) // part.period
        size = firsts[part.start + part.period] - first
        inner = tuple(shift + size * i for shift in shifts for i in range(times))
        return Repeat(times, tuple(built(item, inner) for item in part.parts))

    if not runs:
        return ()
    chosen = _best(runs) if len(runs) <= _EXHAUSTIVE else _scan(runs)
    return tuple(built(part, (0,)) for part in chosen)


def leaves(nodes: Sequence[Node]) -> Iterator[Leaf]:
    """All boxes, lowest first."""
    for node in nodes:
        if isinstance(node, Leaf):
            yield node
        else:
            yield from leaves(node.parts)


def ranges(indexes: Sequence[int]) -> tuple[str, ...]:
    """Ascending numbers as `0-2`, `4`: first and last of each stretch."""
    found: list[list[int]] = []
    for index in indexes:
        if found and index == found[-1][1] + 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return tuple(str(a) if a == b else f"{a}-{b}" for a, b in found)

"""The layers of a model in short: `18 = 3 x (5 window + 1 full)`, and lists of layer numbers as `0-4, 6-10`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby, pairwise, product
from typing import Final, Literal

from plait.blueprint.spec import Attention, Blueprint, LatentAttention, Layer

__all__ = ["KINDS", "LayerKind", "layer_kind", "layer_numbers", "pattern", "period"]

LayerKind = Literal["full", "window", "delta", "latent"]
KINDS: Final[tuple[LayerKind, ...]] = ("full", "latent", "window", "delta")

# Every stretch is tried, which longer lists of runs would make slow.
_FOLDED: Final = 64
_SHOWN_RUNS: Final = 6


def layer_kind(layer: Layer) -> LayerKind:
    """One word for what a layer mixes tokens with."""
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return "full" if mixer.window is None else "window"
    return "latent" if isinstance(mixer, LatentAttention) else "delta"


def _runs(kinds: Sequence[str]) -> str:
    return " + ".join(f"{len(list(group))} {kind}" for kind, group in groupby(kinds))


def _folded(kinds: Sequence[str]) -> str:
    """Layers without one period, the repeats among them drawn together where that is shorter."""
    runs = [list(group) for _, group in groupby(kinds)]
    texts = [_runs(kinds)]
    if len(runs) > _FOLDED:
        return texts[0]
    for start, width in product(range(len(runs)), range(2, len(runs) // 2 + 1)):
        part = runs[start : start + width]
        times = 1
        while runs[start + times * width : start + (times + 1) * width] == part:
            times += 1
        if times > 1:
            pieces = [runs[:start], part, runs[start + times * width :]]
            before, repeated, after = (_runs(list(chain(*piece))) for piece in pieces)
            texts.append(" + ".join(text for text in (before, f"{times} x ({repeated})", after) if text))
    return min(texts, key=len)


def period(kinds: Sequence[str]) -> str:
    """Kinds of layers one after the other: `3 x (5 window + 1 full)`, `28 full`."""
    count = len(kinds)
    if len(set(kinds)) == 1:
        return _runs(kinds)
    length = next(p for p in range(1, count + 1) if all(kinds[i] == kinds[i - p] for i in range(p, count)))
    times, rest = divmod(count, length)
    if times == 1:
        return _folded(kinds)
    text = f"{times} x ({_runs(kinds[:length])})"
    return f"{text} + {_runs(kinds[times * length :])}" if rest else text


def pattern(blueprint: Blueprint) -> str:
    """The layers in short: `18 = 3 x (5 window + 1 full)`, `28 full`."""
    kinds = [layer_kind(layer) for layer in blueprint.layers]
    text = period(kinds)
    return text if len(set(kinds)) == 1 else f"{len(kinds)} = {text}"


def layer_numbers(indexes: Sequence[int]) -> str:
    """`0-4, 6-10`; many runs that repeat evenly as `0-4, 6-10, ..., 54-58`. The numbers ascend."""
    runs: list[tuple[int, int]] = []
    for i in indexes:
        if runs and runs[-1][1] == i - 1:
            runs[-1] = (runs[-1][0], i)
        else:
            runs.append((i, i))
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(runs)}
    if len(runs) > _SHOWN_RUNS and len(steps) == 1:
        return ", ".join([*shown[:2], "...", shown[-1]])
    return ", ".join(shown)

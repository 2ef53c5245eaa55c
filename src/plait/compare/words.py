"""How values are written in comparisons: different values never look the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Final

from plait.account.speed import Rates
from plait.blueprint.pattern import KINDS, layer_kind, layer_numbers
from plait.blueprint.spec import (
    Blueprint,
    FactorScaling,
    Layer,
    LinearScaling,
    Llama3Scaling,
    Rope,
    RopeScaling,
    TowerTensor,
    YarnScaling,
)
from plait.compare.leaves import Spread

__all__ = [
    "ABSENT",
    "NONE",
    "amount",
    "factor",
    "joined",
    "number",
    "over_layers",
    "plain",
    "rates_text",
    "root",
    "rope_text",
    "spread_text",
    "value_text",
]

ABSENT: Final = "—"
"""The model has no layers of the kind a row speaks of."""
NONE: Final = "none"
_LONG: Final = 96


def number(value: float) -> str:
    """An exact number: 2,560, 0.707, 1e-06."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{int(value):,}" if value.is_integer() and abs(value) < 1e15 else repr(value)


def root(value: float) -> str:
    """As `number`; a root of a whole number or its inverse is written as one: 256^-0.5, sqrt(2560)."""
    if value > 0 and not float(value).is_integer():
        whole = round(value**2) if value > 1 else round(value**-2)
        if value > 1 and whole**0.5 == value:
            return f"sqrt({whole})"
        if value < 1 and whole**-0.5 == value:
            return f"{whole}^-0.5"
    return number(value)


def joined(parts: Iterable[str]) -> str:
    """Parts with commas, those that are empty left out; `none` without parts."""
    return ", ".join(part for part in parts if part) or NONE


def value_text(value: object) -> str:
    """A value of any field; long lists are cut, with their length."""
    match value:
        case None:
            return NONE
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return number(value)
        case TowerTensor():
            copies = f"{value.copies} x " if value.copies > 1 else ""
            return f"{copies}{value.name} {list(value.shape)}{', buffer' if value.buffer else ''}"
        case tuple():
            text = ", ".join(map(value_text, value)) or "empty"
            return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(value)} values)"
    return str(value)


def spread_text(spread: Spread) -> str:
    """The values of a field, with their layers where these differ."""
    if spread.uniform:
        return value_text(spread.values[0][0])
    return "; ".join(f"{value_text(value)} (layers {layer_numbers(at)})" for value, at in spread.values)


def over_layers(blueprint: Blueprint, text: Callable[[Layer], str | None]) -> str:
    """What `text` says of each layer, as short as it goes: once where all layers agree, by kind of layer, or by number.

    Layers of which it says None do not take part; ABSENT where it says nothing of any.
    """
    every = ((i, layer_kind(layer), text(layer)) for i, layer in enumerate(blueprint.layers))
    said = [(i, kind, word) for i, kind, word in every if word is not None]
    if not said:
        return ABSENT
    words = dict.fromkeys(word for _, _, word in said)
    if len(words) == 1:
        return said[0][2]
    kinds = {kind: dict.fromkeys(word for _, k, word in said if k == kind) for kind in KINDS}
    if all(len(found) <= 1 for found in kinds.values()):
        return "; ".join(f"{kind}: {next(iter(found))}" for kind, found in kinds.items() if found)
    return "; ".join(f"{word} (layers {layer_numbers([i for i, _, w in said if w == word])})" for word in words)


def _scaling(scaling: RopeScaling) -> str:
    match scaling:
        case LinearScaling():
            return f"linear, factor {number(scaling.factor)}"
        case Llama3Scaling():
            return (
                f"llama3, factor {number(scaling.factor)} (low {number(scaling.low_frequency_factor)}, high "
                f"{number(scaling.high_frequency_factor)}) from {scaling.original_context:,} tokens"
            )
        case FactorScaling():
            return f"{len(scaling.factors)} stored factors"
        case YarnScaling():
            text = (
                f"YaRN, factor {number(scaling.factor)} from {scaling.original_context:,} tokens, "
                f"beta {number(scaling.beta_fast)}/{number(scaling.beta_slow)}"
            )
            if scaling.attention_factor != 1:
                text += f", attention factor {number(scaling.attention_factor)}"
            if scaling.softmax_scale != 1:
                text += f", softmax scale {number(scaling.softmax_scale)}"
            return text if scaling.truncate else f"{text}, not truncated"


def rope_text(rope: Rope | None, size: int) -> str:
    """`theta 5,000,000, 64 of 256 rotated (25%)`, with pairing, scaling and axes where they are not the plain ones."""
    if rope is None:
        return "no rotation"
    share = "" if rope.rotated == size else f" ({100 * rope.rotated / size:.4g}%)"
    parts = [f"theta {number(rope.theta)}", f"{rope.rotated} of {size} rotated{share}"]
    if rope.pairing == "adjacent":
        parts.append("adjacent pairs")
    # What the plain rotation of the first dims would have is left out.
    if rope.divisor != rope.rotated:
        parts.append(f"frequencies of {rope.divisor} dims")
    if rope.distance != (rope.pairs if rope.pairing == "half" else 1):
        parts.append(f"pairs {rope.distance} apart")
    if rope.start:
        parts.append(f"from dim {rope.start}")
    if rope.scaling is not None:
        parts.append(_scaling(rope.scaling))
    if rope.axes is not None:
        axes = "/".join(map(str, rope.axes))
        parts.append(f"image axes {axes}{' interleaved' if rope.interleaved_axes else ''}")
    return ", ".join(parts)


def amount(value: float) -> str:
    """A measured number with three digits: 1,240, 12.3, 0.045."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def factor(value: Fraction) -> str:
    """How many times smaller something gets: `4 x`, `3.95 x`, `0.82 x`."""
    times = float(value)
    return f"{times:.3g} x" if times < 1000 else f"{times:,.0f} x"


def rates_text(rates: Rates) -> str:
    """The rates of a machine: `100 GB/s and 20 TFLOP/s`."""
    given = ((rates.bandwidth, "B/s"), (rates.flops, "FLOP/s"))
    return " and ".join(_prefixed(value, unit) for value, unit in given if value is not None)


def _prefixed(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 999.95:
            return f"{value:.4g} {prefix}{unit}"
        value /= 1000
    return f"{value:,.4g} E{unit}"


def plain(text: str) -> str:
    """Text of a file on one line: what is not printable is written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)

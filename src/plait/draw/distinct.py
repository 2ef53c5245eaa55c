"""What tells two cards apart that would otherwise look the same: fields too small for a card of their own right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Final

from plait.draw.fold import Leaf

__all__ = ["distinctions"]

# Where keys, values or choices come from stands on the card already.
_SHOWN: Final = ("kv_source", "source")
_MOST: Final = 4


def _flat(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Every value inside a dataclass, with the dotted path that leads to it."""
    if is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            if item.name not in _SHOWN:
                yield from _flat(getattr(value, item.name), f"{path}.{item.name}" if path else item.name)
    else:
        yield path, value


def _written(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def distinctions(shown: Mapping[Leaf, Sequence[str]]) -> Mapping[Leaf, tuple[str, ...]]:
    """Facts to add to leaves whose texts are the same though their layers differ: the fields that differ, by name.

    shown  the texts of each leaf
    """
    groups: dict[tuple[str, ...], list[Leaf]] = {}
    for leaf, texts in shown.items():
        groups.setdefault(tuple(texts), []).append(leaf)
    found: dict[Leaf, tuple[str, ...]] = {}
    for group in groups.values():
        layers = dict.fromkeys(leaf.layer for leaf in group)
        flat = {layer: dict(_flat(layer, "")) for layer in layers} if len(layers) > 1 else {}
        paths = dict.fromkeys(path for values in flat.values() for path in values)
        # A part that one layer has and another has not shows as the part, not as each of its fields.
        differing = [path for path in paths if len({_written(values.get(path)) for values in flat.values()}) > 1]
        said = {layer: _said(values, differing) for layer, values in flat.items()}
        found.update((leaf, said.get(leaf.layer, ())) for leaf in group)
    return found


def _said(values: Mapping[str, object], differing: Sequence[str]) -> tuple[str, ...]:
    there = [path for path in differing if path in values]
    more = ["…"] if len(there) > _MOST else []
    return (*(f"{path} {_written(values[path])}" for path in there[:_MOST]), *more)

"""A blueprint as named values, so that two models can be held against each other field by field.

A name is the field's path. Fields of a mixer stand under the kind of layer (`full`, `window`, `latent`, `delta`), those
of a feed-forward under its kind (`dense`, `mixture`, `both`), all else of a layer under `layer`, and the same once
more under `mtp` for multi-token-prediction layers: `full.rope.theta`, `dense.width`, `layer.mixer_norm.eps`.
The name of an object itself holds its kind, or None where it is absent. `mixers` and `feed_forwards` hold the kinds of
all layers in order; together with the fields they determine the blueprint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

from plait.blueprint.pattern import layer_kind
from plait.blueprint.spec import Blueprint, Both, FeedForward, Gated, Layer, Tower

__all__ = ["Spread", "feed_forward_kind", "leaves", "leaves_of_layer"]

_LAYERS = frozenset({"layers", "towers", "mtp"})


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one field over the layers that have it.

    values  each distinct value with the numbers of its layers, in order of appearance; no numbers where all layers
            agree, and for fields of the whole model
    """

    values: tuple[tuple[object, tuple[int, ...]], ...]

    @property
    def uniform(self) -> bool:
        return len(self.values) == 1


def feed_forward_kind(part: FeedForward) -> str:
    """`dense`, `mixture` or `both`."""
    if isinstance(part, Gated):
        return "dense"
    return "both" if isinstance(part, Both) else "mixture"


def _flat(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Every value at and below `path`."""
    if not is_dataclass(value) or isinstance(value, type):
        yield path, value
        return
    yield path, type(value).__name__
    for item in fields(value):
        yield from _flat(getattr(value, item.name), f"{path}.{item.name}")


def leaves_of_layer(layer: Layer) -> Iterator[tuple[str, object]]:
    """Every value of one layer, by name."""
    yield from _flat(layer.mixer, layer_kind(layer))
    yield "feed_forwards", feed_forward_kind(layer.feed_forward)
    yield from _flat(layer.feed_forward, feed_forward_kind(layer.feed_forward))
    for item in fields(layer):
        if item.name not in ("mixer", "feed_forward"):
            yield from _flat(getattr(layer, item.name), f"layer.{item.name}")


def _of_layers(layers: Sequence[Layer], prefix: str) -> Iterator[tuple[str, Spread]]:
    yield f"{prefix}mixers", _one(tuple(map(layer_kind, layers)))
    places: dict[Layer, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    found: dict[str, dict[object, list[int]]] = {}
    for layer, at in places.items():
        for name, value in leaves_of_layer(layer):
            found.setdefault(name, {}).setdefault(value, []).extend(at)
    for name, values in found.items():
        spread = tuple((value, tuple(sorted(at))) for value, at in values.items())
        yield prefix + name, _one(spread[0][0]) if len(spread) == 1 else Spread(spread)


def _one(value: object) -> Spread:
    return Spread(((value, ()),))


def _of_towers(towers: Sequence[Tower]) -> Iterator[tuple[str, Spread]]:
    yield "towers", _one(tuple(tower.kind for tower in towers))
    seen: dict[str, int] = {}
    for tower in towers:
        seen[tower.kind] = seen.get(tower.kind, 0) + 1
        path = f"towers.{tower.kind}" + (f".{seen[tower.kind]}" if seen[tower.kind] > 1 else "")
        yield f"{path}.description", _one(tower.description)
        yield f"{path}.tensors", _one(tower.tensors)


def leaves(blueprint: Blueprint) -> Mapping[str, Spread]:
    """All values that take part in the equality of blueprints, by name: equal exactly where the blueprints are."""
    found: dict[str, Spread] = {}
    for item in fields(blueprint):
        if item.compare and item.name not in _LAYERS:
            found.update((name, _one(value)) for name, value in _flat(getattr(blueprint, item.name), item.name))
    found.update(_of_layers(blueprint.layers, ""))
    found.update(_of_towers(blueprint.towers))
    mtp = blueprint.mtp
    found["mtp"] = _one(None if mtp is None else type(mtp).__name__)
    if mtp is not None:
        for item in fields(mtp):
            if item.name != "layers":
                found.update((name, _one(value)) for name, value in _flat(getattr(mtp, item.name), f"mtp.{item.name}"))
        found.update(_of_layers(mtp.layers, "mtp."))
    return found

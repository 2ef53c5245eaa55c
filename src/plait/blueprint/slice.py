"""Slices of models that were trained with nested widths (MatFormer, https://arxiv.org/abs/2310.07707).

The first units of a feed-forward part are a part of their own, and whole periods of layers may go: every choice of
widths and layers made here is a model without further training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families import gemma3n_slice
from plait.blueprint.spec import Attention, Blueprint, Gated, Layer
from plait.errors import UnsupportedError, UsageError, fault

__all__ = ["PUBLISHED", "Choice", "choose", "sliced", "sliced_config"]

PUBLISHED: Final = gemma3n_slice.PUBLISHED
"""Slices that are published by their names: layers to drop, and the width of those that stay."""

# By family: how its config says what a slice is.
_KEYS: Final = MappingProxyType({"gemma3n": gemma3n_slice.sliced_keys})


@dataclass(frozen=True, slots=True)
class Choice:
    """Layers that are kept, in ascending order, and the feed-forward width of each."""

    layers: tuple[int, ...]
    widths: tuple[int, ...]


def choose(blueprint: Blueprint, drop: Collection[int] = (), widths: int | Sequence[int] | None = None) -> Choice:
    """A choice that is a model.

    drop    layers to leave out
    widths  of all layers that stay, or of each of them; None: as they are

    UnsupportedError: a model whose widths are not nested, or whose weights are quantized. UsageError: a layer that is
    not there; a width of less than 1 or of more than the layer has; layers without which another one loses the keys
    and values it reads, or stands where the pattern of the model has a layer of another kind.
    """
    if blueprint.family not in _KEYS:
        expected = f"a model trained with nested widths ({', '.join(_KEYS)})"
        found = blueprint.family
        raise UnsupportedError(fault("cannot be sliced", file=blueprint.name, expected=expected, found=found))
    if blueprint.quantization is not None:
        found = blueprint.quantization.method
        raise UnsupportedError(fault("cannot be sliced", file=blueprint.name, expected="whole weights", found=found))
    count = len(blueprint.layers)
    for index in sorted(drop):
        if not 0 <= index < count:
            raise UsageError(fault("a layer to drop", expected=f"one of [0, {count})", found=index))
    kept = tuple(index for index in range(count) if index not in drop)
    if not kept:
        raise UsageError(fault("layers to drop", expected="at least one layer that stays", found=f"all {count}"))
    _check_layers(blueprint, kept)
    return Choice(kept, _widths(blueprint, kept, widths))


def _check_layers(blueprint: Blueprint, kept: tuple[int, ...]) -> None:
    for index in kept:
        mixer = _mixer(blueprint.layers[index])
        if mixer.kv_source is not None and mixer.kv_source not in kept:
            what = f"layers to drop: layer {index} reads the keys and values of layer {mixer.kv_source}"
            raise UsageError(fault(what, expected=f"layer {mixer.kv_source} to stay, or layer {index} to go too"))
    for place, index in enumerate(kept):
        mixer, usual = _mixer(blueprint.layers[index]), _mixer(blueprint.layers[place])
        if mixer.window != usual.window:
            what = f"layers to drop: layer {index} would be layer {place}"
            expected = f"{_kind(usual)} there, as the pattern of the model has it"
            raise UsageError(fault(what, expected=expected, found=_kind(mixer), advice="drop whole periods of layers"))


def _widths(blueprint: Blueprint, kept: tuple[int, ...], wanted: int | Sequence[int] | None) -> tuple[int, ...]:
    whole = tuple(_dense(blueprint.layers[index]).width for index in kept)
    if wanted is None:
        return whole
    widths = (wanted,) * len(kept) if isinstance(wanted, int) else tuple(wanted)
    if len(widths) != len(kept):
        expected = f"one, or one for each of the {len(kept)} layers that stay"
        raise UsageError(fault("widths", expected=expected, found=len(widths)))
    for index, width, most in zip(kept, widths, whole, strict=True):
        if not 1 <= width <= most:
            expected = f"1 to {most}, as the model has it"
            raise UsageError(fault(f"width of layer {index}", expected=expected, found=width))
    return widths


def sliced(blueprint: Blueprint, choice: Choice) -> Blueprint:
    """The blueprint of a slice: its layers read the keys and values of the layers they read before."""
    place = {index: i for i, index in enumerate(choice.layers)}

    def cut(index: int, width: int) -> Layer:
        layer = blueprint.layers[index]
        mixer = _mixer(layer)
        source = mixer.kv_source
        return replace(
            layer,
            mixer=replace(mixer, kv_source=None if source is None else place[source]),
            feed_forward=replace(_dense(layer), width=width),
        )

    return replace(blueprint, layers=tuple(map(cut, choice.layers, choice.widths)))


def sliced_config(config: Mapping[str, object], blueprint: Blueprint) -> dict[str, object]:
    """The config of a slice: keys of the whole model's, changed where `blueprint`, the slice, differs."""
    return _KEYS[blueprint.family](config, blueprint)


def _mixer(layer: Layer) -> Attention:
    assert isinstance(layer.mixer, Attention)
    return layer.mixer


def _dense(layer: Layer) -> Gated:
    assert isinstance(layer.feed_forward, Gated)
    return layer.feed_forward


def _kind(mixer: Attention) -> str:
    return "full attention" if mixer.window is None else f"a window of {mixer.window}"

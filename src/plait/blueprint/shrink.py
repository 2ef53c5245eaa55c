"""A config made small for tests: the same family, layer pattern and settings, sizes that run in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from math import isclose
from typing import Any, Final

from plait.blueprint.shrink_sections import (
    moved_tokens,
    small_audio,
    small_quantization,
    small_vision,
    tokens_moved,
)
from plait.blueprint.shrink_sizes import WINDOW, Sizes, changed_size, sizes_of
from plait.blueprint.source import from_config
from plait.blueprint.spec import Attention, Blueprint, Layer
from plait.errors import UnsupportedError, UserError, fault

__all__ = ["layer_choices", "layer_words", "tiny"]

_MOST_LAYERS: Final = 8
_IMAGE_TOKENS: Final = 4
_SCALE_KEY: Final = "query_pre_attn_scalar"
_ROPES: Final = ("rope_parameters", "rope_scaling")
# Factors that follow from sizes, so that they differ where words are equal.
_FROM_SIZES: Final = frozenset({"scale", "input_factor"})


def tiny(config: Mapping[str, object]) -> dict[str, object]:
    """The keys of `config` with small sizes, at any depth; all other keys as they are.

    Kept: one or two periods of the layer pattern (of a pattern without a period, the first layers if they show every
    kind, else one or two of each run, runs that repeat once), every kind of layer, query heads per KV head, the share
    of a head that is rotated, how the query scale follows from the sizes. Token ids beyond the small vocabulary move
    to its end. ConfigError, UnsupportedError: a config that cannot be read. UnsupportedError: no small config has the
    same kinds of layers.
    """
    blueprint, _ = from_config(config, file="config")
    layers = tuple(layer_words(layer) for layer in blueprint.layers)
    wrong = fault("another pattern", expected="one that a few layers show", found=f"{len(layers)} layers")
    for kept in layer_choices(layers):
        try:
            made = _with_scale(_made(config, blueprint, sizes_of(blueprint, kept)), blueprint)
            small, _ = from_config(made, file="small config")
        except UserError as error:
            wrong = str(error)
            continue
        if [layer_words(layer) for layer in small.layers] == [layers[i] for i in kept]:
            return made
    raise UnsupportedError(f"{blueprint.family}: this version has no rules for a small config of this model: {wrong}")


# -- layers ----------------------------------------------------------------------------------------------------------


def layer_words(value: Any, name: str = "") -> object:
    """What is said of a layer, without sizes: numbers of layers count as `another layer`."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, tuple(layer_words(getattr(value, f.name), f.name) for f in fields(value))
    if isinstance(value, tuple):
        return tuple(layer_words(item, name) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return "size" if isinstance(value, int) or name in _FROM_SIZES else value


def layer_choices(layers: Sequence[object]) -> Iterator[tuple[int, ...]]:
    """Layers to keep, the best first: periods, else the first layers, where they soon show every kind, else the runs.

    The last choice, long, is for configs that state such a pattern by a rule and not by a list.
    """
    count, every = len(layers), set(layers)
    shown = next(n for n in range(1, count + 1) if set(layers[:n]) == every)
    period = next(p for p in range(1, count + 1) if all(layers[i] == layers[i % p] for i in range(p, count)))
    if period <= _MOST_LAYERS:
        yield tuple(range(min(count, 2 * period if 2 * period <= _MOST_LAYERS else period)))
    if shown < _MOST_LAYERS:
        yield tuple(range(min(shown + 1, count)))
    runs = [[i for i, _ in run] for _, run in groupby(enumerate(layers), key=lambda item: item[1])]
    folded = _folded(runs, layers)
    for each in (2, 1):
        kept = tuple(i for run in folded for i in run[:each])
        if len(kept) <= _MOST_LAYERS or each == 1:
            yield kept
    yield tuple(range(shown))


def _folded(runs: list[list[int]], layers: Sequence[object]) -> list[list[int]]:
    """The runs without those that repeat the runs just before them."""
    made: list[list[int]] = []
    for run in runs:
        made.append(run)
        kinds = [layers[r[0]] for r in made]
        for width in range(1, len(made) // 2 + 1):
            if kinds[-width:] == kinds[-2 * width : -width]:
                del made[-width:]
                break
    return made


# -- keys ------------------------------------------------------------------------------------------------------------


def _made(config: Mapping[str, object], blueprint: Blueprint, sizes: Sizes) -> dict[str, object]:
    moved = moved_tokens(config, sizes.vocabulary)
    small = tokens_moved(config, moved)
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        small["text_config"] = _text(tokens_moved(nested, moved), blueprint, sizes, "text_config.")
    else:
        small = _text(small, blueprint, sizes, "")
    vision, audio, quantization = (small.get(f"{name}_config") for name in ("vision", "audio", "quantization"))
    if isinstance(vision, Mapping):
        patches = "vision.image_size" in blueprint.evidence
        small["vision_config"] = small_vision(vision, sizes.hidden, patches=patches)
        if patches:
            small["mm_tokens_per_image"] = _IMAGE_TOKENS
    if isinstance(audio, Mapping):
        small["audio_config"] = small_audio(audio)
    if isinstance(quantization, Mapping):
        small["quantization_config"] = small_quantization(quantization, sizes.kept, len(blueprint.layers))
    return small


def _text(config: Mapping[str, object], blueprint: Blueprint, sizes: Sizes, prefix: str) -> dict[str, object]:
    small = dict(config)
    for key, value in config.items():
        for changed in changed_size(key, value, sizes):
            small[key] = changed
    for key, size in _assumed(blueprint, prefix):
        for changed in changed_size(key, size, sizes):
            if key not in small and changed != size:
                small[key] = changed
    for key in _ROPES:
        settings = config.get(key)
        if isinstance(settings, Mapping):
            small[key] = _rope(settings, sizes)
    shared = small.get("num_kv_shared_layers")
    if shared is not None:
        small["num_kv_shared_layers"] = sum(_shares(blueprint.layers[i]) for i in sizes.kept)
    overrides = config.get("per_layer_config")
    if isinstance(overrides, Mapping):
        small["per_layer_config"] = dict(_overrides(overrides, sizes))
    windows = ("sliding_window", "sliding_window_size")
    if _windowed(blueprint) and not any(small.get(key) is not None for key in windows):
        small["sliding_window"] = WINDOW
    return small


def _assumed(blueprint: Blueprint, prefix: str) -> Iterator[tuple[str, int]]:
    """Sizes that the config leaves to the family, as those are the large model's."""
    for found in blueprint.evidence.values():
        key = found.key.removeprefix(prefix)
        if found.origin == "default" and found.key.startswith(prefix) and "." not in key and found.value.isdecimal():
            yield key, int(found.value)
    mixer = next((layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention)), None)
    if mixer is not None:
        yield "head_dim", mixer.qk_dim


def _rope(settings: Mapping[str, object], sizes: Sizes) -> dict[str, object]:
    small = dict(settings)
    for key, value in settings.items():
        if isinstance(value, Mapping):
            small[key] = _rope(value, sizes)
        for changed in changed_size(key, value, sizes):
            small[key] = changed
    return small


def _overrides(overrides: Mapping[str, object], sizes: Sizes) -> Iterator[tuple[str, object]]:
    """Sizes of single layers, under the layers' numbers."""
    for number, layer in overrides.items():
        if number.isdecimal() and int(number) in sizes.kept and isinstance(layer, Mapping):
            sized = {key: next(changed_size(key, value, sizes), value) for key, value in layer.items()}
            yield str(sizes.kept.index(int(number))), sized


def _shares(layer: Layer) -> bool:
    return isinstance(layer.mixer, Attention) and layer.mixer.kv_source is not None


def _windowed(blueprint: Blueprint) -> bool:
    return any(isinstance(layer.mixer, Attention) and layer.mixer.window is not None for layer in blueprint.layers)


def _attention(blueprint: Blueprint) -> Attention | None:
    return next((layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention)), None)


def _with_scale(small: dict[str, object], large: Blueprint) -> dict[str, object]:
    """The small config with the key of the query scale, where that has one: the same function of the sizes."""
    before = _attention(large)
    said = large.evidence.get("attention.scale")
    if before is None or (said is not None and said.origin == "convention"):
        return small
    blueprint, _ = from_config(small, file="small config")
    mixer = _attention(blueprint)
    assert mixer is not None
    scalar = before.scale**-2
    if isclose(scalar, before.qk_dim):
        wanted: float = mixer.qk_dim
    elif isclose(scalar, large.hidden / before.heads):
        wanted = blueprint.hidden / mixer.heads
    else:
        wanted = scalar * mixer.qk_dim / before.qk_dim
    nested = small.get("text_config")
    text = nested if isinstance(nested, Mapping) else small
    if isclose(mixer.scale, wanted**-0.5):
        return small
    key = {_SCALE_KEY: int(wanted) if float(wanted).is_integer() else wanted}
    return {**small, "text_config": {**text, **key}} if isinstance(nested, Mapping) else {**small, **key}

"""Inside one layer: random layers of every kind, and every word of the blueprint."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from layer_pictures import check_panel, roles_in, roles_of
from random_blueprints import blueprints

from plait.blueprint import spec
from plait.blueprint.source import open_model
from plait.blueprint.spec import Blueprint, Layer
from plait.draw.layer import kinds, layer_svg, layers_svg
from plait.draw.layer_layout import layout
from plait.draw.layer_steps import layer_steps, model_of
from plait.draw.words import LANGUAGES


@settings(max_examples=60, deadline=None)
@given(blueprints())
def test_random_layers_keep_the_rules(blueprint: Blueprint) -> None:
    model = model_of(blueprint)
    for group in kinds(blueprint):
        for lang in LANGUAGES:
            check_panel(layout(layer_steps(model, group[0], lang)))


@settings(max_examples=25, deadline=None)
@given(blueprints())
def test_every_tensor_of_random_layers_stands_in_their_pictures_once(blueprint: Blueprint) -> None:
    groups = kinds(blueprint)
    assert roles_of(layers_svg(blueprint)) == sum((roles_in(blueprint, group[0]) for group in groups), Counter())


# What changes nothing in the layer it is changed in: neighbours of an adjacent pair are one apart by definition; where
# values and routers are normed no weight exists; YaRN's factor on scores is attention's; another layer's values are
# normed there.
_SILENT: dict[tuple[str, ...], str] = {
    ("rope", "distance"): "adjacent pairs",
    ("v_norm", "offset"): "no weight",
    ("v_norm", "weight"): "no weight",
    ("v_norm", "bias"): "no weight",
    ("norm", "offset"): "router",
    ("norm", "weight"): "router",
    ("norm", "bias"): "router",
    ("scaling", "softmax_scale"): "indexer",
}
_WORDS = (
    ("spark-x2.5-4b", 3),
    ("gemma-2-2b", 0),
    ("gemma-3-4b", 5),
    ("gemma-3n-e2b", 0),
    ("gemma-3n-e2b", 20),
    ("gemma-4-26b-a4b", 5),
    ("qwen3.5-35b-a3b", 0),
    ("qwen3.5-35b-a3b", 3),
    ("mimo-v2-flash", 1),
    ("deepseek-v3.2", 3),
)


def _others(owner: Any, name: str, value: Any) -> list[Any]:
    """Other values of a field."""
    hint = get_type_hints(type(owner), {**vars(spec), **vars(sys.modules[type(owner).__module__])})[name]
    if isinstance(value, bool):
        return [not value]
    choices = [word for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal for word in get_args(kind)]
    if choices:
        return [word for word in choices if word != value]
    if isinstance(value, int):
        return [value + 1]
    return [value * 1.5 + 0.25] if isinstance(value, float) else []


def _changes(part: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The part with one word changed, and where the word stands."""
    for field in fields(part):
        value, place = getattr(part, field.name), (*path, field.name)
        if value is not None and "None" in str(field.type):
            yield place, replace(part, **{field.name: None})
        if is_dataclass(value):
            for inner, changed in _changes(value, place):
                yield inner, replace(part, **{field.name: changed})
        elif value is not None:
            for other in _others(part, field.name, value):
                yield place, replace(part, **{field.name: other})


def _silent(layer: Layer, place: tuple[str, ...]) -> bool:
    """Whether a change at `place` may leave the picture as it is."""
    why = _SILENT.get(place[-2:])
    if why == "router":
        return "router" in place
    if why == "indexer":
        return "indexer" in place
    if why is not None:
        return True
    reused = getattr(layer.mixer, "kv_source", None) is not None and "v_norm" in place
    # One group is no group; without axes, nothing is interleaved; a layer without a table has no embedding of its own.
    return reused or place[-1] in ("kept_groups", "interleaved_axes", "per_layer_input")


@pytest.mark.parametrize(("name", "index"), _WORDS)
def test_every_word_of_a_layer_shows(name: str, index: int) -> None:
    whole = open_model(name).blueprint
    blueprint = replace(whole, layers=whole.layers[: index + 1])
    layer, before = blueprint.layers[index], layer_svg(blueprint, index)
    mute = []
    for place, changed in _changes(layer):
        layers = (*blueprint.layers[:index], changed)
        if layer_svg(replace(blueprint, layers=layers), index) == before and not _silent(layer, place):
            mute.append(place)
    assert mute == []


@pytest.mark.parametrize("part", ["altup", "per_layer_embeddings"])
def test_every_word_around_a_layer_shows(part: str) -> None:
    blueprint = open_model("gemma-3n-e2b").blueprint
    before = layer_svg(blueprint, 0)
    mute = [
        place
        for place, changed in _changes(getattr(blueprint, part))
        if layer_svg(replace(blueprint, **{part: changed}), 0) == before
    ]
    # How many rows the table has, and the norm of what is projected, stand where the table is made.
    assert {place[0] for place in mute} <= {"vocabulary"}


def test_groups_axes_and_embeddings_show_where_they_are() -> None:
    """What the words left out above say where they do say something."""
    for name, index, part in (("deepseek-v3.2", 3, "kept_groups"), ("qwen3.5-35b-a3b", 3, "interleaved_axes")):
        whole = open_model(name).blueprint
        blueprint = replace(whole, layers=whole.layers[: index + 1])
        before = layer_svg(blueprint, index)
        for place, changed in _changes(blueprint.layers[index]):
            if place[-1] == part:
                layers = (*blueprint.layers[:index], changed)
                assert layer_svg(replace(blueprint, layers=layers), index) != before
    blueprint = open_model("gemma-4-e2b").blueprint
    bare = replace(blueprint.layers[0], per_layer_input=False)
    assert layer_svg(replace(blueprint, layers=(bare, *blueprint.layers[1:])), 0) != layer_svg(blueprint, 0)

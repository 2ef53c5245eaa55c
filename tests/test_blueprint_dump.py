"""`load(dump(b)) == b` through JSON, and strict errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from blueprints import NORM, deepseek_v32, layer, small

import plait
from plait.blueprint.catalog import names
from plait.blueprint.dump import dump, load
from plait.blueprint.spec import (
    AltUp,
    Attention,
    Blueprint,
    Both,
    FactorScaling,
    Gated,
    GatedDeltaNet,
    Layer,
    Mixture,
    OutputGate,
    PerLayerEmbeddings,
    QKNorm,
    Rope,
    Router,
    SharedExperts,
    Tower,
    TowerTensor,
    YarnScaling,
)
from plait.errors import ConfigError


def everything() -> Blueprint:
    """Every kind of part that no published model here has."""
    rope = Rope(1e6, 4, 16, distance=8, scaling=YarnScaling(4.0, 128, 32.0, 1.0, 1.1), axes=(2, 1, 1))
    first = Attention(4, 2, 16, 16, 0.25, window=8, rope=rope, qk_norm=QKNorm(NORM, "all"), sinks=True)
    gated = replace(first, gate=OutputGate("element", "silu"), kv_source=0, value_scale=0.5)
    factors = replace(first, rope=Rope(1e4, 2, 16, distance=8, scaling=FactorScaling((1.0, 2.5))))
    mixture = Mixture(8, 2, 32, "silu", Router("softmax", True, norm=NORM), SharedExperts(1, 16, gated=True))
    both = Both(Gated(96, "gelu", sparsity=0.95), mixture, NORM, NORM, NORM)
    return small(
        layer(first),
        layer(gated),
        Layer(factors, both, NORM, NORM, NORM, NORM, per_layer_input=True, laurel_rank=4, scalar=True),
        layer(GatedDeltaNet(2, 4, 8, 16, 4, NORM)),
        altup=AltUp(4, 0, 120.0, True, NORM),
        per_layer_embeddings=PerLayerEmbeddings(300, 8, "gelu_tanh", 1.5, 0.5, 0.7, NORM),
        towers=(Tower("audio", "a", (TowerTensor("x{}", (3, 5), 2, buffer=True),)),),
    )


@pytest.mark.parametrize("name", names())
def test_round_trip_of_the_catalogue(name: str) -> None:
    blueprint = plait.blueprint(name)
    back = load(json.loads(json.dumps(dump(blueprint))))
    assert back == blueprint
    # What equality leaves out is kept too.
    assert back.evidence == blueprint.evidence
    assert (back.name, back.tokens, back.stored_format) == (name, blueprint.tokens, blueprint.stored_format)
    assert hash(back) == hash(blueprint)


@pytest.mark.parametrize("make", [deepseek_v32, everything], ids=lambda f: f.__name__)
def test_round_trip_of_every_kind_of_part(make: Callable[[], Blueprint]) -> None:
    blueprint = make()
    assert load(json.loads(json.dumps(dump(blueprint)))) == blueprint


def test_a_dump_says_its_kinds() -> None:
    made = dump(everything())
    assert (made["format"], made["type"]) == (1, "Blueprint")
    layers = made["layers"]
    assert isinstance(layers, list)
    assert [item["mixer"]["type"] for item in layers] == ["Attention"] * 3 + ["GatedDeltaNet"]


def test_whole_numbers_without_a_point_are_the_same() -> None:
    made: Any = dump(everything())
    made["layers"][0]["mixer"]["rope"]["theta"] = 1_000_000
    back = load(made)
    assert back == everything()
    mixer = back.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    assert type(mixer.rope.theta) is float


def _set(path: tuple[Any, ...], value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def _drop(*path: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set(("format",), 2), "'format'"),
        (_drop("format"), "'format'"),
        (_set(("type",), "Layer"), "'blueprint.type'"),
        (_drop("hidden"), "'blueprint.hidden'"),
        (_set(("hidden",), "64"), "'blueprint.hidden'.*an integer"),
        (_set(("hidden",), True), "'blueprint.hidden'.*an integer"),
        (_set(("surprise",), 1), "'blueprint.surprise'.*no such field"),
        (_set(("layers",), {}), "'blueprint.layers'.*a list"),
        (_set(("layers", 2), 5), r"'blueprint.layers\[2\]'"),
        (_set(("layers", 0, "mixer", "type"), "Mamba"), r"layers\[0\].mixer.type'.*Attention or LatentAttention"),
        (_set(("layers", 0, "mixer", "scale"), "x"), r"mixer.scale'.*a finite number"),
        (_set(("layers", 0, "mixer", "scale"), float("inf")), r"mixer.scale'.*a finite number"),
        (_set(("layers", 0, "mixer", "sinks"), 1), r"mixer.sinks'.*true or false"),
        (_set(("layers", 0, "mixer", "rope", "pairing"), "odd"), r"rope.pairing'.*half"),
        (_set(("layers", 0, "feed_forward"), None), r"layers\[0\].feed_forward'"),
        (_set(("evidence",), []), "'blueprint.evidence'.*an object"),
        (_set(("layers",), []), "no layers"),
        (_set(("layers", 0, "mixer", "kv_heads"), 3), "layer 0: heads"),
        (_set(("layers", 0, "mixer", "kv_heads"), 0), "layer 0: KV heads"),
    ],
)
def test_damage_is_named(change: Callable[[Any], None], words: str) -> None:
    made = json.loads(json.dumps(dump(everything())))
    change(made)
    with pytest.raises(ConfigError, match=words):
        load(made, file="some.json")

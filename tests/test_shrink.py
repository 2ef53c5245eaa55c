"""Small configs: the pattern and the ratios of the large one, sizes for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from plait.blueprint.catalog import entry, names
from plait.blueprint.check import not_run
from plait.blueprint.shrink import tiny
from plait.blueprint.source import from_config, open_model
from plait.blueprint.spec import Attention, Blueprint
from plait.blueprint.tensors import inventory
from plait.errors import UnsupportedError

RUN = tuple(name for name in names() if not not_run(open_model(name).blueprint))


def config_of(name: str, **changes: object) -> dict[str, Any]:
    found = entry(name)
    assert found is not None
    return {**found.config, **changes}


def blueprint_of(config: Mapping[str, object]) -> Blueprint:
    return from_config(config, file="test", name="test")[0]


def test_all_of_the_catalogue_that_runs_shrinks() -> None:
    assert {"gemma-3-4b", "qwen3-4b", "smollm2-135m", "spark-x2.5-4b"} <= set(RUN)
    for name in RUN:
        config = config_of(name)
        before = dict(config)
        small = tiny(config)
        assert config == before
        assert small.keys() >= config.keys()
        large, blueprint = blueprint_of(config), blueprint_of(small)
        assert blueprint.family == large.family
        assert blueprint.vocabulary <= 512
        assert len(blueprint.layers) <= 8
        assert sum(t.elements for t in inventory(blueprint) if t.part == "text") < 1_000_000
        for now, then in zip(blueprint.layers, large.layers, strict=False):
            a, b = now.mixer, then.mixer
            assert isinstance(a, Attention)
            assert isinstance(b, Attention)
            assert (a.window is None) == (b.window is None)
            assert a.heads * b.kv_heads == b.heads * a.kv_heads
            assert a.rope is not None
            assert b.rope is not None
            assert a.rope.rotated * b.qk_dim == b.rope.rotated * a.qk_dim
            assert (a.rope.theta, a.rope.scaling) == (b.rope.theta, b.rope.scaling)
            assert (a.softcap, a.gate, a.qk_norm) == (b.softcap, b.gate, b.qk_norm)
        kinds = {layer.mixer.window is None for layer in large.layers}  # type: ignore[union-attr]
        assert {layer.mixer.window is None for layer in blueprint.layers} == kinds  # type: ignore[union-attr]
        assert tiny(small) == small
        for token in (*blueprint.tokens.eos, blueprint.tokens.bos or 0, blueprint.tokens.pad or 0):
            assert token < blueprint.vocabulary


@pytest.mark.parametrize("name", [name for name in names() if name not in RUN])
def test_what_is_not_run_is_not_made_small(name: str) -> None:
    large = blueprint_of(config_of(name))
    with pytest.raises(UnsupportedError) as caught:
        tiny(config_of(name))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{large.family}: ")
    assert all(kind in text for kind in not_run(large))


def test_a_vision_tower_of_another_kind_is_not_made_small() -> None:
    config = config_of("gemma-3-4b")
    config["vision_config"] = {**config["vision_config"], "depth": 24}
    with pytest.raises(UnsupportedError, match="vision tower with the key 'depth'"):
        tiny(config)


def test_a_pattern_without_a_period_keeps_one_layer_of_each_run() -> None:
    config = config_of("qwen3-4b", use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    small = blueprint_of(tiny(config))
    assert [layer.mixer.window for layer in small.layers] == [None, 8]  # type: ignore[union-attr]
    listed = {**config, "layer_types": ["full_attention"] * 20 + ["sliding_attention"] * 16}
    assert blueprint_of(tiny(listed)) == small


def test_small_token_ids_are_told_apart() -> None:
    small = tiny(config_of("qwen3-4b", bos_token_id=151643, eos_token_id=[151645, 151643, 5], pad_token_id=511))
    assert small["eos_token_id"] == [509, 510, 5]
    assert (small["bos_token_id"], small["pad_token_id"]) == (510, 511)

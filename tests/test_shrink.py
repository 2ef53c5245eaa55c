"""Small configs: the pattern, the features and the ratios of the large one, sizes for tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from plait.blueprint.catalog import entry, names
from plait.blueprint.shrink import tiny
from plait.blueprint.source import from_config
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet, LatentAttention, Mixture
from plait.blueprint.tensors import inventory


def config_of(name: str, **changes: object) -> dict[str, Any]:
    found = entry(name)
    assert found is not None
    return {**found.config, **changes}


def blueprint_of(config: Mapping[str, object]) -> Blueprint:
    return from_config(config, file="test", name="test")[0]


def words(thing: object) -> str:
    """What is said of a part of a model, all numbers alike."""
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", repr(thing))


@pytest.mark.parametrize("name", names())
def test_every_model_of_the_catalogue_shrinks(name: str) -> None:
    config = config_of(name)
    before = dict(config)
    small = tiny(config)
    assert config == before
    assert small.keys() >= config.keys()
    assert tiny(small) == small
    large, (blueprint, coverage) = blueprint_of(config), from_config(small, file="test")
    assert coverage.unknown == ()
    assert blueprint.vocabulary <= 512
    assert len(blueprint.layers) <= 8
    assert sum(t.elements for t in inventory(blueprint) if t.part == "text") < 1_000_000
    # every kind of layer and every feature of the model, and none besides
    assert {words(layer) for layer in blueprint.layers} == {words(layer) for layer in large.layers}
    parts = {"layers": (), "towers": (), "evidence": {}, "name": ""}
    assert words(replace(blueprint, **parts)) == words(replace(large, **parts))
    assert [tower.kind for tower in blueprint.towers] == [tower.kind for tower in large.towers]
    for token in (*blueprint.tokens.eos, blueprint.tokens.bos or 0, blueprint.tokens.pad or 0):
        assert token < blueprint.vocabulary


@pytest.mark.parametrize("name", names())
def test_what_is_kept_in_proportion(name: str) -> None:
    large, small = blueprint_of(config_of(name)), blueprint_of(tiny(config_of(name)))
    alike = {words(layer): layer for layer in reversed(large.layers)}
    for layer in small.layers:
        before, now = alike[words(layer)].mixer, layer.mixer
        if isinstance(before, Attention) and isinstance(now, Attention):
            assert now.heads * before.kv_heads == before.heads * now.kv_heads
            assert now.v_dim * before.qk_dim == before.v_dim * now.qk_dim
            assert (now.rope is None) == (before.rope is None)
            if now.rope is not None and before.rope is not None:
                assert now.rope.rotated * before.qk_dim == before.rope.rotated * now.qk_dim
                assert (now.rope.theta, now.rope.scaling) == (before.rope.theta, before.rope.scaling)
                assert now.rope.axes is None or (sum(now.rope.axes) == now.rope.pairs and min(now.rope.axes) > 0)
            assert (now.softcap, now.value_scale, now.qk_norm) == (before.softcap, before.value_scale, before.qk_norm)
            assert now.window is None or now.window <= 9
        elif isinstance(before, GatedDeltaNet) and isinstance(now, GatedDeltaNet):
            assert now.value_heads * before.key_heads == before.value_heads * now.key_heads
            assert now.conv_kernel == before.conv_kernel
            assert now.key_dim != now.value_dim
        elif isinstance(before, LatentAttention) and isinstance(now, LatentAttention):
            assert (now.rope.scaling, now.rope.pairing) == (before.rope.scaling, before.rope.pairing)
            assert now.nope_dim * before.v_dim == before.nope_dim * now.v_dim
            assert now.indexer is None or now.indexer.top_k <= 16
        part = layer.feed_forward
        if isinstance(part, Mixture):
            kept = part.experts // part.router.groups * part.router.kept_groups
            assert 1 < part.active < kept
            assert part.router.groups == 1 or part.experts // part.router.groups > 1


def test_the_last_layers_still_read_those_of_others() -> None:
    for name in ("gemma-3n-e2b", "gemma-4-e4b"):
        mixers = [layer.mixer for layer in blueprint_of(tiny(config_of(name))).layers]
        sources = [mixer.kv_source for mixer in mixers if isinstance(mixer, Attention)]
        assert None in sources
        assert len(set(sources)) == 3  # own, a window layer's, a full layer's


def test_a_fixed_network_stays_as_it_is() -> None:
    config = config_of("gemma-3n-e2b")
    assert tiny(config)["vision_config"] == config["vision_config"]


def test_towers_are_small() -> None:
    for name in ("gemma-3-4b", "gemma-4-12b", "gemma-4-31b", "gemma-4-e2b", "qwen3.5-0.8b"):
        blueprint = blueprint_of(tiny(config_of(name)))
        assert blueprint.towers
        assert all(tower.parameters < 600_000 for tower in blueprint.towers), name


def test_sizes_that_the_config_leaves_out_shrink_too() -> None:
    config = config_of("deepseek-v3")
    for key in ("kv_lora_rank", "n_routed_experts", "moe_intermediate_size", "vocab_size", "hidden_size"):
        del config[key]
    assert blueprint_of(tiny(config)) == blueprint_of(tiny(config_of("deepseek-v3")))


def test_modules_left_whole_are_those_of_the_kept_layers() -> None:
    small = tiny(config_of("mimo-v2-flash"))
    section = small["quantization_config"]
    assert isinstance(section, dict)
    assert section["ignored_layers"] == [
        f"model.layers.{i}.self_attn.o_proj" for i in range(len(blueprint_of(small).layers))
    ]
    assert section["weight_block_size"] == [32, 32]
    large, now = blueprint_of(config_of("mimo-v2-flash")).quantization, blueprint_of(small).quantization
    assert large is not None
    assert now is not None
    assert now.excluded == large.excluded


def test_lists_of_layers_are_cut_alike() -> None:
    """A pattern whose every list has to follow: dense and sparse, own and shared indexers."""
    kinds = ["full", "full", "full", *["shared", "full"] * 37, "shared"]
    config = config_of("glm-5", indexer_types=kinds)
    small = tiny(config)
    assert len(small["indexer_types"]) == small["num_hidden_layers"]
    large, now = blueprint_of(config), blueprint_of(small)
    assert {words(layer) for layer in now.layers} == {words(layer) for layer in large.layers}


def test_a_pattern_by_a_rule_keeps_the_first_layers() -> None:
    """No list can be cut, so the layers kept are the first that show every kind."""
    config = config_of("qwen3-30b-a3b", decoder_sparse_step=1, mlp_only_layers=[2])
    small, large = blueprint_of(tiny(config)), blueprint_of(config)
    assert {words(layer) for layer in small.layers} == {words(layer) for layer in large.layers}
    stepped = config_of("qwen3-30b-a3b", decoder_sparse_step=3)
    now = blueprint_of(tiny(stepped))
    assert [isinstance(layer.feed_forward, Mixture) for layer in now.layers] == [False, False, True] * 2


def test_a_pattern_without_a_period_keeps_layers_of_each_run() -> None:
    config = config_of("qwen3-4b", use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    small = blueprint_of(tiny(config))
    assert [layer.mixer.window for layer in small.layers] == [None, None, 8, 8]
    listed = {**config, "layer_types": ["full_attention"] * 20 + ["sliding_attention"] * 16}
    assert blueprint_of(tiny(listed)) == small


def test_small_token_ids_are_told_apart() -> None:
    small = tiny(config_of("qwen3-4b", bos_token_id=151643, eos_token_id=[151645, 151643, 5], pad_token_id=511))
    assert small["eos_token_id"] == [509, 510, 5]
    assert (small["bos_token_id"], small["pad_token_id"]) == (510, 511)

"""Spellings of the sigmoid-routed families: published files, files saved by transformers, contradictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import transformers
from configs import read
from hypothesis import given
from hypothesis import strategies as st
from routed_configs import BLOCKS, CLASSES, PUBLISHED, deepseek_v3, deepseek_v32, glm_4_5, glm_5, mimo, minimax

from plait.blueprint.check import not_run
from plait.blueprint.source import from_config
from plait.blueprint.spec import Attention, Blueprint, Gated, LatentAttention, Mixture, Rope, YarnScaling
from plait.errors import ConfigError, UnsupportedError

Config = dict[str, Any]
Published = Callable[[], Config]


def without(config: Config, *keys: str, **added: Any) -> Config:
    assert all(key in config for key in keys)
    return {**{key: value for key, value in config.items() if key not in keys}, **added}


def resaved(config: Config, *, whole: bool) -> Config:
    """The config as transformers writes it after reading; `whole`: defaults included."""
    own = getattr(transformers, CLASSES[config["model_type"]] + "Config").from_dict(deepcopy(config))
    text: str = own.to_json_string(use_diff=not whole)
    saved: Config = json.loads(text)
    return saved


def latent(blueprint: Blueprint, index: int = 0) -> LatentAttention:
    mixer = blueprint.layers[index].mixer
    assert isinstance(mixer, LatentAttention)
    return mixer


def attention(blueprint: Blueprint, index: int = 0) -> Attention:
    mixer = blueprint.layers[index].mixer
    assert isinstance(mixer, Attention)
    return mixer


def mixture(blueprint: Blueprint) -> Mixture:
    part = blueprint.layers[-1].feed_forward
    assert isinstance(part, Mixture)
    return part


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("published", PUBLISHED)
def test_files_saved_by_transformers_are_the_same_model(published: Published, whole: bool) -> None:
    saved = resaved(published(), whole=whole)
    assert read(saved) == read(published())
    coverage = from_config(saved, file="config.json")[1]
    assert coverage.unknown == ()


@pytest.mark.parametrize("published", PUBLISHED)
def test_published_keys_are_all_known_and_have_evidence(published: Published) -> None:
    blueprint, coverage = from_config(published(), file="config.json")
    assert coverage.unknown == ()
    for field in ("vocabulary", "hidden", "layers", "max_context", "norm.eps", "experts.count", "experts.active"):
        assert blueprint.evidence[field].origin == "key", field
    assert not_run(blueprint) == ()


@pytest.mark.parametrize("name", CLASSES)
def test_a_file_with_the_model_type_alone_is_the_default_of_the_class(name: str) -> None:
    plain = getattr(transformers, CLASSES[name] + "Config")()
    saved = json.loads(plain.to_json_string(use_diff=False))
    bare = read({"model_type": name})
    assert bare == read(saved)
    assert bare.evidence["vocabulary"].origin == "default"


def test_deepseek_v3() -> None:
    blueprint = read(deepseek_v3())
    mixer = latent(blueprint)
    assert (mixer.heads, mixer.q_rank, mixer.kv_rank, mixer.nope_dim, mixer.v_dim) == (4, 12, 10, 6, 8)
    assert mixer.scale == 10**-0.5
    assert (mixer.rope.pairing, mixer.rope.rotated, mixer.rope.divisor) == ("adjacent", 4, 4)
    # The latents' norms have the reference code's own eps, whatever rms_norm_eps says.
    assert (mixer.latent_norm.eps, blueprint.final_norm.eps) == (1e-6, 1e-5)
    scaling = mixer.rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.attention_factor == 1.0
    assert scaling.softmax_scale == pytest.approx(1.8739, abs=5e-5)
    router = mixture(blueprint).router
    assert (router.scores, router.renormalise, router.scale, router.selection_bias) == ("sigmoid", True, 2.5, True)
    assert (router.groups, router.kept_groups) == (4, 2)
    assert [isinstance(layer.feed_forward, Gated) for layer in blueprint.layers] == [True, False, False, False]
    assert mixer.indexer is None


def test_every_second_layer_a_mixture() -> None:
    blueprint = read({**deepseek_v3(), "num_hidden_layers": 7, "first_k_dense_replace": 1, "moe_layer_freq": 2})
    sparse = [i for i, layer in enumerate(blueprint.layers) if isinstance(layer.feed_forward, Mixture)]
    assert sparse == [2, 4, 6]


def test_the_two_indexers_rotate_unlike_pairs() -> None:
    """The first dims of 8: half-split in DeepSeek-V3.2, adjacent in GLM-5; both attentions rotate adjacent ones."""
    first, second = latent(read(deepseek_v32())), latent(read(without(glm_5(), "indexer_rope_interleave")))
    assert first.indexer is not None and second.indexer is not None
    scaling = first.rope.scaling
    assert scaling is not None
    assert first.indexer.rope == Rope(10_000.0, 2, 4, distance=2, scaling=scaling)
    assert second.indexer.rope == Rope(1_000_000.0, 2, 4, pairing="adjacent", distance=1)
    assert first.rope.pairing == second.rope.pairing == "adjacent"
    for mixer in (first, second):
        assert mixer.indexer is not None
        norm = mixer.indexer.key_norm
        assert (norm.kind, norm.bias, norm.eps) == ("layer", True, 1e-6)


KINDS = ["full", "full", "shared", "shared"]


@pytest.mark.parametrize(
    "keys",
    [
        {"indexer_types": KINDS},
        {"index_topk_pattern": "FFSS"},
        {"index_topk_pattern": KINDS},
        {"index_topk_freq": 4, "index_skip_topk_offset": 2},
        {"index_topk_freq": 4},
        {"indexer_types": KINDS, "index_topk_pattern": "FFSS", "index_topk_freq": 4},
    ],
)
def test_an_indexers_choice_may_serve_several_layers(keys: Config) -> None:
    blueprint = read({**glm_5(), **keys})
    indexers = [latent(blueprint, i).indexer for i in range(4)]
    assert [item.source for item in indexers if item is not None] == [None, None, 1, 1]
    assert from_config({**glm_5(), **keys}, file="config.json")[1].unknown == ()
    assert read(resaved({**glm_5(), **keys}, whole=True)) == blueprint
    # The prediction layer has an indexer of its own.
    assert blueprint.mtp is not None
    own = blueprint.mtp.layers[0].mixer
    assert isinstance(own, LatentAttention) and own.indexer is not None and own.indexer.source is None


@given(st.integers(1, 6), st.integers(0, 5), st.integers(1, 12))
def test_the_schedule_of_shared_choices_is_that_of_transformers(every: int, offset: int, count: int) -> None:
    keys = {"index_topk_freq": every, "index_skip_topk_offset": offset, "num_hidden_layers": count}
    expected = transformers.GlmMoeDsaConfig(**keys).indexer_types
    try:
        blueprint = read({**glm_5(), **keys})
    except ConfigError as error:
        # A first layer that shares has nothing to share.
        assert expected[0] == "shared" and "layer 0" in str(error)
        return
    found = [item.source for i in range(count) if (item := latent(blueprint, i).indexer) is not None]
    assert [source is None for source in found] == [kind == "full" for kind in expected]


def test_glm_4_5() -> None:
    mixer = attention(read(glm_4_5()))
    assert (mixer.qkv_bias, mixer.output_bias, mixer.window) == (True, False, None)
    assert mixer.qk_norm is not None and mixer.qk_norm.over == "head" and mixer.qk_norm.norm.eps == 1e-5
    assert mixer.rope == Rope(1_000_000.0, 4, 8, distance=4)
    assert attention(read({**glm_4_5(), "use_qk_norm": False})).qk_norm is None


def test_mimo() -> None:
    blueprint = read(mimo())
    windows = [attention(blueprint, i).window for i in range(7)]
    assert windows == [None, 9, 9, 9, 9, None, 9]
    full, window = attention(blueprint), attention(blueprint, 1)
    assert (full.kv_heads, window.kv_heads, full.sinks, window.sinks) == (1, 2, False, True)
    assert (full.qk_dim, full.v_dim, full.value_scale, full.scale) == (24, 16, 0.707, 24**-0.5)
    # int(24 * 0.334) = 8
    assert full.rope == Rope(5_000_000.0, 4, 8, distance=4) and window.rope == Rope(10_000.0, 4, 8, distance=4)
    assert mixture(blueprint).router.scale == 1.0 and mixture(blueprint).shared is None
    assert blueprint.mtp is not None and len(blueprint.mtp.layers) == 3
    assert blueprint.mtp.layers[0].mixer == window and isinstance(blueprint.mtp.layers[0].feed_forward, Gated)


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({"sliding_window": 128, "sliding_window_size": 128}, 129),
        ({"sliding_window": 129, "sliding_window_size": 128}, 129),
        ({"sliding_window": 129, "sliding_window_size": None}, 129),
        ({"sliding_window": 64, "sliding_window_size": None}, 64),
        ({"sliding_window": None, "sliding_window_size": 7}, 8),
    ],
)
def test_the_two_windows_of_mimo_mean_different_things(keys: Config, window: int) -> None:
    assert attention(read({**mimo(), **keys}), 1).window == window


def test_an_absent_value_scale_is_the_default_and_null_is_none() -> None:
    assert attention(read(without(mimo(), "attention_value_scale"))).value_scale == 0.707
    assert attention(read({**mimo(), "attention_value_scale": None})).value_scale == 1.0


def test_an_odd_number_of_rotated_dims_is_what_transformers_makes_of_it() -> None:
    """int(64 * 0.334) = 21: eleven frequencies over 21, so 22 dims turn."""
    blueprint = read({**mimo(), "head_dim": 64, "swa_head_dim": 64})
    rope = attention(blueprint).rope
    assert rope is not None
    own = transformers.MiMoV2FlashConfig(head_dim=64, num_hidden_layers=2)
    from transformers.models.mimo_v2_flash.modeling_mimo_v2_flash import MiMoV2FlashRotaryEmbedding

    frequencies = MiMoV2FlashRotaryEmbedding(own).full_attention_inv_freq
    assert (rope.pairs, rope.distance) == (len(frequencies), len(frequencies))
    for i, frequency in enumerate(frequencies.tolist()):
        assert rope.theta ** (-2 * i / rope.divisor) == pytest.approx(frequency, rel=1e-5)


def test_minimax() -> None:
    blueprint = read(minimax())
    mixer = attention(blueprint)
    assert mixer.qk_norm is not None and mixer.qk_norm.over == "all"
    assert mixer.rope == Rope(5_000_000.0, 4, 8, distance=4)
    assert mixer.window is None and blueprint.mtp is None
    assert all(isinstance(layer.feed_forward, Mixture) for layer in blueprint.layers)
    assert mixture(blueprint).width == 24
    assert mixture(blueprint).router.selection_bias and mixture(blueprint).router.scale == 1.0
    assert read({**minimax(), "sliding_window": 4096}) == blueprint
    shared = without(minimax(), "rotary_dim", partial_rotary_factor=0.5)
    assert read(shared) == blueprint


def test_an_early_minimax_is_told_by_its_keys() -> None:
    assert read({**minimax(), "model_type": "minimax"}) == read(minimax())
    for config in (
        {**minimax(), "model_type": "minimax", "attn_type_list": [0, 0, 1]},
        {**minimax(), "attn_type_list": [0, 1, 1]},
        {"model_type": "minimax", "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2},
        {"model_type": "minimax", "num_hidden_layers": 2, "hidden_size": 64},
    ):
        with pytest.raises(UnsupportedError, match=r"attn_type_list|layer_types"):
            read(config)


CONFLICTS: tuple[tuple[Published, Config, tuple[str, ...]], ...] = (
    (deepseek_v3, {"num_key_value_heads": 2}, ("num_key_value_heads", "num_attention_heads")),
    (deepseek_v3, {"head_dim": 8}, ("head_dim", "qk_rope_head_dim")),
    (deepseek_v3, {"num_local_experts": 9}, ("n_routed_experts", "num_local_experts")),
    (deepseek_v3, {"num_mtp_layers": 2}, ("num_nextn_predict_layers", "num_mtp_layers")),
    (deepseek_v3, {"rope_parameters": {"rope_theta": 5.0}}, ("rope_theta", "rope_parameters.rope_theta")),
    (deepseek_v3, {"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "qk_rope_head_dim")),
    (deepseek_v32, {"mlp_layer_types": ["sparse"] * 4}, ("first_k_dense_replace", "mlp_layer_types")),
    (glm_5, {"qk_head_dim": 12}, ("qk_head_dim", "qk_nope_head_dim")),
    (glm_5, {"indexer_types": ["full"] * 4, "index_topk_pattern": "FFSS"}, ("indexer_types", "index_topk_pattern")),
    (glm_5, {"index_topk_pattern": "FFFF", "index_topk_freq": 4}, ("index_topk_pattern", "index_topk_freq")),
    (mimo, {"layer_types": ["full_attention"] * 7}, ("layer_types", "hybrid_layer_pattern")),
    (mimo, {"mlp_layer_types": ["sparse"] * 7}, ("mlp_layer_types", "moe_layer_freq")),
    (mimo, {"rms_norm_eps": 1e-6}, ("layernorm_epsilon", "rms_norm_eps")),
    (minimax, {"num_experts": 4}, ("num_local_experts", "num_experts")),
    (minimax, {"partial_rotary_factor": 0.25}, ("rotary_dim", "partial_rotary_factor")),
)


@pytest.mark.parametrize(("published", "changes", "keys"), CONFLICTS)
def test_disagreements_name_both_keys(published: Published, changes: Config, keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        read({**published(), **changes})
    for key in ("config.json", *keys):
        assert key in str(error.value)
    assert "\n" not in str(error.value)


WRONG: tuple[tuple[Published, Config, str], ...] = (
    (deepseek_v3, {"scoring_func": "softmax"}, "scoring_func"),
    (deepseek_v3, {"topk_method": "greedy"}, "topk_method"),
    (deepseek_v3, {"qk_rope_head_dim": 3, "head_dim": 3}, "qk_rope_head_dim"),
    (deepseek_v3, {"n_group": 3}, "groups"),
    (deepseek_v3, {"topk_group": 5}, "kept groups"),
    (deepseek_v3, {"num_experts_per_tok": 5}, "kept groups"),
    (deepseek_v3, {"num_nextn_predict_layers": 20_000}, "num_nextn_predict_layers"),
    (deepseek_v32, {"q_lora_rank": None}, "q_lora_rank"),
    (deepseek_v32, {"index_head_dim": 2}, "index_head_dim"),
    (deepseek_v32, {"mlp_bias": True}, "mlp_bias"),
    (deepseek_v32, {"layer_types": ["full_attention"] * 4}, "layer_types"),
    (glm_5, {"indexer_types": ["shared", "full", "full", "full"]}, "layer 0"),
    (glm_5, {"index_topk_pattern": "FXSS"}, "index_topk_pattern"),
    (glm_5, {"index_topk_pattern": 7}, "index_topk_pattern"),
    (glm_4_5, {"num_key_value_heads": 3}, "KV heads"),
    (mimo, {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
    (mimo, {"hybrid_layer_pattern": [0, 1, 2, 1, 1, 0, 1]}, "hybrid_layer_pattern"),
    (mimo, {"sliding_window_size": None, "sliding_window": 0}, "sliding_window"),
    (mimo, {"sliding_window": 0}, "sliding_window"),
    (mimo, {"n_shared_experts": 1}, "n_shared_experts"),
    (minimax, {"rotary_dim": 32}, "rotary_dim"),
    (minimax, {"rotary_dim": 7}, "rotary_dim"),
    (minimax, {"shared_intermediate_size": 16}, "shared_intermediate_size"),
    (minimax, {"layernorm_mlp_beta": 2.0}, "layernorm_mlp_beta"),
    (minimax, {"qk_norm_type": "per_head"}, "qk_norm_type"),
    (minimax, {"quantization_config": {**BLOCKS, "modules_to_not_convert": ["nothing"]}}, "modules_to_not_convert"),
)


@pytest.mark.parametrize(("published", "changes", "word"), WRONG)
def test_what_the_families_cannot_be(published: Published, changes: Config, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as error:
        read({**published(), **changes})
    assert "\n" not in str(error.value)


def test_declared_blocks() -> None:
    modules = [f"model.layers.{i}.self_attn.o_proj" for i in range(7)]
    found = read({**mimo(), "quantization_config": {**BLOCKS, "ignored_layers": modules}}).quantization
    assert found is not None
    assert (found.method, found.format, found.block, found.excluded) == (
        "fp8",
        "f8_e4m3",
        (16, 16),
        ("attention.output",),
    )
    some = read({**mimo(), "quantization_config": {**BLOCKS, "ignored_layers": modules[2:4]}}).quantization
    assert some is not None
    assert some.excluded == ("layers.2.attention.output", "layers.3.attention.output")
    other = {"quant_method": "awq", "bits": 4}
    blueprint, coverage = from_config({**mimo(), "quantization_config": other}, file="config.json")
    assert blueprint.quantization is not None and blueprint.quantization.method == "awq"
    assert coverage.unknown == ("quantization_config.bits",)


JUNK = (None, True, -1, 0, 3, 10**30, 0.5, float("nan"), "x", "", [], [1], ["full"], {}, {"rope_theta": "x"})


@pytest.mark.parametrize("published", PUBLISHED)
def test_damage_of_any_key_is_read_or_refused_in_one_line(published: Published) -> None:
    config = {**published(), "quantization_config": dict(BLOCKS)}
    lists = ("mlp_layer_types", "layer_types", "indexer_types", "index_topk_pattern")
    for key in (*config, *lists, "index_topk_freq", "rope_parameters"):
        for value in JUNK:
            try:
                read({**config, key: value})
            except (ConfigError, UnsupportedError) as error:
                assert "\n" not in str(error)

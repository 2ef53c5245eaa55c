"""Gemma 4: published counts, what the state needs, what each key means, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gemma_configs import FULL, GEMMA4_AUDIO, GEMMA4_VISION, KINDS, MIXTURE, SLIDING, gemma4, gemma4_text, read

from plait.account.memory import memory
from plait.account.parameters import parameters_of
from plait.blueprint.check import not_run
from plait.blueprint.source import from_config, open_model
from plait.blueprint.spec import AltUp, Attention, Both, Gated, LinearScaling, Norm, Rope
from plait.blueprint.state import Alias, Rows, WindowRows, laws
from plait.errors import ConfigError, UnsupportedError

# in the file, used, unused keys and values, layer scalars, buffers
PUBLISHED = (
    ("gemma-4-e2b", 5_123_178_051, 5_104_297_504, 18_880_512, 35, 0),
    ("gemma-4-e4b", 7_996_156_490, 7_941_100_832, 55_055_616, 42, 0),
    ("gemma-4-12b", 11_959_730_224, 11_959_730_176, 0, 48, 0),
    ("gemma-4-26b-a4b", 25_805_936_206, 25_805_933_872, 0, 30, 2304),
    ("gemma-4-31b", 31_273_088_876, 31_273_086_512, 0, 60, 2304),
)


def attention(blueprint: Any, index: int) -> Attention:
    mixer = blueprint.layers[index].mixer
    assert isinstance(mixer, Attention)
    return mixer


@pytest.mark.parametrize(("name", "in_file", "used", "unused", "scalars", "buffers"), PUBLISHED)
def test_published_counts(name: str, in_file: int, used: int, unused: int, scalars: int, buffers: int) -> None:
    source = open_model(name)
    found = parameters_of(source)
    assert (found.in_file, found.used) == (in_file, used)
    beyond = found.beyond
    assert (beyond.unused_shared_kv, beyond.layer_scalars, beyond.buffers) == (unused, scalars, buffers)
    assert source.coverage.unknown == ()


def test_active_parameters_of_the_mixture() -> None:
    found = parameters_of(open_model("gemma-4-26b-a4b"))
    # 30 layers of 128 experts of width 704, 8 of them active: three matrices of 704 x 2816 each.
    assert found.used - found.active == 30 * (128 - 8) * 3 * 704 * 2816


def test_tables_of_per_layer_embeddings() -> None:
    for name, elements in (("gemma-4-e2b", 2_348_810_240), ("gemma-4-e4b", 2_818_572_288)):
        blueprint = open_model(name).blueprint
        table = blueprint.per_layer_embeddings
        assert table is not None
        assert table.vocabulary * table.dim * len(blueprint.layers) == elements
        assert (table.token_scale, table.projection_scale) == (16.0, blueprint.hidden**-0.5)
        assert table.combine_scale == pytest.approx(2**-0.5)


def test_state_of_the_12b() -> None:
    blueprint = open_model("gemma-4-12b").blueprint
    # 8 full layers of one 512-wide head: K and V as the textbook keeps them; one vector and 128 rotated dims as kept.
    assert memory(blueprint, 100_000, kv_layout=True).per_token_bytes == 16_384
    assert memory(blueprint, 100_000).per_token_bytes == 10_240
    windows = memory(blueprint, 100_000).categories["windows"].need_bytes
    assert windows == 40 * 1024 * 2 * 8 * 256 * 2


def test_state_of_the_26b_at_32k() -> None:
    # 5 full layers of 2 heads x 512 and 25 windows of 8 x 256, keys and values in 16 bits.
    found = memory(open_model("gemma-4-26b-a4b").blueprint, 32_768, kv_format="f16", kv_layout=True)
    assert found.total_bytes == (5 * 32_768 * 2 * 2 * 512 + 25 * 1024 * 2 * 8 * 256) * 2


def test_shared_layers_remember_nothing() -> None:
    blueprint = open_model("gemma-4-e2b").blueprint
    found = {item.layer: item.law for item in laws(blueprint)}
    aliases = {layer: law.source for layer, law in found.items() if isinstance(law, Alias)}
    # Of 35 layers the last 20 read layer 13 (the last window with its own) or 14 (the last such full layer).
    assert set(aliases) == set(range(15, 35))
    assert {layer for layer, source in aliases.items() if source == 14} == {19, 24, 29, 34}
    assert set(aliases.values()) == {13, 14}
    assert sum(isinstance(law, Rows) for law in found.values()) == 3
    assert sum(isinstance(law, WindowRows) for law in found.values()) == 12
    assert memory(blueprint, 4096).per_token_bytes == 3 * 2 * 512 * 2


def test_widths_double_in_shared_layers() -> None:
    blueprint = open_model("gemma-4-e2b").blueprint
    widths = [part.width for layer in blueprint.layers if isinstance(part := layer.feed_forward, Gated)]
    assert widths == [6144] * 15 + [12_288] * 20


def test_full_and_window_layers_of_the_12b() -> None:
    blueprint = open_model("gemma-4-12b").blueprint
    window, full = attention(blueprint, 0), attention(blueprint, 5)
    assert [i for i in range(48) if attention(blueprint, i).window is None] == list(range(5, 48, 6))
    assert (window.kv_heads, window.qk_dim, window.window, window.keys_are_values) == (8, 256, 1024, False)
    assert (full.kv_heads, full.qk_dim, full.v_dim, full.keys_are_values) == (1, 512, 512, True)
    assert full.rope == Rope(1e6, 64, 512, distance=256)
    assert window.rope == Rope(1e4, 128, 256, distance=128)
    assert {(m.scale, m.v_norm) for m in (window, full)} == {(1.0, Norm(1e-6, weight=False))}
    assert (window.bidirectional_images, full.bidirectional_images) == (True, False)
    assert blueprint.head.softcap == 30.0
    assert blueprint.head.tied


def test_images_never_see_ahead_in_e2b() -> None:
    layers = open_model("gemma-4-e2b").blueprint.layers
    assert not any(isinstance(m := layer.mixer, Attention) and m.bidirectional_images for layer in layers)


def test_mixture_beside_the_dense_layer() -> None:
    part = open_model("gemma-4-26b-a4b").blueprint.layers[7].feed_forward
    assert isinstance(part, Both)
    assert (part.dense.width, part.mixture.width, part.mixture.experts, part.mixture.active) == (2112, 704, 128, 8)
    router = part.mixture.router
    assert (router.scores, router.renormalise, router.expert_scale) == ("softmax", True, True)
    assert router.norm == Norm(1e-6, weight=False)
    assert router.input_factor == pytest.approx(2816**-0.5)


def test_what_is_not_run_is_said() -> None:
    blueprint = open_model("gemma-4-12b").blueprint
    assert not_run(blueprint) == () == not_run(open_model("gemma-4-e4b").blueprint)
    full = next(layer for layer in blueprint.layers if layer.mixer.keys_are_values)
    odd = (
        replace(full, mixer=replace(full.mixer, v_norm=None)),
        replace(full, mixer=replace(full.mixer, v_norm=Norm(1e-3, weight=False))),
        replace(full, mixer=replace(full.mixer, qk_norm=None)),
    )
    for layer in odd:
        assert not_run(replace(blueprint, layers=(layer,))) == ("keys that are values, of other norms than a head's",)
    streams = AltUp(2, 0, None, True, Norm(1e-6))
    assert not_run(replace(blueprint, altup=streams)) == ("layer scalars of several streams",)


def test_every_field_has_evidence() -> None:
    blueprint, _ = from_config(gemma4(gemma4_text(), GEMMA4_VISION, GEMMA4_AUDIO), file="c")
    assert blueprint.evidence["window.qk_dim"].key == "text_config.head_dim"
    assert blueprint.evidence["full.qk_dim"].key == "text_config.global_head_dim"
    assert blueprint.evidence["attention.heads"].origin == "key"
    assert blueprint.evidence["attention.scale"].origin == "convention"
    assert blueprint.evidence["vision.layers"].key == "vision_config.num_hidden_layers"
    assert blueprint.evidence["feed_forward.activation"].origin == "key"


def test_global_kv_heads_count_only_where_keys_are_values() -> None:
    assert attention(read(gemma4_text(num_global_key_value_heads=1)), 2).kv_heads == 2
    assert attention(read(gemma4_text(num_global_key_value_heads=1, attention_k_eq_v=True)), 2).kv_heads == 1


def test_the_last_layer_is_full() -> None:
    cut = gemma4_text(num_hidden_layers=5, layer_types=KINDS[:5])
    assert KINDS[4] == SLIDING
    assert attention(read(cut), 4).window is None


def test_old_spelling_of_the_experts_width() -> None:
    old = {key.replace("moe_int", "expert_int"): value for key, value in MIXTURE.items()}
    assert read(gemma4_text(**old)) == read(gemma4_text(**MIXTURE))
    with pytest.raises(ConfigError, match="'moe_intermediate_size' and 'expert_intermediate_size' disagree"):
        read(gemma4_text(**MIXTURE, expert_intermediate_size=25))


def test_proportional_rotation_with_a_factor() -> None:
    parameters = {
        FULL: {"rope_type": "proportional", "rope_theta": 5e5, "partial_rotary_factor": 0.5, "factor": 4.0},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    }
    rope = attention(read(gemma4_text(rope_parameters=parameters)), 2).rope
    assert rope == Rope(5e5, 8, 32, distance=16, scaling=LinearScaling(4.0))


def test_per_layer_config_and_the_keys_it_replaces() -> None:
    overrides = {"2": {"head_dim": 32}, "5": {"head_dim": 32}}
    plain = gemma4_text()
    del plain["global_head_dim"], plain["num_global_key_value_heads"]
    assert read({**plain, "per_layer_config": overrides}) == read(gemma4_text())
    assert read({**plain, "per_layer_config": {"02": {"head_dim": 32}, "05": {"head_dim": 32}}}) == read(gemma4_text())
    assert read({**gemma4_text(), "per_layer_config": overrides}) == read(gemma4_text())
    # Nothing differs between the layers.
    assert attention(read({**plain, "per_layer_config": {}}), 2).qk_dim == 16
    with pytest.raises(ConfigError, match="'global_head_dim' and 'per_layer_config' disagree"):
        read({**gemma4_text(global_head_dim=64), "per_layer_config": overrides})


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"use_bidirectional_attention": "all"}, UnsupportedError, "an encoder"),
        ({"per_layer_config": {"6": {"head_dim": 32}}}, ConfigError, "one of 6 layers"),
        ({"per_layer_config": {"x": {}}}, ConfigError, "one of 6 layers"),
        ({"per_layer_config": {"2": {"skip": ["mlp"]}}}, UnsupportedError, "per_layer_config.2.skip"),
        ({"per_layer_config": {"2": {"head_dim": 32}}}, UnsupportedError, "layers of one size"),
        ({"per_layer_config": {"2": 32}}, ConfigError, "an object"),
        ({"num_kv_shared_layers": 6}, ConfigError, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 4}, ConfigError, "full_attention layer with keys"),
        ({"enable_moe_block": True}, ConfigError, "num_experts"),
        ({"rope_parameters": {FULL: {"rope_type": "yarn"}, SLIDING: {}}}, ConfigError, "'default', 'proportional'"),
        ({"rope_parameters": {SLIDING: {}}}, ConfigError, "rope_parameters.full_attention"),
        ({"hidden_activation": "relu"}, ConfigError, "hidden_activation"),
        ({"num_key_value_heads": 3}, ConfigError, "multiple of 3"),
    ],
)
def test_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        read({**gemma4_text(), **changes})
    assert "\n" not in str(caught.value)


def test_the_two_places_of_tied_heads_must_agree() -> None:
    config = gemma4(gemma4_text(tie_word_embeddings=False), None, None)
    with pytest.raises(ConfigError, match="'tie_word_embeddings' and 'text_config.tie_word_embeddings' disagree"):
        read(config)
    assert not read({**config, "tie_word_embeddings": False}).head.tied
    # transformers writes the text model's default, true, beside whatever the whole model says.
    written = gemma4(gemma4_text(tie_word_embeddings=True), None, None)
    assert not read({**written, "tie_word_embeddings": False}).head.tied


@pytest.mark.parametrize(
    ("section", "changes", "says"),
    [
        ("vision_config", {"model_patch_size": 5}, "patch_size . pooling_kernel_size, 48"),
        ("vision_config", {"output_proj_dims": 5}, "mm_embed_dim, 3840"),
        ("audio_config", {"audio_embed_dim": 5, "hidden_size": 6}, "disagree"),
        ("text_config", {"enable_moe_block": True}, "no mixtures"),
        ("text_config", {"hidden_size_per_layer_input": 8}, "the family has none"),
    ],
)
def test_refused_of_the_model_without_encoders(section: str, changes: dict[str, Any], says: str) -> None:
    config = {"model_type": "gemma4_unified", "text_config": {}, "vision_config": {}, "audio_config": {}}
    read(config)
    with pytest.raises(ConfigError, match=says):
        read({**config, section: changes})

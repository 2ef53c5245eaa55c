"""Gemma 3n: published counts, spellings, and names and shapes against the reference implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gemma_configs import FULL, SLIDING, elements, gemma3n_text, misfits, read, saved
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma3nAudioConfig, Gemma3nForCausalLM, Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nAudioEncoder, Gemma3nMultimodalEmbedder

from plait.account.memory import memory
from plait.account.parameters import parameters, parameters_of
from plait.blueprint.check import not_run
from plait.blueprint.source import open_model
from plait.blueprint.spec import AltUp, Attention, Gated, Norm, Rope, Tower
from plait.blueprint.state import Alias, laws
from plait.errors import ConfigError, UnsupportedError

AUDIO = {
    "model_type": "gemma3n_audio",
    "hidden_size": 16,
    "conf_num_hidden_layers": 2,
    "conf_num_attention_heads": 4,
    "conf_conv_kernel_size": 3,
    "input_feat_size": 22,
    "sscp_conv_channel_size": [6, 4],
    "sscp_conv_kernel_size": [[3, 5], [3, 3]],
    "sscp_conv_stride_size": [[2, 2], [1, 3]],
    "vocab_size": 9,
    "rms_norm_eps": 1e-6,
}
VISION = {"model_type": "gemma3n_vision", "architecture": "mobilenetv5_300m_enc", "hidden_size": 20, "vocab_size": 7}


def gemma3n(text: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": "gemma3n", "text_config": text, "vision_config": VISION, "audio_config": AUDIO}


def shapes_of(module: torch.nn.Module, *, state: bool) -> dict[str, tuple[int, ...]]:
    items = module.state_dict().items() if state else module.named_parameters()
    return {name: tuple(tensor.shape) for name, tensor in items if name != "lm_head.weight"}


@pytest.mark.parametrize(
    ("name", "in_file", "text", "unused"),
    [
        ("gemma-3n-e2b", 5_439_438_272, 4_435_182_688, 20_974_080),
        ("gemma-3n-e4b", 7_849_978_192, 6_835_235_568, 31_461_120),
    ],
)
def test_published_counts(name: str, in_file: int, text: int, unused: int) -> None:
    source = open_model(name)
    found = parameters_of(source)
    assert found.in_file == in_file
    assert found.used == in_file - unused
    assert found.parts["text"] == text
    assert found.beyond.unused_shared_kv == unused
    assert source.coverage.unknown == ()
    assert found.parts["vision"] == 294_126_912
    assert found.parts["audio"] == 681_348_640
    # 128 embeddings, two norms and a projection to 2048 for each encoder.
    assert found.parts["embedders"] == 7_805_952 == (128 + 2 + 2048) * (2048 + 1536)


def test_e2b_is_a_slice_of_e4b() -> None:
    small, large = (open_model(name).blueprint for name in ("gemma-3n-e2b", "gemma-3n-e4b"))
    assert (len(small.layers), len(large.layers)) == (30, 35)
    for blueprint, width in ((small, 8192), (large, 16_384)):
        parts = [layer.feed_forward for layer in blueprint.layers]
        assert {part.width for part in parts if isinstance(part, Gated)} == {width}
        assert [isinstance(p, Gated) and p.sparsity for p in parts] == [0.95] * 10 + [None] * (len(parts) - 10)
        found = {item.layer: item.law for item in laws(blueprint)}
        aliases = {layer: law.source for layer, law in found.items() if isinstance(law, Alias)}
        assert set(aliases) == set(range(20, len(parts)))
        assert set(aliases.values()) == {18, 19}
    assert small.towers == large.towers
    assert small.altup == AltUp(4, 0, 120.0, True, Norm(1e-6))
    # 4 full layers with keys and values of their own, 2 heads x 256, bf16.
    assert memory(small, 4096).per_token_bytes == 4 * 2 * 2 * 256 * 2
    assert memory(large, 4096).per_token_bytes == 4 * 2 * 2 * 256 * 2


def test_all_of_it_is_run() -> None:
    assert not_run(open_model("gemma-3n-e2b").blueprint) == ()


FEATURES = st.fixed_dictionaries(
    {
        "attention_bias": st.booleans(),
        "num_kv_shared_layers": st.sampled_from([0, 1, 3]),
        "altup_num_inputs": st.sampled_from([1, 2, 4]),
        "laurel_rank": st.sampled_from([1, 4]),
        "intermediate_size": st.sampled_from([56, [40, 48, 56, 64, 72, 80]]),
        "altup_correct_scale": st.booleans(),
    }
)


@settings(max_examples=15, deadline=None)
@given(features=FEATURES)
def test_text(features: dict[str, Any]) -> None:
    config = gemma3n_text(**features)
    blueprint = read(config)
    with torch.device("meta"):
        model = Gemma3nForCausalLM(Gemma3nTextConfig.from_dict(config))
    assert misfits(blueprint, shapes_of(model, state=True)) == []
    assert parameters(blueprint).used == elements(shapes_of(model, state=False))


def test_encoders() -> None:
    blueprint = read(gemma3n(gemma3n_text()))
    towers: dict[str, Tower] = {tower.kind: tower for tower in blueprint.towers}
    text = Gemma3nTextConfig.from_dict(gemma3n_text())
    audio = Gemma3nAudioConfig.from_dict(AUDIO)
    with torch.device("meta"):
        encoder, embedder = Gemma3nAudioEncoder(audio), Gemma3nMultimodalEmbedder(audio, text)
    wanted = elements(shapes_of(encoder, state=True)) + elements(shapes_of(embedder, state=True))
    assert towers["audio"].parameters == wanted
    assert towers["vision"].parameters == 294_126_912 + 7 * 20 + 2 * 20 + 48 * 20
    names = {
        "model.vision_tower.timm_model.conv_stem.conv.weight": (64, 3, 3, 3),
        "model.audio_tower.conformer.0.norm.weight": (16,),
        "model.embed_audio.embedding.weight": (9, 16),
    }
    with torch.device("meta"):
        model = Gemma3nForCausalLM(text)
    inner = {name.replace("model.", "model.language_model.", 1): s for name, s in shapes_of(model, state=True).items()}
    assert misfits(blueprint, {**inner, **names}) == []
    unused = {f"model.language_model.layers.4.self_attn.{k}_proj.weight": (32, 48) for k in "kv"}
    assert misfits(blueprint, {**inner, **unused}) == []
    assert misfits(blueprint, {**inner, "model.language_model.layers.4.self_attn.z_proj.weight": (1, 1)}) != []


@settings(max_examples=10, deadline=None)
@given(features=FEATURES)
def test_saved_spelling(features: dict[str, Any]) -> None:
    config = gemma3n_text(**features)
    again = saved(Gemma3nTextConfig.from_dict(config))
    assert "rope_theta" not in again
    assert read(again) == read(config)


def test_class_defaults() -> None:
    assert read({"model_type": "gemma3n_text"}) == read(saved(Gemma3nTextConfig()))
    few = {"model_type": "gemma3n_text", "num_hidden_layers": 10, "num_kv_shared_layers": 0}
    assert read(few) == read(saved(Gemma3nTextConfig(num_hidden_layers=10, num_kv_shared_layers=0)))
    bare = read({"model_type": "gemma3n", "text_config": {}})
    assert bare.towers == open_model("gemma-3n-e4b").blueprint.towers
    assert bare == open_model("gemma-3n-e4b").blueprint


def test_rotation_in_both_spellings() -> None:
    old = gemma3n_text(rope_theta=5e5, rope_local_base_freq=2e4)
    new = {key: value for key, value in old.items() if not key.startswith("rope")}
    new["rope_parameters"] = {
        FULL: {"rope_type": "default", "rope_theta": 5e5},
        SLIDING: {"rope_type": "default", "rope_theta": 2e4},
    }
    assert read(old) == read(new)
    mixers = [layer.mixer for layer in read(old).layers[1:3]]
    assert [m.rope for m in mixers if isinstance(m, Attention)] == [Rope(t, 8, 16, distance=8) for t in (2e4, 5e5)]
    with pytest.raises(ConfigError, match="disagree"):
        read({**new, "rope_theta": 6e5})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"activation_sparsity_pattern": [0.5] * 5}, "6 entries"),
        ({"activation_sparsity_pattern": [1.0] * 6}, "shares in"),
        ({"activation_sparsity_pattern": [True] * 6}, "finite numbers"),
        ({"activation_sparsity_pattern": "none"}, "a list of numbers"),
        ({"intermediate_size": [8] * 5}, "6 entries"),
        ({"altup_active_idx": 4}, "one of 4 streams"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
    ],
)
def test_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read(gemma3n_text(**changes))
    assert "\n" not in str(caught.value)


def test_other_encoders_are_refused() -> None:
    config = gemma3n(gemma3n_text())
    with pytest.raises(UnsupportedError, match="mobilenetv5_300m_enc"):
        read({**config, "vision_config": {**VISION, "architecture": "resnet50"}})
    with pytest.raises(ConfigError, match="2 pairs"):
        read({**config, "audio_config": {**AUDIO, "sscp_conv_kernel_size": [[3, 3]]}})

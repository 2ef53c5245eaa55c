"""Gemma 4: names, shapes and totals against the reference implementation, every feature on and off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gemma_configs import (
    GEMMA4_AUDIO,
    GEMMA4_VISION,
    KINDS,
    MIXTURE,
    elements,
    gemma4,
    gemma4_text,
    misfits,
    read,
    saved,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
)

from plait.account.parameters import parameters
from plait.blueprint.families import gemma4 as gemma4_family

Shapes = dict[str, tuple[int, ...]]


def build(kind: Any, config: Any) -> tuple[Shapes, Shapes]:
    """(state dict, parameters alone) of a model without memory; the tied head once."""
    with torch.device("meta"):
        model = kind(config)
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    return state, {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}


def part_of(name: str) -> str:
    for part in ("vision", "audio"):
        if f"{part}_tower" in name or f"embed_{part}" in name:
            return part
    return "text"


FEATURES = st.fixed_dictionaries(
    {
        "attention_k_eq_v": st.booleans(),
        "attention_bias": st.booleans(),
        "use_double_wide_mlp": st.booleans(),
        "num_kv_shared_layers": st.sampled_from([0, 1, 2, 3]),
        "num_global_key_value_heads": st.sampled_from([None, 1]),
        "hidden_size_per_layer_input": st.sampled_from([0, 8]),
    }
)


@settings(max_examples=20, deadline=None)
@given(features=FEATURES, mixture=st.booleans())
def test_text(features: dict[str, Any], mixture: bool) -> None:
    config = gemma4_text(**features, **(MIXTURE if mixture else {}))
    blueprint = read(config)
    state, weights = build(Gemma4ForCausalLM, Gemma4TextConfig.from_dict(config))
    assert misfits(blueprint, state) == []
    counted = parameters(blueprint)
    assert counted.used == elements(weights)
    assert counted.used + counted.beyond.layer_scalars == elements(state)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("audio", [False, True])
def test_encoders(clipped: bool, standardize: bool, audio: bool) -> None:
    vision = {**GEMMA4_VISION, "use_clipped_linears": clipped, "standardize": standardize}
    sound = {**GEMMA4_AUDIO, "use_clipped_linears": clipped} if audio else None
    config = gemma4(gemma4_text(), vision, sound)
    blueprint = read(config)
    state, weights = build(Gemma4ForConditionalGeneration, Gemma4Config.from_dict(config))
    assert misfits(blueprint, state) == []
    counted = parameters(blueprint)
    for part in ("text", "vision", "audio"):
        wanted = elements({name: shape for name, shape in weights.items() if part_of(name) == part})
        assert counted.parts[part] == wanted, part
    bounds = [name for name in state if name.endswith(("_min", "_max"))]
    assert len(bounds) == (2 * 7 * 4 + (2 * 10 * 4 if audio else 0) if clipped else 0)
    said = [tower.description.rpartition("hold ")[2] for tower in blueprint.towers if "bounds" in tower.description]
    assert said == (["56 clip bounds", "80 clip bounds"][: len(blueprint.towers)] if clipped else [])
    # Clip bounds stand outside every count.
    assert counted.in_file == elements(state) - len(bounds)
    assert counted.beyond.buffers == (2 * 20 if standardize else 0)


@pytest.mark.parametrize(("vision", "audio"), [(True, True), (True, False), (False, False)])
def test_without_encoders(vision: bool, audio: bool) -> None:
    text = gemma4_text(model_type="gemma4_unified_text", attention_k_eq_v=True, num_global_key_value_heads=1)
    patches = {"mm_embed_dim": 36, "output_proj_dims": 36, "mm_posemb_size": 11, "patch_size": 2}
    config = {
        "model_type": "gemma4_unified",
        "text_config": text,
        "vision_config": patches if vision else None,
        "audio_config": {"audio_embed_dim": 10} if audio else None,
    }
    blueprint = read(config)
    state, weights = build(Gemma4UnifiedForConditionalGeneration, Gemma4UnifiedConfig.from_dict(config))
    assert misfits(blueprint, state) == []
    counted = parameters(blueprint)
    for part in ("text", "vision", "audio"):
        wanted = elements({name: shape for name, shape in weights.items() if part_of(name) == part})
        assert counted.parts[part] == wanted, part
    assert counted.in_file == elements(state)
    published = {
        "model.vision_embedder.patch_ln1.weight": (12,),
        "model.vision_embedder.pos_embedding": (11, 2, 36),
        "model.embed_vision.embedding_projection.weight": (48, 36),
        "model.embed_audio.embedding_projection.weight": (48, 10),
    }
    assert misfits(blueprint, {**state, **published}) == []


def test_unused_keys_and_values_are_accepted_both_ways() -> None:
    config = gemma4_text(num_kv_shared_layers=3)
    blueprint = read(config)
    state, _ = build(Gemma4ForCausalLM, Gemma4TextConfig.from_dict(config))
    unused: Shapes = {}
    for index, kind in enumerate(KINDS[3:], start=3):
        size = 32 if kind == "full_attention" else 16
        prefix = f"model.layers.{index}.self_attn."
        unused |= {f"{prefix}{k}_proj.weight": (2 * size, 48) for k in "kv"}
        unused[f"{prefix}k_norm.weight"] = (size,)
    assert misfits(blueprint, {**state, **unused}) == []
    assert parameters(blueprint).beyond.unused_shared_kv == elements(unused)
    assert parameters(blueprint).in_file == elements({**state, **unused})
    # The same weights of a layer with keys and values of its own are no spare ones.
    del state["model.layers.1.self_attn.k_proj.weight"]
    assert misfits(blueprint, state) == ["missing model.layers.1.self_attn.k_proj.weight"]


def test_experts_are_stored_gate_first() -> None:
    blueprint = read(gemma4_text(**MIXTURE))
    found = {b.roles[0]: b for b in gemma4_family.layout(blueprint).bindings}["layers.0.feed_forward.experts.gate"]
    assert found.roles == ("layers.0.feed_forward.experts.gate", "layers.0.feed_forward.experts.up")
    assert found.names == ("{body}layers.0.experts.gate_up_proj",)
    assert found.transform is not None
    assert (found.transform.groups, found.transform.sections) == (6, (6 * 24, 6 * 24))


@settings(max_examples=20, deadline=None)
@given(features=FEATURES, mixture=st.booleans(), images=st.sampled_from([None, "vision"]))
def test_saved_spelling(features: dict[str, Any], mixture: bool, images: str | None) -> None:
    """What transformers writes, with `per_layer_config` in place of two keys, is the same model."""
    config = gemma4_text(**features, **(MIXTURE if mixture else {}), use_bidirectional_attention=images)
    again = saved(Gemma4TextConfig.from_dict(config))
    assert "global_head_dim" not in again
    assert read(again) == read(config)
    whole = gemma4(config, GEMMA4_VISION, GEMMA4_AUDIO)
    assert read(saved(Gemma4Config.from_dict(whole))) == read(whole)


def test_saved_class_defaults() -> None:
    for made in (Gemma4TextConfig(), Gemma4Config(), Gemma4UnifiedConfig(vision_config={}, audio_config={})):
        bare = {"model_type": made.model_type}
        if made.model_type != "gemma4_text":
            sections = [key for key in ("text_config", "vision_config", "audio_config") if getattr(made, key)]
            bare |= {key: {} for key in sections}
        assert read(saved(made)) == read(bare)

"""Small configs of Gemma 3n and 4 in the spelling of published files, and what holds a layout against a model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from plait.blueprint.families import family
from plait.blueprint.layout import resolved
from plait.blueprint.source import from_config
from plait.blueprint.spec import Blueprint
from plait.blueprint.tensors import inventory

SLIDING, FULL = "sliding_attention", "full_attention"
KINDS = [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL]


def gemma4_text(**changes: Any) -> dict[str, Any]:
    """The text part of a Gemma 4, in which no two sizes are equal."""
    return {
        "model_type": "gemma4_text",
        "vocab_size": 300,
        "hidden_size": 48,
        "intermediate_size": 56,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": None,
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 280,
        "layer_types": KINDS,
        "max_position_embeddings": 512,
        "sliding_window": 8,
        "final_logit_softcapping": 30.0,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"},
            SLIDING: {"rope_theta": 10_000.0, "rope_type": "default"},
        },
        **changes,
    }


MIXTURE = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24}
GEMMA4_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 20,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "patch_size": 2,
    "position_embedding_size": 30,
}
GEMMA4_AUDIO = {
    "model_type": "gemma4_audio",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "output_proj_dims": 12,
    "subsampling_conv_channels": [8, 4],
}


def gemma4(
    text: Mapping[str, Any], vision: Mapping[str, Any] | None, audio: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A whole Gemma 4."""
    return {
        "model_type": "gemma4",
        "text_config": dict(text),
        "vision_config": vision,
        "audio_config": audio,
        "tie_word_embeddings": True,
        "image_token_id": 290,
    }


def gemma3n_text(**changes: Any) -> dict[str, Any]:
    """The text part of a Gemma 3n."""
    return {
        "model_type": "gemma3n_text",
        "vocab_size": 300,
        "hidden_size": 48,
        "intermediate_size": [56, 56, 56, 60, 60, 60],
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 280,
        "layer_types": KINDS,
        "max_position_embeddings": 512,
        "sliding_window": 8,
        "num_kv_shared_layers": 3,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.95, 0.9, 0.0, 0.0, 0.0, 0.0],
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": None,
        **changes,
    }


def read(config: Mapping[str, Any]) -> Blueprint:
    """The blueprint of a config none of whose keys may be unknown."""
    blueprint, coverage = from_config(config, file="config.json")
    assert coverage.unknown == ()
    return blueprint


def saved(config: Any) -> dict[str, Any]:
    """The config as transformers writes it to config.json."""
    return dict(json.loads(config.to_json_string()))


def misfits(blueprint: Blueprint, shapes: Mapping[str, tuple[int, ...]], *, gguf: bool = False) -> list[str]:
    """How tensors of these names and shapes differ from what the layout and the inventory expect; none is right."""
    module = family(blueprint.family)
    layout = module.gguf_layout(blueprint) if gguf else module.layout(blueprint)
    roles = {tensor.role: tensor.shape for tensor in inventory(blueprint) if tensor.part == "text"}
    bindings = resolved(layout, shapes)
    faults = [f"role {role}" for role in roles if sum(role in b.roles for b in bindings) != 1]
    bound = {name for binding in bindings for name in binding.names}
    for binding in bindings:
        missing = [name for name in binding.names if name not in shapes]
        faults += [f"missing {name}" for name in missing]
        if not missing:
            wanted = {(roles[role][-1] if len(roles[role]) > 1 else 1) for role in binding.roles}
            found = {(shapes[name][-1] if len(shapes[name]) > 1 else 1) for name in binding.names}
            rows = sum(prod(roles[role]) for role in binding.roles), sum(prod(shapes[n]) for n in binding.names)
            if wanted != found or rows[0] != rows[1]:
                faults.append(f"misshaped {binding.names}: {wanted} {found} {rows}")
    ignored = [re.compile(item.pattern) for item in layout.ignored]
    faults += [n for n in shapes if n not in bound and not any(p.fullmatch(n) for p in ignored)]
    return faults


def elements(tensors: Mapping[str, tuple[int, ...]]) -> int:
    """All elements of tensors of these shapes."""
    return sum(prod(shape) for shape in tensors.values())

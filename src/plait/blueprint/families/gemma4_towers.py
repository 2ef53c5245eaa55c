"""Encoders of Gemma 4 with their projections into the text model, as counted parts.

Reference: transformers 5.24, models/gemma4/modeling_gemma4.py, Gemma4VisionModel and Gemma4AudioModel (a conformer,
https://arxiv.org/abs/2303.01037). Older files also hold clip bounds, four numbers for each clipped linear layer: the
description says how many, the layout knows their names, and no count has them.
"""

from __future__ import annotations

from typing import Final

from plait.blueprint.families.common import ignore_common
from plait.blueprint.families.conformer import conformer_layers
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import Tower, TowerTensor

__all__ = ["conformer_tower", "vit_tower"]

# Lower and upper bound of what goes in and of what comes out.
_BOUNDS: Final = 4
_VIT_LINEARS: Final = 7
_CONFORMER_LINEARS: Final = 10


def _bounds(config: ConfigReader, field: str, linears: int, default: bool) -> str:
    clipped = config.boolean("use_clipped_linears", field=f"{field}.clipped", default=default)
    return f"; older files also hold {linears * _BOUNDS} clip bounds" if clipped else ""


def vit_tower(vision: ConfigReader, text_hidden: int) -> Tower:
    """The tower of a `gemma4_vision` config and the projection to `text_hidden`."""
    ignore_common(vision)
    vision.use("model_type")
    # No linear layer has a bias, whatever attention_bias says; the second head size is a leftover nothing reads.
    vision.irrelevant(
        "attention_bias",
        "default_output_length",
        "dtype",
        "global_head_dim",
        "hidden_activation",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_parameters",
        "torch_dtype",
    )
    hidden = vision.integer("hidden_size", field="vision.hidden", default=768)
    width = vision.integer("intermediate_size", field="vision.width", default=3072)
    layers = vision.integer("num_hidden_layers", field="vision.layers", default=16)
    heads = vision.integer("num_attention_heads", field="vision.heads", default=12)
    kv_heads = vision.integer("num_key_value_heads", field="vision.kv_heads", default=12)
    head_dim = vision.integer("head_dim", field="vision.head_dim", default=64)
    patch = vision.integer("patch_size", field="vision.patch_size", default=16)
    pool = vision.integer("pooling_kernel_size", field="vision.pooling", default=3)
    positions = vision.integer("position_embedding_size", field="vision.positions", default=10_240)
    standardized = vision.boolean("standardize", field="vision.standardized", default=False)
    bounds = _bounds(vision, "vision", layers * _VIT_LINEARS, default=False)
    tensors = [
        TowerTensor("patch_embedding", (hidden, 3 * patch * patch)),
        TowerTensor("position_embedding", (2, positions, hidden)),
        TowerTensor("layers.{}.norms", (hidden,), 4 * layers),
        TowerTensor("layers.{}.query", (heads * head_dim, hidden), layers),
        TowerTensor("layers.{}.key", (kv_heads * head_dim, hidden), layers),
        TowerTensor("layers.{}.value", (kv_heads * head_dim, hidden), layers),
        TowerTensor("layers.{}.output", (hidden, heads * head_dim), layers),
        TowerTensor("layers.{}.qk_norms", (head_dim,), 2 * layers),
        TowerTensor("layers.{}.gate", (width, hidden), layers),
        TowerTensor("layers.{}.up", (width, hidden), layers),
        TowerTensor("layers.{}.down", (hidden, width), layers),
        TowerTensor("projector.weight", (text_hidden, hidden)),
    ]
    if standardized:
        tensors += [
            TowerTensor("standard.bias", (hidden,), buffer=True),
            TowerTensor("standard.scale", (hidden,), buffer=True),
        ]
    description = f"ViT, {layers} layers of {hidden}, patches of {patch}, {pool}x{pool} pooled{bounds}"
    return Tower("vision", description, tuple(tensors))


def conformer_tower(audio: ConfigReader, text_hidden: int) -> Tower:
    """The tower of a `gemma4_audio` config and the projection to `text_hidden`."""
    ignore_common(audio)
    audio.use("model_type")
    audio.irrelevant(
        "attention_chunk_size",
        "attention_context_left",
        "attention_context_right",
        "attention_invalid_logits_value",
        "attention_logit_cap",
        "dtype",
        "gradient_clipping",
        "hidden_act",
        "residual_weight",
        "rms_norm_eps",
        "torch_dtype",
    )
    hidden = audio.integer("hidden_size", field="audio.hidden", default=1024)
    layers = audio.integer("num_hidden_layers", field="audio.layers", default=12)
    heads = audio.integer("num_attention_heads", field="audio.heads", default=8)
    kernel = audio.integer("conv_kernel_size", field="audio.convolution", default=5)
    out = audio.integer("output_proj_dims", field="audio.output", default=1536)
    channels = audio.integers("subsampling_conv_channels", field="audio.channels", length=2, minimum=1) or (128, 32)
    bounds = _bounds(audio, "audio", layers * _CONFORMER_LINEARS, default=True)
    first, second = channels
    tensors = (
        TowerTensor("subsampling.0.convolution", (first, 1, 3, 3)),
        TowerTensor("subsampling.0.norm", (first,)),
        TowerTensor("subsampling.1.convolution", (second, first, 3, 3)),
        TowerTensor("subsampling.1.norm", (second,)),
        # Two strides of 2 leave a quarter of as many mel bins as the first convolution has channels.
        TowerTensor("subsampling.projection", (hidden, first // 4 * second)),
        *conformer_layers(hidden, heads, kernel, layers),
        TowerTensor("output", (out, hidden)),
        TowerTensor("output_bias", (out,)),
        TowerTensor("projector.weight", (text_hidden, out)),
    )
    return Tower("audio", f"conformer, {layers} layers of {hidden}{bounds}", tensors)

"""Qwen3 with experts: full attention with q/k norms, 128 experts of which each token takes 8, no shared expert.

Reference: transformers 5.24, models/qwen3_moe/modeling_qwen3_moe.py, Qwen3MoeForCausalLM;
https://arxiv.org/abs/2505.09388. Defaults are those of Qwen3MoeConfig.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from plait.blueprint.families import qwen_gguf, qwen_layout
from plait.blueprint.families.common import ignore_common, special_tokens, stored_format
from plait.blueprint.families.qwen_fp8 import declared_quantization
from plait.blueprint.families.qwen_parts import feed_forwards, mixture
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import Attention, Blueprint, Embedding, Head, Layer, Norm, QKNorm

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/qwen3_moe/modeling_qwen3_moe.py Qwen3MoeForCausalLM"


def _window(config: ConfigReader) -> int | None:
    """One window for all layers, where `use_sliding_window` turns it on."""
    on = config.boolean("use_sliding_window", field="attention.window.on", default=False)
    if not on:
        config.irrelevant("sliding_window", "max_window_layers")
        return None
    window = config.optional_integer("sliding_window", field="attention.window", default=4096)
    first = config.integer("max_window_layers", default=0, minimum=0)
    if window is not None and first:
        # Older code left the first layers full, the reference has windows everywhere: no file says which it means.
        raise config.error("max_window_layers", expected="0 or no such key where windows are on", found=first)
    return window


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `qwen3_moe` config."""
    ignore_common(config)
    config.use("model_type")
    hidden = config.integer("hidden_size", field="hidden", default=2048)
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=24)
    heads = config.integer("num_attention_heads", field="attention.heads", default=32)
    head_dim = config.integer("head_dim", field="attention.qk_dim", default=hidden // heads)
    bias = config.boolean("attention_bias", field="attention.bias", default=False)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-6))
    mixer = Attention(
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads", default=4),
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=head_dim**-0.5,
        window=_window(config),
        rope=half_rope(read_rope(config, field="rope", default_theta=10_000.0, partial=False), head_dim),
        qk_norm=QKNorm(norm),
        qkv_bias=bias,
        output_bias=bias,
    )
    config.record("attention.scale", "derived", "head_dim", head_dim)
    renormalise = config.boolean("norm_topk_prob", field="router.renormalise", default=False)
    experts = partial(
        mixture, config, experts=128, active=8, width=768, renormalise=renormalise, shared_width=None
    )
    parts = feed_forwards(config, count, width=6144, experts=experts)
    blueprint = Blueprint(
        family="qwen3_moe",
        vocabulary=config.integer("vocab_size", field="vocabulary", default=151_936),
        hidden=hidden,
        max_context=config.integer("max_position_embeddings", field="max_context", default=32_768),
        embedding=Embedding(),
        layers=tuple(Layer(mixer, part, norm, norm) for part in parts),
        final_norm=norm,
        head=Head(tied=config.boolean("tie_word_embeddings", field="head.tied", default=False)),
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )
    return declared_quantization(config, blueprint, layout)


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files, an expert a tensor."""
    return qwen_layout.hub_layout(blueprint)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata; such files have experts in every layer, renormalised."""
    return qwen_gguf.parse_experts(meta, header, "qwen3_moe")


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    return qwen_gguf.mixture_keys(blueprint)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return qwen_layout.gguf_layout(blueprint, "attention")

"""Llama: full attention everywhere, SwiGLU. The plain baseline, and SmolLM2.

Reference: transformers 5.24, models/llama/modeling_llama.py, LlamaForCausalLM.
"""

from __future__ import annotations

from typing import Final

from plait.blueprint.families.common import (
    ACTIVATIONS,
    LLAMA_NAMES,
    bound,
    gguf_attention_sizes,
    gguf_bindings,
    gguf_rope_scaling,
    gguf_vocabulary,
    ignore_common,
    special_tokens,
    stored_format,
)
from plait.blueprint.families.gguf_keys import attention_of, linear_scaling, shared_keys
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import Attention, Blueprint, Embedding, Gated, Head, Layer, Norm, Rope

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf", "plain"]

REFERENCE: Final = "transformers 5.24 models/llama/modeling_llama.py LlamaForCausalLM"


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `llama` config."""
    return plain(config)


def plain(
    config: ConfigReader, *, default_head_dim: int | None = None, default_kv_heads: int | None = None
) -> Blueprint:
    """A model whose layers are all alike; `default_head_dim` None: hidden / heads; `default_kv_heads` None: heads.

    A null `num_key_value_heads` means as many as heads in either case.
    """
    ignore_common(config)
    config.use("model_type")
    hidden = config.integer("hidden_size", field="hidden")
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS)
    heads = config.integer("num_attention_heads", field="attention.heads")
    head_dim = config.integer("head_dim", field="attention.qk_dim", default=default_head_dim or hidden // heads)
    kv_heads = heads if default_kv_heads is None or "num_key_value_heads" in config else default_kv_heads
    bias = config.boolean("attention_bias", field="attention.bias", default=False)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-6))
    mixer = Attention(
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads", default=kv_heads),
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=head_dim**-0.5,
        rope=half_rope(read_rope(config, field="rope", default_theta=10_000.0, partial=False), head_dim),
        qkv_bias=bias,
        output_bias=bias,
    )
    gated = Gated(
        config.integer("intermediate_size", field="feed_forward.width"),
        config.choice("hidden_act", among=ACTIVATIONS, field="feed_forward.activation", default="silu"),  # type: ignore[arg-type]
        bias=config.boolean("mlp_bias", field="feed_forward.bias", default=False),
    )
    layer = Layer(mixer=mixer, feed_forward=gated, mixer_norm=norm, feed_forward_norm=norm)
    return Blueprint(
        family="llama",
        vocabulary=config.integer("vocab_size", field="vocabulary"),
        hidden=hidden,
        max_context=config.integer("max_position_embeddings", field="max_context"),
        embedding=Embedding(),
        layers=(layer,) * count,
        final_norm=norm,
        head=Head(tied=config.boolean("tie_word_embeddings", field="head.tied", default=False)),
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return bound(blueprint, LLAMA_NAMES)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata."""
    hidden = meta.integer("embedding_length", field="hidden")
    count = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    heads, kv_heads, qk_dim, v_dim = gguf_attention_sizes(meta, hidden)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"))
    rotated = meta.integer("rope.dimension_count", field="rope.rotated", default=qk_dim)
    theta = meta.number("rope.freq_base", field="rope.theta", default=10_000.0)
    mixer = Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        scale=qk_dim**-0.5,
        rope=Rope(theta, rotated // 2, rotated, distance=rotated // 2, scaling=gguf_rope_scaling(meta, header)),
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
    )
    gated = Gated(
        meta.integer("feed_forward_length", field="feed_forward.width"),
        "silu",
        bias="blk.0.ffn_gate.bias" in header.tensors,
    )
    meta.record("feed_forward.activation", "convention", "silu in every file of this architecture", "silu")
    layer = Layer(mixer=mixer, feed_forward=gated, mixer_norm=norm, feed_forward_norm=norm)
    return Blueprint(
        family="llama",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=hidden,
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(),
        layers=(layer,) * count,
        final_norm=norm,
        head=Head(tied="output.weight" not in header.tensors),
    )


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    full = attention_of(blueprint, window=False)
    keys = shared_keys(blueprint)
    if full is not None and full.rope is not None:
        keys |= {"rope.dimension_count": full.rope.rotated, "rope.freq_base": full.rope.theta}
        keys |= linear_scaling(full.rope)
    return keys


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files; rows of q and k are permuted for adjacent-pair rotation."""
    return gguf_bindings(blueprint, permuted=True)

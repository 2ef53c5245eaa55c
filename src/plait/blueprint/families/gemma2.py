"""Gemma 2: windows and full layers in turn, window first, softcaps, sandwich norms, no q/k norms.

Reference: transformers 5.24, models/gemma2/modeling_gemma2.py, Gemma2ForCausalLM; https://arxiv.org/abs/2408.00118.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plait.blueprint.families.common import (
    ACTIVATIONS,
    SLIDING,
    bound,
    gguf_attention_sizes,
    gguf_bindings,
    gguf_rope_scaling,
    gguf_vocabulary,
    ignore_common,
    layer_kinds,
    periodic_kinds,
    special_tokens,
    stored_format,
    window_size,
)
from plait.blueprint.families.gemma3 import SANDWICH_NAMES
from plait.blueprint.families.gguf_keys import (
    attention_of,
    linear_scaling,
    shared_keys,
    softcap_keys,
    window_keys,
)
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import Attention, Blueprint, Embedding, Gated, Head, Layer, Norm, Rope
from plait.errors import UnsupportedError, fault

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/gemma2/modeling_gemma2.py Gemma2ForCausalLM"

_PERIOD: Final = 2
_RULE: Final = "windows and full layers in turn, window first"


def _layers(kinds: tuple[str, ...], full: Attention, window: int, gated: Gated, norm: Norm) -> tuple[Layer, ...]:
    sliding = replace(full, window=window)
    return tuple(
        Layer(
            mixer=sliding if kind == SLIDING else full,
            feed_forward=gated,
            mixer_norm=norm,
            mixer_post_norm=norm,
            feed_forward_norm=norm,
            feed_forward_post_norm=norm,
        )
        for kind in kinds
    )


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `gemma2` config."""
    ignore_common(config)
    config.use("model_type")
    if config.given("use_bidirectional_attention") and config.boolean("use_bidirectional_attention"):
        raise UnsupportedError(
            fault("key 'use_bidirectional_attention'", file=config.file, expected="false", found="true (an encoder)")
        )
    config.use("use_bidirectional_attention")
    hidden = config.integer("hidden_size", field="hidden")
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS)
    head_dim = config.integer("head_dim", field="attention.qk_dim", default=256)
    bias = config.boolean("attention_bias", field="attention.bias", default=False)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-6), offset=1.0)
    full = Attention(
        heads=config.integer("num_attention_heads", field="attention.heads"),
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads"),
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=config.number("query_pre_attn_scalar", field="attention.scale", default=256.0) ** -0.5,
        rope=half_rope(read_rope(config, field="rope", default_theta=10_000.0, partial=False), head_dim),
        softcap=config.optional_number("attn_logit_softcapping", field="attention.softcap", default=50.0),
        qkv_bias=bias,
        output_bias=bias,
    )
    activation = config.choice(
        "hidden_activation",
        "hidden_act",
        among=ACTIVATIONS,
        field="feed_forward.activation",
        default="gelu_pytorch_tanh",
    )
    kinds = layer_kinds(config, count, periodic_kinds(count, _PERIOD), _RULE)
    return Blueprint(
        family="gemma2",
        vocabulary=config.integer("vocab_size", field="vocabulary"),
        hidden=hidden,
        max_context=config.integer("max_position_embeddings", field="max_context"),
        embedding=Embedding(hidden**0.5, rounded_scale=True),
        layers=_layers(
            kinds,
            full,
            window_size(config, "sliding_window", "sliding_window_size", kinds=kinds, default=4096),
            Gated(config.integer("intermediate_size", field="feed_forward.width"), activation),  # type: ignore[arg-type]
            norm,
        ),
        final_norm=norm,
        head=Head(
            tied=config.boolean("tie_word_embeddings", field="head.tied", default=True),
            softcap=config.optional_number("final_logit_softcapping", field="head.softcap", default=30.0),
        ),
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return bound(blueprint, SANDWICH_NAMES)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata.

    The format leaves out the pattern, the activation, the norms' offset, the embedding's scale, and the query
    scale of 27B (144 = hidden / heads instead of the head size).
    """
    hidden = meta.integer("embedding_length", field="hidden")
    count = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    heads, kv_heads, qk_dim, v_dim = gguf_attention_sizes(meta, hidden)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"), offset=1.0)
    scale = float(qk_dim)
    if (count, hidden, heads, qk_dim) == (46, 4608, 32, 128):
        scale = hidden / heads
        meta.record("attention.scale", "convention", "27B's shape: hidden / heads", scale)
    else:
        meta.record("attention.scale", "convention", "key_length", scale)
    theta = meta.number("rope.freq_base", field="rope.theta", default=10_000.0)
    full = Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        scale=scale**-0.5,
        rope=Rope(theta, qk_dim // 2, qk_dim, distance=qk_dim // 2, scaling=gguf_rope_scaling(meta, header)),
        softcap=meta.optional_number("attn_logit_softcapping", field="attention.softcap", default=50.0),
    )
    meta.record("layers.kind", "convention", _RULE, _PERIOD)
    return Blueprint(
        family="gemma2",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=hidden,
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(hidden**0.5, rounded_scale=True),
        layers=_layers(
            periodic_kinds(count, _PERIOD),
            full,
            meta.integer("attention.sliding_window", field="attention.window", default=4096),
            Gated(meta.integer("feed_forward_length", field="feed_forward.width"), "gelu_tanh"),
            norm,
        ),
        final_norm=norm,
        head=Head(
            tied="output.weight" not in header.tensors,
            softcap=meta.optional_number("final_logit_softcapping", field="head.softcap", default=30.0),
        ),
    )


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    keys = {**shared_keys(blueprint), **window_keys(blueprint, pattern=False), **softcap_keys(blueprint)}
    full = attention_of(blueprint, window=False)
    if full is not None and full.rope is not None:
        keys |= {"rope.freq_base": full.rope.theta, **linear_scaling(full.rope)}
    return keys


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files; norms are stored as w + 1."""
    return gguf_bindings(blueprint, minus_one=True)

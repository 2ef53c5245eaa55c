"""Spark-X2.5: windows and full layers 3 to 1, a sigmoid gate per head on the attention output, no q/k norms.

Reference: the checkpoint's own modeling_spark.py, Spark2_5ForCausalLM (not part of transformers).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import (
    ACTIVATIONS,
    FULL,
    HUB_ROOTS,
    LLAMA_NAMES,
    SLIDING,
    bound,
    gguf_attention_sizes,
    gguf_bindings,
    gguf_vocabulary,
    ignore_common,
    layer_kinds,
    periodic_kinds,
    special_tokens,
    stored_format,
)
from plait.blueprint.families.gguf_keys import attention_of, shared_keys, window_keys
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import Attention, Blueprint, Embedding, Gated, Head, Layer, Norm, OutputGate, Rope
from plait.errors import UnsupportedError, fault

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "modeling_spark.py Spark2_5ForCausalLM, part of the published checkpoints"

_PERIOD: Final = 4
_GATES: Final = MappingProxyType({"sigmoid": "sigmoid", "silu": "silu"})
_QKV: Final = ("attention.query", "attention.key", "attention.value")

_NAMES: Final = MappingProxyType(
    {
        **LLAMA_NAMES,
        "attention.gate": "self_attn.g_proj.weight",
        "attention.output": "self_attn.out_proj.weight",
        "attention.output_bias": "self_attn.out_proj.bias",
    }
)


def _layer(mixer: Attention, gated: Gated, norm: Norm) -> Layer:
    return Layer(mixer=mixer, feed_forward=gated, mixer_norm=norm, feed_forward_norm=norm)


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `spark2_5` config."""
    ignore_common(config)
    config.use("model_type")
    hidden = config.integer("hidden_size", field="hidden")
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS)
    head_dim = config.integer("head_dim", field="attention.qk_dim")
    bias = config.boolean("attention_bias", field="attention.bias", default=False)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-6))
    kinds = layer_kinds(config, count, periodic_kinds(count, _PERIOD), "every 4th layer is full")
    gated_output = config.boolean("headwise_attn_output_gate", field="attention.gate", default=True)
    activation = config.choice(
        "gate_attn_act_mode", among=_GATES, field="attention.gate.activation", default="sigmoid"
    )
    full = Attention(
        heads=config.integer("num_attention_heads", field="attention.heads"),
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads"),
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=head_dim**-0.5,
        rope=half_rope(read_rope(config, field="full.rope", layer_type=FULL), head_dim),
        gate=OutputGate("head", activation) if gated_output else None,  # type: ignore[arg-type]
        qkv_bias=bias,
        output_bias=bias,
    )
    config.record("attention.scale", "derived", "head_dim", head_dim)
    sliding = replace(
        full,
        window=config.integer("sliding_window", field="attention.window"),
        rope=half_rope(read_rope(config, field="window.rope", layer_type=SLIDING, scaled=False), head_dim),
    )
    gated = Gated(
        config.integer("intermediate_size", field="feed_forward.width"),
        config.choice("hidden_act", among=ACTIVATIONS, field="feed_forward.activation", default="gelu"),  # type: ignore[arg-type]
        bias=config.boolean("mlp_bias", field="feed_forward.bias", default=False),
    )
    return Blueprint(
        family="spark2_5",
        vocabulary=config.integer("vocab_size", field="vocabulary"),
        hidden=hidden,
        max_context=config.integer("max_position_embeddings", field="max_context"),
        embedding=Embedding(),
        layers=tuple(_layer(sliding if kind == SLIDING else full, gated, norm) for kind in kinds),
        final_norm=norm,
        head=Head(tied=config.boolean("tie_word_embeddings", field="head.tied", default=True)),
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files: one matrix for q, k and v, rows in that order."""
    return bound(
        blueprint,
        _NAMES,
        top=MappingProxyType(
            {
                "embedding": "{body}embedding.weight",
                "final_norm": "{body}norm.weight",
                "head": "{head}lm_head.weight",
            }
        ),
        fusions=MappingProxyType(
            {
                "self_attn.q_k_v_proj.weight": _QKV,
                "self_attn.q_k_v_proj.bias": tuple(f"{role}_bias" for role in _QKV),
            }
        ),
        roots=HUB_ROOTS,
    )


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata; the gate's sigmoid and the exact GELU are the format's conventions."""
    hidden = meta.integer("embedding_length", field="hidden")
    count = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    heads, kv_heads, qk_dim, v_dim = gguf_attention_sizes(meta, hidden)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"))
    pattern = meta.booleans("attention.sliding_window_pattern", field="layers.kind", length=count)
    if pattern is None:
        meta.record("layers.kind", "convention", "every 4th layer is full", _PERIOD)
        kinds = periodic_kinds(count, meta.integer("attention.sliding_window_pattern", default=_PERIOD))
    else:
        kinds = tuple(SLIDING if sliding else FULL for sliding in pattern)
    kind = meta.text("rope.scaling.type", default="none")
    if kind != "none":
        raise UnsupportedError(
            fault(f"key {meta.dotted('rope.scaling.type')!r}", file=meta.file, expected="none", found=repr(kind))
        )

    def rope(suffix: str, field: str, share: float) -> Rope:
        rotated = meta.integer(f"rope.dimension_count{suffix}", field=f"{field}.rotated", default=int(qk_dim * share))
        theta = meta.number(f"rope.freq_base{suffix}", field=f"{field}.theta")
        return Rope(theta, rotated // 2, rotated, distance=rotated // 2)

    gate = header.tensors.get("blk.0.attn_gate.weight")
    full = Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        scale=qk_dim**-0.5,
        rope=rope("", "full.rope", 0.25),
        gate=OutputGate("head", "sigmoid") if gate is not None or not header.tensors else None,
        qkv_bias="blk.0.attn_qkv.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
    )
    meta.record("attention.gate.activation", "convention", "sigmoid in every Spark-X2.5 file", "sigmoid")
    meta.record("feed_forward.activation", "convention", "exact GELU in every Spark-X2.5 file", "gelu")
    sliding = replace(
        full,
        window=meta.integer("attention.sliding_window", field="attention.window"),
        rope=rope("_swa", "window.rope", 1.0),
    )
    gated = Gated(
        meta.integer("feed_forward_length", field="feed_forward.width"),
        "gelu",
        bias="blk.0.ffn_gate.bias" in header.tensors,
    )
    return Blueprint(
        family="spark2_5",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=hidden,
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(),
        layers=tuple(_layer(sliding if k == SLIDING else full, gated, norm) for k in kinds),
        final_norm=norm,
        head=Head(tied="output.weight" not in header.tensors),
    )


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    keys = {**shared_keys(blueprint), **window_keys(blueprint, pattern=True)}
    for suffix, window in (("", False), ("_swa", True)):
        mixer = attention_of(blueprint, window=window)
        if mixer is not None and mixer.rope is not None:
            keys[f"rope.dimension_count{suffix}"] = mixer.rope.rotated
            keys[f"rope.freq_base{suffix}"] = mixer.rope.theta
    return keys


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return gguf_bindings(
        blueprint,
        MappingProxyType({"attention.gate": "attn_gate.weight"}),
        fusions=MappingProxyType(
            {"attn_qkv.weight": _QKV, "attn_qkv.bias": tuple(f"{role}_bias" for role in _QKV)}
        ),
    )

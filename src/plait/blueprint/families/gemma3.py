"""Gemma 3: windows and full layers 5 to 1, q/k norms, sandwich norms, two rotary bases.

Reference: transformers 5.24, models/gemma3/modeling_gemma3.py, Gemma3ForCausalLM; https://arxiv.org/abs/2503.19786.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import (
    ACTIVATIONS,
    FULL,
    LLAMA_NAMES,
    SLIDING,
    bound,
    gguf_attention_sizes,
    gguf_bindings,
    gguf_rope_scaling,
    gguf_vocabulary,
    ignore_common,
    layer_kinds,
    nested_format,
    periodic_kinds,
    special_tokens,
    tied_head,
    window_size,
)
from plait.blueprint.families.gguf_keys import (
    attention_of,
    linear_scaling,
    shared_keys,
    softcap_keys,
    window_keys,
)
from plait.blueprint.families.siglip import siglip_tower
from plait.blueprint.layout import Ignored, Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import Attention, Blueprint, Embedding, Gated, Head, Layer, Norm, QKNorm, Rope
from plait.errors import UnsupportedError, fault

__all__ = ["REFERENCE", "SANDWICH_NAMES", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/gemma3/modeling_gemma3.py Gemma3ForConditionalGeneration"

# Class defaults of Gemma3TextConfig: the published 4B, 12B and 27B files leave most keys out.
_DEFAULT_THETA: Final = MappingProxyType({FULL: 1_000_000.0, SLIDING: 10_000.0})
_PERIOD: Final = 6

# Gemma names the norm after attention "post_attention_layernorm", where Llama's is the one before the MLP.
SANDWICH_NAMES: Final = MappingProxyType(
    {
        **LLAMA_NAMES,
        "mixer_post_norm": "post_attention_layernorm.weight",
        "feed_forward_norm": "pre_feedforward_layernorm.weight",
        "feed_forward_post_norm": "post_feedforward_layernorm.weight",
    }
)

_VISION_IGNORED: Final = Ignored(
    r"(model\.)?(vision_tower|multi_modal_projector)\..*", "vision tower; this version runs the text part"
)


def _layer(mixer: Attention, width: int, activation: str, norm: Norm) -> Layer:
    return Layer(
        mixer=mixer,
        feed_forward=Gated(width, ACTIVATIONS[activation]),  # type: ignore[arg-type]
        mixer_norm=norm,
        mixer_post_norm=norm,
        feed_forward_norm=norm,
        feed_forward_post_norm=norm,
    )


def _kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    config.use("_sliding_window_pattern")  # a leftover that transformers writes beside layer_types
    stated = config.given("sliding_window_pattern")
    period = config.integer("sliding_window_pattern", default=_PERIOD)
    if not stated and not config.given("layer_types"):
        period = config.integer("_sliding_window_pattern", default=_PERIOD)
    default = periodic_kinds(layers, period)
    kinds = layer_kinds(config, layers, default, f"every {period}th layer is full")
    if stated and kinds != default:
        raise config.error(
            "sliding_window_pattern",
            expected="the pattern of layer_types",
            found=period,
            advice="the two keys disagree",
        )
    return kinds


def _text(config: ConfigReader, outer: ConfigReader) -> Blueprint:
    ignore_common(config)
    if config.given("use_bidirectional_attention") and config.boolean("use_bidirectional_attention"):
        raise UnsupportedError(
            fault("key 'use_bidirectional_attention'", file=config.file, expected="false", found="true (an encoder)")
        )
    config.use("use_bidirectional_attention", "model_type")
    if config.optional_number("attn_logit_softcapping") is not None:
        # The reference implementation reads this key and never applies it; no published model sets it.
        raise config.error("attn_logit_softcapping", expected="null in Gemma 3", found="a number")
    hidden = config.integer("hidden_size", field="hidden", default=2304)
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=26)
    head_dim = config.integer("head_dim", field="attention.qk_dim", default=256)
    width = config.integer("intermediate_size", field="feed_forward.width", default=9216)
    activation = config.text(
        "hidden_activation", "hidden_act", field="feed_forward.activation", default="gelu_pytorch_tanh"
    )
    config.choice("hidden_activation", "hidden_act", among=ACTIVATIONS, default="gelu_pytorch_tanh")
    bias = config.boolean("attention_bias", field="attention.bias", default=False)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-6), offset=1.0)
    kinds = _kinds(config, count)
    full_rope = read_rope(config, field="full.rope", layer_type=FULL, default_theta=_DEFAULT_THETA[FULL], partial=False)
    window_rope = read_rope(
        config,
        field="window.rope",
        layer_type=SLIDING,
        theta_key="rope_local_base_freq",
        default_theta=_DEFAULT_THETA[SLIDING],
        scaled=False,
        partial=False,
    )
    full = Attention(
        heads=config.integer("num_attention_heads", field="attention.heads", default=8),
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads", default=4),
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=config.number("query_pre_attn_scalar", field="attention.scale", default=256.0) ** -0.5,
        rope=half_rope(full_rope, head_dim),
        qk_norm=QKNorm(norm),
        qkv_bias=bias,
        output_bias=bias,
        bidirectional_images=outer is not config,
    )
    window = window_size(config, "sliding_window", kinds=kinds, default=4096) if SLIDING in kinds else None
    config.use("sliding_window")
    sliding = replace(full, window=window, rope=half_rope(window_rope, head_dim))
    return Blueprint(
        family="gemma3",
        vocabulary=config.integer("vocab_size", field="vocabulary", default=262_208),
        hidden=hidden,
        max_context=config.integer("max_position_embeddings", field="max_context", default=131_072),
        embedding=Embedding(hidden**0.5, rounded_scale=True),
        layers=tuple(_layer(sliding if kind == SLIDING else full, width, activation, norm) for kind in kinds),
        final_norm=norm,
        head=Head(
            tied=tied_head(config, outer, default=True),
            softcap=config.optional_number("final_logit_softcapping", field="head.softcap"),
        ),
        tokens=special_tokens(outer),
        stored_format=nested_format(config, outer),
    )


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from `gemma3_text` (text alone) or `gemma3` (text under `text_config`, SigLIP tower)."""
    nested = config.section("text_config")
    if nested is None:
        return _text(config, config)
    ignore_common(config)
    config.use("model_type")
    config.irrelevant("boi_token_index", "eoi_token_index", "image_token_index")
    nested.irrelevant("bos_token_id", "eos_token_id", "pad_token_id")
    blueprint = _text(nested, config)
    vision = config.section("vision_config")
    if vision is None:
        return blueprint
    ignore_common(vision)
    tower = siglip_tower(vision, blueprint.hidden)
    config.integer("mm_tokens_per_image", field="vision.tokens_per_image", default=256)
    return replace(blueprint, towers=(tower,))


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    made = bound(blueprint, SANDWICH_NAMES)
    return replace(made, ignored=(*made.ignored, _VISION_IGNORED))


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata.

    The format leaves out: the period 6 and the windows' base 10,000 (older files), the activation, the norms'
    offset, the embedding's scale, and the query scale of 27B (168 = hidden / heads instead of the head size).
    """
    hidden = meta.integer("embedding_length", field="hidden")
    count = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    heads, kv_heads, qk_dim, v_dim = gguf_attention_sizes(meta, hidden)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"), offset=1.0)
    pattern = meta.booleans("attention.sliding_window_pattern", field="layers.kind", length=count)
    if pattern is not None:
        kinds = tuple(SLIDING if sliding else FULL for sliding in pattern)
    else:
        if not meta.given("attention.sliding_window_pattern"):
            meta.record("layers.kind", "convention", "every 6th layer is full", _PERIOD)
        kinds = periodic_kinds(
            count,
            meta.integer("attention.sliding_window_pattern", default=_PERIOD),
        )
    scale = float(qk_dim)
    if (count, hidden, heads, qk_dim) == (62, 5376, 32, 128):
        scale = hidden / heads
        meta.record("attention.scale", "convention", "27B's shape: hidden / heads", scale)
    else:
        meta.record("attention.scale", "convention", "key_length", scale)
    theta = meta.number("rope.freq_base", field="full.rope.theta", default=_DEFAULT_THETA[FULL])
    local = meta.number("rope.freq_base_swa", field="window.rope.theta", default=_DEFAULT_THETA[SLIDING])
    half = qk_dim // 2
    full = Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        scale=scale**-0.5,
        rope=Rope(theta, half, qk_dim, distance=half, scaling=gguf_rope_scaling(meta, header)),
        qk_norm=QKNorm(norm),
    )
    sliding = replace(
        full,
        window=meta.integer("attention.sliding_window", field="attention.window") if SLIDING in kinds else None,
        rope=Rope(local, half, qk_dim, distance=half),
    )
    meta.use("attention.sliding_window")
    width = meta.integer("feed_forward_length", field="feed_forward.width")
    meta.record("feed_forward.activation", "convention", "gelu_tanh in every Gemma", "gelu_tanh")
    return Blueprint(
        family="gemma3",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=hidden,
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(hidden**0.5, rounded_scale=True),
        layers=tuple(_layer(sliding if k == SLIDING else full, width, "gelu_pytorch_tanh", norm) for k in kinds),
        final_norm=norm,
        head=Head(
            tied="output.weight" not in header.tensors,
            softcap=meta.optional_number("final_logit_softcapping", field="head.softcap"),
        ),
    )


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    keys = {**shared_keys(blueprint), **window_keys(blueprint, pattern=True), **softcap_keys(blueprint)}
    full, sliding = (attention_of(blueprint, window=window) for window in (False, True))
    if full is not None and full.rope is not None:
        keys |= {"rope.freq_base": full.rope.theta, **linear_scaling(full.rope)}
    if sliding is not None and sliding.rope is not None:
        keys["rope.freq_base_swa"] = sliding.rope.theta
    return keys


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files; norms are stored as w + 1."""
    return gguf_bindings(blueprint, minus_one=True)

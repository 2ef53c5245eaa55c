"""MiMo-V2-Flash: five windows to one full layer, sinks on the windows, values narrower than keys and scaled by 0.707.

Reference: transformers 5.24, models/mimo_v2_flash/modeling_mimo_v2_flash.py, MiMoV2FlashForCausalLM;
https://arxiv.org/abs/2601.02780. Published files hold three multi-token-prediction layers, each a window layer with a
dense feed-forward, of which the config says nothing. GGUF files are of the architecture `mimo2`.
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
    ignore_common,
    special_tokens,
    stored_format,
    window_size,
)
from plait.blueprint.families.fp8 import read_quantization
from plait.blueprint.families.mimo_gguf import gguf_layout, gguf_metadata, parse_gguf
from plait.blueprint.families.mimo_parts import PREDICTIONS, VALUE_SCALE, predicting
from plait.blueprint.families.routed import (
    ROUTED_NAMES,
    MixtureDefaults,
    mlp_kinds,
    per_expert,
    read_mixture,
)
from plait.blueprint.layout import Ignored, Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import Attention, Blueprint, Embedding, Gated, Head, Layer, Norm

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/mimo_v2_flash/modeling_mimo_v2_flash.py MiMoV2FlashForCausalLM"

# Class defaults of MiMoV2FlashConfig.
_MIXTURE: Final = MixtureDefaults(experts=256, active=8, width=2048, shared=0, scale=1.0, groups=1, kept_groups=1)
_WINDOW: Final = 129
_ROTATED_SHARE: Final = 0.334
_FULL_THETA: Final = 5_000_000.0
_WINDOW_THETA: Final = 10_000.0
_PERIOD: Final = 6
# Window layers have twice the KV heads of full ones where no key says otherwise.
_WINDOW_KV_HEADS: Final = 2

_NAMES: Final = MappingProxyType(
    {**LLAMA_NAMES, **ROUTED_NAMES, "attention.sinks": "self_attn.attention_sink_bias"}
)
_PREDICTION_TENSORS: Final = Ignored(r"(model\.)?mtp\..*", "multi-token-prediction layers", mtp=True)


def _by_number(config: ConfigReader, key: str, count: int, field: str) -> tuple[bool, ...] | None:
    """A list of 0 and 1, one per layer, as booleans."""
    numbers = config.integers(key, field=field, length=count)
    if numbers is not None and any(number > 1 for number in numbers):
        raise config.error(key, expected="0 or 1 for each layer", found=max(numbers))
    return None if numbers is None else tuple(number == 1 for number in numbers)


def _agreed(
    config: ConfigReader, keys: tuple[str, str], values: tuple[tuple[bool, ...] | None, tuple[bool, ...] | None]
) -> tuple[bool, ...] | None:
    """What the two spellings say; ConfigError naming both where they disagree."""
    new, old = values
    if new is not None and old is not None and new != old:
        first = next(i for i, (a, b) in enumerate(zip(new, old, strict=True)) if a != b)
        raise config.error(
            keys[1], expected=f"what {config.dotted(keys[0])!r} says", found=f"another kind at layer {first}"
        )
    return new if new is not None else old


def _windows(config: ConfigReader, count: int) -> tuple[bool, ...]:
    """For each layer whether it has a window: `layer_types`, in older files `hybrid_layer_pattern`."""
    words = config.words("layer_types", field="layers.kind", length=count)
    for index, word in enumerate(words or ()):
        if word not in (FULL, SLIDING):
            raise config.error("layer_types", expected=f"{FULL} or {SLIDING}", found=f"{word!r} at layer {index}")
    new = None if words is None else tuple(word == SLIDING for word in words)
    old = _by_number(config, "hybrid_layer_pattern", count, "layers.kind")
    found = _agreed(config, ("layer_types", "hybrid_layer_pattern"), (new, old))
    if found is None:
        config.record("layers.kind", "default", "layer_types", "the first and every 6th layer are full")
        return tuple(i > 0 and (i + 1) % _PERIOD != 0 for i in range(count))
    return found


def _sparse(config: ConfigReader, count: int) -> tuple[bool, ...]:
    """For each layer whether it is a mixture: `mlp_layer_types`, in older files `moe_layer_freq`."""
    words = config.words("mlp_layer_types", field="layers.feed_forward", length=count)
    new = None if words is None else mlp_kinds(config, words)
    old = _by_number(config, "moe_layer_freq", count, "layers.feed_forward")
    found = _agreed(config, ("mlp_layer_types", "moe_layer_freq"), (new, old))
    if found is None:
        config.record("layers.feed_forward", "default", "mlp_layer_types", "the first layer is dense")
        return tuple(i > 0 for i in range(count))
    return found


def _window(config: ConfigReader, kinds: tuple[str, ...]) -> int:
    """The window with the current token: `sliding_window_size` counts the tokens before it, `sliding_window` all.

    Both may stand together, 128 beside 128 or beside 129: they mean different things, and the former decides.
    """
    if config.given("sliding_window_size"):
        config.optional_integer("sliding_window")
        return config.integer("sliding_window_size", field="attention.window", minimum=0) + 1
    config.use("sliding_window_size")
    return window_size(config, "sliding_window", kinds=kinds, default=_WINDOW)


def _mixers(config: ConfigReader, kinds: tuple[str, ...]) -> tuple[Attention, Attention]:
    """(full, window)."""
    heads = config.integer("num_attention_heads", field="full.heads", default=64)
    kv_heads = config.integer("num_key_value_heads", field="full.kv_heads", default=4)
    qk_dim = config.integer("head_dim", field="full.qk_dim", default=192)
    v_dim = config.integer("v_head_dim", field="full.v_dim", default=128)
    value_scale = config.optional_number("attention_value_scale", field="attention.value_scale", default=VALUE_SCALE)
    window_dim = config.integer("swa_head_dim", field="window.qk_dim", default=qk_dim)
    full_rope = read_rope(
        config, field="full.rope", layer_type=FULL, default_theta=_FULL_THETA, default_share=_ROTATED_SHARE
    )
    window_rope = read_rope(
        config,
        field="window.rope",
        layer_type=SLIDING,
        theta_key="swa_rope_theta",
        default_theta=_WINDOW_THETA,
        default_share=_ROTATED_SHARE,
    )
    config.record("attention.scale", "derived", "head_dim^-0.5", qk_dim)
    full = Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        scale=qk_dim**-0.5,
        rope=half_rope(full_rope, qk_dim),
        sinks=config.boolean("add_full_attention_sink_bias", field="full.sinks", default=False),
        value_scale=1.0 if value_scale is None else value_scale,
        qkv_bias=config.boolean("attention_bias", field="attention.bias", default=False),
    )
    window = replace(
        full,
        heads=config.integer("swa_num_attention_heads", field="window.heads", default=heads),
        kv_heads=config.integer(
            "swa_num_key_value_heads", field="window.kv_heads", default=_WINDOW_KV_HEADS * kv_heads
        ),
        qk_dim=window_dim,
        v_dim=config.integer("swa_v_head_dim", field="window.v_dim", default=v_dim),
        scale=window_dim**-0.5,
        window=_window(config, kinds),
        rope=half_rope(window_rope, window_dim),
        sinks=config.boolean("add_swa_attention_sink_bias", field="window.sinks", default=True),
    )
    return full, window


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `mimo_v2_flash` config."""
    ignore_common(config)
    config.use("model_type")
    # A size of blocks of training; the reference code and the published one attend by windows alone.
    config.irrelevant("attention_chunk_size")
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=48)
    norm = Norm(config.number("layernorm_epsilon", "rms_norm_eps", field="norm.eps", default=1e-5))
    activation = config.choice("hidden_act", among=ACTIVATIONS, field="feed_forward.activation", default="silu")
    width = config.integer("intermediate_size", field="feed_forward.width", default=16_384)
    dense = Gated(width, activation)  # type: ignore[arg-type]
    mixture = read_mixture(config, activation, _MIXTURE)  # type: ignore[arg-type]
    if mixture.shared is not None:
        raise config.error("n_shared_experts", expected="none: the family has no shared experts", found=mixture.shared)
    windows = _windows(config, count)
    full, window = _mixers(config, tuple(SLIDING if sliding else FULL for sliding in windows))
    kinds = zip(windows, _sparse(config, count), strict=True)
    config.record("mtp.layers", "convention", "in the published files, without a key", PREDICTIONS)
    return Blueprint(
        family="mimo_v2_flash",
        vocabulary=config.integer("vocab_size", field="vocabulary", default=152_576),
        hidden=config.integer("hidden_size", field="hidden", default=4096),
        max_context=config.integer("max_position_embeddings", field="max_context", default=131_072),
        embedding=Embedding(),
        layers=tuple(
            Layer(window if sliding else full, mixture if sparse else dense, norm, norm) for sliding, sparse in kinds
        ),
        final_norm=norm,
        head=Head(tied=config.boolean("tie_word_embeddings", field="head.tied", default=False)),
        mtp=predicting(window, dense, norm, PREDICTIONS),
        quantization=read_quantization(config, _NAMES, count),
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    made = per_expert(bound(blueprint, _NAMES), blueprint)
    return replace(made, ignored=(*made.ignored, _PREDICTION_TENSORS))

"""Gemma 3n: four streams with alternating updates, learned augmented residuals, per-layer embeddings, windows and full
layers 4 to 1, layers that reuse keys and values, sparse activations in the first layers.

E2B is a slice of E4B (MatFormer, https://arxiv.org/abs/2310.07707): five layers fewer, half the width.
Reference: transformers 5.24, models/gemma3n/modeling_gemma3n.py, Gemma3nForConditionalGeneration. Alternating updates:
https://arxiv.org/abs/2301.13310, learned augmented residuals: https://arxiv.org/abs/2411.07501.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import (
    ACTIVATIONS,
    FULL,
    SLIDING,
    bound,
    ignore_common,
    layer_kinds,
    nested_format,
    periodic_kinds,
    tied_head,
    window_size,
)
from plait.blueprint.families.gemma3n_gguf import gguf_layout, gguf_metadata, parse_gguf
from plait.blueprint.families.gemma3n_layers import attention, layers_of
from plait.blueprint.families.gemma3n_towers import audio_tower, vision_tower
from plait.blueprint.families.gemma_shared import (
    HUB_LAYER_NAMES,
    HUB_TOP_NAMES,
    inner_and_outer,
    kv_sources,
    merged_tokens,
    per_layer_embeddings,
    unused_kv,
)
from plait.blueprint.layout import Ignored, Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import AltUp, Blueprint, Embedding, Gated, Head, Norm

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/gemma3n/modeling_gemma3n.py Gemma3nForConditionalGeneration"

_PERIOD: Final = 5
_DEFAULT_THETA: Final = MappingProxyType({FULL: 1_000_000.0, SLIDING: 10_000.0})
# Class default: this share of the first ten layers' activations is dropped, where there are more than ten layers.
_SPARSE_LAYERS: Final = 10
_SPARSITY: Final = 0.95

_NAMES: Final = MappingProxyType(
    {
        **HUB_LAYER_NAMES,
        "laurel.left": "laurel.linear_left.weight",
        "laurel.right": "laurel.linear_right.weight",
        "laurel.norm": "laurel.post_laurel_norm.weight",
        "altup.correct_scale": "altup.correct_output_scale",
        "altup.correction": "altup.correction_coefs.weight",
        "altup.prediction": "altup.prediction_coefs.weight",
        "altup.router": "altup.modality_router.weight",
        "altup.router_norm": "altup.router_norm.weight",
    }
)

_TOWERS_IGNORED: Final = Ignored(
    r"(?:model\.)?(?:vision_tower|audio_tower|embed_vision|embed_audio)\..*",
    "image or audio part; this version runs the text part",
)


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from `gemma3n_text` (text alone) or `gemma3n` (text under `text_config`, encoders beside it)."""
    inner, outer = inner_and_outer(config)
    blueprint = _text(inner, outer)
    if inner is outer:
        return blueprint
    config.irrelevant(
        "audio_token_id", "boa_token_id", "boi_token_id", "eoa_token_id", "eoi_token_id", "image_token_id"
    )
    config.integer("audio_soft_tokens_per_image", field="audio.tokens", default=188)
    config.integer("vision_soft_tokens_per_image", field="vision.tokens_per_image", default=256)

    def part(key: str) -> ConfigReader:
        """The section, or the class defaults where the config leaves it out: the family has both encoders."""
        section = config.section(key)
        return section or ConfigReader({}, file=config.file, prefix=f"{config.dotted(key)}.", root=config)

    towers = (
        vision_tower(part("vision_config"), blueprint.hidden),
        audio_tower(part("audio_config"), blueprint.hidden),
    )
    return replace(blueprint, towers=towers)


def _text(config: ConfigReader, outer: ConfigReader) -> Blueprint:
    ignore_common(config)
    ignore_common(outer)
    config.use("model_type")
    outer.use("model_type")
    hidden = config.integer("hidden_size", field="hidden", default=2048)
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=35)
    head_dim = config.integer("head_dim", field="attention.qk_dim", default=256)
    eps = config.number("rms_norm_eps", field="norm.eps", default=1e-6)
    kinds = layer_kinds(config, count, periodic_kinds(count, _PERIOD), f"every {_PERIOD}th layer is full")
    shared = config.integer("num_kv_shared_layers", field="attention.kv_source", default=15, minimum=0)
    sources = kv_sources(kinds, shared, file=config.file, key=config.dotted("num_kv_shared_layers"))
    full = attention(
        heads=config.integer("num_attention_heads", field="attention.heads", default=8),
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads", default=2),
        head_dim=head_dim,
        rope=half_rope(
            read_rope(config, field="full.rope", layer_type=FULL, default_theta=_DEFAULT_THETA[FULL], partial=False),
            head_dim,
        ),
        eps=eps,
        bias=config.boolean("attention_bias", field="attention.bias", default=False),
    )
    config.record("attention.scale", "convention", "1: the norms of queries and keys carry it", 1.0)
    config.record("attention.v_norm", "convention", "values are normed without a weight", eps)
    local = read_rope(
        config,
        field="window.rope",
        layer_type=SLIDING,
        theta_key="rope_local_base_freq",
        default_theta=_DEFAULT_THETA[SLIDING],
        scaled=False,
        partial=False,
    )
    sliding = replace(
        full,
        window=window_size(config, "sliding_window", kinds=kinds, default=512),
        rope=half_rope(local, head_dim),
    )
    activation = config.choice(
        "hidden_activation", among=ACTIVATIONS, field="feed_forward.activation", default="gelu_pytorch_tanh"
    )
    widths = config.integers("intermediate_size", field="feed_forward.width", length=count, minimum=1)
    if widths is None:
        config.record("feed_forward.width", "default", config.dotted("intermediate_size"), 16_384)
        widths = (16_384,) * count
    dim = config.integer("hidden_size_per_layer_input", field="per_layer.dim", default=256)
    rows = config.integer("vocab_size_per_layer_input", field="per_layer.vocabulary", default=262_144)
    return Blueprint(
        family="gemma3n",
        vocabulary=config.integer("vocab_size", field="vocabulary", default=262_400),
        hidden=hidden,
        max_context=config.integer("max_position_embeddings", field="max_context", default=32_768),
        embedding=Embedding(hidden**0.5, rounded_scale=True),
        layers=layers_of(
            tuple(
                replace(sliding if kind == SLIDING else full, kv_source=source)
                for kind, source in zip(kinds, sources, strict=True)
            ),
            tuple(
                Gated(width, activation, sparsity=sparsity)  # type: ignore[arg-type]
                for width, sparsity in zip(widths, _sparsity(config, count), strict=True)
            ),
            eps,
            config.integer("laurel_rank", field="laurel_rank", default=64),
        ),
        final_norm=Norm(eps),
        head=Head(
            tied=tied_head(config, outer, default=True),
            softcap=config.number("final_logit_softcapping", field="head.softcap", default=30.0),
        ),
        per_layer_embeddings=per_layer_embeddings(hidden, rows, dim, activation, eps),
        altup=_altup(config, eps),
        tokens=merged_tokens(config, outer),
        stored_format=nested_format(config, outer),
    )


def _sparsity(config: ConfigReader, count: int) -> tuple[float | None, ...]:
    """Share of the activations each layer drops; None where it keeps all."""
    key = "activation_sparsity_pattern"
    given = config.numbers(key, field="feed_forward.sparsity", length=count)
    if given is None:
        sparse = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
        config.record("feed_forward.sparsity", "default", config.dotted(key), f"{_SPARSITY} in {sparse} layers")
        given = (_SPARSITY,) * sparse + (0.0,) * (count - sparse)
    for share in given:
        if not 0 <= share < 1:
            raise config.error(key, expected="shares in [0, 1)", found=share)
    return tuple(share or None for share in given)


def _altup(config: ConfigReader, eps: float) -> AltUp:
    streams = config.integer("altup_num_inputs", field="altup.streams", default=4)
    active = config.integer("altup_active_idx", field="altup.active", default=0, minimum=0)
    if active >= streams:
        raise config.error("altup_active_idx", expected=f"one of {streams} streams", found=active)
    return AltUp(
        streams=streams,
        active=active,
        coefficient_clip=config.optional_number("altup_coef_clip", field="altup.coefficient_clip", default=120.0),
        scale_corrected=config.boolean("altup_correct_scale", field="altup.scale_corrected", default=True),
        router_norm=Norm(eps),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    streams = blueprint.altup.streams if blueprint.altup is not None else 1
    top = dict(HUB_TOP_NAMES)
    for i in range(1, streams):
        top[f"altup.projection.{i}"] = f"{{body}}altup_projections.{i - 1}.weight"
        top[f"altup.unembedding.{i}"] = f"{{body}}altup_unembed_projections.{i - 1}.weight"
    made = bound(blueprint, _NAMES, top=top)
    return replace(made, ignored=(*made.ignored, *unused_kv(blueprint), _TOWERS_IGNORED))

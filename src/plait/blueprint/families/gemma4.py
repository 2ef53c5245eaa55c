"""Gemma 4: windows and full layers with head sizes of their own, rotated in proportion; queries and keys are normed to
scale 1, values are normed without a weight.

By size: full layers whose keys are the values (12B, 26B-A4B, 31B), a mixture of experts beside the dense layer
(26B-A4B), per-layer embeddings and layers that reuse keys and values (E2B, E4B). The 12B has no encoders and a config
of its own (`gemma4_unified`); its text model is this one.

Reference: transformers 5.24, models/gemma4/modeling_gemma4.py, Gemma4ForConditionalGeneration. No paper is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from plait.blueprint.families.gemma4_gguf import gguf_layout, gguf_metadata, parse_gguf
from plait.blueprint.families.gemma4_layers import (
    EXPERTS,
    GATE_UP,
    grouped_experts,
    layers_of,
    norms,
    proportional_rope,
)
from plait.blueprint.families.gemma4_towers import conformer_tower, vit_tower
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
from plait.blueprint.read.config import MAX_LAYERS, REQUIRED, ConfigReader
from plait.blueprint.spec import Attention, Blueprint, Embedding, Gated, Head, LinearScaling, Mixture, Rope, Router
from plait.errors import ConfigError, UnsupportedError, fault

__all__ = ["REFERENCE", "TOKENS", "Defaults", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf", "text"]

REFERENCE: Final = (
    "transformers 5.24 models/gemma4/modeling_gemma4.py Gemma4ForConditionalGeneration "
    "(12B: models/gemma4_unified/modeling_gemma4_unified.py Gemma4UnifiedForConditionalGeneration)"
)

_PERIOD: Final = 6
_ROTATED: Final = MappingProxyType({"default": False, "proportional": True})
TOKENS: Final = (
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "image_token_id",
    "video_token_id",
)

_NAMES: Final = MappingProxyType(
    {
        **HUB_LAYER_NAMES,
        "scalar": "layer_scalar",
        "feed_forward.router": "router.proj.weight",
        "feed_forward.router_scale": "router.scale",
        "feed_forward.expert_scale": "router.per_expert_scale",
        f"{EXPERTS}down": "experts.down_proj",
        "feed_forward.dense_post_norm": "post_feedforward_layernorm_1.weight",
        "feed_forward.mixture_norm": "pre_feedforward_layernorm_2.weight",
        "feed_forward.mixture_post_norm": "post_feedforward_layernorm_2.weight",
    }
)
_FUSED: Final = MappingProxyType({"experts.gate_up_proj": GATE_UP})

_TOWERS_IGNORED: Final = (
    Ignored(
        r"(?:model\.)?(?:vision_tower|audio_tower)\..*\.(?:input|output)_(?:min|max)",
        "a clip bound of an encoder, which older files hold; no parameter",
    ),
    Ignored(
        r"(?:model\.)?(?:vision_tower|audio_tower|embed_vision|embed_audio|vision_embedder)\..*",
        "image or audio part; this version runs the text part",
    ),
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """Class defaults that differ between Gemma4TextConfig and Gemma4UnifiedTextConfig.

    plain  the class has no mixture of experts and no per-layer embeddings
    """

    max_context: int = 131_072
    window: int = 512
    images: str = "none"
    plain: bool = False


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Head size and KV heads of one layer."""

    head_dim: int
    kv_heads: int


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from `gemma4_text` (text alone) or `gemma4` (text under `text_config`, encoders beside it)."""
    inner, outer = inner_and_outer(config)
    blueprint = text(inner, outer, Defaults())
    if inner is outer:
        return blueprint
    config.irrelevant(*TOKENS)
    config.optional_integer("vision_soft_tokens_per_image", field="vision.tokens_per_image")
    vision, audio = config.section("vision_config"), config.section("audio_config")
    towers = (
        *((vit_tower(vision, blueprint.hidden),) if vision is not None else ()),
        *((conformer_tower(audio, blueprint.hidden),) if audio is not None else ()),
    )
    return replace(blueprint, towers=towers)


def text(config: ConfigReader, outer: ConfigReader, defaults: Defaults) -> Blueprint:
    """The text model; `outer` holds the keys around it, or is `config` itself."""
    ignore_common(config)
    ignore_common(outer)
    config.use("model_type")
    outer.use("model_type")
    hidden = config.integer("hidden_size", field="hidden", default=2304)
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=30)
    kinds = _kinds(config, count)
    eps = config.number("rms_norm_eps", field="norm.eps", default=1e-6)
    bias = config.boolean("attention_bias", field="attention.bias", default=False)
    same = config.boolean("attention_k_eq_v", field="attention.keys_are_values", default=False)
    sizes = _layer_sizes(config, kinds, same)
    shared = config.integer("num_kv_shared_layers", field="attention.kv_source", default=0, minimum=0)
    sources = kv_sources(kinds, shared, file=config.file, key=config.dotted("num_kv_shared_layers"))
    images = _images(config, defaults)
    window = window_size(config, "sliding_window", kinds=kinds, default=defaults.window)
    ropes = _ropes(config, {kind: sizes[kinds.index(kind)].head_dim for kind in dict.fromkeys(kinds)})
    heads = config.integer("num_attention_heads", field="attention.heads", default=8)
    qk_norm, v_norm = norms(eps)
    config.record("attention.scale", "convention", "1: the norms of queries and keys carry it", 1.0)
    config.record("attention.v_norm", "convention", "values are normed without a weight", eps)
    mixers = tuple(
        Attention(
            heads=heads,
            kv_heads=size.kv_heads,
            qk_dim=size.head_dim,
            v_dim=size.head_dim,
            scale=1.0,
            window=window if kind == SLIDING else None,
            rope=ropes[kind],
            qk_norm=qk_norm,
            v_norm=v_norm,
            keys_are_values=same and kind == FULL,
            kv_source=source,
            qkv_bias=bias,
            output_bias=bias,
            bidirectional_images=images and kind == SLIDING,
        )
        for kind, size, source in zip(kinds, sizes, sources, strict=True)
    )
    word = config.text("hidden_activation", field="feed_forward.activation", default="gelu_pytorch_tanh")
    activation = config.choice("hidden_activation", among=ACTIVATIONS, default="gelu_pytorch_tanh")
    width = config.integer("intermediate_size", field="feed_forward.width", default=9216)
    double = config.boolean("use_double_wide_mlp", field="feed_forward.doubled", default=False)
    mixture = _mixture(config, hidden, eps, activation, defaults)
    dim = config.integer(
        "hidden_size_per_layer_input", field="per_layer.dim", default=0 if defaults.plain else 256, minimum=0
    )
    if dim and defaults.plain:
        raise config.error("hidden_size_per_layer_input", expected="0, as the family has none", found=dim)
    vocabulary = config.integer("vocab_size", field="vocabulary", default=262_144)
    rows = config.integer("vocab_size_per_layer_input", default=262_144)
    if dim:
        config.integer("vocab_size_per_layer_input", field="per_layer.vocabulary", default=262_144)
    return Blueprint(
        family="gemma4",
        vocabulary=vocabulary,
        hidden=hidden,
        max_context=config.integer("max_position_embeddings", field="max_context", default=defaults.max_context),
        embedding=Embedding(hidden**0.5, rounded_scale=True),
        layers=layers_of(
            mixers,
            tuple(
                Gated(width * 2 if double and source is not None else width, activation)  # type: ignore[arg-type]
                for source in sources
            ),
            mixture,
            eps,
            per_layer_input=dim > 0,
        ),
        final_norm=qk_norm.norm,
        head=Head(
            tied=tied_head(config, outer, default=True),
            softcap=config.optional_number("final_logit_softcapping", field="head.softcap"),
        ),
        per_layer_embeddings=per_layer_embeddings(hidden, rows, dim, ACTIVATIONS[word], eps) if dim else None,
        tokens=merged_tokens(config, outer),
        stored_format=nested_format(config, outer),
    )


def _kinds(config: ConfigReader, count: int) -> tuple[str, ...]:
    """Kind of each layer; the last one is full, whatever `layer_types` says of it."""
    kinds = layer_kinds(config, count, periodic_kinds(count, _PERIOD), f"every {_PERIOD}th layer is full, and the last")
    if kinds[-1] != FULL:
        config.record("layers.kind", "derived", "layer_types, but the last layer is always full", FULL)
    return (*kinds[:-1], FULL)


def _images(config: ConfigReader, defaults: Defaults) -> bool:
    """The tokens of an image see each other on window layers."""
    words = MappingProxyType({"none": False, "vision": True, "all": None})
    key = "use_bidirectional_attention"
    if key in config and not config.given(key):
        config.use(key)
        config.record("attention.bidirectional_images", "key", config.dotted(key), None)
        return False
    mode = config.choice(key, among=words, field="attention.bidirectional_images", default=defaults.images)
    if mode is None:
        raise UnsupportedError(
            fault(f"key {config.dotted(key)!r}", file=config.file, expected="vision or null", found="all (an encoder)")
        )
    return mode


def _layer_sizes(config: ConfigReader, kinds: Sequence[str], same: bool) -> tuple[_Sizes, ...]:
    """Sizes of each layer: two keys for full layers in published files, `per_layer_config` in saved ones."""
    usual = _Sizes(
        config.integer("head_dim", field="window.qk_dim", default=256),
        config.integer("num_key_value_heads", field="window.kv_heads", default=4),
    )
    overrides = config.section("per_layer_config")
    default_dim = 512 if overrides is None else None
    head_dim = config.optional_integer("global_head_dim", field="full.qk_dim", default=default_dim)
    kv_heads = config.optional_integer("num_global_key_value_heads", field="full.kv_heads")
    if not same:
        # The reference heeds the key only where keys are values.
        kv_heads = None
    if kv_heads is None:
        config.record("full.kv_heads", "derived", config.dotted("num_key_value_heads"), usual.kv_heads)
    full = _Sizes(head_dim or usual.head_dim, kv_heads or usual.kv_heads)
    if overrides is None:
        return tuple(full if kind == FULL else usual for kind in kinds)
    sizes = [usual] * len(kinds)
    for key in overrides.keys():  # noqa: SIM118
        index = int(key) if key.isdecimal() and len(key) < 8 else len(kinds)
        if index >= len(kinds):
            raise overrides.error(key, expected=f"the number of one of {len(kinds)} layers", found=repr(key))
        sizes[index] = _override(overrides, key, usual)
    _check_overrides(config, kinds, sizes, head_dim, kv_heads)
    config.record("full.qk_dim", "key", config.dotted("per_layer_config"), sizes[-1].head_dim)
    config.record("full.kv_heads", "key", config.dotted("per_layer_config"), sizes[-1].kv_heads)
    return tuple(sizes)


def _override(overrides: ConfigReader, key: str, usual: _Sizes) -> _Sizes:
    section = overrides.section(key)
    if section is None:
        return usual
    for name in section.keys():  # noqa: SIM118
        if name not in ("head_dim", "num_key_value_heads"):
            raise UnsupportedError(
                fault(
                    f"key {section.dotted(name)!r}",
                    file=section.file,
                    expected="head_dim or num_key_value_heads",
                    found=repr(name),
                )
            )
    return _Sizes(
        section.integer("head_dim", default=usual.head_dim),
        section.integer("num_key_value_heads", default=usual.kv_heads),
    )


def _check_overrides(
    config: ConfigReader, kinds: Sequence[str], sizes: Sequence[_Sizes], head_dim: int | None, kv_heads: int | None
) -> None:
    """Layers of one kind are alike, and the keys of published files agree where they stand beside the overrides."""
    for index, kind in enumerate(kinds):
        if sizes[index] != sizes[kinds.index(kind)]:
            raise UnsupportedError(
                fault(
                    f"key {config.dotted('per_layer_config')!r}",
                    file=config.file,
                    expected=f"{kind} layers of one size",
                    found=f"another size at layer {index}",
                )
            )
    full = sizes[kinds.index(FULL)]
    for key, stated, found in (
        ("global_head_dim", head_dim, full.head_dim),
        ("num_global_key_value_heads", kv_heads, full.kv_heads),
    ):
        if stated is not None and stated != found:
            raise ConfigError(
                fault(
                    f"keys {config.dotted(key)!r} and {config.dotted('per_layer_config')!r} disagree",
                    file=config.file,
                    expected="two spellings of one fact to be equal",
                    found=f"{stated} and {found}",
                )
            )


def _ropes(config: ConfigReader, head_dims: Mapping[str, int]) -> dict[str, Rope]:
    """The rotation of each kind of layer the model has."""
    parameters = config.section("rope_parameters")
    if parameters is not None:
        parameters.irrelevant(*(kind for kind in (FULL, SLIDING) if kind not in head_dims))
    return {kind: _rope(config, parameters, kind, head_dim) for kind, head_dim in head_dims.items()}


def _rope(config: ConfigReader, parameters: ConfigReader | None, kind: str, head_dim: int) -> Rope:
    """Rotation of the layers of one kind: the whole head (`default`), or a share of its pairs (`proportional`)."""
    field = "full.rope" if kind == FULL else "window.rope"
    theta, share = (1_000_000.0, 0.25) if kind == FULL else (10_000.0, 1.0)
    factor = None
    if parameters is None:
        config.record(f"{field}.theta", "default", config.dotted("rope_parameters"), theta)
        config.record(f"{field}.rotated", "default", config.dotted("rope_parameters"), share)
    else:
        section = parameters.section(kind)
        if section is None:
            raise parameters.error(kind, expected="the rotation of these layers", found="nothing")
        proportional = section.choice("rope_type", among=_ROTATED, field=f"{field}.kind", default="default")
        theta = section.number("rope_theta", field=f"{field}.theta", default=10_000.0)
        share = section.number("partial_rotary_factor", field=f"{field}.rotated", default=1.0)
        if proportional:
            factor = section.number("factor", field=f"{field}.factor") if section.given("factor") else None
        elif share != 1:
            config.record(f"{field}.rotated", "derived", "rope_type default rotates the whole head", 1.0)
            share = 1.0
        section.use("factor")
    if share > 1:
        raise config.error("rope_parameters", expected="a partial_rotary_factor in (0, 1]", found=share)
    return replace(
        proportional_rope(theta, int(share * head_dim // 2), head_dim),
        scaling=LinearScaling(factor) if factor not in (None, 1.0) else None,
    )


def _mixture(config: ConfigReader, hidden: int, eps: float, activation: str, defaults: Defaults) -> Mixture | None:
    on = config.boolean("enable_moe_block", field="feed_forward.mixture", default=False)
    sizes = ("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size")
    config.use(*sizes)
    if not on:
        return None
    if defaults.plain:
        raise config.error("enable_moe_block", expected="false, as the family has no mixtures", found="true")
    _, v_norm = norms(eps)
    return Mixture(
        experts=config.integer("num_experts", field="experts", default=REQUIRED),
        active=config.integer("top_k_experts", field="experts.active", default=REQUIRED),
        width=config.integer("moe_intermediate_size", "expert_intermediate_size", field="experts.width"),
        activation=activation,  # type: ignore[arg-type]
        router=Router(
            "softmax", renormalise=True, norm=v_norm, input_factor=hidden**-0.5, expert_scale=True
        ),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files. Experts lie in two tensors a layer, gate and up rows of an expert together."""
    made = bound(blueprint, _NAMES, top=HUB_TOP_NAMES, fusions=_FUSED)
    return replace(
        grouped_experts(made, blueprint), ignored=(*made.ignored, *unused_kv(blueprint), *_TOWERS_IGNORED)
    )

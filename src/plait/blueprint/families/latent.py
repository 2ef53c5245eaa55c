"""Multi-head latent attention with or without a sparse-attention indexer, as DeepSeek-V3, V3.2 and GLM-5 have it.

Papers: https://arxiv.org/abs/2405.04434 (latent attention), https://arxiv.org/abs/2412.19437 (DeepSeek-V3),
https://arxiv.org/abs/2512.02556 (DeepSeek-V3.2, sparse attention).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import (
    ACTIVATIONS,
    LLAMA_NAMES,
    bound,
    ignore_common,
    special_tokens,
    stored_format,
)
from plait.blueprint.families.fp8 import read_quantization
from plait.blueprint.families.routed import (
    ROUTED_NAMES,
    MixtureDefaults,
    must_equal,
    per_expert,
    prediction_layers,
    read_mixture,
    sparse_layers,
)
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.rope import RopeSettings, read_rope
from plait.blueprint.spec import (
    Blueprint,
    Embedding,
    Gated,
    Head,
    Indexer,
    LatentAttention,
    Layer,
    MultiTokenPrediction,
    Norm,
    Rope,
)

__all__ = ["INDEX_NORM", "LATENT_EPS", "LatentDefaults", "adjacent_rope", "hub_layout", "read_indexer", "read_model"]

# The norms of the latents are made without an eps in all reference code, which leaves the class's own.
LATENT_EPS: Final = 1e-6
INDEX_NORM: Final = Norm(1e-6, bias=True, kind="layer")
_THETA: Final = 10_000.0

LATENT_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **LLAMA_NAMES,
        **ROUTED_NAMES,
        "attention.query": "self_attn.q_proj.weight",
        "attention.query_down": "self_attn.q_a_proj.weight",
        "attention.query_down_bias": "self_attn.q_a_proj.bias",
        "attention.query_latent_norm": "self_attn.q_a_layernorm.weight",
        "attention.query_up": "self_attn.q_b_proj.weight",
        "attention.key_value_down": "self_attn.kv_a_proj_with_mqa.weight",
        "attention.key_value_down_bias": "self_attn.kv_a_proj_with_mqa.bias",
        "attention.key_value_norm": "self_attn.kv_a_layernorm.weight",
        "attention.key_value_up": "self_attn.kv_b_proj.weight",
        "attention.indexer.query": "self_attn.indexer.wq_b.weight",
        "attention.indexer.key": "self_attn.indexer.wk.weight",
        "attention.indexer.key_norm": "self_attn.indexer.k_norm.weight",
        "attention.indexer.key_norm_bias": "self_attn.indexer.k_norm.bias",
        "attention.indexer.weights": "self_attn.indexer.weights_proj.weight",
    }
)


@dataclass(frozen=True, slots=True)
class LatentDefaults:
    """What a family's config class assumes for keys that are absent; `q_rank_optional`: null means direct queries."""

    vocabulary: int
    hidden: int
    layers: int
    dense: int
    width: int
    max_context: int
    eps: float
    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank_optional: bool
    predictions: int
    mixture: MixtureDefaults


def adjacent_rope(theta: float, dims: int) -> Rope:
    """Rotation of all `dims` dims, pair i being dims 2i and 2i + 1."""
    return Rope(theta, dims // 2, dims, pairing="adjacent", distance=1)


def _rope(settings: RopeSettings, dims: int, adjacent: bool) -> Rope:
    pairs = dims // 2
    if adjacent:
        return replace(adjacent_rope(settings.theta, dims), scaling=settings.scaling)
    return Rope(settings.theta, pairs, dims, distance=pairs, scaling=settings.scaling)


def _settings(config: ConfigReader) -> RopeSettings:
    settings = read_rope(config, field="rope", default_theta=_THETA)
    if settings.share != 1.0:
        raise config.error("partial_rotary_factor", expected="1, as qk_rope_head_dim says it", found=settings.share)
    return settings


def read_indexer(config: ConfigReader, rope_dim: int, *, heads: int, interleaved: bool) -> Indexer:
    """The indexer, whose own rotation is of the first `rope_dim` dims of a head.

    heads, interleaved  the family's defaults of `index_n_heads` and `indexer_rope_interleave`
    """
    dim = config.integer("index_head_dim", field="indexer.dim", default=128)
    if dim < rope_dim:
        raise config.error("index_head_dim", expected=f"at least qk_rope_head_dim, {rope_dim}", found=dim)
    adjacent = config.boolean("indexer_rope_interleave", field="indexer.rope.pairing", default=interleaved)
    config.record("indexer.key_norm", "convention", "LayerNorm with bias in the reference code", INDEX_NORM.eps)
    return Indexer(
        heads=config.integer("index_n_heads", field="indexer.heads", default=heads),
        dim=dim,
        top_k=config.integer("index_topk", field="indexer.top_k", default=2048),
        rope=_rope(_settings(config), rope_dim, adjacent),
        key_norm=INDEX_NORM,
    )


def _mixer(config: ConfigReader, defaults: LatentDefaults) -> LatentAttention:
    heads = config.integer("num_attention_heads", field="attention.heads", default=defaults.heads)
    nope = config.integer("qk_nope_head_dim", field="attention.nope_dim", default=defaults.nope_dim)
    rope_dim = config.integer("qk_rope_head_dim", field="attention.rope_dim", default=defaults.rope_dim, minimum=2)
    if rope_dim % 2:
        raise config.error("qk_rope_head_dim", expected="an even number", found=rope_dim)
    # One latent serves all heads: keys and values are expanded to as many heads as queries have.
    must_equal(config, "num_key_value_heads", heads, "num_attention_heads")
    must_equal(config, "qk_head_dim", nope + rope_dim, "qk_nope_head_dim + qk_rope_head_dim")
    must_equal(config, "head_dim", rope_dim, "qk_rope_head_dim")
    q_rank = config.optional_integer("q_lora_rank", field="attention.q_rank", default=defaults.q_rank)
    if q_rank is None and not defaults.q_rank_optional:
        raise config.error("q_lora_rank", expected="a rank: the indexer reads the queries' latent", found="null")
    adjacent = config.boolean("rope_interleave", field="rope.pairing", default=True)
    config.record("attention.scale", "derived", "(qk_nope_head_dim + qk_rope_head_dim)^-0.5", nope + rope_dim)
    config.record("attention.latent_norm.eps", "convention", "the reference code's norms of latents", LATENT_EPS)
    return LatentAttention(
        heads=heads,
        q_rank=q_rank,
        kv_rank=config.integer("kv_lora_rank", field="attention.kv_rank", default=defaults.kv_rank),
        nope_dim=nope,
        rope_dim=rope_dim,
        v_dim=config.integer("v_head_dim", field="attention.v_dim", default=defaults.v_dim),
        scale=(nope + rope_dim) ** -0.5,
        rope=_rope(_settings(config), rope_dim, adjacent),
        latent_norm=Norm(LATENT_EPS),
        bias=config.boolean("attention_bias", field="attention.bias", default=False),
    )


def read_model(
    config: ConfigReader,
    family: str,
    defaults: LatentDefaults,
    *,
    count: int,
    indexers: Sequence[Indexer | None],
    prediction_copies: bool,
    listed: bool,
) -> Blueprint:
    """The model; `indexers` are those of the `count` layers, and the first is what a prediction layer has its own of.

    prediction_copies  each prediction layer stores its own copy of the embedding and of the head
    listed             the family has the keys `mlp_layer_types` and `mlp_bias`
    """
    ignore_common(config)
    config.use("model_type")
    if listed and config.given("mlp_bias") and config.boolean("mlp_bias"):
        raise config.error("mlp_bias", expected="false: no published model has such biases", found="true")
    config.use("mlp_bias")
    mixer = _mixer(config, defaults)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=defaults.eps))
    activation = config.choice("hidden_act", among=ACTIVATIONS, field="feed_forward.activation", default="silu")
    dense = Gated(
        config.integer("intermediate_size", field="feed_forward.width", default=defaults.width),
        activation,  # type: ignore[arg-type]
    )
    mixture = read_mixture(config, activation, defaults.mixture)  # type: ignore[arg-type]
    sparse = sparse_layers(config, count, defaults.dense, listed=listed)

    def layer(indexer: Indexer | None, is_sparse: bool) -> Layer:
        return Layer(
            mixer=replace(mixer, indexer=indexer),
            feed_forward=mixture if is_sparse else dense,
            mixer_norm=norm,
            feed_forward_norm=norm,
        )

    predictions = config.integer(
        "num_nextn_predict_layers", "num_mtp_layers", field="mtp.layers", default=defaults.predictions, minimum=0
    )
    if predictions > MAX_LAYERS:
        raise config.error("num_nextn_predict_layers", expected=f"at most {MAX_LAYERS}", found=predictions)
    config.record("mtp.copies", "convention", "of embedding and head, in the published files", prediction_copies)
    return Blueprint(
        family=family,
        vocabulary=config.integer("vocab_size", field="vocabulary", default=defaults.vocabulary),
        hidden=config.integer("hidden_size", field="hidden", default=defaults.hidden),
        max_context=config.integer("max_position_embeddings", field="max_context", default=defaults.max_context),
        embedding=Embedding(),
        layers=tuple(layer(indexer, kind) for indexer, kind in zip(indexers, sparse, strict=True)),
        final_norm=norm,
        head=Head(tied=config.boolean("tie_word_embeddings", field="head.tied", default=False)),
        mtp=MultiTokenPrediction((layer(indexers[0], True),) * predictions, prediction_copies, prediction_copies)
        if predictions
        else None,
        quantization=read_quantization(config, LATENT_NAMES, count, whole=_whole(indexers)),
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )


def _whole(indexers: Sequence[Indexer | None]) -> tuple[str, ...]:
    """The indexer's weights per head lie unquantised in the published FP8 files."""
    return ("indexer.weights",) if any(indexer is not None for indexer in indexers) else ()


def hub_layout(blueprint: Blueprint) -> Layout:
    """Names in the published safetensors files: experts one by one, prediction layers numbered on from the last."""
    return prediction_layers(per_expert(bound(blueprint, LATENT_NAMES), blueprint), blueprint)

"""MiniMax-M2: full attention with q/k norms over all heads at once, half of each head rotated, every layer a mixture.

Reference: transformers 5.24, models/minimax_m2/modeling_minimax_m2.py, MiniMaxM2ForCausalLM. The config speaks of
prediction layers, a wider feed-forward and a window that no file has and no code applies. Early files call the model
type `minimax`, which is also that of MiniMax-Text-01: the keys decide. GGUF files: architecture `minimax-m2`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import (
    ACTIVATIONS,
    FULL,
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
from plait.blueprint.families.fp8 import read_quantization
from plait.blueprint.families.gguf_keys import attention_of, linear_scaling
from plait.blueprint.families.routed import per_expert
from plait.blueprint.families.routed_gguf import ROUTED_GGUF_NAMES, mixture_keys, read_gguf_mixture
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.rope import read_rope
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Embedding,
    Head,
    Layer,
    Mixture,
    Norm,
    QKNorm,
    Rope,
    Router,
)
from plait.errors import UnsupportedError, fault

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/minimax_m2/modeling_minimax_m2.py MiniMaxM2ForCausalLM"

_THETA: Final = 5_000_000.0
_SIGMOID: Final = 2
# Keys that MiniMax-M2 has and MiniMax-Text-01 has not.
_OWN_KEYS: Final = ("qk_norm_type", "use_qk_norm", "use_routing_bias", "scoring_func")
# Factors on what each part adds to the residual stream, which M2 no longer has.
_BETAS: Final = ("layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta")
_OVER_ALL: Final = MappingProxyType({"per_layer": "all"})

_NAMES: Final = MappingProxyType(
    {
        **LLAMA_NAMES,
        "feed_forward.router": "block_sparse_moe.gate.weight",
        "feed_forward.router_bias": "block_sparse_moe.e_score_correction_bias",
        "feed_forward.experts.gate": "block_sparse_moe.experts.*.w1.weight",
        "feed_forward.experts.up": "block_sparse_moe.experts.*.w3.weight",
        "feed_forward.experts.down": "block_sparse_moe.experts.*.w2.weight",
    }
)


def _full_layers(config: ConfigReader, count: int) -> None:
    """Read the kinds of layers, all of which must be full attention; UnsupportedError: linear attention."""
    types = config.integers("attn_type_list", field="layers.kind", length=count)
    words = config.words("layer_types", field="layers.kind", length=count)
    linear = any(kind == 0 for kind in types or ()) or any(word != FULL for word in words or ())
    named = types is not None or words is not None or any(config.given(key) for key in _OWN_KEYS)
    if linear or (config.text("model_type") == "minimax" and not named):
        key = "layer_types" if words is not None else "attn_type_list"
        raise UnsupportedError(
            fault(
                f"key {config.dotted(key)!r}",
                file=config.file,
                expected="full attention on every layer (MiniMax-M2)",
                found="linear attention" if linear else "nothing that tells MiniMax-M2 from MiniMax-Text-01",
            )
        )
    if types is None and words is None:
        config.record("layers.kind", "default", "attn_type_list", "full attention on every layer")


def _rope(config: ConfigReader, head_dim: int) -> Rope:
    """`rotary_dim` in published files, the share of the head in newer ones."""
    stated = config.optional_integer("rotary_dim", field="rope.rotated")
    if stated is not None and stated > head_dim:
        raise config.error("rotary_dim", expected=f"at most head_dim, {head_dim}", found=stated)
    share = 1.0 if stated is None else stated / head_dim
    settings = read_rope(config, field="rope", default_theta=_THETA, default_share=share)
    if stated is not None and round(head_dim * settings.share) != stated:
        raise config.error(
            "rotary_dim",
            expected=f"head_dim * partial_rotary_factor, {head_dim * settings.share:g}",
            found=stated,
            advice="the two keys disagree",
        )
    rotated = int(head_dim * settings.share) if stated is None else stated
    if rotated % 2:
        raise config.error("rotary_dim", expected="an even number", found=rotated)
    pairs = rotated // 2
    return Rope(settings.theta, pairs, rotated, distance=pairs, scaling=settings.scaling)


def _mixture(config: ConfigReader) -> Mixture:
    config.irrelevant("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
    config.choice("scoring_func", among=MappingProxyType({"sigmoid": True}), field="router.scores", default="sigmoid")
    if config.given("shared_intermediate_size") and config.integer("shared_intermediate_size", minimum=0):
        raise config.error("shared_intermediate_size", expected="0: the family has no shared expert", found="a width")
    config.use("shared_intermediate_size")
    config.record("router.renormalise", "convention", "in the reference code", True)
    activation = config.choice("hidden_act", among=ACTIVATIONS, field="feed_forward.activation", default="silu")
    return Mixture(
        experts=config.integer("num_local_experts", "num_experts", field="experts.count", default=256),
        active=config.integer("num_experts_per_tok", field="experts.active", default=8),
        width=config.integer("intermediate_size", field="experts.width", default=1536),
        activation=activation,  # type: ignore[arg-type]
        router=Router(
            "sigmoid",
            renormalise=True,
            selection_bias=config.boolean("use_routing_bias", field="router.selection_bias", default=True),
        ),
    )


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `minimax_m2` config, or one of the early files that say `minimax`."""
    ignore_common(config)
    config.use("model_type")
    config.irrelevant("mlp_intermediate_size", "mtp_transformer_layers", "num_mtp_modules", "use_mtp", "sliding_window")
    for key in _BETAS:
        if config.number(key, default=1.0, positive=False) != 1.0:
            raise config.error(key, expected="1, as the family does not scale its residuals", found="another factor")
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=62)
    _full_layers(config, count)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-6))
    head_dim = config.integer("head_dim", field="attention.qk_dim", default=128)
    normed = config.boolean("use_qk_norm", field="attention.qk_norm", default=True)
    config.choice("qk_norm_type", among=_OVER_ALL, field="attention.qk_norm.over", default="per_layer")
    config.record("attention.scale", "derived", "head_dim^-0.5", head_dim)
    mixer = Attention(
        heads=config.integer("num_attention_heads", field="attention.heads", default=48),
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads", default=8),
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=head_dim**-0.5,
        rope=_rope(config, head_dim),
        qk_norm=QKNorm(norm, over="all") if normed else None,
    )
    return Blueprint(
        family="minimax_m2",
        vocabulary=config.integer("vocab_size", field="vocabulary", default=200_064),
        hidden=config.integer("hidden_size", field="hidden", default=3072),
        max_context=config.integer("max_position_embeddings", field="max_context", default=196_608),
        embedding=Embedding(),
        layers=(Layer(mixer, _mixture(config), norm, norm),) * count,
        final_norm=norm,
        head=Head(tied=config.boolean("tie_word_embeddings", field="head.tied", default=False)),
        quantization=read_quantization(config, _NAMES, count),
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return per_expert(bound(blueprint, _NAMES), blueprint)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata of the architecture `minimax-m2`."""
    hidden = meta.integer("embedding_length", field="hidden")
    count = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    heads, kv_heads, qk_dim, v_dim = gguf_attention_sizes(meta, hidden)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"))
    rotated = meta.integer("rope.dimension_count", field="rope.rotated", default=qk_dim, minimum=2)
    pairs = rotated // 2
    theta = meta.number("rope.freq_base", field="rope.theta", default=_THETA)
    normed = "blk.0.attn_q_norm.weight" in header.tensors or not header.tensors
    mixer = Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        scale=qk_dim**-0.5,
        rope=Rope(theta, pairs, 2 * pairs, distance=pairs, scaling=gguf_rope_scaling(meta, header)),
        qk_norm=QKNorm(norm, over="all") if normed else None,
    )
    # The format wants the key of dense layers, of which there are none; converters write the experts' width.
    meta.irrelevant("feed_forward_length")
    mixture = read_gguf_mixture(meta, header, block=0, default_scores=_SIGMOID, renormalise=True)
    return Blueprint(
        family="minimax_m2",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=hidden,
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(),
        layers=(Layer(mixer, mixture, norm, norm),) * count,
        final_norm=norm,
        head=Head(tied=bool(header.tensors) and "output.weight" not in header.tensors),
    )


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    full, mixture = attention_of(blueprint, window=False), blueprint.layers[0].feed_forward
    if full is None or full.rope is None or not isinstance(mixture, Mixture):
        raise UnsupportedError(fault("GGUF metadata", expected="full attention and mixtures", found="other parts"))
    return {
        "vocab_size": blueprint.vocabulary,
        "context_length": blueprint.max_context,
        "embedding_length": blueprint.hidden,
        "block_count": len(blueprint.layers),
        "feed_forward_length": mixture.width,
        "attention.head_count": full.heads,
        "attention.head_count_kv": full.kv_heads,
        "attention.key_length": full.qk_dim,
        "attention.value_length": full.v_dim,
        "attention.layer_norm_rms_epsilon": blueprint.final_norm.eps,
        "rope.dimension_count": full.rope.rotated,
        "rope.freq_base": full.rope.theta,
        **linear_scaling(full.rope),
        **mixture_keys(mixture),
    }


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return gguf_bindings(blueprint, ROUTED_GGUF_NAMES)

"""GLM-4.5 and GLM-4.5-Air: full attention with biases on q, k and v, half of each head rotated, then mixtures.

Reference: transformers 5.24, models/glm4_moe/modeling_glm4_moe.py, Glm4MoeForCausalLM;
https://arxiv.org/abs/2508.06471. GLM-4.5 has norms on queries and keys, Air has none. Published files hold one
multi-token-prediction layer with its own copies of the embedding and the head. GGUF files: architecture `glm4moe`.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
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
from plait.blueprint.families.fp8 import read_quantization
from plait.blueprint.families.gguf_keys import attention_of, linear_scaling
from plait.blueprint.families.routed import (
    ROUTED_NAMES,
    MixtureDefaults,
    per_expert,
    prediction_layers,
    read_mixture,
    sparse_layers,
)
from plait.blueprint.families.routed_gguf import (
    ROUTED_GGUF_NAMES,
    blocks,
    predictions,
    read_gguf_mixture,
    trunk_keys,
    with_predictions,
)
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Embedding,
    Gated,
    Head,
    Layer,
    MultiTokenPrediction,
    Norm,
    QKNorm,
    Rope,
)

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/glm4_moe/modeling_glm4_moe.py Glm4MoeForCausalLM"

# Class defaults of Glm4MoeConfig, which are Air's sizes.
_MIXTURE: Final = MixtureDefaults(experts=128, active=8, width=1408, shared=1, scale=1.0, groups=1, kept_groups=1)
_DENSE: Final = 1
_ROTATED_SHARE: Final = 0.5
_PREDICTIONS: Final = 1
_SIGMOID: Final = 2

_NAMES: Final = MappingProxyType({**LLAMA_NAMES, **ROUTED_NAMES})
# llama.cpp calls the norm before the feed-forward by its name in the published files, which speaks of the attention.
_GGUF_NAMES: Final = MappingProxyType({**ROUTED_GGUF_NAMES, "feed_forward_norm": "post_attention_norm.weight"})


def _attention(config: ConfigReader, norm: Norm, hidden: int) -> Attention:
    heads = config.integer("num_attention_heads", field="attention.heads", default=96)
    head_dim = config.integer("head_dim", field="attention.qk_dim", default=max(hidden // heads, 1))
    settings = read_rope(config, field="rope", default_theta=10_000.0, default_share=_ROTATED_SHARE)
    normed = config.boolean("use_qk_norm", field="attention.qk_norm", default=False)
    config.record("attention.scale", "derived", "head_dim^-0.5", head_dim)
    return Attention(
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads", default=8),
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=head_dim**-0.5,
        rope=half_rope(settings, head_dim),
        qk_norm=QKNorm(norm) if normed else None,
        qkv_bias=config.boolean("attention_bias", field="attention.bias", default=False),
    )


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `glm4_moe` config."""
    ignore_common(config)
    config.use("model_type")
    hidden = config.integer("hidden_size", field="hidden", default=4096)
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=46)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-5))
    activation = config.choice("hidden_act", among=ACTIVATIONS, field="feed_forward.activation", default="silu")
    mixture = read_mixture(config, activation, _MIXTURE)  # type: ignore[arg-type]
    sparse = Layer(_attention(config, norm, hidden), mixture, norm, norm)
    width = config.integer("intermediate_size", field="feed_forward.width", default=10_944)
    dense = replace(sparse, feed_forward=Gated(width, activation))  # type: ignore[arg-type]
    extra = config.integer(
        "num_nextn_predict_layers", "num_mtp_layers", field="mtp.layers", default=_PREDICTIONS, minimum=0
    )
    if extra > MAX_LAYERS:
        raise config.error("num_nextn_predict_layers", expected=f"at most {MAX_LAYERS}", found=extra)
    config.record("mtp.copies", "convention", "of embedding and head, in the published files", True)
    return Blueprint(
        family="glm4_moe",
        vocabulary=config.integer("vocab_size", field="vocabulary", default=151_552),
        hidden=hidden,
        max_context=config.integer("max_position_embeddings", field="max_context", default=131_072),
        embedding=Embedding(),
        layers=tuple(sparse if kind else dense for kind in sparse_layers(config, count, _DENSE, listed=False)),
        final_norm=norm,
        head=Head(tied=config.boolean("tie_word_embeddings", field="head.tied", default=False)),
        mtp=MultiTokenPrediction((sparse,) * extra, copies_embedding=True, copies_head=True) if extra else None,
        quantization=read_quantization(config, _NAMES, count),
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return prediction_layers(per_expert(bound(blueprint, _NAMES), blueprint), blueprint)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata of the architecture `glm4moe`; biases and q/k norms show in the tensors."""
    hidden = meta.integer("embedding_length", field="hidden")
    count, extra = blocks(meta)
    heads, kv_heads, qk_dim, v_dim = gguf_attention_sizes(meta, hidden)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"))
    half = int(qk_dim * _ROTATED_SHARE)
    pairs = meta.integer("rope.dimension_count", field="rope.rotated", default=half, minimum=2) // 2
    theta = meta.number("rope.freq_base", field="rope.theta", default=10_000.0)
    mixer = Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        scale=qk_dim**-0.5,
        rope=Rope(theta, pairs, 2 * pairs, distance=pairs, scaling=gguf_rope_scaling(meta, header)),
        qk_norm=QKNorm(norm) if "blk.0.attn_q_norm.weight" in header.tensors else None,
        qkv_bias="blk.0.attn_q.bias" in header.tensors or not header.tensors,
    )
    first = meta.integer("leading_dense_block_count", field="layers.dense", default=0, minimum=0)
    mixture = read_gguf_mixture(meta, header, block=min(first, count - 1), default_scores=_SIGMOID)
    sparse = Layer(mixer, mixture, norm, norm)
    dense = replace(sparse, feed_forward=Gated(meta.integer("feed_forward_length", field="feed_forward.width"), "silu"))
    return Blueprint(
        family="glm4_moe",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=hidden,
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(),
        layers=tuple(dense if i < first else sparse for i in range(count)),
        final_norm=norm,
        head=Head(tied=bool(header.tensors) and "output.weight" not in header.tensors),
        mtp=predictions(header, sparse, count, extra),
    )


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    keys = trunk_keys(blueprint)
    full = attention_of(blueprint, window=False)
    if full is not None and full.rope is not None:
        keys |= {
            "attention.head_count_kv": full.kv_heads,
            "attention.key_length": full.qk_dim,
            "attention.value_length": full.v_dim,
            "rope.dimension_count": full.rope.rotated,
            "rope.freq_base": full.rope.theta,
            **linear_scaling(full.rope),
        }
    return keys


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return with_predictions(gguf_bindings(blueprint, _GGUF_NAMES), blueprint)

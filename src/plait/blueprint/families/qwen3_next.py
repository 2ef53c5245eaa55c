"""Qwen3-Next: Gated DeltaNet and full attention 3 to 1, experts with a gated shared one.

Reference: transformers 5.24, models/qwen3_next/modeling_qwen3_next.py, Qwen3NextForCausalLM;
https://arxiv.org/abs/2412.06464 (Gated DeltaNet). Defaults are those of Qwen3NextConfig.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from plait.blueprint.families import qwen_gguf, qwen_layout
from plait.blueprint.families.common import FULL, ignore_common, special_tokens, stored_format
from plait.blueprint.families.qwen_fp8 import declared_quantization
from plait.blueprint.families.qwen_parts import delta_net, feed_forwards, gated_attention, hybrid_kinds, mixture
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Blueprint, Embedding, Head, Layer, MultiTokenPrediction, Norm

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/qwen3_next/modeling_qwen3_next.py Qwen3NextForCausalLM"


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `qwen3_next` config. Its files hold one multi-token-prediction layer no key speaks of."""
    ignore_common(config)
    config.use("model_type")
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=48)
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-6), offset=1.0)
    kinds = hybrid_kinds(config, count)
    full = gated_attention(config, norm, heads=16, kv_heads=2, gated=False)
    delta = delta_net(config, norm)
    renormalise = config.boolean("norm_topk_prob", field="router.renormalise", default=True)
    experts = partial(
        mixture, config, experts=512, active=10, width=512, renormalise=renormalise, shared_width=512
    )
    parts = feed_forwards(config, count, width=5632, experts=experts)
    extra = config.integer("mtp_num_hidden_layers", field="mtp.layers", default=1, minimum=0)
    if not config.given("mtp_num_hidden_layers"):
        config.record("mtp.layers", "convention", "one in every published file", extra)
    prediction = (Layer(full, parts[-1], norm, norm),) * extra
    blueprint = Blueprint(
        family="qwen3_next",
        vocabulary=config.integer("vocab_size", field="vocabulary", default=151_936),
        hidden=config.integer("hidden_size", field="hidden", default=2048),
        max_context=config.integer("max_position_embeddings", field="max_context", default=32_768),
        embedding=Embedding(),
        layers=tuple(
            Layer(full if kind == FULL else delta, part, norm, norm) for kind, part in zip(kinds, parts, strict=True)
        ),
        final_norm=norm,
        head=Head(tied=config.boolean("tie_word_embeddings", field="head.tied", default=False)),
        mtp=MultiTokenPrediction(prediction, False, False, one_projection=True) if prediction else None,
        tokens=special_tokens(config),
        stored_format=stored_format(config),
    )
    return declared_quantization(config, blueprint, layout)


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files: an expert a tensor, DeltaNet projections fused key head by key head."""
    return qwen_layout.hub_layout(blueprint, key_head_projections=True)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata."""
    return qwen_gguf.parse_hybrid(meta, header, "qwen3_next", experts=True, images=False)


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the text part back."""
    return qwen_gguf.hybrid_keys(blueprint)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return qwen_layout.gguf_layout(blueprint, "next")

"""Qwen3.5 and 3.6 with experts: as Qwen3.5, with 256 experts of which each token takes 8, and a gated shared one.

Reference: transformers 5.24, models/qwen3_5_moe/modeling_qwen3_5_moe.py, Qwen3_5MoeForConditionalGeneration (text
alone: Qwen3_5MoeForCausalLM). Defaults are those of Qwen3_5MoeTextConfig.
"""

from __future__ import annotations

from typing import Final

from plait.blueprint.families import qwen3_5, qwen_gguf, qwen_layout
from plait.blueprint.families.qwen_fp8 import declared_quantization
from plait.blueprint.families.qwen_parts import mixture
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Blueprint, FeedForward

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/qwen3_5_moe/modeling_qwen3_5_moe.py Qwen3_5MoeForConditionalGeneration"


def _experts(config: ConfigReader) -> FeedForward:
    if config.indices("mlp_only_layers"):
        raise config.error("mlp_only_layers", expected="[], as all layers have experts", found="layers")
    config.irrelevant("intermediate_size")  # no dense layers
    config.record("router.renormalise", "convention", "always in this family", True)
    return mixture(config, experts=256, active=8, width=512, renormalise=True, shared_width=512)


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from `qwen3_5_moe` (text under `text_config`, vision tower) or `qwen3_5_moe_text` (text alone)."""

    def text(inner: ConfigReader, outer: ConfigReader) -> Blueprint:
        sizes = {"hidden": 2048, "layers": 40, "kv_heads": 2}
        return qwen3_5.text_model(inner, outer, "qwen3_5_moe", defaults=sizes, feed_forward=_experts)

    return declared_quantization(config, qwen3_5.nested(config, text), layout)


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files: the experts of a layer in two tensors, in quantised files an expert a tensor."""
    return qwen_layout.hub_layout(blueprint, fused_experts=blueprint.quantization is None)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata."""
    return qwen_gguf.parse_hybrid(meta, header, "qwen3_5_moe", experts=True, images=True)


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the text part back."""
    return qwen_gguf.hybrid_keys(blueprint)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return qwen_layout.gguf_layout(blueprint, "hybrid")

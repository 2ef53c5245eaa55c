"""Qwen3.5 and 3.6: Gated DeltaNet and full attention 3 to 1, dense layers, a vision tower.

Reference: transformers 5.24, models/qwen3_5/modeling_qwen3_5.py, Qwen3_5ForConditionalGeneration (text alone:
Qwen3_5ForCausalLM); https://arxiv.org/abs/2412.06464 (Gated DeltaNet). Defaults are those of Qwen3_5TextConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from plait.blueprint.families import qwen_gguf, qwen_layout
from plait.blueprint.families.common import FULL, ignore_common, nested_format, special_tokens, tied_head
from plait.blueprint.families.qwen_fp8 import declared_quantization
from plait.blueprint.families.qwen_parts import activation, delta_net, gated_attention, hybrid_kinds, image_axes
from plait.blueprint.families.qwen_vision import vision_tower
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import (
    Blueprint,
    Embedding,
    FeedForward,
    Gated,
    Head,
    Layer,
    MultiTokenPrediction,
    Norm,
)

__all__ = [
    "REFERENCE",
    "gguf_layout",
    "gguf_metadata",
    "layout",
    "nested",
    "parse",
    "parse_gguf",
    "text_model",
]

REFERENCE: Final = "transformers 5.24 models/qwen3_5/modeling_qwen3_5.py Qwen3_5ForConditionalGeneration"


def _dense(config: ConfigReader) -> FeedForward:
    config.irrelevant("mlp_only_layers")  # a leftover: all layers are dense
    width = config.integer("intermediate_size", field="feed_forward.width", default=12_288)
    return Gated(width, activation(config))


def text_model(
    config: ConfigReader,
    outer: ConfigReader,
    family: str,
    *,
    defaults: Mapping[str, int],
    feed_forward: Callable[[ConfigReader], FeedForward],
) -> Blueprint:
    """The text part, which the dense models and those with experts share but for the feed-forward.

    outer     where the keys of the whole model stand; `config` itself for text alone
    defaults  hidden, layers, kv_heads
    """
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=defaults["layers"])
    norm = Norm(config.number("rms_norm_eps", field="norm.eps", default=1e-6), offset=1.0)
    kinds = hybrid_kinds(config, count)
    full = gated_attention(config, norm, heads=16, kv_heads=defaults["kv_heads"])
    assert full.rope is not None
    full = replace(full, rope=image_axes(config, full.rope))
    delta = delta_net(config, norm)
    part = feed_forward(config)
    extra = config.integer(
        "mtp_num_hidden_layers", field="mtp.layers", default=0, minimum=0, maximum=MAX_LAYERS
    )
    own = config.boolean("mtp_use_dedicated_embeddings", field="mtp.copies_embedding", default=False)
    prediction = (Layer(full, part, norm, norm),) * extra
    return Blueprint(
        family=family,
        vocabulary=config.integer("vocab_size", field="vocabulary", default=248_320),
        hidden=config.integer("hidden_size", field="hidden", default=defaults["hidden"]),
        max_context=config.integer("max_position_embeddings", field="max_context", default=32_768),
        embedding=Embedding(),
        layers=tuple(Layer(full if kind == FULL else delta, part, norm, norm) for kind in kinds),
        final_norm=norm,
        head=Head(tied=tied_head(config, outer, default=False)),
        mtp=MultiTokenPrediction(prediction, own, False, one_projection=True) if prediction else None,
        tokens=special_tokens(config),
        stored_format=nested_format(config, outer),
    )


def nested(config: ConfigReader, text: Callable[[ConfigReader, ConfigReader], Blueprint]) -> Blueprint:
    """A model of text alone, or of text under `text_config` and a tower under `vision_config`; `text` reads the text.

    The outer `tie_word_embeddings` counts, as the head is the whole model's; a dtype may stand outside or inside.
    """
    ignore_common(config)
    config.use("model_type")
    inner = config.section("text_config")
    if inner is None:
        return text(config, config)
    ignore_common(inner)
    inner.use("model_type")
    config.irrelevant(
        "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "language_model_only"
    )
    blueprint = text(inner, config)
    config.irrelevant("bos_token_id", "eos_token_id", "pad_token_id")
    vision = config.section("vision_config")
    if vision is not None:
        blueprint = replace(blueprint, towers=(vision_tower(vision),))
    return blueprint


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from `qwen3_5` (text under `text_config`, vision tower) or `qwen3_5_text` (text alone)."""

    def text(inner: ConfigReader, outer: ConfigReader) -> Blueprint:
        sizes = {"hidden": 4096, "layers": 32, "kv_heads": 4}
        return text_model(inner, outer, "qwen3_5", defaults=sizes, feed_forward=_dense)

    return declared_quantization(config, nested(config, text), layout)


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return qwen_layout.hub_layout(blueprint)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata."""
    return qwen_gguf.parse_hybrid(meta, header, "qwen3_5", experts=False, images=True)


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the text part back."""
    return qwen_gguf.hybrid_keys(blueprint)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return qwen_layout.gguf_layout(blueprint, "hybrid")

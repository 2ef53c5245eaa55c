"""Qwen3 dense: full attention with q/k norms, SwiGLU; windows on upper layers where the config turns them on.

Reference: transformers 5.24, models/qwen3/modeling_qwen3.py, Qwen3ForCausalLM; https://arxiv.org/abs/2505.09388.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families import llama
from plait.blueprint.families.common import (
    FULL,
    LLAMA_NAMES,
    SLIDING,
    bound,
    gguf_bindings,
    layer_kinds,
)
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Attention, Blueprint, QKNorm

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/qwen3/modeling_qwen3.py Qwen3ForCausalLM"


def _with_norms(blueprint: Blueprint) -> Attention:
    """The mixer all layers of a plain model share, with norms on queries and keys."""
    mixer = blueprint.layers[0].mixer
    assert isinstance(mixer, Attention)
    return replace(mixer, qk_norm=QKNorm(blueprint.final_norm))


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `qwen3` config."""
    plain = llama.plain(config, default_head_dim=128, default_kv_heads=32)
    count = len(plain.layers)
    on = config.boolean("use_sliding_window", field="attention.window.on", default=False)
    window = config.optional_integer("sliding_window", field="attention.window", default=4096) if on else None
    first = config.integer("max_window_layers", default=28, minimum=0)
    config.use("sliding_window", "max_window_layers")
    default = tuple(SLIDING if window is not None and i >= first else FULL for i in range(count))
    kinds = layer_kinds(config, count, default, "windows from max_window_layers on, if use_sliding_window")
    if SLIDING in kinds and window is None:
        raise config.error(
            "layer_types", expected="use_sliding_window and sliding_window beside window layers", found="neither"
        )
    full = _with_norms(plain)
    sliding = replace(full, window=window)
    return replace(
        plain,
        family="qwen3",
        layers=tuple(
            replace(layer, mixer=sliding if kind == SLIDING else full)
            for layer, kind in zip(plain.layers, kinds, strict=True)
        ),
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return bound(blueprint, LLAMA_NAMES)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata; such files have full attention throughout."""
    plain = llama.parse_gguf(meta, header)
    layer = replace(plain.layers[0], mixer=_with_norms(plain))
    return replace(plain, family="qwen3", layers=(layer,) * len(plain.layers))


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    return llama.gguf_metadata(blueprint)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return gguf_bindings(blueprint, MappingProxyType({}))

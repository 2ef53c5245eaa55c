"""DeepSeek-V3.2: DeepSeek-V3 with sparse attention, an indexer on every layer choosing 2,048 keys per query.

Reference: transformers 5.24, models/deepseek_v32/modeling_deepseek_v32.py, DeepseekV32ForCausalLM;
https://arxiv.org/abs/2512.02556. The indexer rotates the first 64 of its 128 dims in half-split pairs, while the
attention rotates adjacent pairs. The original's Hadamard transform of index queries and keys is orthogonal and left
out by the reference. llama.cpp's constants (gguf 0.19) have no architecture for it, so there are no GGUF files here.
"""

from __future__ import annotations

from typing import Final, NoReturn

from plait.blueprint.families.latent import LatentDefaults, hub_layout, read_indexer, read_model
from plait.blueprint.families.routed import MixtureDefaults
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Blueprint
from plait.errors import UnsupportedError, fault

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "indexed_kinds", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/deepseek_v32/modeling_deepseek_v32.py DeepseekV32ForCausalLM"

# Words of `layer_types` for layers with an indexer, new and old.
_INDEXED: Final = ("indexed_attention", "deepseek_sparse_attention")

# Class defaults of DeepseekV32Config, which knows no prediction layers.
_DEFAULTS: Final = LatentDefaults(
    vocabulary=129_280,
    hidden=7168,
    layers=61,
    dense=3,
    width=18_432,
    max_context=163_840,
    eps=1e-6,
    heads=128,
    q_rank=1536,
    kv_rank=512,
    nope_dim=128,
    rope_dim=64,
    v_dim=128,
    q_rank_optional=False,
    predictions=0,
    mixture=MixtureDefaults(experts=256, active=8, width=2048, shared=1, scale=2.5, groups=8, kept_groups=4),
)


def indexed_kinds(config: ConfigReader, count: int) -> None:
    """Read `layer_types`, which has one word only: every layer is sparse. ConfigError: another word."""
    for index, word in enumerate(config.words("layer_types", field="layers.kind", length=count) or ()):
        if word not in _INDEXED:
            raise config.error("layer_types", expected=_INDEXED[0], found=f"{word!r} at layer {index}")


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `deepseek_v32` config."""
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=_DEFAULTS.layers)
    indexed_kinds(config, count)
    rope_dim = config.integer("qk_rope_head_dim", default=_DEFAULTS.rope_dim, minimum=2)
    indexer = read_indexer(config, rope_dim, heads=64, interleaved=False)
    return read_model(
        config,
        "deepseek_v32",
        _DEFAULTS,
        count=count,
        indexers=(indexer,) * count,
        prediction_copies=True,
        listed=True,
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return hub_layout(blueprint)


def _no_gguf(file: object) -> NoReturn:
    what = "GGUF files of DeepSeek-V3.2"
    raise UnsupportedError(fault(f"{file}: {what}", expected="an architecture of llama.cpp for it", found="none"))


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """UnsupportedError: there are no such files."""
    _no_gguf(meta.file)


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """UnsupportedError: there are no such files."""
    _no_gguf(blueprint.name or blueprint.family)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """UnsupportedError: there are no such files."""
    _no_gguf(blueprint.name or blueprint.family)

"""DeepSeek-V3: latent attention, three dense layers, then mixtures with group-limited routing; YaRN.

Reference: transformers 5.24, models/deepseek_v3/modeling_deepseek_v3.py, DeepseekV3ForCausalLM;
https://arxiv.org/abs/2412.19437. Published files hold one multi-token-prediction layer with its own copies of the
embedding and the head. GGUF files are of the architecture `deepseek2`.
"""

from __future__ import annotations

from typing import Final

from plait.blueprint.families.latent import LatentDefaults, hub_layout, read_model
from plait.blueprint.families.latent_gguf import latent_gguf_layout, latent_gguf_metadata, parse_latent_gguf
from plait.blueprint.families.routed import MixtureDefaults
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Blueprint

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/deepseek_v3/modeling_deepseek_v3.py DeepseekV3ForCausalLM"

# Class defaults of DeepseekV3Config.
_DEFAULTS: Final = LatentDefaults(
    vocabulary=129_280,
    hidden=7168,
    layers=61,
    dense=3,
    width=18_432,
    max_context=4096,
    eps=1e-6,
    heads=128,
    q_rank=1536,
    kv_rank=512,
    nope_dim=128,
    rope_dim=64,
    v_dim=128,
    q_rank_optional=True,
    predictions=1,
    mixture=MixtureDefaults(experts=256, active=8, width=2048, shared=1, scale=2.5, groups=8, kept_groups=4),
)


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `deepseek_v3` config."""
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=_DEFAULTS.layers)
    return read_model(
        config,
        "deepseek_v3",
        _DEFAULTS,
        count=count,
        indexers=(None,) * count,
        prediction_copies=True,
        listed=False,
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return hub_layout(blueprint)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata of the architecture `deepseek2`."""
    return parse_latent_gguf(meta, header, "deepseek_v3", indexed=False)


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    return latent_gguf_metadata(blueprint)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return latent_gguf_layout(blueprint)

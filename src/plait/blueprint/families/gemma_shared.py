"""What Gemma 3n and Gemma 4 have in common: reused keys and values, per-layer embeddings, norms that carry the scale.

Reference: transformers 5.24, models/gemma3n/modeling_gemma3n.py and models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.gemma3 import SANDWICH_NAMES
from plait.blueprint.layout import Ignored
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import Attention, Blueprint, Norm, PerLayerEmbeddings, SpecialTokens
from plait.errors import ConfigError, fault

__all__ = [
    "GGUF_LAYER_NAMES",
    "GGUF_TOP_NAMES",
    "HUB_LAYER_NAMES",
    "HUB_TOP_NAMES",
    "ROOT",
    "inner_and_outer",
    "kv_sources",
    "merged_tokens",
    "per_layer_embeddings",
    "unused_kv",
]

# What the names of text tensors may begin with, as a regular expression.
ROOT: Final = r"(?:model\.language_model\.|language_model\.model\.|model\.)?"

HUB_TOP_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "embedding": "{body}embed_tokens.weight",
        "final_norm": "{body}norm.weight",
        "head": "{head}lm_head.weight",
        "per_layer_embedding": "{body}embed_tokens_per_layer.weight",
        "per_layer_projection": "{body}per_layer_model_projection.weight",
        "per_layer_norm": "{body}per_layer_projection_norm.weight",
    }
)
HUB_LAYER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **SANDWICH_NAMES,
        "per_layer_input.gate": "per_layer_input_gate.weight",
        "per_layer_input.projection": "per_layer_projection.weight",
        "per_layer_input.norm": "post_per_layer_input_norm.weight",
    }
)
GGUF_TOP_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "embedding": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "head": "output.weight",
        "per_layer_embedding": "per_layer_token_embd.weight",
        "per_layer_projection": "per_layer_model_proj.weight",
        "per_layer_norm": "per_layer_proj_norm.weight",
    }
)
GGUF_LAYER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "per_layer_input.gate": "inp_gate.weight",
        "per_layer_input.projection": "proj.weight",
        "per_layer_input.norm": "post_norm.weight",
    }
)


def kv_sources(kinds: Sequence[str], shared: int, *, file: str, key: str) -> tuple[int | None, ...]:
    """For each layer the layer whose keys and values it reads, None for its own.

    The last `shared` layers read those of the last layer of their own kind before them. ConfigError, naming `key`:
    there is none.
    """
    first = len(kinds) - shared
    last = {kind: index for index, kind in enumerate(kinds[: max(first, 0)])}
    for kind in kinds[max(first, 0) :]:
        if kind not in last:
            raise ConfigError(
                fault(
                    f"key {key!r}",
                    file=file,
                    expected=f"a {kind} layer with keys and values of its own before the shared ones",
                    found=f"{shared} of {len(kinds)} layers shared",
                )
            )
    return tuple(None if index < first else last[kind] for index, kind in enumerate(kinds))


def per_layer_embeddings(hidden: int, vocabulary: int, dim: int, activation: str, eps: float) -> PerLayerEmbeddings:
    """Per-layer embeddings with the factors all Gemmas use."""
    return PerLayerEmbeddings(
        vocabulary=vocabulary,
        dim=dim,
        activation=activation,
        token_scale=dim**0.5,
        projection_scale=hidden**-0.5,
        combine_scale=2.0**-0.5,
        norm=Norm(eps),
    )


def unused_kv(blueprint: Blueprint) -> tuple[Ignored, ...]:
    """Key and value weights that files may hold for layers which read another layer's keys and values."""
    layers = [
        str(index)
        for index, layer in enumerate(blueprint.layers)
        if isinstance(layer.mixer, Attention) and layer.mixer.kv_source is not None
    ]
    if not layers:
        return ()
    which = "|".join(layers)
    reason = "keys and values of a layer that reads another layer's"
    return (
        Ignored(rf"{ROOT}layers\.(?:{which})\.self_attn\.(?:[kv]_proj\.(?:weight|bias)|[kv]_norm\.weight)", reason),
        Ignored(rf"blk\.(?:{which})\.(?:attn_[kv]\.(?:weight|bias)|attn_[kv]_norm\.weight)", reason),
    )


def inner_and_outer(config: ConfigReader) -> tuple[ConfigReader, ConfigReader]:
    """The keys of the text model and the keys around them, which are the same where the config is the text model's."""
    nested = config.section("text_config")
    if nested is None:
        return config, config
    return nested, config


def merged_tokens(text: ConfigReader, outer: ConfigReader) -> SpecialTokens:
    """Token ids of the keys around the text model; what they leave out, from the text model's."""

    def ids(key: str) -> tuple[int, ...]:
        inner = text.token_ids(key)
        return outer.token_ids(key) or inner

    bos, pad = ids("bos_token_id"), ids("pad_token_id")
    return SpecialTokens(bos[0] if bos else None, ids("eos_token_id"), pad[0] if pad else None)

"""GLM-5: latent attention of 192 + 64 dims with sparse attention; the indexer's choice may serve several layers.

Reference: transformers 5.24, models/glm_moe_dsa/modeling_glm_moe_dsa.py, GlmMoeDsaForCausalLM;
https://arxiv.org/abs/2602.15763, and https://arxiv.org/abs/2603.12201 for the sharing. Unlike DeepSeek-V3.2's, the
indexer rotates adjacent pairs. Published files hold one multi-token-prediction layer without copies of the embedding
or the head. GGUF files are of the architecture `glm-dsa`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.deepseek_v32 import indexed_kinds
from plait.blueprint.families.latent import LatentDefaults, hub_layout, read_indexer, read_model
from plait.blueprint.families.latent_gguf import latent_gguf_layout, latent_gguf_metadata, parse_latent_gguf
from plait.blueprint.families.routed import MixtureDefaults
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Blueprint

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = "transformers 5.24 models/glm_moe_dsa/modeling_glm_moe_dsa.py GlmMoeDsaForCausalLM"

_FULL: Final = "full"
_SHARED: Final = "shared"
_LETTERS: Final = MappingProxyType({"F": _FULL, "S": _SHARED})
# Keys of GlmMoeDsaConfig that it does not keep, with what it assumes for them.
_FREQUENCY: Final = 1
_OFFSET: Final = 2

# Class defaults of GlmMoeDsaConfig, which knows no prediction layers.
_DEFAULTS: Final = LatentDefaults(
    vocabulary=154_880,
    hidden=6144,
    layers=78,
    dense=3,
    width=12_288,
    max_context=202_752,
    eps=1e-5,
    heads=64,
    q_rank=2048,
    kv_rank=512,
    nope_dim=192,
    rope_dim=64,
    v_dim=256,
    q_rank_optional=False,
    predictions=0,
    mixture=MixtureDefaults(experts=256, active=8, width=2048, shared=1, scale=2.5, groups=1, kept_groups=1),
)


def _spelled(config: ConfigReader, count: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kinds of indexers in each spelling that the config has: (key, kinds)."""
    listed = config.words("indexer_types", field="indexer.kinds", length=count)
    if listed is not None:
        yield "indexer_types", listed
    if config.given("index_topk_pattern"):
        yield "index_topk_pattern", _pattern(config, count)
    if config.given("index_topk_freq") or config.given("index_skip_topk_offset"):
        every = max(config.integer("index_topk_freq", field="indexer.frequency", default=_FREQUENCY, minimum=0), 1)
        offset = config.integer("index_skip_topk_offset", field="indexer.offset", default=_OFFSET, minimum=0)
        kinds = tuple(_FULL if max(i - offset + 1, 0) % every == 0 else _SHARED for i in range(count))
        yield "index_topk_freq", kinds
    config.use("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")


def _pattern(config: ConfigReader, count: int) -> tuple[str, ...]:
    """`index_topk_pattern`: a string of F and S, or a list of words."""
    if not config.is_text("index_topk_pattern"):
        return config.words("index_topk_pattern", field="indexer.kinds", length=count) or ()
    letters = config.text("index_topk_pattern", field="indexer.kinds")
    if len(letters) != count or not set(letters) <= _LETTERS.keys():
        raise config.error("index_topk_pattern", expected=f"{count} letters F or S", found=repr(letters))
    return tuple(_LETTERS[letter] for letter in letters)


def _sources(config: ConfigReader, count: int) -> tuple[int | None, ...]:
    """For each layer the layer whose choice of keys it uses, None where it has an indexer of its own."""
    spelled = tuple(_spelled(config, count))
    kinds = spelled[0][1] if spelled else (_FULL,) * count
    if not spelled:
        config.record("indexer.kinds", "default", config.dotted("indexer_types"), "an own indexer on every layer")
    for key, other in spelled[1:]:
        if other != kinds:
            expected = f"what {config.dotted(spelled[0][0])!r} says"
            raise config.error(key, expected=expected, found="another pattern", advice="the two keys disagree")
    sources: list[int | None] = []
    last: int | None = None
    for index, kind in enumerate(kinds):
        if kind == _FULL:
            last = index
            sources.append(None)
        elif kind != _SHARED:
            raise config.error(spelled[0][0], expected="full or shared", found=f"{kind!r} at layer {index}")
        elif last is None:
            raise config.error(spelled[0][0], expected="full at layer 0, before any that shares", found=_SHARED)
        else:
            sources.append(last)
    return tuple(sources)


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from a `glm_moe_dsa` config."""
    count = config.integer("num_hidden_layers", field="layers", maximum=MAX_LAYERS, default=_DEFAULTS.layers)
    indexed_kinds(config, count)
    rope_dim = config.integer("qk_rope_head_dim", default=_DEFAULTS.rope_dim, minimum=2)
    own = read_indexer(config, rope_dim, heads=32, interleaved=True)
    indexers = tuple(replace(own, source=source) for source in _sources(config, count))
    return read_model(
        config,
        "glm_moe_dsa",
        _DEFAULTS,
        count=count,
        indexers=indexers,
        prediction_copies=False,
        listed=True,
    )


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return hub_layout(blueprint)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata of the architecture `glm-dsa`."""
    return parse_latent_gguf(meta, header, "glm_moe_dsa", indexed=True)


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    return latent_gguf_metadata(blueprint)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return latent_gguf_layout(blueprint)

"""Latent attention in GGUF files (architectures `deepseek2` and `glm-dsa`).

llama.cpp runs latent attention absorbed: the metadata describe one KV head of kv_rank + rope_dim, and the expansion
of the latent lies in two tensors, that of the keys turned. Older files hold it as one, with the sizes of whole heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import gguf_bindings, gguf_vocabulary
from plait.blueprint.families.latent import INDEX_NORM, LATENT_EPS, adjacent_rope
from plait.blueprint.families.routed_gguf import (
    ROUTED_GGUF_NAMES,
    blocks,
    predictions,
    read_gguf_mixture,
    trunk_keys,
    with_predictions,
)
from plait.blueprint.layout import AbsorbedKeys, Binding, Layout
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import (
    Blueprint,
    Embedding,
    Gated,
    Head,
    Indexer,
    LatentAttention,
    Layer,
    Mixture,
    Norm,
    Rope,
    YarnScaling,
)
from plait.errors import UnsupportedError, fault

__all__ = ["latent_gguf_layout", "latent_gguf_metadata", "parse_latent_gguf"]

_EXPANSION: Final = "attn_kv_b.weight"
_SIGMOID: Final = 2
_SOFTMAX: Final = 1
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **ROUTED_GGUF_NAMES,
        "attention.query": "attn_q.weight",
        "attention.query_down": "attn_q_a.weight",
        "attention.query_latent_norm": "attn_q_a_norm.weight",
        "attention.query_up": "attn_q_b.weight",
        "attention.key_value_down": "attn_kv_a_mqa.weight",
        "attention.key_value_norm": "attn_kv_a_norm.weight",
        "attention.key_value_up": _EXPANSION,
        "attention.indexer.query": "indexer.attn_q_b.weight",
        "attention.indexer.key": "indexer.attn_k.weight",
        "attention.indexer.key_norm": "indexer.k_norm.weight",
        "attention.indexer.key_norm_bias": "indexer.k_norm.bias",
        "attention.indexer.weights": "indexer.proj.weight",
    }
)


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _scaling(meta: ConfigReader) -> YarnScaling | None:
    """YaRN. `yarn_log_multiplier` is a tenth of DeepSeek's mscale_all_dim; the scale of cos and sin is then 1."""
    meta.irrelevant("rope.scaling.finetuned")
    kind = meta.text("rope.scaling.type", field="rope.scaling", default="none")
    if kind == "none":
        return None
    if kind != "yarn":
        what = f"key {meta.dotted('rope.scaling.type')!r}"
        raise UnsupportedError(fault(what, file=meta.file, expected="none or yarn", found=repr(kind)))
    factor = meta.number("rope.scaling.factor", field="rope.factor")
    multiplier = meta.optional_number("rope.scaling.yarn_log_multiplier", field="rope.softmax_scale")
    # Stored in float32: nine digits give back the number that was written.
    mscale = round(multiplier * 10, 9) if multiplier is not None else 0.0
    plain = 1.0 if mscale else _magnitude(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_context=meta.integer("rope.scaling.original_context_length", field="rope.original_context"),
        beta_fast=meta.number("rope.scaling.yarn_beta_fast", field="rope.beta_fast", default=32.0),
        beta_slow=meta.number("rope.scaling.yarn_beta_slow", field="rope.beta_slow", default=1.0),
        attention_factor=meta.number("rope.scaling.yarn_attn_factor", field="rope.attention_factor", default=plain),
        softmax_scale=_magnitude(factor, mscale) ** 2 if mscale else 1.0,
    )


def _sizes(meta: ConfigReader, rope_dim: int) -> tuple[int, int]:
    """(size of a head, of a value): the `_mla` keys, in older files those that describe plain heads."""
    older = not meta.given("attention.key_length_mla")
    ending = "" if older else "_mla"
    key = meta.integer(f"attention.key_length{ending}", field="attention.qk_dim")
    value = meta.integer(f"attention.value_length{ending}", field="attention.v_dim")
    meta.use("attention.key_length", "attention.value_length", "attention.value_length_mla", "attention.head_count_kv")
    if key <= rope_dim:
        raise meta.error(f"attention.key_length{ending}", expected=f"more than the {rope_dim} rotated dims", found=key)
    return key, value


def _indexers(meta: ConfigReader, header: GGUFHeader, rope: Rope, count: int) -> tuple[Indexer, ...]:
    """The layers' indexers. No key tells which layers use another's choice: those have no indexer tensors."""
    meta.record("indexer.rope.pairing", "convention", "adjacent pairs in every glm-dsa file", "adjacent")
    meta.record("indexer.key_norm", "convention", "LayerNorm with bias", INDEX_NORM.eps)
    meta.record("indexer.kinds", "derived", "blk.N.indexer.attn_k.weight", "layers with indexer tensors have their own")
    own = Indexer(
        heads=meta.integer("attention.indexer.head_count", field="indexer.heads"),
        dim=meta.integer("attention.indexer.key_length", field="indexer.dim"),
        top_k=meta.integer("attention.indexer.top_k", field="indexer.top_k"),
        rope=rope,
        key_norm=INDEX_NORM,
    )
    found: list[Indexer] = []
    last = 0
    for i in range(count):
        # The first layer has nothing to share: where its tensors are missing, loading says so.
        if i == 0 or not header.tensors or f"blk.{i}.indexer.attn_k.weight" in header.tensors:
            last = i
        found.append(own if last == i else replace(own, source=last))
    return tuple(found)


def parse_latent_gguf(meta: ConfigReader, header: GGUFHeader, family: str, *, indexed: bool) -> Blueprint:
    """A blueprint from GGUF metadata; `indexed`: sparse attention with an indexer on each layer."""
    count, extra = blocks(meta)
    rope_dim = meta.integer("rope.dimension_count", field="attention.rope_dim", minimum=2)
    key, value = _sizes(meta, rope_dim)
    theta = meta.number("rope.freq_base", field="rope.theta", default=10_000.0)
    rope = replace(adjacent_rope(theta, rope_dim), scaling=_scaling(meta))
    meta.record("rope.pairing", "convention", "adjacent pairs in every file of this architecture", "adjacent")
    meta.record("attention.latent_norm.eps", "convention", "the reference code's norms of latents", LATENT_EPS)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"))
    mixer = LatentAttention(
        heads=meta.integer("attention.head_count", field="attention.heads"),
        q_rank=meta.optional_integer("attention.q_lora_rank", field="attention.q_rank"),
        kv_rank=meta.integer("attention.kv_lora_rank", field="attention.kv_rank"),
        nope_dim=key - rope_dim,
        rope_dim=rope_dim,
        v_dim=value,
        scale=key**-0.5,
        rope=rope,
        latent_norm=Norm(LATENT_EPS),
    )
    indexers = _indexers(meta, header, rope, count) if indexed else (None,) * count
    dense = meta.integer("leading_dense_block_count", field="layers.dense", default=0, minimum=0)
    gated = Gated(meta.integer("feed_forward_length", field="feed_forward.width"), "silu")
    mixture = read_gguf_mixture(
        meta, header, block=min(dense, count - 1), default_scores=_SIGMOID if indexed else _SOFTMAX
    )
    def layer(indexer: Indexer | None, part: Gated | Mixture) -> Layer:
        return Layer(replace(mixer, indexer=indexer), part, norm, norm)

    return Blueprint(
        family=family,
        vocabulary=gguf_vocabulary(meta, header),
        hidden=meta.integer("embedding_length", field="hidden"),
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(),
        layers=tuple(layer(indexer, gated if i < dense else mixture) for i, indexer in enumerate(indexers)),
        final_norm=norm,
        head=Head(tied=bool(header.tensors) and "output.weight" not in header.tensors),
        mtp=predictions(header, layer(indexers[0], mixture), count, extra),
    )


def _mixer(blueprint: Blueprint) -> LatentAttention:
    mixer = blueprint.layers[0].mixer
    if not isinstance(mixer, LatentAttention) or mixer.bias:
        found = "biases" if isinstance(mixer, LatentAttention) else type(mixer).__name__
        raise UnsupportedError(fault("GGUF files", expected="latent attention without biases", found=found))
    return mixer


def latent_gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_latent_gguf` reads the blueprint back."""
    mixer = _mixer(blueprint)
    keys = {
        **trunk_keys(blueprint),
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": mixer.kv_rank,
        "attention.key_length": mixer.kv_rank + mixer.rope_dim,
        "attention.value_length": mixer.kv_rank,
        "attention.key_length_mla": mixer.nope_dim + mixer.rope_dim,
        "attention.value_length_mla": mixer.v_dim,
        "rope.dimension_count": mixer.rope_dim,
        "rope.freq_base": mixer.rope.theta,
    }
    if mixer.q_rank is not None:
        keys["attention.q_lora_rank"] = mixer.q_rank
    if mixer.indexer is not None:
        keys["attention.indexer.head_count"] = mixer.indexer.heads
        keys["attention.indexer.key_length"] = mixer.indexer.dim
        keys["attention.indexer.top_k"] = mixer.indexer.top_k
    scaling = mixer.rope.scaling
    if isinstance(scaling, YarnScaling):
        keys |= _yarn_keys(scaling)
    return keys


def _yarn_keys(scaling: YarnScaling) -> dict[str, object]:
    keys: dict[str, object] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling.factor,
        "rope.scaling.original_context_length": scaling.original_context,
        "rope.scaling.yarn_beta_fast": scaling.beta_fast,
        "rope.scaling.yarn_beta_slow": scaling.beta_slow,
    }
    plain = _magnitude(scaling.factor, 1.0)
    if scaling.softmax_scale != 1.0:
        plain = 1.0
        multiplier = (math.sqrt(scaling.softmax_scale) - 1) / math.log(scaling.factor)
        keys["rope.scaling.yarn_log_multiplier"] = round(multiplier, 9)
    if scaling.attention_factor != plain:
        keys["rope.scaling.yarn_attn_factor"] = scaling.attention_factor
    return keys


def latent_gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files; older ones hold the expansion of the latent as one tensor."""
    mixer = _mixer(blueprint)
    absorbed = AbsorbedKeys(mixer.heads, mixer.nope_dim, mixer.v_dim)
    made = gguf_bindings(blueprint, _NAMES)
    bindings: list[Binding] = []
    variants: list[tuple[Binding, ...]] = []
    for binding in made.bindings:
        name = binding.names[0]
        if name.endswith(_EXPANSION):
            prefix = name.removesuffix(_EXPANSION)
            halves = (f"{prefix}attn_k_b.weight", f"{prefix}attn_v_b.weight")
            bindings.append(replace(binding, names=halves, transform=absorbed))
            variants.append((binding,))
        else:
            bindings.append(binding)
    return with_predictions(replace(made, bindings=tuple(bindings), variants=tuple(variants)), blueprint)

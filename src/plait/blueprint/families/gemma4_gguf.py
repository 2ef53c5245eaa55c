"""Gemma 4 in GGUF files: metadata keys and tensor names of the `gemma4` architecture.

Head sizes and rotations stand twice, for full layers and, under `_swa`, for windows; widths and KV heads may be one
number or one a layer. Files hold no rows for the values of layers whose keys are the values, and say which pairs of a
full layer are rotated through the frequency factors of `rope_freqs.weight`: 1, or beyond any frequency.

Source: the converter and the loader of llama.cpp; constants of the gguf package 0.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import (
    FULL,
    SLIDING,
    gguf_bindings,
    gguf_rope_scaling,
    gguf_rows,
    gguf_vocabulary,
    periodic_kinds,
)
from plait.blueprint.families.gemma4_layers import (
    EXPERTS,
    GATE_UP,
    grouped_experts,
    layers_of,
    norms,
    proportional_rope,
)
from plait.blueprint.families.gemma_shared import (
    GGUF_LAYER_NAMES,
    GGUF_TOP_NAMES,
    kv_sources,
    per_layer_embeddings,
    unused_kv,
)
from plait.blueprint.families.gguf_keys import attention_of, softcap_keys, window_keys
from plait.blueprint.layout import Binding, Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Both,
    Embedding,
    FactorScaling,
    Gated,
    Head,
    Mixture,
    PerLayerEmbeddings,
    Rope,
    Router,
)
from plait.errors import UnsupportedError, fault

__all__ = ["gguf_layout", "gguf_metadata", "parse_gguf"]

_PERIOD: Final = 6
# Share of a full layer's pairs that is rotated in every published model.
_SHARE: Final = 0.25
# A factor from here on leaves a pair unrotated; the format writes 1e30.
_STILL: Final = 1e20

_NAMES: Final = MappingProxyType(
    {
        **GGUF_LAYER_NAMES,
        "scalar": "layer_output_scale.weight",
        "feed_forward.router": "ffn_gate_inp.weight",
        "feed_forward.router_scale": "ffn_gate_inp.scale",
        "feed_forward.expert_scale": "ffn_down_exps.scale",
        f"{EXPERTS}down": "ffn_down_exps.weight",
        "feed_forward.dense_post_norm": "post_ffw_norm_1.weight",
        "feed_forward.mixture_norm": "pre_ffw_norm_2.weight",
        "feed_forward.mixture_post_norm": "post_ffw_norm_2.weight",
    }
)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata.

    The format leaves out the activation, the scale 1, the norms of values and router inputs, how per-layer embeddings
    are scaled and, without tensors, that a full layer's keys are its values: then other KV heads than the windows' say
    so.
    """
    hidden = meta.integer("embedding_length", field="hidden")
    count = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    eps = meta.number("attention.layer_norm_rms_epsilon", field="norm.eps")
    kinds = _kinds(meta, count)
    shared = meta.integer("attention.shared_kv_layers", field="attention.kv_source", default=0, minimum=0)
    sources = kv_sources(kinds, shared, file=meta.file, key=meta.dotted("attention.shared_kv_layers"))
    heads = meta.integer("attention.head_count", field="attention.heads")
    kv_heads = meta.integers("attention.head_count_kv", field="attention.kv_heads", length=count, minimum=1)
    if kv_heads is None:
        meta.record("attention.kv_heads", "default", meta.dotted("attention.head_count_kv"), heads)
        kv_heads = (heads,) * count
    window = meta.integer("attention.sliding_window", field="attention.window") if SLIDING in kinds else None
    meta.use("attention.sliding_window")
    same = _keys_are_values(meta, header, kinds, kv_heads)
    sizes = {kind: _head_sizes(meta, kind) for kind in dict.fromkeys(kinds)}
    ropes = {kind: _rope(meta, header, kind, sizes[kind][0]) for kind in sizes}
    qk_norm, v_norm = norms(eps)
    meta.record("attention.scale", "convention", "1: the norms of queries and keys carry it", 1.0)
    meta.record("attention.v_norm", "convention", "values are normed without a weight", eps)
    meta.record("feed_forward.activation", "convention", "gelu_tanh in every Gemma", "gelu_tanh")
    bias = "blk.0.attn_q.bias" in header.tensors
    mixers = tuple(
        Attention(
            heads=heads,
            kv_heads=kv_heads[i],
            qk_dim=sizes[kind][0],
            v_dim=sizes[kind][1],
            scale=1.0,
            window=window if kind == SLIDING else None,
            rope=ropes[kind],
            qk_norm=qk_norm,
            v_norm=v_norm,
            keys_are_values=same and kind == FULL,
            kv_source=sources[i],
            qkv_bias=bias,
            output_bias="blk.0.attn_output.bias" in header.tensors,
        )
        for i, kind in enumerate(kinds)
    )
    widths = meta.integers("feed_forward_length", field="feed_forward.width", length=count, minimum=1)
    if widths is None:
        raise meta.error("feed_forward_length", expected="an integer, or one a layer", found="nothing")
    table = _per_layer(meta, header, hidden, eps)
    return Blueprint(
        family="gemma4",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=hidden,
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(hidden**0.5, rounded_scale=True),
        layers=layers_of(
            mixers,
            tuple(Gated(width, "gelu_tanh") for width in widths),
            _mixture(meta, hidden, eps),
            eps,
            per_layer_input=table is not None,
            scalar=not header.tensors or "blk.0.layer_output_scale.weight" in header.tensors,
        ),
        final_norm=qk_norm.norm,
        head=Head(
            tied="output.weight" not in header.tensors,
            softcap=meta.optional_number("final_logit_softcapping", field="head.softcap"),
        ),
        per_layer_embeddings=table,
    )


def _kinds(meta: ConfigReader, count: int) -> tuple[str, ...]:
    pattern = meta.booleans("attention.sliding_window_pattern", field="layers.kind", length=count)
    if pattern is not None:
        return tuple(SLIDING if sliding else FULL for sliding in pattern)
    if not meta.given("attention.sliding_window_pattern"):
        meta.record("layers.kind", "convention", f"every {_PERIOD}th layer is full", _PERIOD)
    return periodic_kinds(count, meta.integer("attention.sliding_window_pattern", default=_PERIOD))


def _keys_are_values(
    meta: ConfigReader, header: GGUFHeader, kinds: Sequence[str], kv_heads: Sequence[int]
) -> bool:
    if FULL not in kinds:
        return False
    full = kinds.index(FULL)
    if header.tensors:
        found = f"blk.{full}.attn_v.weight" not in header.tensors
        meta.record("attention.keys_are_values", "derived", f"blk.{full}.attn_v.weight", "absent" if found else "there")
        return found
    found = SLIDING in kinds and kv_heads[full] != kv_heads[kinds.index(SLIDING)]
    meta.record("attention.keys_are_values", "derived", meta.dotted("attention.head_count_kv"), found)
    return found


def _head_sizes(meta: ConfigReader, kind: str) -> tuple[int, int]:
    """(key size, value size) of the layers of one kind."""
    suffix, field = ("", "full") if kind == FULL else ("_swa", "window")
    key = meta.integer(f"attention.key_length{suffix}", field=f"{field}.qk_dim")
    return key, meta.integer(f"attention.value_length{suffix}", field=f"{field}.v_dim", default=key)


def _rope(meta: ConfigReader, header: GGUFHeader, kind: str, head_dim: int) -> Rope:
    if kind == SLIDING:
        theta = meta.number("rope.freq_base_swa", field="window.rope.theta", default=10_000.0)
        rotated = meta.integer("rope.dimension_count_swa", field="window.rope.rotated", default=head_dim)
        return Rope(theta, rotated // 2, rotated, distance=rotated // 2)
    theta = meta.number("rope.freq_base", field="full.rope.theta", default=1_000_000.0)
    size = meta.integer("rope.dimension_count", field="full.rope.divisor", default=head_dim)
    if size != head_dim:
        raise meta.error("rope.dimension_count", expected=f"the head size {head_dim}", found=size)
    scaling = gguf_rope_scaling(meta, header)
    if not isinstance(scaling, FactorScaling):
        pairs = int(_SHARE * head_dim) // 2
        meta.record("full.rope.rotated", "convention", "a quarter of the pairs, without rope_freqs.weight", pairs)
        return replace(proportional_rope(theta, pairs, head_dim), scaling=scaling)
    moving = [factor for factor in scaling.factors if factor < _STILL]
    if len(scaling.factors) != head_dim // 2 or max(scaling.factors[: len(moving)], default=1.0) >= _STILL:
        raise UnsupportedError(
            fault(
                "tensor 'rope_freqs.weight'",
                file=meta.file,
                expected=f"{head_dim // 2} factors, those of unrotated pairs last",
                found=f"{len(scaling.factors)} factors",
            )
        )
    meta.record("full.rope.rotated", "derived", "rope_freqs.weight", len(moving))
    rope = proportional_rope(theta, len(moving), head_dim)
    return rope if set(moving) <= {1.0} else replace(rope, scaling=FactorScaling(tuple(moving)))


def _mixture(meta: ConfigReader, hidden: int, eps: float) -> Mixture | None:
    experts = meta.integer("expert_count", field="experts", default=0, minimum=0)
    if not experts:
        meta.use("expert_used_count", "expert_feed_forward_length")
        return None
    _, bare = norms(eps)
    return Mixture(
        experts=experts,
        active=meta.integer("expert_used_count", field="experts.active"),
        width=meta.integer("expert_feed_forward_length", field="experts.width"),
        activation="gelu_tanh",
        router=Router("softmax", renormalise=True, norm=bare, input_factor=hidden**-0.5, expert_scale=True),
    )


def _per_layer(meta: ConfigReader, header: GGUFHeader, hidden: int, eps: float) -> PerLayerEmbeddings | None:
    dim = meta.integer("embedding_length_per_layer_input", field="per_layer.dim", default=0, minimum=0)
    if not dim:
        return None
    table = gguf_rows(header, "per_layer_token_embd.weight")
    rows = table if table is not None else gguf_vocabulary(meta, header)
    meta.record("per_layer.vocabulary", "derived", "rows of the table, else the vocabulary", rows)
    return per_layer_embeddings(hidden, rows, dim, "gelu_tanh", eps)


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    keys: dict[str, object] = {
        "vocab_size": blueprint.vocabulary,
        "context_length": blueprint.max_context,
        "embedding_length": blueprint.hidden,
        "block_count": len(blueprint.layers),
        "attention.layer_norm_rms_epsilon": blueprint.final_norm.eps,
        **window_keys(blueprint, pattern=True),
        **softcap_keys(blueprint),
    }
    mixers, dense = [], []
    for layer in blueprint.layers:
        part = layer.feed_forward
        gated = part.dense if isinstance(part, Both) else part
        if not isinstance(layer.mixer, Attention) or not isinstance(gated, Gated):
            found = f"{type(layer.mixer).__name__} and {type(part).__name__}"
            raise UnsupportedError(fault("GGUF metadata", expected="attention and a dense feed-forward", found=found))
        mixers.append(layer.mixer)
        dense.append(gated)
    keys |= {
        "attention.head_count": mixers[0].heads,
        "attention.head_count_kv": [mixer.kv_heads for mixer in mixers],
        "attention.shared_kv_layers": sum(mixer.kv_source is not None for mixer in mixers),
        "feed_forward_length": [gated.width for gated in dense],
        "embedding_length_per_layer_input": table.dim if (table := blueprint.per_layer_embeddings) is not None else 0,
    }
    for suffix, window in (("", False), ("_swa", True)):
        mixer = attention_of(blueprint, window=window)
        if mixer is not None and mixer.rope is not None:
            keys |= {
                f"attention.key_length{suffix}": mixer.qk_dim,
                f"attention.value_length{suffix}": mixer.v_dim,
                f"rope.freq_base{suffix}": mixer.rope.theta,
                f"rope.dimension_count{suffix}": mixer.rope.divisor,
            }
    part = blueprint.layers[0].feed_forward
    if isinstance(part, Both):
        keys |= {
            "expert_count": part.mixture.experts,
            "expert_used_count": part.mixture.active,
            "expert_feed_forward_length": part.mixture.width,
        }
    return keys


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files: gate and up rows of an expert in one tensor, or in older files in one each."""
    made = _bound(blueprint, {"ffn_gate_up_exps.weight": GATE_UP})
    apart = _bound(blueprint, {})
    wanted = tuple(f".{role}" for role in GATE_UP)
    variants: dict[str, list[Binding]] = {}
    for binding in apart.bindings:
        if binding.roles[0].endswith(wanted):
            variants.setdefault(binding.roles[0].split(".")[1], []).append(binding)
    return replace(
        grouped_experts(made, blueprint),
        ignored=(*made.ignored, *unused_kv(blueprint)),
        variants=tuple(map(tuple, variants.values())),
    )


def _bound(blueprint: Blueprint, fusions: dict[str, tuple[str, ...]]) -> Layout:
    names = {**_NAMES, GATE_UP[0]: "ffn_gate_exps.weight", GATE_UP[1]: "ffn_up_exps.weight"}
    return gguf_bindings(blueprint, names, fusions=fusions, top=GGUF_TOP_NAMES)

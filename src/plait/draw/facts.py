"""What a box says of its part: short facts, each one piece that is never broken across lines unless it must."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from plait.blueprint.spec import (
    AltUp,
    Attention,
    Blueprint,
    Both,
    FactorScaling,
    Gated,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    LinearScaling,
    Llama3Scaling,
    Mixture,
    Norm,
    Rope,
    RopeScaling,
    YarnScaling,
)
from plait.draw.fold import Leaf, nearest_source, source_of
from plait.draw.text import Style, fits, wrap
from plait.draw.words import Lang, word

__all__ = [
    "altup_facts",
    "feed_forward_facts",
    "figure",
    "mixer_facts",
    "norm_facts",
    "packed",
    "table_facts",
]

_SEPARATOR = " · "


def figure(value: float) -> str:
    """A number as a picture shows it: 262,144; 160,000.5; 0.25; 48.99; 1e+20."""
    if isfinite(value) and value == int(value) and abs(value) < 10**15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if isfinite(value) and 1000 <= abs(value) < 10**15 else f"{value:.4g}"


def packed(facts: Sequence[str], style: Style, room: float) -> tuple[str, ...]:
    """Facts in lines of at most `room` px, parted by dots."""
    lines: list[str] = []
    for fact in facts:
        joined = f"{lines[-1]}{_SEPARATOR}{fact}" if lines else fact
        if lines and fits(joined, style, room):
            lines[-1] = joined
        else:
            lines.extend(wrap(fact, style, room))
    return tuple(lines)


def norm_facts(norm: Norm, lang: Lang) -> Iterator[str]:
    """Kind of a norm and what is not usual about it."""
    yield word("rms" if norm.kind == "rms" else "layer_norm", lang)
    if not norm.weight:
        yield word("norm_bare", lang)
    elif norm.offset:
        yield word("norm_offset", lang, x=figure(norm.offset))
    if norm.bias:
        yield word("norm_bias", lang)


def _scaling(scaling: RopeScaling, lang: Lang) -> str:
    match scaling:
        case LinearScaling():
            return word("scaling_linear", lang, x=figure(scaling.factor))
        case YarnScaling():
            return word("scaling_yarn", lang, x=figure(scaling.factor))
        case Llama3Scaling():
            return word("scaling_llama3", lang, x=figure(scaling.factor))
        case FactorScaling():
            return word("scaling_factors", lang)


def _rope(rope: Rope, whole: int, lang: Lang) -> Iterator[str]:
    """Base, rotated share of `whole` dims where it is not all, scaling."""
    yield word("theta", lang, x=figure(rope.theta))
    if rope.rotated != whole:
        yield word("rotated", lang, n=figure(rope.rotated), all=figure(whole))
    if rope.scaling is not None:
        yield _scaling(rope.scaling, lang)
    if rope.axes is not None:
        yield word("axes", lang, x="+".join(map(figure, rope.axes)))


def _source(blueprint: Blueprint, leaf: Leaf, what: str, lang: Lang) -> str:
    """Where a leaf's keys and values (`kv`) or choice of keys (`choice`) come from."""
    sources = {source_of(blueprint.layers[index]) for index in leaf.indexes} or {source_of(leaf.layer)}
    if len(sources) == 1:
        return word(f"{what}_of", lang, i=sources.pop())
    assert all(source_of(blueprint.layers[i]) == nearest_source(blueprint.layers, i) for i in leaf.indexes)
    return word(f"{what}_nearest", lang)


def _attention(mixer: Attention, reuse: str | None, lang: Lang) -> Iterator[str]:
    if mixer.window is not None:
        yield word("window_size", lang, n=figure(mixer.window))
    if mixer.kv_heads == mixer.heads:
        yield word("heads", lang, n=figure(mixer.heads))
    else:
        yield word("heads_kv", lang, n=figure(mixer.heads), kv=figure(mixer.kv_heads))
    if mixer.v_dim == mixer.qk_dim:
        yield word("head_size", lang, n=figure(mixer.qk_dim))
    else:
        yield word("head_sizes", lang, n=figure(mixer.qk_dim), v=figure(mixer.v_dim))
    if mixer.rope is None:
        yield word("no_positions", lang)
    else:
        yield from _rope(mixer.rope, mixer.qk_dim, lang)
    if mixer.qk_norm is not None:
        yield word("qk_norm" if mixer.qk_norm.over == "head" else "qk_norm_all", lang)
    if mixer.v_norm is not None:
        yield word("v_norm", lang)
    if mixer.keys_are_values:
        yield word("keys_are_values", lang)
    if mixer.gate is not None:
        yield word(f"gate_{mixer.gate.per}", lang, act=word(f"act_{mixer.gate.activation}", lang))
    if mixer.sinks:
        yield word("sinks", lang)
    if mixer.softcap is not None:
        yield word("softcap", lang, x=figure(mixer.softcap))
    if mixer.value_scale != 1.0:
        yield word("value_scale", lang, x=figure(mixer.value_scale))
    if mixer.qkv_bias:
        yield word("qkv_bias", lang)
    if mixer.output_bias:
        yield word("output_bias", lang)
    if mixer.bidirectional_images:
        yield word("image_mask", lang)
    if reuse is not None:
        yield reuse


def _latent(mixer: LatentAttention, reuse: str | None, lang: Lang) -> Iterator[str]:
    yield word("heads", lang, n=figure(mixer.heads))
    yield word("latent_size", lang, n=figure(mixer.kv_rank), r=figure(mixer.rope_dim))
    if mixer.q_rank is not None:
        yield word("q_rank", lang, n=figure(mixer.q_rank))
    yield word("latent_heads", lang, n=figure(mixer.nope_dim), r=figure(mixer.rope_dim), v=figure(mixer.v_dim))
    yield from _rope(mixer.rope, mixer.rope_dim, lang)
    if mixer.bias:
        yield word("bias", lang)
    if mixer.indexer is not None:
        yield from _indexer(mixer.indexer, reuse, lang)


def _indexer(indexer: Indexer, reuse: str | None, lang: Lang) -> Iterator[str]:
    yield word("top_k", lang, n=figure(indexer.top_k))
    if reuse is not None:
        yield reuse
    else:
        yield word("indexer", lang, n=figure(indexer.heads), d=figure(indexer.dim))


def _delta(mixer: GatedDeltaNet, lang: Lang) -> Iterator[str]:
    yield word("delta_heads", lang, n=figure(mixer.key_heads), v=figure(mixer.value_heads))
    sizes = mixer.value_heads, mixer.key_dim, mixer.value_dim
    h, k, v = map(figure, sizes)
    yield word("state", lang, h=h, k=k, v=v)
    yield word("convolution", lang, n=figure(mixer.conv_kernel))
    yield word("output_gate", lang, act=word(f"act_{mixer.activation}", lang))


def mixer_facts(blueprint: Blueprint, leaf: Leaf, lang: Lang) -> tuple[str, ...]:
    """Sizes and properties of a leaf's token mixer, and of what stands around it in the layer."""
    layer = leaf.layer
    mixer = layer.mixer
    shared = source_of(layer) is not None
    what = "kv" if isinstance(mixer, Attention) else "choice"
    reuse = _source(blueprint, leaf, what, lang) if shared else None
    match mixer:
        case Attention():
            found = list(_attention(mixer, reuse, lang))
        case LatentAttention():
            found = list(_latent(mixer, reuse, lang))
        case GatedDeltaNet():
            found = list(_delta(mixer, lang))
    if layer.mixer_post_norm is not None:
        found.append(word("post_norm", lang))
    if layer.laurel_rank is not None:
        found.append(word("laurel", lang, n=figure(layer.laurel_rank)))
    return tuple(found)


def _gated(part: Gated, key: str, lang: Lang) -> Iterator[str]:
    yield word(key, lang, n=figure(part.width))
    yield word(f"act_{part.activation}", lang)
    if part.sparsity is not None:
        yield word("sparsity", lang, x=f"{part.sparsity:.4g}")
    if part.bias:
        yield word("bias", lang)


def _mixture(part: Mixture, lang: Lang) -> Iterator[str]:
    yield word("experts", lang, active=figure(part.active), n=figure(part.experts))
    yield word("expert_width", lang, n=figure(part.width))
    yield word(f"act_{part.activation}", lang)
    if part.shared is not None:
        key = "shared_gated" if part.shared.gated else "shared"
        yield word(key, lang, n=figure(part.shared.count), w=figure(part.shared.width))
    router = part.router
    yield word(f"scores_{router.scores}", lang)
    if router.renormalise:
        yield word("renormalised", lang)
    if router.groups != 1:
        yield word("router_groups", lang, kept=figure(router.kept_groups), n=figure(router.groups))
    if router.selection_bias:
        yield word("router_bias", lang)
    if router.scale != 1.0:
        yield word("router_scale", lang, x=figure(router.scale))
    if router.norm is not None:
        yield word("router_norm", lang)
    if router.expert_scale:
        yield word("expert_scale", lang)


def feed_forward_facts(layer: Layer, lang: Lang) -> tuple[str, ...]:
    """Sizes and properties of a layer's feed-forward part, and of what follows it in the layer."""
    part = layer.feed_forward
    match part:
        case Gated():
            found = list(_gated(part, "width", lang))
        case Mixture():
            found = list(_mixture(part, lang))
        case Both():
            found = [*_gated(part.dense, "dense_width", lang), *_mixture(part.mixture, lang)]
    if layer.feed_forward_post_norm is not None:
        found.append(word("post_norm", lang))
    if layer.per_layer_input:
        found.append(word("per_layer_input", lang))
    if layer.scalar:
        found.append(word("scalar", lang))
    return tuple(found)


def table_facts(blueprint: Blueprint, lang: Lang) -> tuple[str, ...]:
    """Sizes of the table of per-layer embeddings, where there is one."""
    table = blueprint.per_layer_embeddings
    if table is None:
        return ()
    sizes = table.vocabulary, len(blueprint.layers), table.dim
    rows, layers, dim = map(figure, sizes)
    return word("table", lang, rows=rows, layers=layers, dim=dim), word(f"act_{table.activation}", lang)


def altup_facts(altup: AltUp, lang: Lang) -> tuple[str, ...]:
    """Which stream is computed on, and what is done to its result."""
    found = [word("streams_active", lang, i=altup.active)]
    if altup.coefficient_clip is not None:
        found.append(word("streams_clip", lang, x=figure(altup.coefficient_clip)))
    if altup.scale_corrected:
        found.append(word("streams_scale", lang))
    return tuple(found)

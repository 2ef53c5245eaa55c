"""Gemma 3n in GGUF files: metadata keys and tensor names of the `gemma3n` architecture.

Widths are one number or one a layer. For each layer the format holds not the share of activations that is dropped but
how many standard deviations above the mean they must lie: the normal quantile of the share, -inf for none. The
projections of the streams lie in one stack. Norms are stored as they are.

Source: the converter and the loader of llama.cpp; constants of the gguf package 0.19.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import (
    FULL,
    SLIDING,
    gguf_attention_sizes,
    gguf_bindings,
    gguf_rope_scaling,
    gguf_rows,
    gguf_vocabulary,
    periodic_kinds,
)
from plait.blueprint.families.gemma3n_layers import attention, layers_of
from plait.blueprint.families.gemma_shared import (
    GGUF_LAYER_NAMES,
    GGUF_TOP_NAMES,
    kv_sources,
    per_layer_embeddings,
    unused_kv,
)
from plait.blueprint.families.gguf_keys import attention_of, linear_scaling, shared_keys, softcap_keys, window_keys
from plait.blueprint.layout import Binding, Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import AltUp, Attention, Blueprint, Embedding, Gated, Head, Norm, Rope

__all__ = ["gguf_layout", "gguf_metadata", "parse_gguf"]

_PERIOD: Final = 5
_LAUREL_RANK: Final = 64
_CLIP: Final = 120.0
# The converter computes the quantile in float32.
_QUANTILE_ERROR: Final = 1e-6

_NAMES: Final = MappingProxyType(
    {
        **GGUF_LAYER_NAMES,
        "laurel.left": "laurel_l.weight",
        "laurel.right": "laurel_r.weight",
        "laurel.norm": "laurel_post_norm.weight",
        "altup.correct_scale": "altup_correct_scale.weight",
        "altup.correction": "altup_correct_coef.weight",
        "altup.prediction": "altup_predict_coef.weight",
        "altup.router": "altup_router.weight",
        "altup.router_norm": "altup_router_norm.weight",
    }
)
_STACKS: Final = MappingProxyType(
    {"altup.projection.": "altup_proj.weight", "altup.unembedding.": "altup_unembd_proj.weight"}
)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata.

    The format leaves out the activation, the scale 1, the norm of values, the clip of alternating updates (120) and
    that they scale what they correct, how per-layer embeddings are scaled and, without tensors, the rank 64 of the
    augmented residuals.
    """
    hidden = meta.integer("embedding_length", field="hidden")
    count = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    heads, kv_heads, head_dim, v_dim = gguf_attention_sizes(meta, hidden)
    if v_dim != head_dim:
        raise meta.error("attention.value_length", expected=f"the key length {head_dim}", found=v_dim)
    eps = meta.number("attention.layer_norm_rms_epsilon", field="norm.eps")
    kinds = _kinds(meta, count)
    shared = meta.integer("attention.shared_kv_layers", field="attention.kv_source", default=0, minimum=0)
    sources = kv_sources(kinds, shared, file=meta.file, key=meta.dotted("attention.shared_kv_layers"))
    half = head_dim // 2
    theta = meta.number("rope.freq_base", field="full.rope.theta", default=1_000_000.0)
    local = meta.number("rope.freq_base_swa", field="window.rope.theta", default=10_000.0)
    full = attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=Rope(theta, half, head_dim, distance=half, scaling=gguf_rope_scaling(meta, header)),
        eps=eps,
        bias="blk.0.attn_q.bias" in header.tensors,
    )
    sliding = replace(
        full,
        window=meta.integer("attention.sliding_window", field="attention.window"),
        rope=Rope(local, half, head_dim, distance=half),
    )
    meta.record("attention.scale", "convention", "1: the norms of queries and keys carry it", 1.0)
    meta.record("attention.v_norm", "convention", "values are normed without a weight", eps)
    meta.record("feed_forward.activation", "convention", "gelu_tanh in every Gemma", "gelu_tanh")
    widths = meta.integers("feed_forward_length", field="feed_forward.width", length=count, minimum=1)
    if widths is None:
        raise meta.error("feed_forward_length", expected="an integer, or one a layer", found="nothing")
    table = gguf_rows(header, "per_layer_token_embd.weight")
    rows = table if table is not None else gguf_vocabulary(meta, header)
    meta.record("per_layer.vocabulary", "derived", "rows of the table, else the vocabulary", rows)
    dim = meta.integer("embedding_length_per_layer_input", field="per_layer.dim")
    return Blueprint(
        family="gemma3n",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=hidden,
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(hidden**0.5, rounded_scale=True),
        layers=layers_of(
            tuple(
                replace(sliding if kind == SLIDING else full, kv_source=source)
                for kind, source in zip(kinds, sources, strict=True)
            ),
            tuple(
                Gated(width, "gelu_tanh", sparsity=share)
                for width, share in zip(widths, _sparsity(meta, count), strict=True)
            ),
            eps,
            _rank(meta, header),
        ),
        final_norm=Norm(eps),
        head=Head(
            tied="output.weight" not in header.tensors,
            softcap=meta.optional_number("final_logit_softcapping", field="head.softcap", default=30.0),
        ),
        per_layer_embeddings=per_layer_embeddings(hidden, rows, dim, "gelu_tanh", eps),
        altup=_altup(meta, eps),
    )


def _kinds(meta: ConfigReader, count: int) -> tuple[str, ...]:
    pattern = meta.booleans("attention.sliding_window_pattern", field="layers.kind", length=count)
    if pattern is not None:
        return tuple(SLIDING if sliding else FULL for sliding in pattern)
    if not meta.given("attention.sliding_window_pattern"):
        meta.record("layers.kind", "convention", f"every {_PERIOD}th layer is full", _PERIOD)
    return periodic_kinds(count, meta.integer("attention.sliding_window_pattern", default=_PERIOD))


def _altup(meta: ConfigReader, eps: float) -> AltUp:
    streams = meta.integer("altup.num_inputs", field="altup.streams")
    active = meta.integer("altup.active_idx", field="altup.active", minimum=0)
    if active >= streams:
        raise meta.error("altup.active_idx", expected=f"one of {streams} streams", found=active)
    meta.record("altup.coefficient_clip", "convention", "120 in every Gemma 3n", _CLIP)
    meta.record("altup.scale_corrected", "convention", "in every Gemma 3n", True)
    return AltUp(streams, active, _CLIP, scale_corrected=True, router_norm=Norm(eps))


def _rank(meta: ConfigReader, header: GGUFHeader) -> int:
    rank = gguf_rows(header, "blk.0.laurel_l.weight")
    if rank is None:
        meta.record("laurel_rank", "convention", "64 in every Gemma 3n", _LAUREL_RANK)
        return _LAUREL_RANK
    meta.record("laurel_rank", "derived", "rows of blk.0.laurel_l.weight", rank)
    return rank


def _sparsity(meta: ConfigReader, count: int) -> tuple[float | None, ...]:
    """Share of the activations each layer drops; None where it keeps all."""
    key = "activation_sparsity_scale"
    scales = meta.numbers(key, field="feed_forward.sparsity", length=count, infinite=True)
    if scales is None:
        meta.record("feed_forward.sparsity", "default", meta.dotted(key), "none")
        return (None,) * count
    shares = {scale: _share(scale) for scale in set(scales)}
    if any(share == 1 for share in shares.values()):
        raise meta.error(key, expected="quantiles of shares below 1", found=max(shares))
    return tuple(shares[scale] for scale in scales)


def _share(scale: float) -> float | None:
    """The share whose normal quantile is `scale`, as the shortest decimal within what float32 loses."""
    from statistics import NormalDist

    normal = NormalDist()
    share = normal.cdf(scale)
    if not 0 < share < 1:
        return share or None
    for digits in range(1, 16):
        candidate = float(f"{share:.{digits}g}")
        if 0 < candidate < 1 and abs(normal.inv_cdf(candidate) - scale) <= _QUANTILE_ERROR:
            return candidate
    return share


def _scale(share: float | None) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share) if share else float("-inf")


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    gated = [layer.feed_forward for layer in blueprint.layers if isinstance(layer.feed_forward, Gated)]
    mixers = [layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention)]
    full, sliding = (attention_of(blueprint, window=window) for window in (False, True))
    keys = {
        **shared_keys(blueprint),
        **window_keys(blueprint, pattern=True),
        **softcap_keys(blueprint),
        "feed_forward_length": [part.width for part in gated],
        "activation_sparsity_scale": [_scale(part.sparsity) for part in gated],
        "attention.shared_kv_layers": sum(mixer.kv_source is not None for mixer in mixers),
    }
    if full is not None and full.rope is not None:
        keys |= {"rope.freq_base": full.rope.theta, **linear_scaling(full.rope)}
    if sliding is not None and sliding.rope is not None:
        keys["rope.freq_base_swa"] = sliding.rope.theta
    if blueprint.altup is not None:
        keys |= {"altup.num_inputs": blueprint.altup.streams, "altup.active_idx": blueprint.altup.active}
    if blueprint.per_layer_embeddings is not None:
        keys["embedding_length_per_layer_input"] = blueprint.per_layer_embeddings.dim
    return keys


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files; the projections to, and from, all streams but the first lie in one stack each."""
    streams = range(1, blueprint.altup.streams if blueprint.altup is not None else 1)
    top = {**GGUF_TOP_NAMES, **{f"{role}{i}": name for role, name in _STACKS.items() for i in streams}}
    made = gguf_bindings(blueprint, _NAMES, top=top)
    single = tuple(binding for binding in made.bindings if not binding.roles[0].startswith("altup."))
    axes = (len(streams), blueprint.hidden, blueprint.hidden)
    stacks = tuple(
        Binding(tuple(f"{role}{i}" for i in streams), (name,), axes=axes) for role, name in _STACKS.items() if streams
    )
    return replace(made, bindings=(*single, *stacks), ignored=(*made.ignored, *unused_kv(blueprint)))

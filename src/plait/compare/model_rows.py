"""The rows of a comparison that speak of feed-forwards, of the residual stream and of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from plait.blueprint.spec import Blueprint, Both, Gated, Layer, Mixture, Norm, Router
from plait.compare.dimension import Dimension, under
from plait.compare.leaves import feed_forward_kind
from plait.compare.words import NONE, joined, number, over_layers, root
from plait.units import count

__all__ = ["FEED_FORWARD", "MODEL", "STREAM"]

_KINDS: Final = MappingProxyType(
    {"dense": "dense", "mixture": "mixture of experts", "both": "dense beside a mixture of experts"}
)


def _dense(layer: Layer) -> Gated | None:
    part = layer.feed_forward
    return part if isinstance(part, Gated) else part.dense if isinstance(part, Both) else None


def _mixture(layer: Layer) -> Mixture | None:
    part = layer.feed_forward
    return part if isinstance(part, Mixture) else part.mixture if isinstance(part, Both) else None


def _of_dense(text: Callable[[Gated], str]) -> Callable[[Blueprint], str]:
    return lambda b: over_layers(b, lambda layer: None if (part := _dense(layer)) is None else text(part))


def _of_mixture(text: Callable[[Mixture], str]) -> Callable[[Blueprint], str]:
    return lambda b: over_layers(b, lambda layer: None if (part := _mixture(layer)) is None else text(part))


def _experts(part: Mixture) -> str:
    text = f"{part.active} of {part.experts} x {part.width:,}"
    if part.shared is not None:
        text += f", {part.shared.count} shared x {part.shared.width:,}{' with a gate' if part.shared.gated else ''}"
    return text


def _router(router: Router) -> str:
    return joined(
        [
            router.scores,
            "weights renormalised" if router.renormalise else "weights as they are",
            "" if router.scale == 1 else f"times {number(router.scale)}",
            "bias for the choice" if router.selection_bias else "",
            "" if (router.groups, router.kept_groups) == (1, 1) else f"{router.kept_groups} of {router.groups} groups",
            "" if router.norm is None else "own norm",
            "" if router.input_factor == 1 else f"input x {root(router.input_factor)}",
            "factor per expert" if router.expert_scale else "",
        ]
    )


def _activation(layer: Layer) -> str:
    part = layer.feed_forward
    return part.activation if not isinstance(part, Both) else f"{part.dense.activation} + {part.mixture.activation}"


_FEED: Final = ("dense", "both.dense")
_EXPERTS: Final = ("mixture", "both.mixture")

FEED_FORWARD: Final = (
    Dimension(
        "feed_forward",
        "Feed-forward",
        "Feed-forward kind",
        lambda b: over_layers(b, lambda layer: _KINDS[feed_forward_kind(layer.feed_forward)]),
        ("feed_forwards",),
        ("layers.feed_forward", "layers.dense", "feed_forward.mixture", "feed_forward.dense_layers", "experts"),
    ),
    Dimension(
        "width",
        "Feed-forward",
        "Dense width",
        _of_dense(lambda part: number(part.width)),
        under(_FEED, "width"),
        ("feed_forward.width", "feed_forward.doubled"),
    ),
    Dimension(
        "experts",
        "Feed-forward",
        "Experts per token",
        _of_mixture(_experts),
        under(_EXPERTS, "experts", "active", "width", "shared", "shared.count", "shared.width", "shared.gated"),
        ("experts", "experts.*"),
    ),
    Dimension(
        "router",
        "Feed-forward",
        "Router",
        _of_mixture(lambda part: _router(part.router)),
        under(
            tuple(f"{name}.router" for name in _EXPERTS),
            *("scores", "renormalise", "scale", "selection_bias", "groups", "kept_groups", "norm", "input_factor"),
            "expert_scale",
        ),
        ("router.*",),
    ),
    Dimension(
        "activation",
        "Feed-forward",
        "Activation",
        lambda b: over_layers(b, _activation),
        under((*_FEED, *_EXPERTS), "activation"),
        ("feed_forward.activation",),
    ),
    Dimension(
        "sparsity",
        "Feed-forward",
        "Activation sparsity",
        _of_dense(lambda part: NONE if part.sparsity is None else number(part.sparsity)),
        under(_FEED, "sparsity"),
        ("feed_forward.sparsity",),
    ),
    Dimension(
        "feed_forward_bias",
        "Feed-forward",
        "Biases of dense parts",
        _of_dense(lambda part: "yes" if part.bias else NONE),
        under(_FEED, "bias"),
        ("feed_forward.bias",),
    ),
)


def _norm(norm: Norm) -> str:
    return joined(
        [
            "RMSNorm" if norm.kind == "rms" else "LayerNorm",
            f"eps {number(norm.eps)}",
            "" if norm.offset == 0 else f"{number(norm.offset)} + weight",
            "" if norm.weight else "no weight",
            "with bias" if norm.bias else "",
        ]
    )


def _norms(layer: Layer) -> str:
    """Where norms stand and what they are, one by one only where they are not all alike."""
    there = {
        "mixer": layer.mixer_norm,
        "feed-forward": layer.feed_forward_norm,
        "after mixer": layer.mixer_post_norm,
        "after feed-forward": layer.feed_forward_post_norm,
    }
    found = {place: _norm(norm) for place, norm in there.items() if norm is not None}
    places = "before and after" if len(found) == len(there) else ", ".join(found) if len(found) > 2 else "before"
    if len(set(found.values())) == 1:
        return f"{places}: {found['mixer']}"
    return "; ".join(f"{place}: {text}" for place, text in found.items())


def _embedding_scale(blueprint: Blueprint) -> str:
    found = blueprint.embedding
    scale = NONE if found.scale == 1 else root(found.scale)
    return f"{scale}, rounded to the weights' type" if found.rounded_scale else scale


def _per_layer(blueprint: Blueprint) -> str:
    table = blueprint.per_layer_embeddings
    layers = over_layers(blueprint, lambda layer: "used" if layer.per_layer_input else "not used")
    if table is None:
        return NONE if layers == "not used" else f"{NONE}; {layers}"
    text = f"{table.vocabulary:,} x {table.dim}"
    return text if layers == "used" else f"{text}; {layers}"


def _altup(blueprint: Blueprint) -> str:
    found = blueprint.altup
    return NONE if found is None else f"{found.streams} streams, stream {found.active} is computed on"


_NORMS: Final = under(("layer",), "mixer_norm", "feed_forward_norm", "mixer_post_norm", "feed_forward_post_norm")

STREAM: Final = (
    Dimension(
        "norms",
        "Stream",
        "Norms around the parts of a layer",
        lambda b: over_layers(b, _norms),
        (*_NORMS, *under(_NORMS, "kind", "eps", "offset", "weight", "bias")),
        ("norm.eps",),
    ),
    Dimension(
        "final_norm",
        "Stream",
        "Final norm",
        lambda b: _norm(b.final_norm),
        under(("final_norm",), "kind", "eps", "offset", "weight", "bias"),
        ("norm.eps",),
    ),
    Dimension(
        "embedding_scale",
        "Stream",
        "Embedding scale",
        _embedding_scale,
        ("embedding.scale", "embedding.rounded_scale"),
        ("embedding.scale", "hidden"),
    ),
    Dimension(
        "per_layer_embeddings",
        "Stream",
        "Per-layer embeddings",
        _per_layer,
        (
            *("per_layer_embeddings", "per_layer_embeddings.vocabulary", "per_layer_embeddings.dim"),
            "layer.per_layer_input",
        ),
        ("per_layer.vocabulary", "per_layer.dim"),
    ),
    Dimension(
        "altup",
        "Stream",
        "AltUp",
        _altup,
        ("altup", "altup.streams", "altup.active"),
        ("altup.streams", "altup.active"),
    ),
    Dimension(
        "laurel",
        "Stream",
        "LAuReL rank",
        lambda b: over_layers(b, lambda layer: NONE if layer.laurel_rank is None else number(layer.laurel_rank)),
        ("layer.laurel_rank",),
        ("laurel_rank",),
    ),
    Dimension(
        "layer_scalar",
        "Stream",
        "Layer scalar",
        lambda b: over_layers(b, lambda layer: "one per layer" if layer.scalar else NONE),
        ("layer.scalar",),
        ("layer.scalar",),
    ),
)


def _modalities(blueprint: Blueprint) -> str:
    found = (f"{t.kind} ({t.description}, {count(t.parameters)} parameters)" for t in blueprint.towers)
    return " + ".join(["text", *found])


def _mtp(blueprint: Blueprint) -> str:
    found = blueprint.mtp
    if found is None:
        return NONE
    copies = {"embedding": found.copies_embedding, "head": found.copies_head}
    copied = " and ".join(name for name, there in copies.items() if there)
    return joined(
        [
            f"{len(found.layers)} layer{'' if len(found.layers) == 1 else 's'} in the file",
            f"own copy of {copied}" if copied else "",
            "one projection for all" if found.one_projection else "",
        ]
    )


def _quantization(blueprint: Blueprint) -> str:
    found = blueprint.quantization
    if found is None:
        return NONE
    block = f", blocks of {' x '.join(map(str, found.block))}" if found.block else ""
    return f"{found.method}, {found.format}{block}"


_TOWERS: Final = ("towers", "towers.vision.description", "towers.audio.description")

MODEL: Final = (
    Dimension("family", "Model", "Family", lambda b: b.family, ("family",), ("family",)),
    Dimension("context", "Model", "Context", lambda b: number(b.max_context), ("max_context",), ("max_context",)),
    Dimension("vocabulary", "Model", "Vocabulary", lambda b: number(b.vocabulary), ("vocabulary",), ("vocabulary",)),
    Dimension(
        "tied",
        "Model",
        "Output head",
        lambda b: "the embedding itself (tied)" if b.head.tied else "its own matrix",
        ("head.tied",),
        ("head.tied",),
    ),
    Dimension(
        "logit_softcap",
        "Model",
        "Logit softcap",
        lambda b: NONE if b.head.softcap is None else number(b.head.softcap),
        ("head.softcap",),
        ("head.softcap",),
    ),
    Dimension("modalities", "Model", "Modalities", _modalities, _TOWERS, ("vision.*", "audio.*")),
    Dimension(
        "mtp",
        "Model",
        "Multi-token prediction",
        _mtp,
        ("mtp", "mtp.copies_embedding", "mtp.copies_head", "mtp.one_projection"),
        ("mtp.*",),
    ),
    Dimension(
        "quantization",
        "Model",
        "Declared quantization",
        _quantization,
        ("quantization", *under(("quantization",), "method", "format", "block")),
        ("quantization.method", "quantization.format", "quantization.block"),
    ),
)

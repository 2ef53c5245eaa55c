"""FLOPs of a prefill and of one decode step, by kind of layer, as exact integers.

Products with weights follow from the inventory: a tensor with two or more axes multiplies each token once, embedding
tables (which are looked up) apart. What grows with the context follows from the mixers: a query at position p meets
min(p + 1, limit) keys, limit being the window, the indexer's top_k, or none. `conventions` says what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from plait.blueprint.spec import Attention, Blueprint, Gated, GatedDeltaNet, LatentAttention, Layer, Mixture
from plait.blueprint.tensors import Tensor, inventory
from plait.errors import UsageError

__all__ = ["KINDS", "FlopsAccount", "Kind", "Mixing", "Phase", "Terms", "conventions", "flops", "keys_seen", "terms"]

Kind = Literal[
    "embedding_projections",
    "full_attention",
    "window_attention",
    "gated_delta_net",
    "latent_attention",
    "sparse_attention",
    "indexer",
    "dense_feed_forward",
    "mixture",
    "per_layer_embeddings",
    "laurel",
    "altup",
    "head",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

# What the figures count, each with the kinds it speaks of (none: all).
_CONVENTIONS: Final[tuple[tuple[str, tuple[Kind, ...]], ...]] = (
    ("1 multiply-add = 2 FLOPs", ()),
    (
        "not counted: norms, activations, RoPE, exponentials of softmax, biases, residual sums, softcaps, embedding "
        "look-ups, choosing experts and keys, and products of an element with an element: value scales, output gates "
        "and gated feed-forwards (the projections of the gates are counted)",
        (),
    ),
    ("a causal query at position p meets p + 1 keys; masked scores are not counted", ()),
    ("in a window of W it meets min(p + 1, W) keys", ("window_attention",)),
    ("decode is the last token of the context: it meets `context` keys, itself among them", ()),
    (
        "every layer runs for every token; the head runs for the last token of a prefill (`total_all_logits`: for "
        "all), and is counted where its weights are the embedding's too",
        (),
    ),
    (
        "layers that read another layer's keys and values project none of their own",
        ("full_attention", "window_attention"),
    ),
    (
        "latent attention runs absorbed: scores against latent and rotated key, values from the latent, the key/value "
        "up-projection once per query",
        ("latent_attention", "sparse_attention"),
    ),
    ("in a sparse layer a query attends to min(p + 1, top_k) keys", ("sparse_attention",)),
    (
        "an indexer scores all earlier keys and the token's own, and sums its heads; layers that share its choice "
        "do not",
        ("indexer",),
    ),
    (
        "Gated DeltaNet runs as the recurrence: 7 FLOPs per element of the state (decay 1, three contractions of 2), "
        "its convolution 2 per tap and channel",
        ("gated_delta_net",),
    ),
    ("a mixture runs its active experts, its router and its shared experts", ("mixture",)),
    (
        "AltUp asks its router twice; its prediction mixes streams x streams, its correction is an outer product; "
        "its streams are projected once per token and joined again where the head runs",
        ("altup",),
    ),
    ("the text model alone: no towers, no multi-token prediction", ()),
)
# Ranges of rows have a length up to 2^63 - 1.
_LARGEST: Final = 2**62
# Per element of a delta state: decay, k S, the outer product k delta, q S.
_DELTA_FLOPS: Final = 1 + 3 * 2


@dataclass(frozen=True, slots=True)
class Phase:
    """FLOPs of one phase, all sequences together.

    tokens            how many tokens the phase takes in
    total             all FLOPs
    total_all_logits  the same with the head run for every token
    by_kind           `total` by kind; kinds the model does not have are absent
    products          the part of `total` that multiplies weights; it does not depend on where the tokens stand
    mixing            the rest: scores and values of attention, scores of indexers, recurrences, AltUp's streams
    """

    tokens: int
    total: int
    total_all_logits: int
    by_kind: Mapping[Kind, int]
    products: int
    mixing: int

    @property
    def per_token(self) -> float:
        """Mean over the tokens."""
        return self.total / self.tokens


@dataclass(frozen=True, slots=True)
class FlopsAccount:
    """Prefill of `batch` sequences of `context` tokens, and one decode step of `batch` tokens at that context.

    layers  how many layers have a part of each kind (1 for what stands beside the layers)
    """

    context: int
    batch: int
    max_context: int
    layers: Mapping[Kind, int]
    prefill: Phase
    decode: Phase


@dataclass(frozen=True, slots=True)
class Mixing:
    """FLOPs that multiply no weights: per key a query meets, and per token. limit: most keys a query meets."""

    kind: Kind
    per_key: int = 0
    limit: int | None = None
    per_token: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the FLOPs at every context and batch are made of.

    products  FLOPs a token of the products with weights, by kind; the head's are of one token a sequence
    mixing    what multiplies no weights, of each layer
    """

    products: Mapping[Kind, int]
    mixing: tuple[Mixing, ...]


def conventions(kinds: Iterable[Kind] = KINDS) -> tuple[str, ...]:
    """What the figures count, one sentence each: those that hold for models with parts of these kinds."""
    there = set(kinds)
    return tuple(text for text, of in _CONVENTIONS if not of or there & set(of))


def keys_seen(context: int, limit: int | None) -> int:
    """Keys all queries of a context meet: the sum of min(p + 1, limit) over positions 0 .. context - 1."""
    full = context if limit is None else min(context, limit)
    return full * (full + 1) // 2 + (context - full) * full


def _mixer_kind(layer: Layer) -> Kind:
    match layer.mixer:
        case Attention():
            return "full_attention" if layer.mixer.window is None else "window_attention"
        case LatentAttention():
            return "latent_attention" if layer.mixer.indexer is None else "sparse_attention"
        case GatedDeltaNet():
            return "gated_delta_net"


def _kind(tensor: Tensor, blueprint: Blueprint) -> Kind:
    """The line a tensor's products belong to, from its role."""
    words = tensor.role.split(".")
    if words[0] == "layers":
        layer = blueprint.layers[int(words[1])]
        match words[2]:
            case "attention" | "delta":
                return "indexer" if words[3] == "indexer" else _mixer_kind(layer)
            case "feed_forward":
                return "dense_feed_forward" if words[3] in ("gate", "up", "down") else "mixture"
            case "per_layer_input":
                return "per_layer_embeddings"
            case "laurel":
                return "laurel"
            case "altup":
                return "altup"
    elif tensor.role.startswith("altup.projection.") or tensor.role == "per_layer_projection":
        return "embedding_projections"
    elif tensor.role.startswith("altup.unembedding.") or tensor.use in ("embedding", "head"):
        return "head"
    raise AssertionError(f"no line of the account for {tensor.role}")


def _products(blueprint: Blueprint) -> Iterator[tuple[Kind, int]]:
    """(kind, FLOPs per token) of every product with weights."""
    for tensor in inventory(blueprint):
        if tensor.part != "text" or len(tensor.shape) < 2:
            continue
        # A table is looked up, and multiplies only where it is the head as well.
        if tensor.use == "embedding" and not (tensor.role == "embedding" and blueprint.head.tied):
            continue
        share, whole = tensor.per_token
        yield _kind(tensor, blueprint), 2 * tensor.elements * share // whole


def _mixing(layer: Layer, blueprint: Blueprint) -> Iterator[Mixing]:
    mixer, kind = layer.mixer, _mixer_kind(layer)
    match mixer:
        case Attention():
            yield Mixing(kind, 2 * mixer.heads * (mixer.qk_dim + mixer.v_dim), mixer.window)
        case LatentAttention():
            indexer = mixer.indexer
            row = mixer.kv_rank + mixer.rope_dim
            limit = None if indexer is None else indexer.top_k
            yield Mixing(kind, 2 * mixer.heads * (row + mixer.kv_rank), limit)
            if indexer is not None and indexer.source is None:
                # One product per dim, and one with the head's weight in the sum over heads.
                yield Mixing("indexer", 2 * indexer.heads * (indexer.dim + 1))
        case GatedDeltaNet():
            state = mixer.value_heads * mixer.key_dim * mixer.value_dim
            yield Mixing(kind, per_token=_DELTA_FLOPS * state)
    if blueprint.altup is not None:
        streams = blueprint.altup.streams
        router, mixed, corrected = streams, streams * streams, streams
        # The inventory holds the router once; it is asked before and after the layer.
        yield Mixing("altup", per_token=2 * blueprint.hidden * (router + mixed + corrected))


def _ordered(found: Mapping[Kind, int]) -> Mapping[Kind, int]:
    return MappingProxyType({kind: found[kind] for kind in KINDS if found.get(kind)})


def _phase(
    products: Mapping[Kind, int], mixing: tuple[Mixing, ...], batch: int, context: int, *, last: bool
) -> Phase:
    """`last`: of the last token alone; else of all tokens, the head of the last one."""
    tokens = 1 if last else context
    found = {kind: batch * n * (1 if kind == "head" else tokens) for kind, n in products.items()}
    weights = sum(found.values())
    for item in mixing:
        limit = context if item.limit is None else item.limit
        seen = min(context, limit) if last else keys_seen(context, limit)
        found[item.kind] = found.get(item.kind, 0) + batch * (item.per_key * seen + item.per_token * tokens)
    total = sum(found.values())
    heads = total + batch * (tokens - 1) * products.get("head", 0)
    return Phase(batch * tokens, total, heads, _ordered(found), weights, total - weights)


def _layers(blueprint: Blueprint, kinds: Mapping[Kind, int]) -> Mapping[Kind, int]:
    found: dict[Kind, int] = dict.fromkeys(kinds, 0)
    for layer in blueprint.layers:
        part = layer.feed_forward
        indexer = layer.mixer.indexer if isinstance(layer.mixer, LatentAttention) else None
        has: dict[Kind, bool] = {
            _mixer_kind(layer): True,
            "indexer": indexer is not None and indexer.source is None,
            "dense_feed_forward": not isinstance(part, Mixture),
            "mixture": not isinstance(part, Gated),
            "per_layer_embeddings": layer.per_layer_input,
            "laurel": layer.laurel_rank is not None,
            "altup": blueprint.altup is not None,
        }
        for kind, there in has.items():
            if kind in found:
                found[kind] += there
    return _ordered({kind: n or 1 for kind, n in found.items()})


def terms(blueprint: Blueprint) -> Terms:
    """The FLOPs of a model apart from context and batch."""
    products: dict[Kind, int] = {}
    for kind, n in _products(blueprint):
        products[kind] = products.get(kind, 0) + n
    mixing = tuple(item for layer in blueprint.layers for item in _mixing(layer, blueprint))
    return Terms(MappingProxyType(products), mixing)


def flops(blueprint: Blueprint, context: int, *, batch: int = 1) -> FlopsAccount:
    """FLOPs of `batch` sequences of `context` tokens; a context above `max_context` is counted all the same.

    UsageError: a context or batch below 1, or a context that no computer addresses.
    """
    for what, value in (("context", context), ("batch", batch)):
        if value < 1:
            raise UsageError(f"{what} must be at least 1, not {value}")
        if value > _LARGEST:
            raise UsageError(f"{what} is too large; the most that is counted is 2^62")
    made = terms(blueprint)
    prefill = _phase(made.products, made.mixing, batch, context, last=False)
    decode = _phase(made.products, made.mixing, batch, context, last=True)
    return FlopsAccount(
        context, batch, blueprint.max_context, _layers(blueprint, prefill.by_kind), prefill, decode
    )

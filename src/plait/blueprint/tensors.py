"""Inventory: every tensor a model's graph needs, by role and shape.

The only place that knows roles and shapes. Counting sums it, loading fills it, `plait random` writes it. A role is
a dotted name, `layers.3.attention.query`; linear weights are [out, in], as both containers store them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Both,
    FeedForward,
    Gated,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mixture,
    Norm,
)

__all__ = ["Part", "Tensor", "Use", "inventory"]

Part = Literal["text", "vision", "audio", "embedders", "mtp"]
Use = Literal["embedding", "head", "mixer", "feed_forward", "experts", "router", "norm", "other"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the graph, or `copies` alike.

    use       the line of the account it belongs to
    vector    kept in at least float32 by the runtime: norms, biases, gates' constants
    buffer    stored beside the weights but no parameter (router bias, layer scalar)
    per_token share of the tensor one token uses: (numerator, denominator), for routed experts
    """

    role: str
    shape: tuple[int, ...]
    use: Use
    part: Part = "text"
    vector: bool = False
    buffer: bool = False
    copies: int = 1
    per_token: tuple[int, int] = (1, 1)

    @property
    def elements(self) -> int:
        return prod(self.shape) * self.copies


def _norm(role: str, norm: Norm | None, width: int) -> Iterator[Tensor]:
    if norm is None:
        return
    if norm.weight:
        yield Tensor(role, (width,), "norm", vector=True)
    if norm.bias:
        yield Tensor(f"{role}_bias", (width,), "norm", vector=True)


def _attention(role: str, mixer: Attention, hidden: int) -> Iterator[Tensor]:
    queries, keys, values = mixer.heads * mixer.qk_dim, mixer.kv_heads * mixer.qk_dim, mixer.kv_heads * mixer.v_dim
    own = mixer.kv_source is None
    yield Tensor(f"{role}.query", (queries, hidden), "mixer")
    if own:
        yield Tensor(f"{role}.key", (keys, hidden), "mixer")
        if not mixer.keys_are_values:
            yield Tensor(f"{role}.value", (values, hidden), "mixer")
    yield Tensor(f"{role}.output", (hidden, mixer.heads * mixer.v_dim), "mixer")
    if mixer.gate is not None:
        rows = mixer.heads if mixer.gate.per == "head" else mixer.heads * mixer.v_dim
        yield Tensor(f"{role}.gate", (rows, hidden), "mixer")
        if mixer.gate.bias:
            yield Tensor(f"{role}.gate_bias", (rows,), "mixer", vector=True)
    if mixer.qkv_bias:
        yield Tensor(f"{role}.query_bias", (queries,), "mixer", vector=True)
        if own:
            yield Tensor(f"{role}.key_bias", (keys,), "mixer", vector=True)
            if not mixer.keys_are_values:
                yield Tensor(f"{role}.value_bias", (values,), "mixer", vector=True)
    if mixer.output_bias:
        yield Tensor(f"{role}.output_bias", (hidden,), "mixer", vector=True)
    if mixer.qk_norm is not None:
        whole = mixer.qk_norm.over == "all"
        yield from _norm(f"{role}.query_norm", mixer.qk_norm.norm, queries if whole else mixer.qk_dim)
        if own:
            yield from _norm(f"{role}.key_norm", mixer.qk_norm.norm, keys if whole else mixer.qk_dim)
    if mixer.sinks:
        yield Tensor(f"{role}.sinks", (mixer.heads,), "mixer", vector=True)


def _latent(role: str, mixer: LatentAttention, hidden: int) -> Iterator[Tensor]:
    width = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    if mixer.q_rank is None:
        yield Tensor(f"{role}.query", (width, hidden), "mixer")
    else:
        yield Tensor(f"{role}.query_down", (mixer.q_rank, hidden), "mixer")
        yield from _norm(f"{role}.query_latent_norm", mixer.latent_norm, mixer.q_rank)
        yield Tensor(f"{role}.query_up", (width, mixer.q_rank), "mixer")
        if mixer.bias:
            yield Tensor(f"{role}.query_down_bias", (mixer.q_rank,), "mixer", vector=True)
    yield Tensor(f"{role}.key_value_down", (mixer.kv_rank + mixer.rope_dim, hidden), "mixer")
    if mixer.bias:
        yield Tensor(f"{role}.key_value_down_bias", (mixer.kv_rank + mixer.rope_dim,), "mixer", vector=True)
    yield from _norm(f"{role}.key_value_norm", mixer.latent_norm, mixer.kv_rank)
    yield Tensor(f"{role}.key_value_up", (mixer.heads * (mixer.nope_dim + mixer.v_dim), mixer.kv_rank), "mixer")
    yield Tensor(f"{role}.output", (hidden, mixer.heads * mixer.v_dim), "mixer")
    if mixer.bias:
        yield Tensor(f"{role}.output_bias", (hidden,), "mixer", vector=True)
    indexer = mixer.indexer
    if indexer is not None and indexer.source is None:
        source = mixer.q_rank if mixer.q_rank is not None else hidden
        yield Tensor(f"{role}.indexer.query", (indexer.heads * indexer.dim, source), "mixer")
        yield Tensor(f"{role}.indexer.key", (indexer.dim, hidden), "mixer")
        yield from _norm(f"{role}.indexer.key_norm", indexer.key_norm, indexer.dim)
        yield Tensor(f"{role}.indexer.weights", (indexer.heads, hidden), "mixer")


def _delta(role: str, mixer: GatedDeltaNet, hidden: int) -> Iterator[Tensor]:
    values = mixer.value_heads * mixer.value_dim
    yield Tensor(f"{role}.query_key_value", (mixer.conv_channels, hidden), "mixer")
    yield Tensor(f"{role}.gate", (values, hidden), "mixer")
    yield Tensor(f"{role}.beta", (mixer.value_heads, hidden), "mixer")
    yield Tensor(f"{role}.decay", (mixer.value_heads, hidden), "mixer")
    yield Tensor(f"{role}.convolution", (mixer.conv_channels, mixer.conv_kernel), "mixer", vector=True)
    yield Tensor(f"{role}.decay_log", (mixer.value_heads,), "mixer", vector=True)
    yield Tensor(f"{role}.time_step_bias", (mixer.value_heads,), "mixer", vector=True)
    yield from _norm(f"{role}.output_norm", mixer.output_norm, mixer.value_dim)
    yield Tensor(f"{role}.output", (hidden, values), "mixer")


def _gated(role: str, gated: Gated, hidden: int) -> Iterator[Tensor]:
    yield Tensor(f"{role}.gate", (gated.width, hidden), "feed_forward")
    yield Tensor(f"{role}.up", (gated.width, hidden), "feed_forward")
    yield Tensor(f"{role}.down", (hidden, gated.width), "feed_forward")
    if gated.bias:
        yield Tensor(f"{role}.gate_bias", (gated.width,), "feed_forward", vector=True)
        yield Tensor(f"{role}.up_bias", (gated.width,), "feed_forward", vector=True)
        yield Tensor(f"{role}.down_bias", (hidden,), "feed_forward", vector=True)


def _mixture(role: str, mixture: Mixture, hidden: int) -> Iterator[Tensor]:
    router, share = mixture.router, (mixture.active, mixture.experts)
    yield Tensor(f"{role}.router", (mixture.experts, hidden), "router")
    if router.norm is not None:
        yield Tensor(f"{role}.router_scale", (hidden,), "router", vector=True)
    if router.expert_scale:
        yield Tensor(f"{role}.expert_scale", (mixture.experts,), "router", vector=True)
    if router.selection_bias:
        yield Tensor(f"{role}.router_bias", (mixture.experts,), "router", vector=True, buffer=True)
    stack = (mixture.experts, mixture.width, hidden)
    yield Tensor(f"{role}.experts.gate", stack, "experts", per_token=share)
    yield Tensor(f"{role}.experts.up", stack, "experts", per_token=share)
    yield Tensor(f"{role}.experts.down", (mixture.experts, hidden, mixture.width), "experts", per_token=share)
    if mixture.shared is not None:
        yield from _gated(f"{role}.shared", Gated(mixture.shared.width, mixture.activation), hidden)
        if mixture.shared.gated:
            yield Tensor(f"{role}.shared_gate", (1, hidden), "router")


def _feed_forward(role: str, part: FeedForward, hidden: int) -> Iterator[Tensor]:
    match part:
        case Gated():
            yield from _gated(role, part, hidden)
        case Mixture():
            yield from _mixture(role, part, hidden)
        case Both():
            yield from _gated(role, part.dense, hidden)
            yield from _mixture(role, part.mixture, hidden)
            yield from _norm(f"{role}.dense_post_norm", part.dense_post_norm, hidden)
            yield from _norm(f"{role}.mixture_norm", part.mixture_norm, hidden)
            yield from _norm(f"{role}.mixture_post_norm", part.mixture_post_norm, hidden)


def _layer(prefix: str, layer: Layer, blueprint: Blueprint) -> Iterator[Tensor]:
    hidden = blueprint.hidden
    yield from _norm(f"{prefix}.mixer_norm", layer.mixer_norm, hidden)
    match layer.mixer:
        case Attention():
            yield from _attention(f"{prefix}.attention", layer.mixer, hidden)
        case LatentAttention():
            yield from _latent(f"{prefix}.attention", layer.mixer, hidden)
        case GatedDeltaNet():
            yield from _delta(f"{prefix}.delta", layer.mixer, hidden)
    yield from _norm(f"{prefix}.mixer_post_norm", layer.mixer_post_norm, hidden)
    yield from _norm(f"{prefix}.feed_forward_norm", layer.feed_forward_norm, hidden)
    yield from _feed_forward(f"{prefix}.feed_forward", layer.feed_forward, hidden)
    yield from _norm(f"{prefix}.feed_forward_post_norm", layer.feed_forward_post_norm, hidden)
    if layer.per_layer_input and blueprint.per_layer_embeddings is not None:
        table = blueprint.per_layer_embeddings
        yield Tensor(f"{prefix}.per_layer_input.gate", (table.dim, hidden), "other")
        yield Tensor(f"{prefix}.per_layer_input.projection", (hidden, table.dim), "other")
        yield from _norm(f"{prefix}.per_layer_input.norm", table.norm, hidden)
    if layer.laurel_rank is not None:
        yield Tensor(f"{prefix}.laurel.left", (layer.laurel_rank, hidden), "other")
        yield Tensor(f"{prefix}.laurel.right", (hidden, layer.laurel_rank), "other")
        yield from _norm(f"{prefix}.laurel.norm", layer.mixer_norm, hidden)
    if blueprint.altup is not None:
        streams = blueprint.altup.streams
        yield Tensor(f"{prefix}.altup.correct_scale", (hidden,), "other", vector=True)
        yield Tensor(f"{prefix}.altup.correction", (streams, streams), "other", vector=True)
        yield Tensor(f"{prefix}.altup.prediction", (streams * streams, streams), "other", vector=True)
        yield Tensor(f"{prefix}.altup.router", (streams, hidden), "other")
        yield from _norm(f"{prefix}.altup.router_norm", blueprint.altup.router_norm, hidden)
    if layer.scalar:
        yield Tensor(f"{prefix}.scalar", (1,), "other", vector=True, buffer=True)


def _mtp(blueprint: Blueprint) -> Iterator[Tensor]:
    """Multi-token-prediction layers: each joins the normed embedding and the normed hidden state, and ends in a norm.

    Copies of the embedding and the head are no tensors of their own (https://arxiv.org/abs/2412.19437, section 2.2).
    """
    if blueprint.mtp is None:
        return
    hidden = blueprint.hidden
    for index, layer in enumerate(blueprint.mtp.layers):
        prefix = f"mtp.{index}"
        own = index == 0 or not blueprint.mtp.one_projection
        if own:
            yield Tensor(f"{prefix}.projection", (hidden, 2 * hidden), "other")
            yield from _norm(f"{prefix}.embedding_norm", blueprint.final_norm, hidden)
            yield from _norm(f"{prefix}.hidden_norm", blueprint.final_norm, hidden)
        yield from _layer(prefix, layer, blueprint)
        if own:
            yield from _norm(f"{prefix}.final_norm", blueprint.final_norm, hidden)


def inventory(blueprint: Blueprint) -> tuple[Tensor, ...]:
    """Every tensor of the text graph in the order of the forward pass, then the towers, then multi-token prediction.

    Tied heads stand once.
    """

    def tensors() -> Iterator[Tensor]:
        hidden = blueprint.hidden
        yield Tensor("embedding", (blueprint.vocabulary, hidden), "embedding")
        table = blueprint.per_layer_embeddings
        if table is not None:
            width = len(blueprint.layers) * table.dim
            yield Tensor("per_layer_embedding", (table.vocabulary, width), "embedding")
            yield Tensor("per_layer_projection", (width, hidden), "other")
            yield from _norm("per_layer_norm", table.norm, table.dim)
        if blueprint.altup is not None:
            for i in range(1, blueprint.altup.streams):
                yield Tensor(f"altup.projection.{i}", (hidden, hidden), "other")
                yield Tensor(f"altup.unembedding.{i}", (hidden, hidden), "other")
        for index, layer in enumerate(blueprint.layers):
            yield from _layer(f"layers.{index}", layer, blueprint)
        yield from _norm("final_norm", blueprint.final_norm, hidden)
        if not blueprint.head.tied:
            yield Tensor("head", (blueprint.vocabulary, hidden), "head")
        for tower in blueprint.towers:
            for item in tower.tensors:
                part: Part = "embedders" if item.embedder else tower.kind
                role = f"{tower.kind}.{item.name}"
                yield Tensor(role, item.shape, "other", part, buffer=item.buffer, copies=item.copies)
        for tensor in _mtp(blueprint):
            yield replace(tensor, part="mtp")

    return tuple(tensors())

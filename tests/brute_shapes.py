"""Shapes of all tensors of a blueprint, written down once more and apart from the inventory: an oracle for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from plait.blueprint.spec import (
    Attention,
    Blueprint,
    FeedForward,
    Gated,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mixer,
    Mixture,
    Norm,
    Rope,
)

HIDDEN, TOKENS = 64, 300
RMS, BARE, LAYER = Norm(1e-6), Norm(1e-6, weight=False), Norm(1e-6, bias=True, kind="layer")
ROPE = Rope(1e4, 4, 8, distance=8)


class Shape(NamedTuple):
    """A stored matrix or vector, how many of it, and what it is: `share` of the experts serve one token."""

    size: tuple[int, ...]
    kind: str = "matrix"
    times: int = 1
    share: tuple[int, int] = (1, 1)

    @property
    def count(self) -> int:
        total = self.times
        for n in self.size:
            total *= n
        return total


def norms(norm: Norm | None, width: int) -> Iterator[Shape]:
    for there in () if norm is None else (norm.weight, norm.bias):
        if there:
            yield Shape((width,), "vector")


def attention(m: Attention) -> Iterator[Shape]:
    q, k, v = m.heads * m.qk_dim, m.kv_heads * m.qk_dim, m.kv_heads * m.v_dim
    projections = [q] if m.kv_source is not None else [q, k] if m.keys_are_values else [q, k, v]
    for rows in projections:
        yield Shape((rows, HIDDEN))
        if m.qkv_bias:
            yield Shape((rows,), "vector")
    yield Shape((HIDDEN, m.heads * m.v_dim))
    if m.output_bias:
        yield Shape((HIDDEN,), "vector")
    if m.sinks:
        yield Shape((m.heads,), "vector")
    if m.gate is not None:
        rows = {"head": m.heads, "element": m.heads * m.v_dim}[m.gate.per]
        yield Shape((rows, HIDDEN))
        if m.gate.bias:
            yield Shape((rows,), "vector")
    if m.qk_norm is not None:
        sizes = {"head": [m.qk_dim, m.qk_dim], "all": [q, k]}[m.qk_norm.over]
        for width in sizes[:1] if m.kv_source is not None else sizes:
            yield from norms(m.qk_norm.norm, width)


def latent(m: LatentAttention) -> Iterator[Shape]:
    into = HIDDEN
    if m.q_rank is not None:
        into = m.q_rank
        yield Shape((m.q_rank, HIDDEN))
        yield from norms(m.latent_norm, m.q_rank)
    yield Shape((m.heads * (m.nope_dim + m.rope_dim), into))
    yield Shape((m.kv_rank + m.rope_dim, HIDDEN))
    yield from norms(m.latent_norm, m.kv_rank)
    yield Shape((m.heads * (m.nope_dim + m.v_dim), m.kv_rank))
    yield Shape((HIDDEN, m.heads * m.v_dim))
    if m.bias:
        downs = [m.kv_rank + m.rope_dim, HIDDEN] if m.q_rank is None else [m.q_rank, m.kv_rank + m.rope_dim, HIDDEN]
        yield from (Shape((n,), "vector") for n in downs)
    if m.indexer is not None and m.indexer.source is None:
        yield Shape((m.indexer.heads * m.indexer.dim, into))
        yield Shape((m.indexer.dim, HIDDEN))
        yield Shape((m.indexer.heads, HIDDEN))
        yield from norms(m.indexer.key_norm, m.indexer.dim)


def delta(m: GatedDeltaNet) -> Iterator[Shape]:
    keys, values = m.key_heads * m.key_dim, m.value_heads * m.value_dim
    for rows in (keys + keys + values, values, m.value_heads, m.value_heads):
        yield Shape((rows, HIDDEN))
    yield Shape((keys + keys + values, m.conv_kernel), "vector")
    yield Shape((m.value_heads,), "vector", 2)
    yield from norms(m.output_norm, m.value_dim)
    yield Shape((HIDDEN, values))


def gated(width: int, bias: bool = False) -> Iterator[Shape]:
    yield Shape((width, HIDDEN), times=2)
    yield Shape((HIDDEN, width))
    if bias:
        yield from (Shape((n,), "vector") for n in (width, width, HIDDEN))


def mixture(m: Mixture) -> Iterator[Shape]:
    yield Shape((m.experts, HIDDEN), "whole")
    share = (m.active, m.experts)
    yield Shape((m.experts, m.width, HIDDEN), share=share)
    yield Shape((m.experts, m.width, HIDDEN), share=share)
    yield Shape((m.experts, HIDDEN, m.width), share=share)
    if m.router.norm is not None:
        yield Shape((HIDDEN,), "vector")
    if m.router.expert_scale:
        yield Shape((m.experts,), "vector")
    if m.router.selection_bias:
        yield Shape((m.experts,), "router bias")
    if m.shared is not None:
        yield from gated(m.shared.width)
        if m.shared.gated:
            yield Shape((1, HIDDEN), "whole")


def feed_forward(part: FeedForward) -> Iterator[Shape]:
    if isinstance(part, Gated):
        yield from gated(part.width, part.bias)
    elif isinstance(part, Mixture):
        yield from mixture(part)
    else:
        yield from gated(part.dense.width, part.dense.bias)
        yield from mixture(part.mixture)
        for norm in (part.dense_post_norm, part.mixture_norm, part.mixture_post_norm):
            yield from norms(norm, HIDDEN)


def mixer_shapes(m: Mixer) -> Iterator[Shape]:
    if isinstance(m, Attention):
        yield from attention(m)
    elif isinstance(m, LatentAttention):
        yield from latent(m)
    else:
        yield from delta(m)


def layer_shapes(item: Layer, model: Blueprint) -> Iterator[Shape]:
    for norm in (item.mixer_norm, item.mixer_post_norm, item.feed_forward_norm, item.feed_forward_post_norm):
        yield from norms(norm, HIDDEN)
    yield from mixer_shapes(item.mixer)
    yield from feed_forward(item.feed_forward)
    if item.per_layer_input:
        table = model.per_layer_embeddings
        assert table is not None
        yield Shape((table.dim, HIDDEN), "whole")
        yield Shape((HIDDEN, table.dim), "whole")
        yield from norms(table.norm, HIDDEN)
    if item.laurel_rank is not None:
        yield Shape((item.laurel_rank, HIDDEN), "whole")
        yield Shape((HIDDEN, item.laurel_rank), "whole")
        yield from norms(item.mixer_norm, HIDDEN)
    if model.altup is not None:
        streams = model.altup.streams
        yield Shape((HIDDEN,), "vector")
        yield Shape((streams, streams), "vector")
        yield Shape((streams * streams, streams), "vector")
        yield Shape((streams, HIDDEN), "whole")
        yield from norms(model.altup.router_norm, HIDDEN)
    if item.scalar:
        yield Shape((1,), "scalar")


def text_shapes(model: Blueprint) -> Iterator[Shape]:
    yield Shape((TOKENS, HIDDEN), "whole")
    table = model.per_layer_embeddings
    if table is not None:
        width = table.dim * len(model.layers)
        yield Shape((table.vocabulary, width), "whole")
        yield Shape((width, HIDDEN), "whole")
        yield from norms(table.norm, table.dim)
    if model.altup is not None:
        yield Shape((HIDDEN, HIDDEN), "whole", 2 * (model.altup.streams - 1))
    for item in model.layers:
        yield from layer_shapes(item, model)
    yield from norms(model.final_norm, HIDDEN)
    if not model.head.tied:
        yield Shape((TOKENS, HIDDEN), "whole")


def mtp_shapes(model: Blueprint) -> Iterator[Shape]:
    if model.mtp is None:
        return
    for index, item in enumerate(model.mtp.layers):
        yield from layer_shapes(item, model)
        if index == 0 or not model.mtp.one_projection:
            yield Shape((HIDDEN, 2 * HIDDEN), "whole")
            for _ in range(3):
                yield from norms(model.final_norm, HIDDEN)


def tower_shapes(model: Blueprint, kind: str) -> Iterator[Shape]:
    for tower in model.towers:
        for item in tower.tensors if tower.kind == kind else ():
            yield Shape(item.shape, "buffer" if item.buffer else "tower", item.copies)


BUFFERS = ("buffer", "router bias", "scalar")

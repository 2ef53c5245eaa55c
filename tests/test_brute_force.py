"""Accounts of models with every feature at once, against sums written here without the code under test.

The sums list the shapes each part of a model has, and count the rows of its state one token and one head at a time.
Blueprints are drawn at random; one holds everything together, so that no feature goes without.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest
from blueprints import small
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.account.memory import memory, weights_bytes
from plait.account.parameters import parameters
from plait.blueprint.spec import (
    AltUp,
    Attention,
    Blueprint,
    Both,
    FeedForward,
    Gated,
    GatedDeltaNet,
    Head,
    Indexer,
    LatentAttention,
    Layer,
    Mixer,
    Mixture,
    MultiTokenPrediction,
    Norm,
    OutputGate,
    PerLayerEmbeddings,
    QKNorm,
    Quantization,
    Rope,
    Router,
    SharedExperts,
    Tower,
    TowerTensor,
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


def elements(shapes: Iterator[Shape], *kinds: str) -> int:
    return sum(shape.count for shape in shapes if (shape.kind in kinds if kinds else shape.kind not in BUFFERS))


def in_blocks(shape: Shape, rows: int, columns: int) -> int:
    """Scales of one matrix or one stack of them, by walking over the corners of the blocks."""
    *stack, height, width = shape.size
    corners = sum(1 for _ in product(range(0, height, rows), range(0, width, columns)))
    for n in stack:
        corners *= n
    return corners * shape.times


def published_bytes(model: Blueprint) -> int:
    total = 0
    for shape in (*text_shapes(model), *tower_shapes(model, "vision"), *tower_shapes(model, "audio")):
        if shape.kind in BUFFERS:
            continue
        total += shape.count * (1 if shape.kind == "matrix" and model.quantization is not None else 2)
        if shape.kind == "matrix" and model.quantization is not None:
            total += 4 * in_blocks(shape, *model.quantization.block)
    return total


def block_bytes(model: Blueprint) -> int:
    """As q8_0: matrices whose rows fill blocks of 32 take 34 bytes a block, everything else four bytes an element."""
    total = 0
    for shape in (*text_shapes(model), *tower_shapes(model, "vision"), *tower_shapes(model, "audio")):
        if shape.kind in BUFFERS:
            continue
        blocked = shape.kind != "vector" and len(shape.size) > 1 and shape.size[-1] % 32 == 0
        total += shape.count // 32 * 34 if blocked else shape.count * 4
    return total


def check_parameters(model: Blueprint) -> None:
    found = parameters(model)
    text, ahead = list(text_shapes(model)), list(mtp_shapes(model))
    vision, audio = list(tower_shapes(model, "vision")), list(tower_shapes(model, "audio"))
    assert found.parts["text"] == elements(iter(text))
    assert found.parts["vision"] == elements(iter(vision))
    assert found.parts["audio"] == elements(iter(audio))
    assert found.parts["mtp"] == found.beyond.mtp == elements(iter(ahead))
    assert found.used == elements(iter(text + vision + audio))
    idle = sum(s.count // s.share[1] * (s.share[1] - s.share[0]) for s in text if s.share != (1, 1))
    assert found.active == found.used - idle
    assert found.beyond.router_bias == elements(iter(text + ahead), "router bias")
    assert found.beyond.layer_scalars == elements(iter(text + ahead), "scalar")
    assert found.beyond.buffers == elements(iter(vision + audio), "buffer")
    copied = 0 if model.mtp is None else len(model.mtp.layers) * (model.mtp.copies_embedding + model.mtp.copies_head)
    assert found.beyond.duplicates == copied * TOKENS * HIDDEN
    unused = 0
    for item in model.layers:
        m = item.mixer
        if isinstance(m, Attention) and m.kv_source is not None:
            rows = m.kv_heads * (m.qk_dim if m.keys_are_values else m.qk_dim + m.v_dim)
            unused += rows * (HIDDEN + (1 if m.qkv_bias else 0))
            if m.qk_norm is not None:
                width = {"head": m.qk_dim, "all": m.kv_heads * m.qk_dim}[m.qk_norm.over]
                unused += elements(norms(m.qk_norm.norm, width))
    assert found.beyond.unused_shared_kv == unused
    scales = 0
    if model.quantization is not None:
        scales = sum(in_blocks(s, *model.quantization.block) for s in text + ahead if s.kind == "matrix")
    assert found.beyond.fp8_scales == scales
    everything = elements(iter(text + vision + audio + ahead)) + elements(iter(text + vision + audio + ahead), *BUFFERS)
    assert found.in_file == everything + copied * TOKENS * HIDDEN + unused
    assert weights_bytes(model) == published_bytes(model)
    assert weights_bytes(model, "q8_0") == block_bytes(model)


def vector_bytes(dim: int, form: str) -> int:
    """One head's vector, element by element; in q8 a started block is a whole one."""
    if form == "q8":
        return sum(34 for _ in range(0, dim, 32))
    return sum({"f32": 4, "bf16": 2}[form] for _ in range(dim))


def check_memory(model: Blueprint, context: int, batch: int, form: str, kv_layout: bool) -> None:
    need = {"rows": 0, "windows": 0, "indexer": 0, "recurrent": 0, "convolution": 0}
    kept = dict(need)
    for item in model.layers:
        m = item.mixer
        if isinstance(m, GatedDeltaNet):
            need["recurrent"] += 4 * sum(m.key_dim * m.value_dim for _ in range(m.value_heads))
            channels = m.key_heads * m.key_dim + m.key_heads * m.key_dim + m.value_heads * m.value_dim
            need["convolution"] += 4 * sum(channels for _ in range(m.conv_kernel - 1))
            continue
        if isinstance(m, LatentAttention):
            vectors, window, category = [m.kv_rank, m.rope_dim], None, "rows"
            if m.indexer is not None and m.indexer.source is None:
                size = vector_bytes(m.indexer.dim, form)
                need["indexer"] += sum(size for _ in range(context))
                kept["indexer"] += size * 64 * len({p // 64 for p in range(context)})
        elif m.kv_source is not None:
            continue
        else:
            second = m.v_dim
            if m.keys_are_values and not kv_layout:
                second = m.rope.pairs * 2 if m.rope is not None else 0
            vectors = [m.qk_dim, second] * m.kv_heads
            window, category = m.window, "rows" if m.window is None else "windows"
        size = sum(vector_bytes(dim, form) for dim in vectors)
        seen = [p for p in range(context) if window is None or context - 1 - p < window]
        held = [p for p in range(context) if window is None or p >= context - window + 1 - 64]
        need[category] += size * len(seen)
        kept[category] += size * 64 * len({p // 64 for p in held})
    kept |= {name: need[name] for name in ("recurrent", "convolution")}
    found = memory(model, context, batch=batch, kv_format=form, kv_layout=kv_layout)
    assert {name: item.need_bytes for name, item in found.categories.items()} == {k: batch * n for k, n in need.items()}
    assert {name: item.reserved_bytes for name, item in found.categories.items()} == {
        k: batch * n for k, n in kept.items()
    }
    assert found.total_bytes == batch * sum(need.values())
    assert found.reserved_bytes == batch * sum(kept.values())
    assert found.weights_bytes == weights_bytes(model)
    table = model.per_layer_embeddings
    assert found.table_bytes == (0 if table is None else 2 * table.vocabulary * table.dim * len(model.layers))


DENSE = Gated(96, "silu", bias=True)
MIXTURE = Mixture(
    6,
    2,
    40,
    "gelu",
    Router("sigmoid", True, selection_bias=True, groups=3, kept_groups=2, norm=BARE, expert_scale=True),
    SharedExperts(1, 56, gated=True),
)
BOTH = Both(DENSE, MIXTURE, RMS, RMS, LAYER)
INDEXER = Indexer(3, 24, 5, ROPE, LAYER)
MIXERS: tuple[Mixer, ...] = (
    Attention(
        4, 2, 16, 16, 0.25, window=8, rope=ROPE, qk_norm=QKNorm(RMS, "head"), v_norm=BARE, sinks=True, softcap=30.0,
        gate=OutputGate("head", "sigmoid", bias=True), qkv_bias=True, output_bias=True, value_scale=0.7,
    ),
    Attention(
        6, 3, 40, 24, 0.25, rope=Rope(1e4, 4, 8, distance=4), qk_norm=QKNorm(LAYER, "all"), qkv_bias=True,
        gate=OutputGate("element", "silu"),
    ),
    Attention(6, 3, 40, 24, 0.25, qk_norm=QKNorm(RMS, "all"), qkv_bias=True, kv_source=1, sinks=True),
    Attention(2, 2, 48, 48, 1.0, rope=ROPE, keys_are_values=True, v_norm=BARE, qk_norm=QKNorm(RMS)),
    Attention(4, 1, 20, 20, 1.0, window=70, keys_are_values=True, qkv_bias=True),
    Attention(4, 2, 16, 16, 0.25, window=8, qk_norm=QKNorm(RMS), kv_source=0, output_bias=True),
    LatentAttention(3, 24, 40, 8, 16, 12, 0.2, ROPE, RMS, bias=True, indexer=INDEXER),
    LatentAttention(3, None, 40, 8, 16, 12, 0.2, ROPE, LAYER, bias=True),
    LatentAttention(3, 24, 40, 8, 16, 12, 0.2, ROPE, RMS, indexer=Indexer(3, 24, 5, ROPE, LAYER, source=6)),
    LatentAttention(2, None, 8, 4, 16, 4, 0.2, ROPE, RMS, indexer=Indexer(1, 33, 5, ROPE, RMS)),
    GatedDeltaNet(2, 6, 8, 12, 4, RMS),
    GatedDeltaNet(1, 1, 4, 4, 2, BARE, activation="sigmoid"),
)  # fmt: skip
PARTS: tuple[FeedForward, ...] = (DENSE, Gated(32, "gelu_tanh", sparsity=0.95), MIXTURE, BOTH)
TABLE = PerLayerEmbeddings(250, 12, "gelu_tanh", 1.0, 1.0, 0.7, RMS)
ALTUP = AltUp(4, 0, 120.0, True, RMS)
TOWERS = (
    Tower("vision", "", (TowerTensor("a.{}.weight", (16, 32), 3), TowerTensor("a.bias", (9,)))),
    Tower("audio", "", (TowerTensor("b", (5, 7)), TowerTensor("mean", (11,), 2, buffer=True))),
)


def everything() -> Blueprint:
    layers = tuple(
        Layer(
            mixer,
            PARTS[i % len(PARTS)],
            RMS,
            LAYER,
            mixer_post_norm=RMS if i % 2 else None,
            feed_forward_post_norm=LAYER if i % 3 else None,
            per_layer_input=True,
            laurel_rank=7 if i % 2 else None,
            scalar=i % 4 != 1,
        )
        for i, mixer in enumerate(MIXERS)
    )
    return small(
        *layers,
        head=Head(tied=False, softcap=30.0),
        per_layer_embeddings=TABLE,
        altup=ALTUP,
        mtp=MultiTokenPrediction((layers[0], layers[6]), copies_embedding=True, copies_head=True),
        towers=TOWERS,
        quantization=Quantization("fp8", "f8_e4m3", (16, 24)),
    )


def test_everything_at_once() -> None:
    model = everything()
    check_parameters(model)
    # With the windows of 8 and 70, at 134 and 196 one row more or less behind the window is a slab more or less.
    contexts = (1, 63, 64, 65, 134, 196, 200)
    for context, batch, form, kv_layout in product(contexts, (1, 3), ("f32", "bf16", "q8"), (False, True)):
        check_memory(model, context, batch, form, kv_layout)


@st.composite
def blueprints(draw: st.DrawFn) -> Blueprint:
    """Layers in any order with any of the features around them; shared keys and values only of a fitting layer."""
    flags = st.booleans()
    norms_or_none = st.sampled_from([None, RMS, LAYER])
    table = draw(st.sampled_from([None, TABLE]))
    mixers = list(MIXERS[:2]) + draw(st.lists(st.sampled_from(MIXERS), max_size=5))
    layers = tuple(
        Layer(
            mixer,
            draw(st.sampled_from(PARTS)),
            draw(st.sampled_from([RMS, LAYER])),
            RMS,
            draw(norms_or_none),
            draw(norms_or_none),
            table is not None and draw(flags),
            draw(st.sampled_from([None, 3])),
            draw(flags),
        )
        for mixer in mixers
    )
    mtp = MultiTokenPrediction(layers[: draw(st.integers(1, 2))], draw(flags), draw(flags), draw(flags))
    return small(
        *layers,
        head=Head(tied=draw(flags)),
        final_norm=draw(st.sampled_from([RMS, LAYER])),
        per_layer_embeddings=table,
        altup=draw(st.sampled_from([None, ALTUP])),
        mtp=draw(st.sampled_from([None, mtp])),
        towers=draw(st.sampled_from([(), TOWERS, TOWERS[:1]])),
        quantization=draw(st.sampled_from([None, Quantization("fp8", "f8_e4m3", (16, 24))])),
    )


@settings(deadline=None, max_examples=60)
@given(model=blueprints())
def test_parameters_and_weights(model: Blueprint) -> None:
    check_parameters(model)


@settings(deadline=None, max_examples=60)
@given(
    model=blueprints(),
    context=st.integers(1, 300),
    batch=st.integers(1, 4),
    form=st.sampled_from(["f32", "bf16", "q8"]),
    kv_layout=st.booleans(),
)
def test_memory(model: Blueprint, context: int, batch: int, form: str, kv_layout: bool) -> None:
    check_memory(model, context, batch, form, kv_layout)


@pytest.mark.parametrize("index", range(len(MIXERS)))
def test_the_sums_notice_a_missing_part(index: int) -> None:
    """Leaving any one mixer out changes what the sums expect, so none of them is counted as nothing."""
    assert elements(mixer_shapes(MIXERS[index])) > 0
    whole = everything()
    fewer = [layer for i, layer in enumerate(whole.layers) if i != index]
    less = sum(elements(layer_shapes(item, whole)) for item in fewer)
    assert parameters(whole).parts["text"] > less

"""Accounts of models with every feature at once, against sums written here without the code under test.

The sums list the shapes each part of a model has, and count the rows of its state one token and one head at a time.
Blueprints are drawn at random; one holds everything together, so that no feature goes without.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from blueprints import small
from brute_shapes import BUFFERS, Shape, layer_shapes, mixer_shapes, mtp_shapes, norms, text_shapes, tower_shapes
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

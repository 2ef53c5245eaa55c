"""FLOPs: closed forms against counting token by token, figures by hand, and what any account must satisfy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import pytest
from blueprints import NORM, deepseek_v32, layer, small
from hypothesis import given, settings
from hypothesis import strategies as st

import plait
from plait.account.flops import KINDS, conventions, flops, keys_seen
from plait.account.parameters import parameters
from plait.blueprint.catalog import Entry, entries
from plait.blueprint.source import open_entry
from plait.blueprint.spec import (
    AltUp,
    Attention,
    Blueprint,
    Both,
    Gated,
    GatedDeltaNet,
    Head,
    Indexer,
    LatentAttention,
    Mixture,
    OutputGate,
    PerLayerEmbeddings,
    Rope,
    Router,
    SharedExperts,
)
from plait.blueprint.tensors import inventory
from plait.errors import UsageError

ROPE = Rope(1e4, 4, 8, pairing="adjacent", distance=1)


def attention(**changes: object) -> Attention:
    return replace(Attention(heads=4, kv_heads=2, qk_dim=16, v_dim=8, scale=0.25), **changes)


def latent(q_rank: int | None = 24, indexer: Indexer | None = None) -> LatentAttention:
    # heads, ranks of queries and latents, dims: plain, rotated, values
    return LatentAttention(4, q_rank, 20, 12, 8, 10, 0.2, ROPE, NORM, indexer=indexer)


MIXTURE = Mixture(6, 2, 40, "silu", Router("softmax", True), SharedExperts(1, 56, gated=True))
BOTH = Both(Gated(72, "gelu_tanh", bias=True), replace(MIXTURE, shared=None), NORM, NORM, NORM)


def every_kind(window: int, top_k: int) -> Blueprint:
    """One layer or more of every kind there is, with AltUp and per-layer embeddings around them."""
    indexer = Indexer(3, 16, top_k, ROPE, NORM)
    plain = layer(attention())
    layers = (
        layer(attention(window=window, gate=OutputGate("element", "sigmoid"), qkv_bias=True, sinks=True)),
        replace(plain, feed_forward=MIXTURE, per_layer_input=True),
        layer(attention(kv_source=1, gate=OutputGate("head", "sigmoid"))),
        layer(attention(window=window + 3, kv_source=0)),
        layer(attention(v_dim=16, keys_are_values=True)),
        replace(layer(GatedDeltaNet(2, 4, 8, 16, 4, NORM)), laurel_rank=5, scalar=True),
        layer(latent()),
        layer(latent(q_rank=None, indexer=indexer)),
        layer(latent(indexer=replace(indexer, source=7))),
        replace(plain, feed_forward=BOTH),
    )
    return small(
        *layers,
        head=Head(tied=False),
        altup=AltUp(streams=3, active=0, coefficient_clip=None, scale_corrected=True, router_norm=NORM),
        per_layer_embeddings=PerLayerEmbeddings(100, 7, "gelu_tanh", 1.0, 1.0, 1.0, NORM),
    )


def gated_by_hand(width: int, h: int) -> int:
    return 3 * 2 * width * h


def mixture_by_hand(m: Mixture, h: int) -> int:
    shared = 0 if m.shared is None else gated_by_hand(m.shared.width, h) + 2 * h * m.shared.gated
    return 2 * m.experts * h + m.active * gated_by_hand(m.width, h) + shared


def mixer_by_hand(mixer: object, h: int, p: int) -> dict[str, int]:
    """FLOPs of one mixer for the token at position p, key by key."""
    if isinstance(mixer, Attention):
        keys = sum(1 for j in range(p + 1) if mixer.window is None or p - j < mixer.window)
        n = 2 * h * mixer.heads * mixer.qk_dim + 2 * mixer.heads * mixer.v_dim * h
        if mixer.kv_source is None:
            n += 2 * h * mixer.kv_heads * mixer.qk_dim
            n += 0 if mixer.keys_are_values else 2 * h * mixer.kv_heads * mixer.v_dim
        if mixer.gate is not None:
            n += 2 * h * mixer.heads * (1 if mixer.gate.per == "head" else mixer.v_dim)
        n += sum(mixer.heads * (2 * mixer.qk_dim + 2 * mixer.v_dim) for _ in range(keys))
        return {"full_attention" if mixer.window is None else "window_attention": n}
    if isinstance(mixer, GatedDeltaNet):
        q = mixer.key_heads * mixer.key_dim
        v = mixer.value_heads * mixer.value_dim
        # q, k, v, gate and output; beta and decay; taps; decay, k S, k x delta, q S.
        n = 2 * h * (2 * q + v) + 2 * h * v + 2 * v * h + 2 * 2 * h * mixer.value_heads
        n += 2 * mixer.conv_kernel * (2 * q + v)
        return {"gated_delta_net": n + mixer.value_heads * mixer.key_dim * mixer.value_dim * (1 + 2 + 2 + 2)}
    assert isinstance(mixer, LatentAttention)
    indexer = mixer.indexer
    keys = min(p + 1, p + 1 if indexer is None else indexer.top_k)
    query = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    n = 2 * h * query if mixer.q_rank is None else 2 * mixer.q_rank * (h + query)
    n += 2 * h * (mixer.kv_rank + mixer.rope_dim)
    n += mixer.heads * (2 * mixer.nope_dim * mixer.kv_rank + 2 * mixer.kv_rank * mixer.v_dim)
    n += 2 * mixer.heads * mixer.v_dim * h
    n += sum(mixer.heads * (2 * mixer.kv_rank + 2 * mixer.rope_dim + 2 * mixer.kv_rank) for _ in range(keys))
    if indexer is None:
        return {"latent_attention": n}
    if indexer.source is not None:
        return {"sparse_attention": n}
    source = h if mixer.q_rank is None else mixer.q_rank
    scored = 2 * source * indexer.heads * indexer.dim + 2 * h * indexer.dim + 2 * h * indexer.heads
    scored += sum(indexer.heads * (2 * indexer.dim + 2) for _ in range(p + 1))
    return {"sparse_attention": n, "indexer": scored}


def by_hand(b: Blueprint, positions: range, heads: int) -> Counter[str]:
    """The account counted token by token from the blueprint's own words; `heads`: how many tokens get logits."""
    found: Counter[str] = Counter()
    h, altup, table = b.hidden, b.altup, b.per_layer_embeddings
    streams = 1 if altup is None else altup.streams
    found["head"] = heads * (2 * h * b.vocabulary + 2 * (streams - 1) * h * h)
    for p in positions:
        found["embedding_projections"] += 2 * (streams - 1) * h * h
        found["embedding_projections"] += 0 if table is None else 2 * h * table.dim * len(b.layers)
        for item in b.layers:
            found.update(mixer_by_hand(item.mixer, h, p))
            part = item.feed_forward
            if isinstance(part, Gated | Both):
                dense = part if isinstance(part, Gated) else part.dense
                found["dense_feed_forward"] += gated_by_hand(dense.width, h)
            if isinstance(part, Mixture | Both):
                found["mixture"] += mixture_by_hand(part if isinstance(part, Mixture) else part.mixture, h)
            if item.per_layer_input and table is not None:
                found["per_layer_embeddings"] += 2 * h * table.dim + 2 * table.dim * h
            if item.laurel_rank is not None:
                found["laurel"] += 2 * 2 * h * item.laurel_rank
            if altup is not None:
                # Router, coefficients, streams mixed; router, coefficients, one update per stream.
                found["altup"] += 2 * h * streams + 2 * streams * streams**2 + 2 * h * streams**2
                found["altup"] += 2 * h * streams + 2 * streams * streams + 2 * h * streams
    return +found


@given(context=st.integers(1, 70), window=st.integers(1, 40), top_k=st.integers(1, 40), batch=st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_every_kind_equals_the_count_token_by_token(context: int, window: int, top_k: int, batch: int) -> None:
    blueprint = every_kind(window, top_k)
    found = flops(blueprint, context, batch=batch)
    prefill = by_hand(blueprint, range(context), 1)
    assert set(found.prefill.by_kind) == set(prefill) == set(KINDS)
    assert dict(found.prefill.by_kind) == {kind: batch * n for kind, n in prefill.items()}
    assert found.prefill.total == batch * prefill.total()
    assert found.prefill.total_all_logits == batch * by_hand(blueprint, range(context), context).total()
    decode = by_hand(blueprint, range(context - 1, context), 1)
    assert dict(found.decode.by_kind) == {kind: batch * n for kind, n in decode.items()}
    assert found.decode.total == found.decode.total_all_logits == batch * decode.total()
    assert (found.prefill.tokens, found.decode.tokens) == (batch * context, batch)


@given(context=st.integers(0, 3000), limit=st.none() | st.integers(1, 3500))
def test_keys_seen_is_the_sum_over_positions(context: int, limit: int | None) -> None:
    expected = sum(p + 1 if limit is None else min(p + 1, limit) for p in range(context))
    assert keys_seen(context, limit) == expected


@given(context=st.integers(1, 60), window=st.integers(1, 70))
@settings(deadline=None, max_examples=20)
def test_a_prefill_is_its_decode_steps(context: int, window: int) -> None:
    blueprint = every_kind(window, 9)
    steps = [flops(blueprint, n).decode for n in range(1, context + 1)]
    whole = flops(blueprint, context).prefill
    assert whole.total_all_logits == sum(step.total for step in steps)
    assert whole.mixing == sum(step.mixing for step in steps)
    for phase in (whole, *steps):
        assert phase.products + phase.mixing == phase.total == sum(phase.by_kind.values())


def test_spark_4b_by_hand() -> None:
    """36 = 27 windows of 512 + 9 full layers; 16 heads of 256, 4 KV heads, hidden 2560, width 10240, tied 131072."""
    blueprint = plait.blueprint("spark-x2.5-4b")
    projections = 2 * 2560 * (4096 + 1024 + 1024 + 4096 + 16)
    feed, head, key = 6 * 2560 * 10_240, 2 * 2560 * 131_072, 2 * 16 * 512
    assert (projections, feed, head, key) == (52_510_720, 157_286_400, 671_088_640, 16_384)

    for n in (4096, 131_072):
        found = flops(blueprint, n)
        full, windows = n * (n + 1) // 2, 512 * 513 // 2 + (n - 512) * 512
        assert dict(found.prefill.by_kind) == {
            "full_attention": 9 * (n * projections + key * full),
            "window_attention": 27 * (n * projections + key * windows),
            "dense_feed_forward": 36 * n * feed,
            "head": head,
        }
        assert dict(found.decode.by_kind) == {
            "full_attention": 9 * (projections + key * n),
            "window_attention": 27 * (projections + key * 512),
            "dense_feed_forward": 36 * feed,
            "head": head,
        }
        assert dict(found.layers) == {
            "full_attention": 9,
            "window_attention": 27,
            "dense_feed_forward": 36,
            "head": 1,
        }
    assert flops(blueprint, 4096).prefill.total == 33_043_611_910_144
    assert flops(blueprint, 4096).decode.total == 9_054_257_152
    assert flops(blueprint, 131_072).prefill.total == 2_286_223_687_155_712
    assert flops(blueprint, 131_072).decode.total == 27_777_630_208


def test_gemma_3_270m_by_hand() -> None:
    """18 = 15 windows of 512 + 3 full layers; 4 heads of 256, 1 KV head, hidden 640, width 2048, tied 262144."""
    blueprint = plait.blueprint("gemma-3-270m")
    weights = 18 * (2 * 640 * (1024 + 256 + 256 + 1024) + 6 * 640 * 2048)
    head, key = 2 * 640 * 262_144, 2 * 4 * 512
    assert (weights, head, key) == (200_540_160, 335_544_320, 4096)
    for n in (4096, 131_072):
        found = flops(blueprint, n)
        met = 3 * n * (n + 1) // 2 + 15 * (512 * 513 // 2 + (n - 512) * 512)
        assert found.prefill.total == n * weights + head + key * met
        assert found.prefill.total_all_logits == n * (weights + head) + key * met
        assert found.decode.total == weights + head + key * (3 * n + 15 * 512)
        assert found.prefill.per_token == found.prefill.total / n
    assert flops(blueprint, 4096).prefill.total == 1_045_664_104_448
    assert flops(blueprint, 4096).decode.total == 617_873_408


def test_deepseek_v32_by_hand() -> None:
    """61 layers; sparse attention stops growing at 2048 keys, the indexer does not."""
    blueprint = deepseek_v32()
    decode = {n: flops(blueprint, n).decode.by_kind for n in (2048, 2049, 131_072)}
    per_key = 2 * 128 * (512 + 64 + 512)
    projections = 2 * (7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168)
    for kinds in decode.values():
        assert kinds["sparse_attention"] == 61 * (projections + 2048 * per_key)
    assert decode[2049]["indexer"] - decode[2048]["indexer"] == 61 * 2 * 64 * 129
    index = 2 * (1536 * 64 * 128 + 7168 * 128 + 7168 * 64)
    assert decode[131_072]["indexer"] == 61 * (index + 131_072 * 2 * 64 * 129)
    expert = 6 * 7168 * 2048
    assert decode[2048]["mixture"] == 58 * (2 * 256 * 7168 + 9 * expert)
    assert decode[2048]["dense_feed_forward"] == 3 * 6 * 7168 * 18_432


def test_a_delta_state_costs_seven_per_element() -> None:
    """Qwen3.5-27B's layers: 48 value heads of 128 x 128, whatever the context."""
    mixer = GatedDeltaNet(key_heads=16, value_heads=48, key_dim=128, value_dim=128, conv_kernel=4, output_norm=NORM)
    blueprint = small(layer(mixer))
    for context in (1, 1000):
        found = flops(blueprint, context)
        assert found.decode.mixing == 7 * 48 * 128 * 128 == 5_505_024
        assert found.prefill.mixing == context * found.decode.mixing


@pytest.mark.parametrize("entry", list(entries()), ids=lambda entry: entry.name)
def test_products_are_twice_the_active_parameters_that_multiply(entry: Entry) -> None:
    blueprint = open_entry(entry).blueprint
    table = blueprint.per_layer_embeddings
    looked_up = 0 if blueprint.head.tied else blueprint.vocabulary * blueprint.hidden
    looked_up += 0 if table is None else table.vocabulary * table.dim * len(blueprint.layers)
    text = [t for t in inventory(blueprint) if t.part == "text" and not t.buffer]
    vectors = sum(prod(t.shape) for t in text if len(t.shape) == 1)
    active = parameters(blueprint).active - sum(tower.parameters for tower in blueprint.towers)
    step = flops(blueprint, 1).decode
    assert step.products == 2 * (active - looked_up - vectors)
    assert vectors < 0.001 * active
    assert step.total > step.products


def test_the_head_counts_once_tied_or_not() -> None:
    tied = flops(small(layer(attention())), 10)
    untied = flops(small(layer(attention()), head=Head(tied=False)), 10)
    assert tied == untied
    assert tied.prefill.by_kind["head"] == tied.decode.by_kind["head"] == 2 * 64 * 300
    assert tied.prefill.total_all_logits - tied.prefill.total == 9 * 2 * 64 * 300


def test_what_stands_beside_the_text_model_costs_nothing() -> None:
    blueprint = deepseek_v32()
    assert flops(replace(blueprint, mtp=None), 100) == flops(blueprint, 100)
    with_towers = plait.blueprint("gemma-3-4b")
    assert with_towers.towers
    assert flops(replace(with_towers, towers=()), 100) == flops(with_towers, 100)


def test_conventions_speak_of_the_kinds_there_are() -> None:
    everything = conventions()
    plain = conventions(("full_attention", "head"))
    assert set(plain) < set(everything)
    assert everything[0] == plain[0] == "1 multiply-add = 2 FLOPs"
    assert any("AltUp" in text for text in everything)
    assert not any("AltUp" in text or "DeltaNet" in text or "window" in text for text in plain)
    assert any("min(p + 1, W)" in text for text in conventions(("window_attention",)))


def test_wrong_requests_are_refused() -> None:
    blueprint = small(layer(attention()))
    for context in (0, -5):
        with pytest.raises(UsageError, match="context must be at least 1"):
            flops(blueprint, context)
    with pytest.raises(UsageError, match="batch must be at least 1"):
        flops(blueprint, 1, batch=0)
    with pytest.raises(UsageError, match="context is too large"):
        flops(blueprint, 10**400)
    assert flops(blueprint, 2**62).prefill.mixing == 2 * 4 * 24 * (2**62 * (2**62 + 1) // 2)

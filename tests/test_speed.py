"""Bounds on speed: bytes by hand and by counting, rates as people write them, which rate binds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path

import pytest
from blueprints import NORM, deepseek_v32, layer, small
from hypothesis import given
from hypothesis import strategies as st

import plait
from plait.account.flops import flops
from plait.account.memory import memory, weights_bytes, weights_of
from plait.account.speed import (
    Rates,
    bounds,
    decode_traffic,
    experts_touched,
    file_weights,
    format_weights,
    parse_bandwidth,
    parse_flop_rate,
    prefill_traffic,
)
from plait.blueprint.source import open_model
from plait.blueprint.spec import Attention, GatedDeltaNet, Head, Indexer, LatentAttention, Mixture, Rope, Router
from plait.errors import UnsupportedError, UsageError, WeightsError

MIB, GIB = 2**20, 2**30
ROPE = Rope(1e4, 4, 8, pairing="adjacent", distance=1)
INDEXER = Indexer(3, 16, 50, ROPE, NORM)


def attention(window: int | None = None, kv_source: int | None = None) -> Attention:
    return Attention(heads=4, kv_heads=2, qk_dim=16, v_dim=8, scale=0.25, window=window, kv_source=kv_source)


def latent(indexer: Indexer | None) -> LatentAttention:
    return LatentAttention(4, 24, 20, 12, 8, 10, 0.2, ROPE, NORM, indexer=indexer)


MIXED = small(
    layer(attention(window=30)),
    layer(attention()),
    layer(attention(window=30, kv_source=0)),
    layer(attention(kv_source=1)),
    layer(attention(kv_source=3)),
    layer(GatedDeltaNet(2, 4, 8, 16, 4, NORM)),
    layer(latent(None)),
    layer(latent(INDEXER)),
    layer(latent(replace(INDEXER, source=7))),
)


@given(context=st.integers(1, 300), batch=st.integers(1, 4), kv_format=st.sampled_from(["f32", "f16"]))
def test_state_read_by_a_step_counted_layer_by_layer(context: int, batch: int, kv_format: str) -> None:
    kv = {"f32": 4, "f16": 2}[kv_format]
    row, window, chosen = 2 * (16 + 8), min(context, 30), min(context, 50)
    rows = 2 * row * window + 3 * row * context + 28 * (context + 2 * chosen) + 16 * context
    delta = 4 * (4 * 8 * 16 + (2 * 2 * 8 + 4 * 16) * 3)
    found = decode_traffic(MIXED, context, format_weights(MIXED), batch=batch, kv_format=kv_format)
    assert found.state_read_bytes == batch * (kv * rows + delta)
    assert found.state_written_bytes == batch * delta
    assert found.total_bytes == found.weights_bytes + found.state_read_bytes + found.state_written_bytes


@given(context=st.integers(1, 300))
def test_without_sharing_and_choice_a_step_reads_what_memory_needs(context: int) -> None:
    blueprint = small(*MIXED.layers[:2], *MIXED.layers[5:7])
    found = decode_traffic(blueprint, context, format_weights(blueprint))
    assert found.state_read_bytes == memory(blueprint, context).total_bytes
    whole = prefill_traffic(blueprint, context, format_weights(blueprint))
    assert (whole.state_read_bytes, whole.state_written_bytes) == (0, memory(blueprint, context).total_bytes)


def test_spark_4b_by_hand() -> None:
    """bf16 at 131,072 tokens: 8.2 GB of weights, 4.5 GiB of full rows, 54 MiB of windows."""
    blueprint = plait.blueprint("spark-x2.5-4b")
    account = flops(blueprint, 131_072)
    moved = 2 * 4_112_079_360 + 9 * GIB // 2 + 54 * MIB
    slow = bounds(blueprint, account, Rates(50 * 10**9, 400 * 10**9)).decode
    assert slow.traffic.total_bytes == moved
    assert slow.by_bandwidth == pytest.approx(50e9 / moved)
    assert slow.by_flops == pytest.approx(400e9 / 27_777_630_208)
    assert (slow.binds, slow.tokens_per_second) == ("bandwidth", slow.by_bandwidth)
    assert slow.tokens_per_second == pytest.approx(3.813, abs=1e-3)
    weak = bounds(blueprint, account, Rates(50 * 10**9, 10**10))
    assert (weak.decode.binds, weak.decode.tokens_per_second) == ("flops", weak.decode.by_flops)
    assert weak.prefill.tokens_per_second == pytest.approx(131_072 * 1e10 / 2_286_223_687_155_712)


def test_tied_and_untied_embeddings() -> None:
    """A tied table is read whole, it is the head; an untied one a row per token, and the head beside it."""
    tied, untied = small(layer(attention())), small(layer(attention()), head=Head(tied=False))
    sizes = format_weights(tied, "f32"), format_weights(untied, "f32")
    assert decode_traffic(tied, 9, sizes[0]).weights_bytes == weights_bytes(tied, "f32")
    table = 4 * 300 * 64
    for batch in (1, 7):
        read = decode_traffic(untied, 9, sizes[1], batch=batch).weights_bytes
        assert read == weights_bytes(untied, "f32") - table + batch * 4 * 64
    assert prefill_traffic(untied, 1000, sizes[1]).weights_bytes == weights_bytes(untied, "f32")


@pytest.mark.parametrize(("experts", "active"), [(4, 1), (4, 2), (5, 3), (3, 3)])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_experts_touched_is_the_mean_over_all_choices(experts: int, active: int, tokens: int) -> None:
    choices = [set(chosen) for chosen in combinations(range(experts), active)]
    every = list(product(choices, repeat=tokens))
    mean = Fraction(sum(len(set().union(*chosen)) for chosen in every), len(every))
    assert experts_touched(experts, active, tokens) == pytest.approx(float(mean))


@given(experts=st.integers(1, 600), data=st.data())
def test_one_token_touches_exactly_its_own_experts(experts: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(1, experts))
    assert experts_touched(experts, active, 1) == active
    assert experts_touched(experts, active, 10**6) <= experts


def test_a_mixture_reads_the_experts_its_tokens_touch() -> None:
    mixture = Mixture(8, 2, 40, "silu", Router("softmax", True))
    blueprint = small(replace(layer(attention()), feed_forward=mixture))
    sizes = format_weights(blueprint, "f16")
    expert = 2 * 3 * 40 * 64
    rest = weights_bytes(blueprint, "f16") - 8 * expert
    assert decode_traffic(blueprint, 5, sizes).weights_bytes == rest + 2 * expert
    assert decode_traffic(blueprint, 5, sizes, batch=2).weights_bytes == rest + 3.5 * expert
    assert prefill_traffic(blueprint, 1000, sizes).weights_bytes == rest + 8 * expert


def test_deepseek_v32_reads_37_billion_weights_a_token() -> None:
    """Of 671 B parameters 37 B take part; the embedding's row in place of its table."""
    blueprint = deepseek_v32()
    read = decode_traffic(blueprint, 100_000, format_weights(blueprint, "f8_e4m3"))
    assert 36e9 < read.weights_bytes < 38e9
    assert read.state_read_bytes == 61 * 2 * (2048 * 576 + 100_000 * 128)


@given(batch=st.integers(1, 64), context=st.integers(1, 400))
def test_the_smaller_bound_binds(batch: int, context: int) -> None:
    account = flops(MIXED, context, batch=batch)
    rates = Rates(10**9, 10**10)
    both = bounds(MIXED, account, rates)
    for name in ("prefill", "decode"):
        bound, phase = getattr(both, name), getattr(account, name)
        assert bound.by_flops == pytest.approx(phase.tokens * 10**10 / phase.total)
        assert bound.by_bandwidth == pytest.approx(phase.tokens * 10**9 / bound.traffic.total_bytes)
        assert bound.tokens_per_second == min(bound.by_flops, bound.by_bandwidth)
        assert bound.binds == ("flops" if bound.by_flops < bound.by_bandwidth else "bandwidth")
    alone = bounds(MIXED, account, Rates(flops=10**10)).decode
    assert (alone.by_bandwidth, alone.binds, alone.tokens_per_second) == (None, "flops", both.decode.by_flops)
    alone = bounds(MIXED, account, Rates(bandwidth=10**9)).decode
    assert (alone.by_flops, alone.binds, alone.tokens_per_second) == (None, "bandwidth", both.decode.by_bandwidth)


def test_company_shares_the_weights() -> None:
    blueprint = plait.blueprint("gemma-3-270m")
    one, many = (bounds(blueprint, flops(blueprint, 100, batch=n), Rates(10**9)).decode for n in (1, 16))
    assert one.traffic.weights_bytes == many.traffic.weights_bytes
    assert 10 * one.tokens_per_second < many.tokens_per_second < 16 * one.tokens_per_second


def test_weights_of_a_file_by_role(gemma_gguf: Path) -> None:
    """Each tensor in the format it has: the embedding of this file in another one than its layers."""
    source = open_model(gemma_gguf)
    assert source.header is not None
    found = file_weights(source)
    assert sum(found.values()) == weights_of(source)
    assert found["embedding"] == source.header.tensors["token_embd.weight"].nbytes
    assert decode_traffic(source.blueprint, 1, found).weights_bytes == weights_of(source)
    cut = {name: tensor for name, tensor in source.header.tensors.items() if name != "blk.3.attn_q.weight"}
    with pytest.raises(WeightsError, match=r"blk\.3\.attn_q\.weight' is missing; give --weights-dtype"):
        file_weights(replace(source, header=replace(source.header, tensors=cut)))


def test_weights_as_published_or_in_another_format() -> None:
    source = open_model("qwen3-8b")
    assert file_weights(source) == format_weights(source.blueprint) == format_weights(source.blueprint, "bf16")
    assert sum(format_weights(source.blueprint, "q8_0").values()) == weights_bytes(source.blueprint, "q8_0")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50GB/s", 50 * 10**9),
        (" 50 GB/s ", 50 * 10**9),
        ("1.6TB/s", 1_600_000_000_000),
        ("46.5GiB/s", 46 * GIB + GIB // 2),
        ("800mB/s", 800_000_000),
        ("7kiB/s", 7 * 1024),
        ("12B/s", 12),
        ("50000000000", 50 * 10**9),
    ],
)
def test_bandwidths(text: str, rate: int) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400GFLOP/s", 400 * 10**9),
        ("1.2TFLOPS", 1_200_000_000_000),
        ("1.2 TFLOPs", 1_200_000_000_000),
        ("312 tflops", 312 * 10**12),
        ("2PFLOPs/s", 2 * 10**15),
        ("5FLOPS", 5),
        ("400000000000", 400 * 10**9),
    ],
)
def test_flop_rates(text: str, rate: int) -> None:
    assert parse_flop_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "fast", "50GB", "50Gb/s", "50Gbit/s", "50G", "-5GB/s", "5e9", "50XB/s", "50GB/s/s", "9" * 400, "\u0663B/s"],
)
def test_bandwidths_not_understood(text: str) -> None:
    with pytest.raises(UsageError, match="bandwidth .* is not understood; write it like 50GB/s"):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    "text", ["", "fast", "400G", "400GFLOP", "400GB/s", "400GiFLOPS", "-1FLOPS", "1e12", "4 G FLOPS", "9" * 400]
)
def test_flop_rates_not_understood(text: str) -> None:
    with pytest.raises(UsageError, match="FLOP rate .* is not understood; write it like 400GFLOP/s"):
        parse_flop_rate(text)


@pytest.mark.parametrize("text", ["0", "0GB/s", "0.5B/s", "1.2345kB/s"])
def test_rates_are_whole_and_not_zero(text: str) -> None:
    with pytest.raises(UsageError, match="whole number above 0"):
        parse_bandwidth(text)


def test_wrong_requests_are_refused() -> None:
    account = flops(MIXED, 10)
    with pytest.raises(UsageError, match="bandwidth or a FLOP rate"):
        bounds(MIXED, account, Rates())
    with pytest.raises(UnsupportedError, match="q8_0"):
        bounds(MIXED, account, Rates(1), kv_format="q8_0")
    with pytest.raises(UsageError, match="'int3'"):
        bounds(MIXED, account, Rates(1), kv_format="int3")
    with pytest.raises(UsageError, match="'int3'"):
        format_weights(MIXED, "int3")

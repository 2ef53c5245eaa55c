"""Memory: published figures, figures derived by hand, and what any account must satisfy."""

from __future__ import annotations

from pathlib import Path

import pytest
from blueprints import NORM, deepseek_v32, layer, small
from hypothesis import given
from hypothesis import strategies as st

import plait
from plait.account.memory import CATEGORIES, Bytes, largest_context, memory, weights_bytes, weights_of
from plait.blueprint.source import open_model
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet, Rope
from plait.blueprint.state import SLAB, SLACK
from plait.errors import UnsupportedError, UsageError

KIB, MIB, GIB = 2**10, 2**20, 2**30


def attention(window: int | None = None, kv_source: int | None = None) -> Attention:
    return Attention(heads=4, kv_heads=2, qk_dim=16, v_dim=8, scale=0.25, window=window, kv_source=kv_source)


MIXED = small(
    layer(attention(window=8)),
    layer(attention()),
    layer(attention(kv_source=1)),
    layer(attention(window=100)),
    layer(GatedDeltaNet(2, 4, 8, 16, 4, NORM)),
)


def test_spark_4b_at_a_million_tokens() -> None:
    blueprint = plait.blueprint("spark-x2.5-4b")
    # 9 full layers x 4 KV heads x (256 + 256) x 2 bytes; 27 windows of 512 of the same rows.
    binary = memory(blueprint, 2**20)
    assert binary.per_token_bytes == 36_864
    assert binary.categories["rows"].need_bytes == 36 * GIB
    assert binary.categories["windows"].need_bytes == 54 * MIB
    assert binary.total_bytes == 36 * GIB + 54 * MIB
    decimal = memory(blueprint, 10**6)
    assert decimal.total_bytes == 36_864_000_000 + 54 * MIB
    assert memory(blueprint, 262_144).total_bytes == 9 * GIB + 54 * MIB
    # Below the window every layer still grows.
    assert memory(blueprint, 511).per_token_bytes == 36 * 4 * 512 * 2
    assert memory(blueprint, 512).per_token_bytes == 36_864


def test_spark_1_7b() -> None:
    found = memory(plait.blueprint("spark-x2.5-1.7b"), 100_000)
    assert found.per_token_bytes == 14_336
    assert found.categories["windows"].need_bytes == 21 * MIB


def test_gemma_3_270m_by_hand() -> None:
    found = memory(plait.blueprint("gemma-3-270m"), 32_768)
    row = 1 * (256 + 256) * 2
    assert found.categories["rows"].need_bytes == 3 * 32_768 * row == 96 * MIB
    assert found.categories["windows"].need_bytes == 15 * 512 * row == 7.5 * MIB
    assert found.per_token_bytes == 3 * row
    # A session keeps the 511 rows that resuming reads and 64 behind them: rows [32193, 32768), slabs 503 .. 511.
    assert found.categories["windows"].reserved_bytes == 15 * 9 * 64 * row
    assert found.weights_bytes == 2 * 268_098_176


def test_keys_are_values_needs_one_vector_and_the_rotated_part() -> None:
    """Gemma 4 12B: 40 windows aside, 8 full layers with one KV head of 512, 128 dims of it rotated."""
    rope = Rope(1e6, 64, 512, distance=256)
    mixer = Attention(heads=16, kv_heads=1, qk_dim=512, v_dim=512, scale=1.0, rope=rope, keys_are_values=True)
    blueprint = small(*[layer(mixer)] * 8)
    assert memory(blueprint, 1000).per_token_bytes == 10_240
    assert memory(blueprint, 1000, kv_layout=True).per_token_bytes == 16_384


def test_gated_delta_net_state_does_not_grow() -> None:
    """Qwen3.5-27B's delta layers: float32 whatever the keys and values are stored in."""
    mixer = GatedDeltaNet(key_heads=16, value_heads=48, key_dim=128, value_dim=128, conv_kernel=4, output_norm=NORM)
    for kv_format in ("f32", "bf16"):
        found = memory(small(*[layer(mixer)] * 48), 12_345, kv_format=kv_format)
        assert found.categories["recurrent"] == Bytes(144 * MIB, 144 * MIB)
        assert found.categories["convolution"] == Bytes(5_625 * MIB // 1000, 5_625 * MIB // 1000)
        assert found.per_token_bytes == 0


def test_latent_attention_and_its_indexer() -> None:
    found = memory(deepseek_v32(), 1)
    assert found.categories["rows"].need_bytes == 61 * 576 * 2
    assert found.categories["indexer"].need_bytes == 61 * 128 * 2
    assert found.per_token_bytes == 61 * (576 + 128) * 2


@given(context=st.integers(1, 2000), batch=st.integers(1, 5), kv_format=st.sampled_from(["f32", "f16", "bf16"]))
def test_need_counts_the_rows_the_last_token_reads(context: int, batch: int, kv_format: str) -> None:
    """Against counting query by query: the last token, position context - 1, sees keys context - W .. context - 1."""
    size = {"f32": 4, "f16": 2, "bf16": 2}[kv_format]
    row = 2 * (16 + 8) * size * batch
    seen = {w: sum(1 for j in range(context) if context - 1 - j < w) for w in (8, 100)}
    found = memory(MIXED, context, batch=batch, kv_format=kv_format)
    assert found.categories["rows"].need_bytes == context * row
    assert found.categories["windows"].need_bytes == (seen[8] + seen[100]) * row
    assert found.categories["recurrent"].need_bytes == batch * 4 * 8 * 16 * 4
    assert found.categories["convolution"].need_bytes == batch * (2 * 2 * 8 + 4 * 16) * 3 * 4
    assert found.total_bytes == sum(found.categories[c].need_bytes for c in CATEGORIES)


@given(context=st.integers(1, 5000))
def test_what_is_reserved_covers_what_resuming_needs(context: int) -> None:
    found = memory(MIXED, context)
    row = 2 * (16 + 8) * 2
    for window, category in ((8, "windows"), (100, "windows")):
        one = memory(small(layer(attention(window=window))), context).categories[category]  # type: ignore[index]
        kept = [p for p in range(context) if p >= context - window + 1 - SLACK]
        slabs = {p // SLAB for p in kept}
        assert one.reserved_bytes == len(slabs) * SLAB * row
    assert found.categories["rows"].reserved_bytes == -(-context // SLAB) * SLAB * row
    assert found.categories["rows"].reserved_bytes >= found.categories["rows"].need_bytes


@given(context=st.integers(1, 5000))
def test_growth_is_the_difference_at_that_context(context: int) -> None:
    here, there = memory(MIXED, context), memory(MIXED, context + 1)
    assert here.per_token_bytes == there.total_bytes - here.total_bytes


@given(budget=st.integers(0, 3 * MIB), batch=st.integers(1, 3))
def test_the_largest_context_is_consistent_with_the_account(budget: int, batch: int) -> None:
    found = largest_context(MIXED, budget, batch=batch)

    def fits(context: int) -> bool:
        account = memory(MIXED, context, batch=batch)
        return account.total_bytes + account.weights_bytes <= budget

    if found.context is None:
        assert not fits(1)
        assert (found.limit == "weights") == (weights_bytes(MIXED) > budget)
    else:
        assert 1 <= found.context <= MIXED.max_context
        assert fits(found.context)
        if found.limit == "max_context":
            assert found.context == MIXED.max_context
        else:
            assert not fits(found.context + 1)


def test_every_ending_of_the_search_is_reached() -> None:
    weights = weights_bytes(MIXED)
    assert largest_context(MIXED, weights - 1).limit == "weights"
    assert largest_context(MIXED, weights).limit == "state"
    assert largest_context(MIXED, weights + 20 * KIB).limit == "budget"
    assert largest_context(MIXED, GIB).limit == "max_context"


def test_layers_that_share_rows_store_none() -> None:
    with_alias = small(layer(attention()), layer(attention(kv_source=0)))
    assert memory(with_alias, 77).total_bytes == memory(small(layer(attention())), 77).total_bytes


def test_wrong_requests_are_refused() -> None:
    for context in (0, -1):
        with pytest.raises(UsageError, match="at least 1"):
            memory(MIXED, context)
    with pytest.raises(UsageError, match="batch"):
        memory(MIXED, 1, batch=0)
    with pytest.raises(UnsupportedError, match="q8"):
        memory(MIXED, 1, kv_format="q8")
    with pytest.raises(UnsupportedError, match="q8_0"):
        memory(MIXED, 1, kv_format="q8_0")
    with pytest.raises(UsageError, match="'int3'"):
        memory(MIXED, 1, kv_format="int3")
    with pytest.raises(UsageError, match="not both"):
        memory(MIXED, 1, weights=5, weights_format="f32")
    with pytest.raises(UsageError, match="'int3'"):
        weights_bytes(MIXED, "int3")


def test_a_context_beyond_the_models_is_counted() -> None:
    assert memory(MIXED, 10 * MIXED.max_context).categories["rows"].need_bytes == 40_960 * 2 * 24 * 2


def test_weights_in_a_block_format() -> None:
    """Rows of 64 and 32 fill blocks of 32, the rows of 16 and all vectors stay in f32."""
    mixer = Attention(heads=1, kv_heads=1, qk_dim=32, v_dim=16, scale=1.0)
    blueprint: Blueprint = small(layer(mixer, width=32))
    blocks = 300 * 64 + 2 * 32 * 64 + 16 * 64 + 3 * 32 * 64
    assert weights_bytes(blueprint, "q8_0") == blocks // 32 * 34 + 4 * (64 * 16 + 3 * 64)
    assert weights_bytes(blueprint, "f16") == 2 * (blocks + 64 * 16 + 3 * 64)


def test_weights_of_a_file_are_its_tensors(gemma_gguf: Path) -> None:
    source = open_model(gemma_gguf)
    assert source.header is not None
    total = weights_of(source)
    # Everything but the header and padding of at most one alignment a tensor.
    places = [(t.offset, t.end) for t in source.header.tensors.values()]
    gaps = max(end for _, end in places) - min(start for start, _ in places) - total
    assert 0 <= gaps < source.header.alignment * len(places)

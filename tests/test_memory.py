"""Memory: published figures, figures derived by hand, and what any account must satisfy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from blueprints import NORM, deepseek_v32, layer, small
from hypothesis import given
from hypothesis import strategies as st

import plait
from plait.account.memory import (
    CATEGORIES,
    Bytes,
    Weights,
    block_scales,
    format_weights,
    largest_context,
    memory,
    part_bytes,
    weights_bytes,
    weights_of,
)
from plait.account.parameters import parameters
from plait.blueprint.source import open_model
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    GatedDeltaNet,
    LatentAttention,
    PerLayerEmbeddings,
    Quantization,
    Rope,
)
from plait.blueprint.state import SLAB, SLACK, Part
from plait.blueprint.tensors import inventory
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


SHARED = small(layer(attention(window=8)), layer(attention(window=8, kv_source=0)), max_context=50)
LATENT = small(
    layer(LatentAttention(2, None, 40, 8, 8, 8, 1.0, Rope(1e4, 4, 8, distance=4), NORM)),
    layer(attention(window=100)),
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


@given(
    context=st.integers(1, 2000),
    batch=st.integers(1, 5),
    kv_format=st.sampled_from(["f64", "f32", "f16", "bf16", "q8"]),
)
def test_need_counts_the_rows_the_last_token_reads(context: int, batch: int, kv_format: str) -> None:
    """Against counting query by query: the last token, position context - 1, sees keys context - W .. context - 1.

    Two KV heads, keys of 16 and values of 8: in q8 each of the four vectors of a row is padded to one block. What is
    kept of all tokens together is float32, and float64 beside rows of float64.
    """
    kept = 8 if kv_format == "f64" else 4
    row = {"f64": 2 * 24 * 8, "f32": 2 * 24 * 4, "f16": 2 * 24 * 2, "bf16": 2 * 24 * 2, "q8": 4 * 34}[kv_format] * batch
    seen = {w: sum(1 for j in range(context) if context - 1 - j < w) for w in (8, 100)}
    found = memory(MIXED, context, batch=batch, kv_format=kv_format)
    assert found.categories["rows"].need_bytes == context * row
    assert found.categories["windows"].need_bytes == (seen[8] + seen[100]) * row
    assert found.categories["recurrent"].need_bytes == batch * 4 * 8 * 16 * kept
    assert found.categories["convolution"].need_bytes == batch * (2 * 2 * 8 + 4 * 16) * 3 * kept
    assert found.total_bytes == sum(found.categories[c].need_bytes for c in CATEGORIES)


@pytest.mark.parametrize(("dim", "size"), [(1, 34), (31, 34), (32, 34), (33, 68), (64, 68), (128, 136), (576, 612)])
def test_q8_pads_each_vector_to_whole_blocks(dim: int, size: int) -> None:
    assert part_bytes(Part("key", 1, dim), "q8") == size
    assert part_bytes(Part("key", 5, dim), "q8") == 5 * size
    assert part_bytes(Part("state", 5, dim, "f32"), "q8") == 5 * dim * 4


def test_q8_of_a_latent_is_padded_part_by_part() -> None:
    """Per token and layer: a latent of 512 in 16 blocks, a rotated key of 64 in 2, an indexer key of 128 in 4."""
    found = memory(deepseek_v32(), 1, kv_format="q8")
    assert found.categories["rows"].need_bytes == 61 * (16 + 2) * 34
    assert found.categories["indexer"].need_bytes == 61 * 4 * 34


@given(context=st.integers(1, 5000))
def test_what_is_reserved_covers_what_resuming_needs(context: int) -> None:
    found = memory(MIXED, context)
    row = 2 * (16 + 8) * 2
    for window, category in ((8, "windows"), (100, "windows")):
        one = memory(small(layer(attention(window=window))), context).categories[category]
        kept = [p for p in range(context) if p >= context - window + 1 - SLACK]
        slabs = {p // SLAB for p in kept}
        assert one.reserved_bytes == len(slabs) * SLAB * row
    assert found.categories["rows"].reserved_bytes == -(-context // SLAB) * SLAB * row
    assert found.categories["rows"].reserved_bytes >= found.categories["rows"].need_bytes


@given(context=st.integers(1, 5000))
def test_growth_is_the_difference_at_that_context(context: int) -> None:
    here, there = memory(MIXED, context), memory(MIXED, context + 1)
    assert here.per_token_bytes == there.total_bytes - here.total_bytes


@given(
    budget=st.integers(0, 3 * MIB),
    batch=st.integers(1, 3),
    kv_format=st.sampled_from(["f32", "bf16", "q8"]),
    blueprint=st.sampled_from([MIXED, SHARED, LATENT]),
)
def test_the_largest_context_is_consistent_with_the_account(
    budget: int, batch: int, kv_format: str, blueprint: Blueprint
) -> None:
    found = largest_context(blueprint, budget, batch=batch, kv_format=kv_format)

    def fits(context: int) -> bool:
        account = memory(blueprint, context, batch=batch, kv_format=kv_format)
        return account.total_bytes + account.weights_bytes <= budget

    if found.context is None:
        assert not fits(1)
        assert (found.limit == "weights") == (weights_bytes(blueprint) > budget)
    else:
        assert 1 <= found.context <= blueprint.max_context
        assert fits(found.context)
        if found.limit == "max_context":
            assert found.context == blueprint.max_context
        else:
            assert not fits(found.context + 1)


@given(context=st.integers(1, 5000), blueprint=st.sampled_from([MIXED, SHARED, LATENT]))
def test_what_a_context_needs_is_the_least_budget_for_it(context: int, blueprint: Blueprint) -> None:
    context = min(context, blueprint.max_context)
    account = memory(blueprint, context)
    budget = account.total_bytes + account.weights_bytes
    found = largest_context(blueprint, budget).context
    assert found is not None and found >= context
    assert memory(blueprint, found).total_bytes == account.total_bytes
    below = largest_context(blueprint, budget - 1).context
    assert below is None or below < context


def test_every_ending_of_the_search_is_reached() -> None:
    weights = weights_bytes(MIXED)
    assert largest_context(MIXED, weights - 1).limit == "weights"
    assert largest_context(MIXED, weights).limit == "state"
    assert largest_context(MIXED, weights + 20 * KIB).limit == "budget"
    assert largest_context(MIXED, GIB).limit == "max_context"


def test_layers_are_counted_by_what_they_keep() -> None:
    found = memory(MIXED, 5).layers
    assert dict(found.states) == {"rows": 1, "windows": 2, "indexer": 0, "recurrent": 1, "convolution": 1}
    assert (found.shared_kv, found.shared_choice) == (1, 0)
    own = deepseek_v32()
    mixer = own.layers[0].mixer
    assert isinstance(mixer, LatentAttention) and mixer.indexer is not None
    sharing = replace(own.layers[3], mixer=replace(mixer, indexer=replace(mixer.indexer, source=2)))
    shared = replace(own, layers=(*own.layers[:3], *(sharing,) * 58))
    account = memory(shared, 1000)
    assert (account.layers.states["indexer"], account.layers.shared_choice) == (3, 58)
    assert account.categories["indexer"].need_bytes == 3 * 1000 * 128 * 2
    assert account.categories["rows"] == memory(own, 1000).categories["rows"]


def test_layers_that_share_rows_store_none() -> None:
    with_alias = small(layer(attention()), layer(attention(kv_source=0)))
    assert memory(with_alias, 77).total_bytes == memory(small(layer(attention())), 77).total_bytes


def test_wrong_requests_are_refused() -> None:
    for context in (0, -1):
        with pytest.raises(UsageError, match="at least 1"):
            memory(MIXED, context)
    with pytest.raises(UsageError, match="batch"):
        memory(MIXED, 1, batch=0)
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


def test_weights_in_declared_blocks() -> None:
    """Matrices in FP8 with a float32 scale for each started block; embedding, router, head and vectors stay whole."""
    mixer = Attention(heads=4, kv_heads=2, qk_dim=16, v_dim=8, scale=0.25)
    declared = Quantization("fp8", "f8_e4m3", (48, 32), excluded=("attention.value",))
    blueprint = small(layer(mixer), quantization=declared)
    shapes = [(64, 64), (32, 64), (64, 32), (96, 64), (96, 64), (64, 96)]  # q, k, o, gate, up, down
    blocks = sum(rows * columns + 4 * -(-rows // 48) * (columns // 32) for rows, columns in shapes)
    whole = 300 * 64 + 16 * 64 + 3 * 64
    assert weights_bytes(blueprint) == blocks + 2 * whole
    assert weights_bytes(blueprint, "bf16") == 2 * (whole + sum(rows * columns for rows, columns in shapes))
    assert sum(block_scales(t, declared) for t in inventory(blueprint)) == parameters(blueprint).beyond.fp8_scales


def test_deepseek_as_published() -> None:
    """DeepSeek-V3.2's files hold 689 GB, among them the predicting layer in FP8 and its two copies in bf16."""
    blueprint = deepseek_v32()
    sizes = format_weights(blueprint)
    extra = sum(sizes[tensor.role] for tensor in inventory(blueprint) if tensor.part == "mtp")
    copies = 2 * 2 * 129_280 * 7168
    assert 689e9 < weights_bytes(blueprint) + extra + copies < 690e9


def test_the_table_of_per_layer_embeddings_is_a_line_of_its_own() -> None:
    table = PerLayerEmbeddings(300, 8, "gelu_tanh", 1.0, 1.0, 1.0, NORM)
    blueprint = small(*[layer(attention())] * 3, per_layer_embeddings=table)
    found = memory(blueprint, 7)
    assert found.table_bytes == 2 * 300 * 3 * 8
    assert found.weights_bytes - found.table_bytes == 2 * (
        sum(t.elements for t in inventory(blueprint)) - 300 * 3 * 8
    )
    assert memory(blueprint, 7, weights=Weights(100, 40)).table_bytes == 40
    assert memory(blueprint, 7, weights=100).table_bytes == 0
    # Gemma 4 E2B's table: a row of 256 for each of 35 layers, for each of 262,144 tokens.
    assert memory(plait.blueprint("gemma-4-e2b"), 7).table_bytes == 2 * 262_144 * 35 * 256


def test_weights_of_a_file_are_its_tensors(gemma_gguf: Path) -> None:
    source = open_model(gemma_gguf)
    assert source.header is not None
    total = weights_of(source)
    # Everything but the header and padding of at most one alignment a tensor.
    places = [(t.offset, t.end) for t in source.header.tensors.values()]
    gaps = max(end for _, end in places) - min(start for start, _ in places) - total
    assert 0 <= gaps < source.header.alignment * len(places)

"""Figures that engines and people measured, from the config facts alone: what each model must come to.

The blueprints hold the layers the figures speak of, put together from published config values, so that they stand
whatever the catalogue reads; where the catalogue has the model, its entry must give the same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from blueprints import NORM, layer, small

import plait
from plait.account.memory import MemoryAccount, memory
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet, Rope
from plait.blueprint.state import Rows, laws

MIB, GIB = 2**20, 2**30


def attention(kv_heads: int, dim: int, window: int | None = None, v_dim: int | None = None) -> Attention:
    width = dim if v_dim is None else v_dim
    return Attention(heads=kv_heads, kv_heads=kv_heads, qk_dim=dim, v_dim=width, scale=1.0, window=window)


def interleaved(period: int, periods: int, cheap: Attention | GatedDeltaNet, full: Attention) -> Blueprint:
    """`periods` times `period` - 1 cheap layers and a full one."""
    return small(*[*[layer(cheap)] * (period - 1), layer(full)] * periods)


def growth(blueprint: Blueprint, context: int, kv_format: str = "f16") -> int:
    return memory(blueprint, context, kv_format=kv_format, kv_layout=True).per_token_bytes


def need(blueprint: Blueprint, context: int, category: str, batch: int = 1) -> int:
    account: MemoryAccount = memory(blueprint, context, batch=batch, kv_format="f16", kv_layout=True)
    return account.categories[category].need_bytes


QWEN_DELTA = GatedDeltaNet(16, 48, 128, 128, 4, NORM)
QWEN_27B = interleaved(4, 16, QWEN_DELTA, attention(4, 256))
GPT_OSS_20B = small(*[layer(attention(8, 64, 128)), layer(attention(8, 64))] * 12)
GPT_OSS_120B = small(*[layer(attention(8, 64, 128)), layer(attention(8, 64))] * 18)
SPARK_4B = interleaved(4, 9, attention(4, 256, 512), attention(4, 256))
SPARK_1_7B = interleaved(4, 7, attention(2, 256, 512), attention(2, 256))
GEMMA_4_12B = interleaved(6, 8, attention(8, 256, 1024), attention(1, 512))


@pytest.mark.parametrize(
    ("periods", "kv_heads", "slope", "name"),
    [(10, 2, 20_480, "qwen3.5-35b-a3b"), (6, 2, 12_288, "qwen3.5-0.8b"), (16, 4, 65_536, "qwen3.6-27b")],
)
def test_one_full_layer_in_four(periods: int, kv_heads: int, slope: int, name: str) -> None:
    """Counting all layers as full gives four times as much."""
    mixed = interleaved(4, periods, QWEN_DELTA, attention(kv_heads, 256))
    assert growth(mixed, 1000) == growth(plait.blueprint(name), 1000) == slope
    assert growth(small(*[layer(attention(kv_heads, 256))] * (4 * periods)), 1000) == 4 * slope


def test_qwen_27b_at_its_limit() -> None:
    for blueprint in (QWEN_27B, plait.blueprint("qwen3.6-27b")):
        assert need(blueprint, 262_144, "rows") == 16 * GIB
        assert need(blueprint, 262_144, "recurrent") == 144 * MIB
        assert need(blueprint, 262_144, "convolution") * 1000 == 5_625 * MIB


@pytest.mark.parametrize(("copies", "thousandths"), [(1, 149_625), (4, 598_500), (65, 9_725_625)])
def test_recurrent_state_of_several_sequences(copies: int, thousandths: int) -> None:
    """Sequences, or copies kept for taking tokens back: each is a whole state."""
    found = [need(QWEN_27B, 1, category, copies) for category in ("recurrent", "convolution")]
    assert 1000 * sum(found) == thousandths * MIB


def test_gemma_4_12b() -> None:
    assert growth(GEMMA_4_12B, 2000) == growth(plait.blueprint("gemma-4-12b"), 2000) == 16_384
    # The uniform formula: 48 layers with the eight heads of 256 of a window layer.
    assert growth(small(*[layer(attention(8, 256))] * 48), 2000) == 393_216
    # Until the windows are full every layer grows.
    assert growth(GEMMA_4_12B, 1023) == 16_384 + 40 * 8 * 512 * 2
    assert growth(GEMMA_4_12B, 1024) == 16_384
    # One normalised vector and the 128 rotated dims of each key.
    assert memory(plait.blueprint("gemma-4-12b"), 2000).per_token_bytes == 10_240


@pytest.mark.parametrize(("thousands", "hundredths"), [(4, 40), (8, 48), (32, 99), (128, 300)])
def test_gemma_4_26b_with_the_cells_an_engine_allocates(thousands: int, hundredths: int) -> None:
    """25 windows of 1,024 and a batch of 512 beside them make 1,536 cells; five full layers of two heads of 512."""
    cells = interleaved(6, 5, attention(8, 256, 1024 + 512), attention(2, 512))
    total = memory(cells, thousands * 1024, kv_format="f16").total_bytes
    assert round(total / 10**7) == hundredths
    own = memory(plait.blueprint("gemma-4-26b-a4b"), thousands * 1024, kv_format="f16", kv_layout=True)
    assert total - own.total_bytes == 25 * 512 * 8 * 512 * 2


def test_gpt_oss() -> None:
    """32 sequences of 8,192 tokens: windows counted as windows, and all layers as if they were full."""
    assert memory(GPT_OSS_20B, 8192, batch=32).total_bytes == 6.09375 * GIB
    full = replace(GPT_OSS_20B, layers=(layer(attention(8, 64)),) * 24)
    assert memory(full, 8192, batch=32).total_bytes == 12 * GIB
    # At length 1 every layer needs its row: leaving windows out halves it.
    at_one = memory(GPT_OSS_120B, 1)
    assert at_one.total_bytes == 73_728
    assert at_one.categories["rows"].need_bytes == 36_864


def test_mimo_v2() -> None:
    """Keys of 192, values of 128; four KV heads where it is full, eight in windows."""
    full = attention(4, 192, v_dim=128)
    nine = small(*[layer(full)] * 9)
    parts: dict[str, int] = {}
    for item in laws(nine):
        assert isinstance(item.law, Rows)
        for part in item.law.parts:
            parts[part.name] = parts.get(part.name, 0) + 262_144 * part.elements * 2
    assert parts == {"key": 3456 * MIB, "value": 2304 * MIB}
    assert need(nine, 262_144, "rows") == 5760 * MIB

    def windows(window: int | None) -> Blueprint:
        return small(*[layer(attention(8, 192, window, 128))] * 39)

    assert need(windows(4352), 262_144, "windows") == 828.75 * MIB
    assert need(windows(None), 262_144, "rows") == 49_920 * MIB


def test_mimo_v2_flash() -> None:
    """39 windows beside nine full layers; how many tokens `sliding_window` lets be seen is the family's to say."""
    blueprint = plait.blueprint("mimo-v2-flash")
    sizes = {layer.mixer.window for layer in blueprint.layers if isinstance(layer.mixer, Attention)} - {None}
    found = memory(blueprint, 262_144, kv_format="f16")
    assert found.categories["rows"].need_bytes == 5760 * MIB
    assert found.categories["windows"].need_bytes == 39 * sizes.pop() * 8 * (192 + 128) * 2


def test_lfm2_keeps_rows_in_its_six_attention_layers() -> None:
    """Of LFM2-1.2B's 16 layers ten are short convolutions, which keep no rows; reading layer 0 alone gives nothing."""
    assert need(small(*[layer(attention(8, 64))] * 6), 32_768, "rows") == 384 * MIB


@pytest.mark.parametrize(
    ("name", "mixed", "slope", "windows"),
    [("spark-x2.5-4b", SPARK_4B, 36_864, 54), ("spark-x2.5-1.7b", SPARK_1_7B, 14_336, 21)],
)
def test_spark(name: str, mixed: Blueprint, slope: int, windows: int) -> None:
    for blueprint in (mixed, plait.blueprint(name)):
        assert growth(blueprint, 512, "bf16") == slope
        assert need(blueprint, 262_144, "windows") == windows * MIB
        assert need(blueprint, 262_144, "rows") == 262_144 * slope
    assert need(SPARK_4B, 262_144, "rows") == 9 * GIB


def test_spark_as_if_uniform() -> None:
    assert memory(small(*[layer(attention(4, 256))] * 36), 262_144).total_bytes == 36 * GIB


@pytest.mark.parametrize(("name", "own", "layers"), [("gemma-3n-e4b", 20, 35), ("gemma-3n-e2b", 20, 30)])
def test_gemma_3n_allocates_in_some_layers(name: str, own: int, layers: int) -> None:
    """Of Gemma 3n E4B's 35 layers 20 keep keys and values of their own."""
    found = memory(plait.blueprint(name), 32_768)
    assert found.layers.states["rows"] + found.layers.states["windows"] == own
    assert found.layers.shared_kv == layers - own
    assert found.total_bytes == (own // 5) * (32_768 + 4 * 512) * 2 * 512 * 2


@pytest.mark.parametrize(("name", "own", "layers"), [("gemma-4-e2b", 15, 35), ("gemma-4-e4b", 24, 42)])
def test_gemma_4_e_allocates_in_some_layers(name: str, own: int, layers: int) -> None:
    found = memory(plait.blueprint(name), 32_768).layers
    assert found.states["rows"] + found.states["windows"] == own
    assert found.shared_kv == layers - own


def test_latent_rows_are_not_heads() -> None:
    """DeepSeek-V3: 576 numbers a token and layer; keys and values of all 128 heads would be 71 times as many."""
    found = memory(plait.blueprint("deepseek-v3"), 100)
    assert found.per_token_bytes == 61 * 576 * 2 == 70_272
    assert 128 * (192 + 128) / 576 > 71
    expanded = small(*[layer(replace(attention(128, 192, v_dim=128), rope=Rope(1e4, 32, 64, distance=32)))] * 61)
    assert memory(expanded, 100).per_token_bytes == 61 * 128 * 320 * 2

"""Parameter counts: published totals, counts by hand, and GGUF headers."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

import pytest
from blueprints import NORM, deepseek_v32, layer, small

from plait.account.parameters import parameters, parameters_of
from plait.blueprint.source import open_model
from plait.blueprint.spec import Attention, Gated, Layer, Mixture, Router, SharedExperts, Tower, TowerTensor
from plait.errors import ConfigError

# Elements in the published file and in the graph; from the publishers' pages or their safetensors indexes.
PUBLISHED = (
    ("spark-x2.5-4b", 4_112_079_360, 4_112_079_360),
    ("spark-x2.5-1.7b", 1_707_657_216, 1_707_657_216),
    ("gemma-3-270m", 268_098_176, 268_098_176),
    ("gemma-3-4b", 4_300_079_472, 4_300_079_472),
    ("gemma-3-1b", 999_885_952, 999_885_952),
    ("gemma-3-12b", 12_187_325_040, 12_187_325_040),
    ("gemma-3-27b", 27_432_406_640, 27_432_406_640),
    ("gemma-2-2b", 2_614_341_888, 2_614_341_888),
    ("gemma-2-27b", 27_227_128_320, 27_227_128_320),
    ("qwen3-14b", 14_768_307_200, 14_768_307_200),
    ("gemma-2-9b", 9_241_705_984, 9_241_705_984),
    ("qwen3-0.6b", 751_632_384, 596_049_920),
    ("qwen3-1.7b", 2_031_739_904, 1_720_574_976),
    ("qwen3-4b", 4_022_468_096, 4_022_468_096),
    ("qwen3-8b", 8_190_735_360, 8_190_735_360),
    ("qwen3-32b", 32_762_123_264, 32_762_123_264),
    ("smollm2-135m", 134_515_008, 134_515_008),
)

MIXER = Attention(heads=4, kv_heads=2, qk_dim=16, v_dim=16, scale=0.25)


@pytest.mark.parametrize(("name", "in_file", "used"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_counts(name: str, in_file: int, used: int) -> None:
    found = parameters_of(open_model(name))
    assert (found.in_file, found.used, found.active) == (in_file, used, used)
    assert found.beyond.duplicates == in_file - used
    assert sum(found.roles.values()) == used
    assert sum(found.parts.values()) == used


def test_qwen3_235b_uses_22b_per_token() -> None:
    found = parameters_of(open_model("qwen3-235b-a22b"))
    assert (found.in_file, found.used, found.active) == (235_093_634_560, 235_093_634_560, 22_190_763_520)


def test_gemma_3_4b_by_part() -> None:
    found = parameters_of(open_model("gemma-3-4b"))
    # SigLIP of 27 layers, hidden 1152, width 4304, 64 x 64 patches of 14, and the projector, by hand.
    layer_of_tower = 4 * (1152 * 1152 + 1152) + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    tower = 27 * layer_of_tower + 1152 * 3 * 14 * 14 + 1152 + 4096 * 1152 + 2 * 1152 + 1152 + 1152 * 2560
    assert found.parts["vision"] == tower
    assert found.parts["text"] == 4_300_079_472 - tower


def test_deepseek_v32() -> None:
    """The published total, with what is in the file beside the graph: every line of the account at once."""
    found = parameters(deepseek_v32())
    assert found.in_file == 685_355_329_792
    assert found.used == 671_877_929_216
    assert found.active == 38_403_807_488
    assert asdict(found.beyond) == {
        "mtp": 11_624_027_392,
        "duplicates": 2 * 129_280 * 7168,
        "unused_shared_kv": 0,
        "router_bias": 59 * 256,
        "layer_scalars": 0,
        "fp8_scales": 41_591_584,
        "buffers": 0,
    }


def test_active_parameters_of_a_mixture() -> None:
    mixture = Mixture(8, 2, 32, "silu", Router("softmax", True), SharedExperts(1, 16, gated=True))
    found = parameters(small(Layer(MIXER, mixture, NORM, NORM)))
    assert found.roles["experts"] == 8 * 3 * 32 * 64
    assert found.used - found.active == 6 * 3 * 32 * 64
    assert found.roles["router"] == 8 * 64 + 64
    assert found.roles["feed_forward"] == 3 * 16 * 64


def test_layers_that_share_keys_and_values() -> None:
    """The published file holds the unused k and v weights; the graph does not use them."""
    shared = replace(MIXER, kv_source=0)
    found = parameters(small(layer(MIXER), layer(shared), layer(shared)))
    assert found.beyond.unused_shared_kv == 2 * 2 * (2 * 16 * 64)
    assert found.in_file == parameters(small(layer(MIXER), layer(MIXER), layer(MIXER))).used


def test_what_is_stored_but_no_parameter() -> None:
    mixture = Mixture(8, 2, 32, "silu", Router("sigmoid", True, selection_bias=True))
    scaled = replace(layer(MIXER), scalar=True)
    tower = Tower("audio", "", (TowerTensor("a{}", (3, 5), 2), TowerTensor("b", (7,), buffer=True)))
    found = parameters(small(scaled, Layer(MIXER, mixture, NORM, NORM), towers=(tower,)))
    assert (found.beyond.layer_scalars, found.beyond.router_bias, found.beyond.buffers) == (1, 8, 7)
    assert found.parts["audio"] == 30
    assert found.in_file == found.used + 1 + 8 + 7


def test_tied_and_own_heads() -> None:
    tied = parameters(small(layer(MIXER)))
    own = parameters(replace(small(layer(MIXER)), head=replace(small().head, tied=False)))
    assert (tied.roles["head"], own.roles["head"]) == (0, 300 * 64)
    assert own.used - tied.used == 300 * 64
    assert tied.roles["feed_forward"] == 3 * 96 * 64


def test_a_published_total_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ConfigError, match="in_file"):
        parameters(small(layer(MIXER)), published={"in_file": 5})


def test_a_file_is_counted_from_its_header(gemma_gguf: Path) -> None:
    source = open_model(gemma_gguf)
    found = parameters_of(source)
    assert (found.in_file, found.used, found.differences) == (268_098_176, 268_098_176, ())
    assert source.header is not None
    tensors = dict(source.header.tensors)
    norm = tensors["blk.3.attn_norm.weight"]
    del tensors["blk.0.attn_q.weight"]
    tensors["blk.1.attn_q.weight"] = replace(tensors["blk.1.attn_q.weight"], shape=(1024, 639))
    tensors["blk.3.extra.weight"] = replace(norm, name="blk.3.extra.weight")
    tensors["rope_freqs.weight"] = replace(norm, name="rope_freqs.weight", shape=(128,))
    damaged = replace(source, header=replace(source.header, tensors=MappingProxyType(tensors)))
    found = parameters_of(damaged)
    assert found.in_file == 268_098_176 - 1024 * 640 - 1024 + 640 + 128
    assert found.beyond.buffers == 128
    assert len(found.differences) == 3
    for name in ("'blk.0.attn_q.weight' is missing", "'blk.1.attn_q.weight'", "'blk.3.extra.weight'"):
        assert any(name in line for line in found.differences)


def test_a_dense_layer_by_hand() -> None:
    one = small(layer(MIXER))
    attention = 64 * 64 + 2 * (2 * 16 * 64) + 64 * 64
    assert isinstance(one.layers[0].feed_forward, Gated)
    assert parameters(one).used == 300 * 64 + attention + 3 * 96 * 64 + 3 * 64

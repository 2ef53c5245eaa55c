"""FP8 checkpoints: values times the scales of their blocks, and every way in which the two do not belong together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from plait.blueprint.catalog import entry
from plait.blueprint.shrink import tiny
from plait.blueprint.source import from_config, open_model
from plait.dtypes import BY_NAME
from plait.errors import UnsupportedError, UserError, WeightsError
from plait.runtime.checkpoint import write_random
from plait.runtime.fp8 import Scales, quantise, scale_shape
from plait.runtime.packed import Packed
from plait.runtime.weights import Weights, open_weights

MODELS = ("deepseek-v3", "deepseek-v3.2", "mimo-v2-flash", "minimax-m2")
NAME = "model.layers.0.mlp.up_proj.weight"


def config_of(name: str, **changes: object) -> dict[str, Any]:
    found = entry(name)
    assert found is not None
    return {**tiny(found.config), **changes}


def written(config: dict[str, Any], out: Path, form: str = "fp8") -> Path:
    blueprint, _ = from_config(config, file="test", name="test")
    return write_random(blueprint, config, out, seed=2, gguf=False, format=form).path


def edited(directory: Path, edit: Callable[[dict[str, Tensor]], Any]) -> Path:
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    return directory


def scaled(value: Tensor, scale: Tensor, block: int) -> Tensor:
    """Element by element, as https://arxiv.org/abs/2412.19437 defines it."""
    rows = torch.arange(value.shape[0]) // block
    columns = torch.arange(value.shape[1]) // block
    return value.to(torch.float32) * scale.to(torch.float32)[rows][:, columns]


@pytest.mark.parametrize("name", MODELS)
def test_values_times_scales(name: str, tmp_path: Path) -> None:
    path = written(config_of(name), tmp_path)
    weights, raw = open_weights(open_model(path)), load_file(path / "model.safetensors")
    names = {name for name in raw if f"{name}_scale_inv" in raw}
    seen = 0
    for role in weights.roles:
        if not weights.format(role).name.startswith("f8"):
            continue
        seen += 1
        dense = weights.dense(role, torch.float32)
        assert weights.packed(role) is None
        if len(dense.shape) == 3:
            parts = [weights.dense_at(role, i, torch.float32) for i in range(dense.shape[0])]
            assert torch.equal(torch.stack(parts), dense)
            assert weights.packed_at(role, 0) is None
        for dtype in (torch.bfloat16, torch.float64):
            assert torch.equal(weights.dense(role, dtype), dense.to(dtype))
    assert seen
    for index in range(len(open_model(path).blueprint.layers)):
        projection = f"model.layers.{index}.self_attn.o_proj.weight"
        whole = projection not in names
        assert whole == (name == "mimo-v2-flash")  # which leaves it unquantised
        expected = raw[projection].float() if whole else scaled(raw[projection], raw[projection + "_scale_inv"], 32)
        assert torch.equal(weights.dense(f"layers.{index}.attention.output", torch.float32), expected)


@pytest.mark.parametrize("name", MODELS)
def test_rounding_to_fp8_is_small(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    rounded = open_weights(open_model(written(config, tmp_path / "fp8")))
    plain = open_weights(open_model(written(config, tmp_path / "f32", "f32")))
    assert plain.roles == rounded.roles
    for role in plain.roles:
        exact, near = plain.dense(role, torch.float32), rounded.dense(role, torch.float32)
        # e4m3 has 3 bits behind the point; a block's smallest numbers are subnormal
        assert torch.allclose(near, exact, rtol=2**-4, atol=float(exact.abs().max()) * 2**-9), role


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 33), st.integers(1, 33), st.booleans())
def test_blocks_that_are_only_begun(rows: int, columns: int, tall: int, wide: int, stack: bool) -> None:
    shape = (2, rows, columns) if stack else (rows, columns)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(rows * 71 + columns))
    values, scales = quantise(x, (tall, wide), BY_NAME["f8_e4m3"])
    assert values.shape == shape
    assert tuple(scales.shape) == scale_shape(shape, (tall, wide))
    for value, scale, own in zip(
        values.reshape(-1, rows, columns),
        scales.reshape(-1, *scales.shape[-2:]),
        x.reshape(-1, rows, columns),
        strict=True,
    ):
        band = torch.arange(rows)[:, None] // tall
        made = value.float() * scale[band, torch.arange(columns)[None] // wide]
        assert torch.allclose(made, own, rtol=2**-4, atol=float(own.abs().max()) * 2**-9)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                block = value[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide].float()
                assert block.abs().max() == 448  # the largest number of e4m3


def test_fused_experts_have_their_own_bands() -> None:
    """Blocks begin anew with every expert, whose rows are no multiple of a block."""
    shape, block = (3, 5, 7), (2, 4)
    scales = torch.rand(scale_shape(shape, block))
    form = BY_NAME["f32"]
    rows = torch.ones(15, 7)
    made = Scales(Packed(form, scales, tuple(scales.shape)), block, shape).apply(rows, range(15)).reshape(shape)
    for e in range(3):
        for i in range(5):
            for j in range(7):
                assert made[e, i, j] == scales[e, i // 2, j // 4]


def _fault(path: Path, kind: type[UserError]) -> str:
    with pytest.raises(kind) as caught:
        open_weights(open_model(path))
    text = str(caught.value)
    assert "\n" not in text
    assert "model.safetensors" in text
    return text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return written(config_of("deepseek-v3"), tmp_path)


def test_missing_scales_name_both(model: Path) -> None:
    text = _fault(edited(model, lambda t: t.pop(f"{NAME}_scale_inv")), WeightsError)
    assert f"{NAME!r} is f8_e4m3 without its scales '{NAME}_scale_inv'" in text


@pytest.mark.parametrize("edit", [lambda s: s[:-1], lambda s: s.T.contiguous(), lambda s: s.reshape(-1)])
def test_misshaped_scales_name_both(model: Path, edit: Callable[[Tensor], Tensor]) -> None:
    scale = f"{NAME}_scale_inv"
    text = _fault(edited(model, lambda t: t.update({scale: edit(t[scale])})), WeightsError)
    assert f"scales {scale!r} of {NAME!r} (96, 64)" in text
    assert "expected shape (3, 2)" in text


def test_scales_of_what_is_not_fp8_are_refused(model: Path) -> None:
    text = _fault(edited(model, lambda t: t.update({NAME: t[NAME].to(torch.bfloat16)})), WeightsError)
    assert f"'{NAME}_scale_inv' scales {NAME!r}: expected FP8 elements, found bf16" in text


def test_scales_without_a_tensor_are_unexpected(model: Path) -> None:
    scale = "model.layers.0.mlp.other.weight_scale_inv"
    text = _fault_in(edited(model, lambda t: t.update({scale: torch.ones(2, 2)})))
    assert f"1 unexpected ({scale})" in text


def _fault_in(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        open_weights(open_model(path))
    return str(caught.value)


def test_scales_in_a_format_that_is_none(model: Path) -> None:
    scale = f"{NAME}_scale_inv"
    text = _fault(edited(model, lambda t: t.update({scale: t[scale].to(torch.int32)})), UnsupportedError)
    assert "found i32" in text


def test_scales_without_declared_blocks(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    del config["quantization_config"]
    (model / "config.json").write_text(json.dumps(config))
    assert "weight_block_size" in _fault(model, UnsupportedError)


def test_a_whole_tensor_where_fp8_was_declared_is_read(model: Path) -> None:
    """Files of which some matrices were put back to bf16 still name the quantization."""

    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[NAME] = scaled(tensors[NAME], tensors.pop(f"{NAME}_scale_inv"), 32).to(torch.bfloat16)

    expected = open_weights(open_model(model)).dense("layers.0.feed_forward.up", torch.bfloat16)
    weights: Weights = open_weights(open_model(edited(model, edit)))
    assert torch.equal(weights.dense("layers.0.feed_forward.up", torch.bfloat16), expected)


def test_bf16_scales(model: Path) -> None:
    """Some published files (Qwen3) hold the scales in bf16."""
    scale = f"{NAME}_scale_inv"
    edited(model, lambda t: t.update({scale: t[scale].to(torch.bfloat16)}))
    raw = load_file(model / "model.safetensors")
    dense = open_weights(open_model(model)).dense("layers.0.feed_forward.up", torch.float32)
    assert torch.equal(dense, scaled(raw[NAME], raw[scale], 32))

"""Block formats against the `gguf` package, bit for bit, and against their definitions."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.dtypes import BY_NAME
from plait.errors import UnsupportedError, WeightsError
from plait.runtime.blocks import DENSE, pack, packable, unpack, unpackable
from plait.runtime.kernels import BLOCK_FORMATS
from plait.runtime.packed import Packed

HALVES = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
}
SIMPLE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def kind(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name.upper()]


def random_rows(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random bytes [*shape[:-1], shape[-1] blocks] whose float16 values are finite."""
    form = BY_NAME[name]
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, form.block_bytes), dtype=np.uint8)
    for at in HALVES[name]:
        raw[..., at + 1] &= 0xBF  # clears the top bit of the exponent
    return torch.from_numpy(raw.reshape(*shape[:-1], -1))


def same_bits(ours: Tensor, theirs: np.ndarray) -> bool:
    return bool((ours.numpy().view(np.uint32) == theirs.view(np.uint32)).all()) and ours.shape == theirs.shape


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("shape", [(1,), (3,), (5, 2), (2, 3, 1), (40, 3)])
def test_unpack_is_the_reference_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    rows = random_rows(name, shape, seed=len(shape))
    values = unpack(BY_NAME[name], rows)
    assert values.dtype == torch.float32 and values.shape[-1] == shape[-1] * BY_NAME[name].block
    assert same_bits(values, gguf.quants.dequantize(rows.numpy(), kind(name)))


@pytest.mark.parametrize("name", HALVES)
def test_unpack_reads_any_alignment_and_strides(name: str) -> None:
    rows = random_rows(name, (4, 2), seed=3)
    expected = unpack(BY_NAME[name], rows)
    shifted = torch.empty(rows.numel() + 1, dtype=torch.uint8)[1:].reshape(rows.shape).copy_(rows)
    assert torch.equal(unpack(BY_NAME[name], shifted), expected)
    assert torch.equal(unpack(BY_NAME[name], torch.cat([rows, rows], 1)[:, : rows.shape[1]]), expected)


def test_values_written_out_by_hand() -> None:
    # d = 0.5, then nibbles: byte 0 holds elements 0 (low) and 16 (high)
    q4_0 = torch.tensor([0x00, 0x38, 0xF1] + [0x88] * 15, dtype=torch.uint8)
    assert unpack(BY_NAME["q4_0"], q4_0).tolist() == [-3.5] + [0.0] * 15 + [3.5] + [0.0] * 15
    q8_0 = torch.tensor([0x00, 0x3C, 0xFF, 0x7F] + [0] * 30, dtype=torch.uint8)
    assert unpack(BY_NAME["q8_0"], q8_0).tolist() == [-1.0, 127.0] + [0.0] * 30


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64", "f8_e4m3", "f8_e5m2"])
def test_dense_formats(name: str) -> None:
    x = torch.tensor([[0.0, -1.5, 0.0625], [448.0, 2.0**-6, -3.0]])
    typed = x.to(DENSE[name])
    rows = pack(BY_NAME[name], x)
    assert rows.shape == (2, 3 * BY_NAME[name].block_bytes) and torch.equal(rows, typed.view(torch.uint8))
    assert torch.equal(unpack(BY_NAME[name], rows), x)  # all of these are exact in every format
    shifted = torch.empty(rows.numel() + 1, dtype=torch.uint8)[1:].reshape(rows.shape).copy_(rows)
    assert torch.equal(unpack(BY_NAME[name], shifted), x)


def test_every_bfloat16_and_half() -> None:
    every = torch.arange(2**16).to(torch.uint16).view(torch.uint8).reshape(-1, 2)
    ours = unpack(BY_NAME["bf16"], every).view(torch.int32).reshape(-1)
    assert torch.equal(ours, torch.arange(2**16, dtype=torch.int64).to(torch.int32) << 16)
    half = unpack(BY_NAME["f16"], every).numpy().reshape(-1)
    theirs = every.numpy().view(np.float16).astype(np.float32).reshape(-1)
    assert np.array_equal(half, theirs, equal_nan=True)


def reals(seed: int, scale: float, rounded: bool, rows: int, columns: int) -> Tensor:
    x = np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)
    # whole numbers bring ties: between extremes of both signs, and half-way between levels
    x = np.round(x * 3) if rounded else x
    x[0, : columns // 2] = 0
    return torch.from_numpy((x * np.float32(scale)).astype(np.float32))


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(["f16", "bf16", *SIMPLE]),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1e-4, 0.02, 1.0, 30.0, 1000.0]),
    rounded=st.booleans(),
)
def test_pack_is_the_reference_bit_for_bit(name: str, seed: int, scale: float, rounded: bool) -> None:
    x = reals(seed, scale, rounded, rows=3, columns=96)
    theirs = gguf.quants.quantize(x.numpy(), kind(name)).view(np.uint8)
    assert np.array_equal(pack(BY_NAME[name], x).numpy(), theirs)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from([*SIMPLE, "q4_k", "q5_k", "q6_k"]),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.02, 1.0, 1000.0]),
    rounded=st.booleans(),
    shift=st.sampled_from([-2.0, 0.0, 2.0]),
)
def test_pack_errs_by_about_a_step(name: str, seed: int, scale: float, rounded: bool, shift: float) -> None:
    form = BY_NAME[name]
    x = reals(seed, scale, rounded, rows=2, columns=512) + shift * scale
    error = (unpack(form, pack(form, x)) - x).abs().reshape(2, -1, form.block).amax(-1)
    blocks = x.reshape(2, -1, form.block)
    top = blocks.abs().amax(-1)
    # the distance of levels over a whole block's range; half of it is the error of rounding, and a symmetric format
    # clips at most another half
    levels = {"q4_0": 8, "q5_0": 16, "q8_0": 127, "q6_k": 32}
    if name in levels:
        step = top / levels[name]
    else:
        low = blocks.amin(-1) if name in SIMPLE else blocks.amin(-1).clamp(max=0)
        step = (blocks.amax(-1) - low) / (15 if "4" in name else 31)
    # float16 scales, and in the k formats the rounding of a group's scale and minimum to 1/63 or 1/127 of the largest
    coarse = {"q4_k": 2 / 63, "q5_k": 2 / 63, "q6_k": 1 / 127}.get(name, 0.0) + 2**-10
    assert bool((error <= step * (1.0 if name in levels else 0.5) + top * coarse).all())


def test_q8_0_rounds_halves_away_from_zero() -> None:
    x = torch.tensor([127.0] + [i + 0.5 for i in range(-16, 15)])  # d is 1
    rows = pack(BY_NAME["q8_0"], x)
    assert rows[2:].view(torch.int8).tolist() == [127, *range(-16, 0), *range(1, 16)]
    assert np.array_equal(rows.numpy(), gguf.quants.quantize(x[None].numpy(), kind("q8_0"))[0])


@pytest.mark.parametrize("name", HALVES)
def test_pack_errs_by_a_quarter_of_a_step_on_average(name: str) -> None:
    # what rounding to the nearest level gives; cutting off would give half a step
    x = reals(11, 1.0, False, rows=33, columns=512)[1:]
    groups = x.reshape(-1, 16 if name == "q6_k" else 32)
    if name in ("q4_0", "q5_0", "q8_0", "q6_k"):
        step = groups.abs().amax(-1) / {"q4_0": 8, "q5_0": 16, "q8_0": 127, "q6_k": 32}[name]
    else:
        step = (groups.amax(-1) - groups.amin(-1)) / (15 if "4" in name else 31)
    error = (unpack(BY_NAME[name], pack(BY_NAME[name], x)) - x).abs().mean()
    assert 0.2 < float(error / step.mean()) < 0.28


@pytest.mark.parametrize("name", HALVES)
def test_zeros_stay_zero_and_tiny_values_stay_small(name: str) -> None:
    form = BY_NAME[name]
    assert bool((unpack(form, pack(form, torch.zeros(2, 256))) == 0).all())
    tiny = torch.full((1, 256), 1e-42)
    assert bool((unpack(form, pack(form, tiny)).abs() < 1e-6).all())


def test_pack_takes_wider_and_narrower_floats() -> None:
    x = reals(5, 1.0, False, rows=2, columns=64)
    assert torch.equal(pack(BY_NAME["q8_0"], x.double()), pack(BY_NAME["q8_0"], x))
    half = x.to(torch.bfloat16)
    assert torch.equal(pack(BY_NAME["q8_0"], half), pack(BY_NAME["q8_0"], half.float()))
    blocks = x.reshape(2, 2, 32)
    assert torch.equal(pack(BY_NAME["q8_0"], blocks.mT.contiguous().mT), pack(BY_NAME["q8_0"], blocks))


@pytest.mark.parametrize("name", ["q2_k", "mxfp4", "i8", "f8_e8m0"])
def test_formats_without_a_reader_are_named(name: str) -> None:
    form = BY_NAME[name]
    with pytest.raises(UnsupportedError, match=f"format {name} cannot be read: expected one of f32, .*q6_k"):
        unpack(form, torch.zeros(form.block_bytes, dtype=torch.uint8))
    with pytest.raises(UnsupportedError, match=f"format {name} cannot be written: expected one of f32, .*q6_k"):
        pack(form, torch.zeros(form.block))
    assert name not in unpackable() and name not in packable()


@pytest.mark.parametrize("name", ["q8_0", "q6_k", "f32"])
def test_wrong_rows_are_refused(name: str) -> None:
    form = BY_NAME[name]
    for wrong in (
        torch.zeros(2, form.block_bytes + 1, dtype=torch.uint8),
        torch.zeros(2, form.block_bytes, dtype=torch.int8),
        torch.zeros((), dtype=torch.uint8),
    ):
        with pytest.raises(WeightsError, match=f"rows in {name}"):
            unpack(form, wrong)
    for bad in (torch.zeros(2, form.block, dtype=torch.int32), torch.tensor(1.0)):
        with pytest.raises(WeightsError, match=f"rows for {name}"):
            pack(form, bad)
    if form.block > 1:
        with pytest.raises(WeightsError, match=f"rows for {name}"):
            pack(form, torch.zeros(2, form.block + 1))


@pytest.mark.parametrize("name", [*HALVES, "f16", "f8_e5m2"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30, 1e300])
def test_values_that_a_format_cannot_hold_are_refused(name: str, value: float) -> None:
    x = torch.zeros(1, 256, dtype=torch.float64)
    x[0, 7] = value
    with pytest.raises(WeightsError, match=f"values to write as {name}: expected finite ones"):
        pack(BY_NAME[name], x)


def test_f64_holds_what_f32_cannot() -> None:
    x = torch.tensor([1e300, -0.1], dtype=torch.float64)
    assert torch.equal(pack(BY_NAME["f64"], x).view(torch.float64), x)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_kernels_unpack_bit_for_bit_what_the_reference_does(name, data):
    """Arbitrary bytes: every code, scales that are tiny, infinite and none."""
    form, count = BY_NAME[name], data.draw(st.integers(1, 9))
    raw = data.draw(st.binary(min_size=count * form.block_bytes, max_size=count * form.block_bytes))
    rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(1, -1)
    expected = unpack(form, rows)
    found = Packed(form, rows, tuple(expected.shape)).expand(torch.float32)
    none = expected.isnan()
    assert torch.equal(found.isnan(), none)
    assert torch.equal(found[~none].view(torch.int32), expected[~none].view(torch.int32))

"""Weights as stored: mapping, expansion, rows, and files that change under them."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from plait.blueprint.read.safetensors import read_checkpoint
from plait.blueprint.read.stored import StoredTensor
from plait.dtypes import BY_NAME, FORMATS
from plait.errors import FileFormatError, ModelNotFound, WeightsError
from plait.runtime import packed
from plait.runtime.blocks import DENSE, pack, unpack
from plait.runtime.packed import Packed, map_file, open_all, open_stored


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def store(path: Path, form: str, x: Tensor, offset: int) -> StoredTensor:
    """Write `x` at `offset`, with other bytes on both sides."""
    raw = pack(BY_NAME[form], x)
    path.write_bytes(b"\xaa" * offset + bytes(raw.flatten().tolist()) + b"\xbb" * 5)
    return StoredTensor("w", tuple(x.shape), BY_NAME[form], path, offset, raw.numel())


@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "f64", "f8_e4m3", "q4_0", "q8_0", "q6_k"])
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 7, 32, 4096, 4097])
def test_any_offset(tmp_path: Path, form: str, offset: int) -> None:
    x = values(3, 2, 256)
    stored = store(tmp_path / "w.bin", form, x, offset)
    weight = open_stored(stored)
    expected = unpack(BY_NAME[form], pack(BY_NAME[form], x))
    assert weight.nbytes == stored.nbytes and weight.shape == (3, 2, 256)
    gc.collect()  # the map must live as long as the weight
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        result = weight.expand(dtype)
        assert result.dtype == dtype
        if form == "f64" and dtype == torch.float64:
            assert torch.equal(result, x.double())
        else:
            assert torch.equal(result, expected.to(dtype))


def test_float64_of_f32_is_exact(tmp_path: Path) -> None:
    x = values(5, 7)
    for offset in (0, 3):
        assert torch.equal(open_stored(store(tmp_path / "w.bin", "f32", x, offset)).expand(torch.float64), x.double())


def test_opening_does_not_copy(tmp_path: Path) -> None:
    for form, offset in (("f32", 64), ("q4_0", 33), ("f32", 33)):
        stored = store(tmp_path / f"{form}{offset}.bin", form, values(4, 32), offset)
        mapped = map_file(stored.file)
        weight = open_stored(stored, mapped)
        assert weight.data.data_ptr() == mapped.data_ptr() + offset
        assert weight.typed == (form == "f32" and offset == 64)
        assert weight.data.untyped_storage().nbytes() == stored.file.stat().st_size


def test_what_is_written_to_the_file_is_seen(tmp_path: Path) -> None:
    stored = store(tmp_path / "w.bin", "f32", values(2, 4), 8)
    weight = open_stored(stored)
    with stored.file.open("r+b") as stream:
        stream.seek(8)
        stream.write(bytes(32))
    assert weight.expand(torch.float32).count_nonzero() == 0


def test_whole_checkpoint_maps_each_file_once(tmp_path: Path) -> None:
    first = {"a": values(3, 4), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "ids": torch.arange(5)}
    second = {"b": values(2, 2).bfloat16()}
    save_file(first, tmp_path / "model-00001-of-00002.safetensors")
    save_file(second, tmp_path / "model-00002-of-00002.safetensors")
    weights = open_all(read_checkpoint(tmp_path))
    for name, tensor in (first | second).items():
        assert weights[name].shape == tuple(tensor.shape)
        assert torch.equal(weights[name].expand(tensor.dtype), tensor)
    assert weights["a"].data.untyped_storage().data_ptr() == weights["ids"].data.untyped_storage().data_ptr()
    assert weights["a"].data.untyped_storage().data_ptr() != weights["b"].data.untyped_storage().data_ptr()


@settings(deadline=None, max_examples=40)
@given(
    form=st.sampled_from(["f32", "bf16", "f8_e5m2", "q5_1", "q4_k"]),
    typed=st.booleans(),
    ids=st.lists(st.integers(0, 6), max_size=9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_rows_are_rows_of_the_expansion(form: str, typed: bool, ids: list[int], dtype: torch.dtype) -> None:
    raw = pack(BY_NAME[form], values(7, 2, 256))
    data = raw.view(DENSE[form]) if typed and form in DENSE else raw
    weight = Packed(BY_NAME[form], data, (7, 2, 256))
    index = torch.tensor(ids, dtype=torch.int64)
    assert torch.equal(weight.rows(index, dtype), weight.expand(dtype)[index])
    assert torch.equal(weight.rows(index[None, :, None], dtype), weight.expand(dtype)[index][None, :, None])


def test_rows_of_every_dense_type() -> None:
    for name, dtype in DENSE.items():
        data = torch.arange(8 * dtype.itemsize, dtype=torch.uint8).reshape(4, -1) % 2
        weight = Packed(BY_NAME[name], data.view(dtype), (4, 2))
        expected = weight.expand(torch.float64)
        assert torch.equal(weight.rows(torch.tensor([3, 0]), torch.float64), expected[[3, 0]])


def test_rows_refuses_ids_outside() -> None:
    weight = Packed(BY_NAME["f32"], values(4, 2), (4, 2))
    for wrong in (-1, 4):
        with pytest.raises(IndexError, match=r"expected \[0, 4\)"):
            weight.rows(torch.tensor([0, wrong]), torch.float32)
    with pytest.raises(WeightsError, match="at least 2 dimensions"):
        Packed(BY_NAME["f32"], values(4), (4,)).rows(torch.tensor([0]), torch.float32)


@pytest.mark.parametrize("form", ["q8_0", "q6_k", "bf16"])
def test_expansion_goes_in_pieces(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    raw = pack(BY_NAME[form], values(9, 512))
    seen: list[int] = []

    def watched(format: object, blocks: Tensor) -> Tensor:
        seen.append(blocks.numel() // BY_NAME[form].block_bytes * BY_NAME[form].block)
        return original(BY_NAME[form], blocks)

    original = packed._values
    monkeypatch.setattr(packed, "_values", watched)
    monkeypatch.setattr(packed, "PIECE", 1024)
    result = Packed(BY_NAME[form], raw, (9, 512)).expand(torch.float32)
    assert torch.equal(result, unpack(BY_NAME[form], raw))
    assert seen == [1024, 1024, 1024, 1024, 512]


def test_a_file_that_shrank(tmp_path: Path) -> None:
    stored = store(tmp_path / "w.bin", "f32", values(4, 4), 16)
    stored.file.write_bytes(stored.file.read_bytes()[:79])
    message = r"w\.bin: tensor 'w': the file has shrunk .*: expected at least 80 bytes, found 79 bytes"
    with pytest.raises(FileFormatError, match=message):
        open_stored(stored)
    stored.file.write_bytes(b"")
    with pytest.raises(FileFormatError, match="found 0 bytes"):
        open_stored(stored)
    stored.file.unlink()
    with pytest.raises(ModelNotFound):
        open_stored(stored)


def test_data_that_is_not_the_shape_is_refused() -> None:
    rows = pack(BY_NAME["q8_0"], values(2, 64))
    assert Packed(BY_NAME["q8_0"], rows, (2, 64)).nbytes == 2 * 68
    for data, shape in ((rows, (2, 32)), (rows, (4, 32)), (rows.view(torch.int8), (2, 64)), (rows.mT, (68, 64))):
        with pytest.raises(WeightsError, match="q8_0"):
            Packed(BY_NAME["q8_0"], data, shape)
    with pytest.raises(WeightsError, match="rows of a multiple of 32 elements, found shape"):
        Packed(BY_NAME["q8_0"], rows, (2, 63))
    with pytest.raises(WeightsError, match="f32"):
        Packed(BY_NAME["f32"], values(2, 2).double(), (2, 2))


def test_every_dense_format_has_a_torch_type_of_its_size() -> None:
    assert {f.name: f.block_bytes for f in FORMATS if f.dense} == {n: t.itemsize for n, t in DENSE.items()}

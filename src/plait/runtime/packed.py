"""Weights as stored: the bytes of a file, mapped and not copied, with the format that says what they mean."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from plait.blueprint.read.stored import StoredTensor, file_size
from plait.dtypes import Format
from plait.errors import FileFormatError, WeightsError, fault
from plait.runtime.blocks import DENSE, unpack
from plait.runtime.kernels import BLOCK_FORMATS, native

__all__ = ["PIECE", "Packed", "map_file", "open_all", "open_stored"]

# Elements expanded at a time: unpacking needs up to about 16 bytes an element, so 64 MiB.
PIECE: Final = 4 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A weight as stored.

    format  how elements are stored
    data    either `shape` in the torch type of a dense format, or raw rows: uint8, shape[:-1] + (row bytes,). A
            dense format has raw rows where a file does not align its elements. May be a read-only map of a
            file: never write to it.
    shape   of the elements, outermost first

    WeightsError: data that is neither.
    """

    format: Format
    data: Tensor
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.typed:
            return
        columns = self.shape[-1] if self.shape else 1
        if columns % self.format.block:
            expected = f"rows of a multiple of {self.format.block} elements"
            raise WeightsError(fault(f"a weight in {self.format.name}", expected=expected, found=f"shape {self.shape}"))
        rows = (*self.shape[:-1], self.format.nbytes(columns))
        if self.data.dtype != torch.uint8 or tuple(self.data.shape) != rows or not self.data.is_contiguous():
            what = f"data of a weight {self.shape} in {self.format.name}"
            found = f"{self.data.dtype} {tuple(self.data.shape)} with strides {self.data.stride()}"
            raise WeightsError(fault(what, expected=f"contiguous uint8 {rows}", found=found))

    @property
    def typed(self) -> bool:
        """True where `data` is the elements themselves, False where it is raw rows."""
        dtype = DENSE.get(self.format.name)
        return self.data.dtype == dtype and tuple(self.data.shape) == self.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as stored."""
        return self.data.numel() * self.data.element_size()

    def expand(self, dtype: torch.dtype) -> Tensor:
        """All elements, dense, as `dtype` [shape]; beyond the result at most about 64 MiB are needed at a time.

        Block formats have float32 values, which are then rounded to `dtype`. May be `data` itself: do not write to it.
        UnsupportedError: a block format that cannot be read.
        """
        if self.typed:
            return self.data.to(dtype)
        form = self.format
        blocks = self.data.reshape(-1, form.block_bytes)
        out = torch.empty((blocks.shape[0], form.block), dtype=dtype, device=self.data.device)
        step = PIECE // form.block
        for start in range(0, blocks.shape[0], step):
            out[start : start + step] = _values(form, blocks[start : start + step])
        return out.reshape(self.shape)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows `ids` of the first axis, integers of any shape, as `dtype` [*ids.shape, *shape[1:]].

        WeightsError: a weight that has no rows. IndexError: an id outside [0, shape[0]).
        """
        if len(self.shape) < 2:
            raise WeightsError(fault("rows of a weight", expected="at least 2 dimensions", found=f"shape {self.shape}"))
        few = ids.flatten().tolist()
        if few and not 0 <= min(few) <= max(few) < self.shape[0]:
            raise IndexError(f"row ids from {min(few)} to {max(few)}, expected [0, {self.shape[0]})")
        if dtype == torch.float32 and _kernels_read(self.format, self.data):
            return self._unpacked(few).reshape(*ids.shape, *self.shape[1:])
        shape = (ids.numel(), *self.shape[1:])
        chosen = self.data.index_select(0, ids.reshape(-1).to(self.data.device, torch.int64))
        return Packed(self.format, chosen, shape).expand(dtype).reshape(*ids.shape, *self.shape[1:])

    def _unpacked(self, ids: list[int]) -> Tensor:
        """Rows one by one, without a copy of their bytes: for every token there is one."""
        from plait.runtime._native import unpack_blocks

        made = torch.empty(len(ids), *self.shape[1:])
        size, blocks = self.data.stride(0), made[0].numel() // self.format.block if ids else 0
        source, target, form = self.data.data_ptr(), made.data_ptr(), BLOCK_FORMATS.index(self.format.name)
        for at, row in enumerate(ids):
            unpack_blocks(source + row * size, blocks, form, target + at * made.stride(0) * made.element_size())
        return made

    def to(self, device: torch.device | str) -> Packed:
        """The same weight on a device, still as stored."""
        return Packed(self.format, self.data.to(device), self.shape)


def open_stored(stored: StoredTensor, mapped: Tensor | None = None) -> Packed:
    """The weight at its place in its file, mapped and not read.

    `mapped`: the file as `map_file` gives it, where more than one of its tensors is wanted.
    FileFormatError: the file is shorter than its header said.
    """
    if mapped is None:
        mapped = map_file(stored.file)
    if stored.end > mapped.numel():
        what = f"tensor {stored.name!r}: the file has shrunk since its header was read"
        expected, found = f"at least {stored.end} bytes", f"{mapped.numel()} bytes"
        raise FileFormatError(fault(what, file=stored.file, expected=expected, found=found, advice="load it again"))
    data = mapped[stored.offset : stored.end]
    dtype = DENSE.get(stored.format.name)
    if dtype is not None and stored.offset % dtype.itemsize == 0:
        return Packed(stored.format, data.view(dtype).reshape(stored.shape), stored.shape)
    columns = stored.shape[-1] if stored.shape else 1
    rows = (*stored.shape[:-1], stored.format.nbytes(columns))
    return Packed(stored.format, data.reshape(rows), stored.shape)


def open_all(tensors: Mapping[str, StoredTensor]) -> dict[str, Packed]:
    """Every weight by name, each file mapped once."""
    files = {stored.file: stored for stored in tensors.values()}
    mapped = {file: map_file(file) for file in files}
    return {name: open_stored(stored, mapped[stored.file]) for name, stored in tensors.items()}


def map_file(path: Path) -> Tensor:
    """A whole file as uint8 [bytes], read-only and paged in as it is touched; never write to it.

    ModelNotFound, FileFormatError: no such file, or none that can be mapped.
    """
    if file_size(path) == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        with path.open("rb") as stream:
            return torch.from_numpy(np.asarray(_Mapped(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))))
    except (OSError, ValueError) as error:
        raise FileFormatError(fault(f"cannot be mapped ({error})", file=path)) from None


class _Mapped:
    """A file's map as numpy sees an array. Torch has no read-only tensors and warns of read-only arrays, so this one
    says nothing of it: a write would end the process, and nothing here writes to a weight.
    """

    def __init__(self, area: mmap.mmap) -> None:
        self.area = area
        view = np.frombuffer(area, dtype=np.uint8)
        self.__array_interface__: dict[str, Any] = {
            **view.__array_interface__,
            "data": (view.__array_interface__["data"][0], False),
        }


def _kernels_read(form: Format, data: Tensor) -> bool:
    return form.name in BLOCK_FORMATS and data.device.type == "cpu" and native() is not None


def _values(form: Format, blocks: Tensor) -> Tensor:
    """The values of blocks [n, block bytes]: by the kernels, where they know the format, else by the reference."""
    dtype = DENSE.get(form.name)
    if dtype is not None:
        return blocks.clone().view(dtype)
    if not _kernels_read(form, blocks):
        return unpack(form, blocks)
    from plait.runtime._native import unpack_blocks

    whole = blocks.contiguous()
    made = torch.empty(whole.shape[0], form.block)
    unpack_blocks(whole.data_ptr(), whole.shape[0], BLOCK_FORMATS.index(form.name), made.data_ptr())
    return made

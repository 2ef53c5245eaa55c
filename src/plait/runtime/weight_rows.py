"""Rows of a stored tensor, whatever its format and axes: as stored, or expanded.

Rows have `columns` elements and are numbered through all axes but the last; a vector is rows of one element.
"""

from __future__ import annotations

from math import prod
from typing import Final

import torch
from torch import Tensor

from plait.dtypes import Format
from plait.runtime.fp8 import Scales
from plait.runtime.packed import Packed

__all__ = ["cut", "expand", "shaped", "tears", "with_columns"]

# Scaled elements expanded at a time: float32 values and their scales, so 32 MiB.
_PIECE: Final = 4 * 2**20


def cut(packed: Packed, columns: int, index: range | Tensor) -> Packed | None:
    """Rows `index` [n, columns] as stored: a view of the file for a range, else a copy.

    None: rows that do not begin and end with a block.
    """
    form, count = packed.format, len(index)
    if columns % form.block:
        if columns > 1 or not isinstance(index, range) or index.start % form.block or index.stop % form.block:
            return None
        data = packed.data.reshape(-1)[form.nbytes(index.start) : form.nbytes(index.stop)]
        return Packed(form, data, (count,))
    data = packed.data.reshape(prod(packed.shape) // columns, -1)
    if isinstance(index, range):
        return Packed(form, data[index.start : index.stop], (count, columns))
    if data.element_size() == 1:  # not every operation knows FP8
        return Packed(form, data.view(torch.uint8).index_select(0, index).view(data.dtype), (count, columns))
    return Packed(form, data.index_select(0, index), (count, columns))


def expand(packed: Packed, columns: int, index: range | Tensor, dtype: torch.dtype, scales: Scales | None) -> Tensor:
    """Rows `index` as `dtype` [n, columns], times their scales: memory of its own."""
    part = cut(packed, columns, index)
    if part is None:
        whole = packed.expand(dtype).reshape(-1, columns)
        return whole[index.start : index.stop].clone() if isinstance(index, range) else whole[index]
    if scales is None:
        made = part.data.to(dtype, copy=True) if part.typed else part.expand(dtype)
        return made.reshape(-1, columns)
    out = torch.empty((len(index), columns), dtype=dtype)
    step = max(_PIECE // columns, 1)
    for start in range(0, len(index), step):
        rows = expand(part, columns, range(start, min(start + step, len(index))), torch.float32, None)
        out[start : start + step] = scales.apply(rows, index[start : start + step])
    return out


def tears(form: Format, at: Tensor) -> bool:
    """Columns from the places `at` are no whole blocks."""
    if at.numel() % form.block:
        return True
    blocks = at.reshape(-1, form.block)
    whole = (blocks - blocks[:, :1] == torch.arange(form.block)).all() and not (blocks[:, 0] % form.block).any()
    return not bool(whole)


def with_columns(packed: Packed, at: Tensor) -> Packed | None:
    """Rows [n, columns] with their columns from the places `at`, still as stored; None where a block would be torn."""
    form, count = packed.format, at.numel() // packed.format.block
    if tears(form, at):
        return None
    blocks = at.reshape(count, form.block)
    data = packed.data.view(torch.uint8).reshape(packed.shape[0], count, form.block_bytes)
    moved = data.index_select(1, blocks[:, 0] // form.block).reshape(packed.shape[0], -1)
    return Packed(form, moved.view(packed.data.dtype), packed.shape)


def shaped(packed: Packed, shape: tuple[int, ...]) -> Packed:
    """The same rows under the axes of a role."""
    if packed.typed:
        return Packed(packed.format, packed.data.reshape(shape), shape)
    return Packed(packed.format, packed.data.reshape(*shape[:-1], -1), shape)

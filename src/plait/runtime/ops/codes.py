"""Rows as slabs store them: as they are in a dense type, or as blocks of 32 codes of 8 bits with a scale.

A row of codes is the scales of its blocks (float16, two bytes each), then the codes of its blocks; a started block is a
whole one. That is 34 bytes a block, as in GGUF's q8_0. The slabs' type torch.int8 stands for it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["as_stored", "read_stored", "stored_width"]

_BLOCK: Final = 32
_SCALE_BYTES: Final = 2
_MOST: Final = 127


def _blocks(dim: int) -> int:
    return -(-dim // _BLOCK)


def stored_width(dim: int, dtype: torch.dtype) -> int:
    """Elements of a slab's type that a vector of `dim` takes."""
    return dim if dtype != torch.int8 else _blocks(dim) * (_BLOCK + _SCALE_BYTES)


def as_stored(rows: Tensor, dtype: torch.dtype) -> Tensor | None:
    """rows [..., dim] in the slabs' type, [..., width]. None: a number is beyond what float16, or a scale, holds.

    A scale is the block's largest absolute value / 127, rounded to float16; a code is the nearest to value / scale, of
    two as near the even one.
    """
    if dtype != torch.int8:
        made = rows.to(dtype)
        return None if dtype == torch.float16 and not torch.isfinite(made).all() else made
    *lead, dim = rows.shape
    blocks = _blocks(dim)
    rows = torch.nn.functional.pad(rows.float(), (0, blocks * _BLOCK - dim)).view(*lead, blocks, _BLOCK)
    scales = (rows.abs().amax(-1) / _MOST).half()
    if not torch.isfinite(scales).all():
        return None
    steps = scales.float()[..., None]
    codes = (rows / torch.where(steps == 0, 1.0, steps)).round().clamp(-_MOST, _MOST)
    codes = torch.where(steps == 0, 0.0, codes).to(torch.int8)
    return torch.cat((scales.view(torch.int8).view(*lead, -1), codes.view(*lead, -1)), -1)


def read_stored(stored: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Vectors [..., dim] of what is stored [..., width]; dense ones as they are, codes in `dtype`."""
    if stored.dtype != torch.int8:
        return stored
    *lead, _ = stored.shape
    cut = _blocks(dim) * _SCALE_BYTES
    scales = stored[..., :cut].contiguous().view(torch.float16).to(dtype)
    codes = stored[..., cut:].to(dtype).view(*lead, -1, _BLOCK)
    return (codes * scales[..., None]).view(*lead, -1)[..., :dim]

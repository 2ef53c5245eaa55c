"""FP8 matrices with one scale per block: element [i, j] is value * scale[i // block rows, j // block columns].

Source: https://arxiv.org/abs/2412.19437, section 3.3; the name `..._scale_inv` and the shape, of whole and begun
blocks, are those of the published files of DeepSeek-V3 and those after them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.spec import Quantization
from plait.dtypes import Format
from plait.errors import UnsupportedError, WeightsError, fault
from plait.runtime.blocks import DENSE
from plait.runtime.packed import Packed

__all__ = ["SCALE", "Scales", "quantise", "scale_shape", "scales_in"]

SCALE: Final = "_scale_inv"
"""What a tensor's name is followed by in the name of its scales."""
_FP8: Final = ("f8_e4m3", "f8_e5m2")
_FORMATS: Final = ("f32", "bf16", "f16")


class Scales:
    """The scales of one tensor's blocks.

    block  (rows, columns) of a block
    shape  of the tensor, [..., rows, columns]
    """

    __slots__ = ("_block", "_rows", "_scales")

    def __init__(self, packed: Packed, block: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self._scales = packed
        self._block = block
        self._rows = shape[-2]

    def apply(self, rows: Tensor, index: range | Tensor) -> Tensor:
        """Rows `index` of the tensor, its leading axes joined, float32 [n, columns], times their scales, in place."""
        scales = self._scales.expand(torch.float32)
        bands = scales.shape[-2]
        at = torch.arange(index.start, index.stop) if isinstance(index, range) else index
        band = at // self._rows * bands + at % self._rows // self._block[0]
        mine = scales.reshape(-1, scales.shape[-1]).index_select(0, band)
        return rows.mul_(mine.repeat_interleave(self._block[1], 1)[:, : rows.shape[1]])


def scale_shape(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the scales of a tensor [..., rows, columns]; a block that is only begun has a scale too."""
    return (*shape[:-2], *(-(-n // size) for n, size in zip(shape[-2:], block, strict=True)))


def scales_in(
    names: Collection[str], found: Mapping[str, StoredTensor], declared: Quantization | None
) -> dict[str, StoredTensor]:
    """The scales of the tensors `names`, by the name of the tensor they belong to.

    WeightsError: scales that are missing, misshaped, or those of a tensor that is not FP8; the message names both
    tensors. UnsupportedError: scales in a format, or of blocks, that cannot be read.
    """
    block = declared.block if declared is not None and declared.method == "fp8" else ()
    scales: dict[str, StoredTensor] = {}
    for name in names:
        tensor, scale = found[name], found.get(f"{name}{SCALE}")
        if tensor.format.name not in _FP8:
            if scale is not None:
                what = f"tensor {scale.name!r} scales {name!r}"
                raise WeightsError(fault(what, file=tensor.file, expected="FP8 elements", found=tensor.format.name))
            continue
        if scale is None:
            if declared is not None and declared.method == "fp8":
                what = f"tensor {name!r} is {tensor.format.name} without its scales {name + SCALE!r}"
                raise WeightsError(fault(what, file=tensor.file, advice="check that the download is complete"))
            continue
        if not block:
            what = f"tensor {name!r} with the scales {scale.name!r}"
            expected = "key 'quantization_config.weight_block_size' in the config"
            raise UnsupportedError(fault(what, file=tensor.file, expected=expected, found="none"))
        _check(tensor, scale, block)
        scales[name] = scale
    return scales


def _check(tensor: StoredTensor, scale: StoredTensor, block: tuple[int, ...]) -> None:
    what = f"scales {scale.name!r} of {tensor.name!r} {tensor.shape}"
    if len(tensor.shape) < 2 or prod(tensor.shape) == 0:
        raise WeightsError(fault(what, file=tensor.file, expected="a matrix under the scales", found=tensor.shape))
    expected = scale_shape(tensor.shape, block)
    if scale.shape != expected:
        raise WeightsError(fault(what, file=scale.file, expected=f"shape {expected}", found=scale.shape))
    if scale.format.name not in _FORMATS:
        expected_formats = "one of " + ", ".join(_FORMATS)
        raise UnsupportedError(fault(what, file=scale.file, expected=expected_formats, found=scale.format.name))


def quantise(x: Tensor, block: tuple[int, ...], form: Format) -> tuple[Tensor, Tensor]:
    """(values, scales) of x [..., rows, columns]: values in the FP8 format `form`, scales float32.

    Each block's largest magnitude becomes the largest number of the format; a block of zeros has the scale 1.
    """
    dtype = DENSE[form.name]
    most = torch.finfo(dtype).max
    bands = scale_shape(tuple(x.shape), block)
    tall, wide = (count * size for count, size in zip(bands[-2:], block, strict=True))
    padded = torch.nn.functional.pad(x.to(torch.float32), (0, wide - x.shape[-1], 0, tall - x.shape[-2]))
    tiles = padded.reshape(*bands[:-1], block[0], bands[-1], block[1])
    scales = tiles.abs().amax((-3, -1)).div(most)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    values = (tiles / scales[..., :, None, :, None]).clamp(-most, most).reshape(padded.shape)
    return values[..., : x.shape[-2], : x.shape[-1]].to(dtype), scales

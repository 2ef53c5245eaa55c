"""The rows of several sequences in one call, lying end to end, and each one's value of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Stretch", "addresses", "fits", "pieces"]


class Stretch(NamedTuple):
    """One sequence's rows in a call.

    rows       how many, at least 1
    now        the layer's value before them, None at the start of a sequence
    following  memory for the value after them, not that of `now`
    """

    rows: int
    now: Tensor | None
    following: Tensor


def pieces(x: Tensor, stretches: Sequence[Stretch]) -> tuple[Tensor, ...]:
    """The rows of each sequence."""
    return torch.split(x, [stretch.rows for stretch in stretches])


def fits(rows: int, elements: int, stretches: Sequence[Stretch]) -> bool:
    """The kernels can work on these: float32 values whose elements lie side by side.

    ValueError: the sequences have not `rows` rows together, or a value has not `elements`.
    """
    if sum(stretch.rows for stretch in stretches) != rows or any(stretch.rows < 1 for stretch in stretches):
        raise ValueError(f"sequences of {[stretch.rows for stretch in stretches]} rows in a call of {rows}")
    values = [value for stretch in stretches for value in stretch[1:] if value is not None]
    if any(value.numel() != elements for value in values):
        raise ValueError(f"values of {[value.numel() for value in values]} elements, expected {elements}")
    return all(
        value.dtype == torch.float32 and value.device.type == "cpu" and value.is_contiguous() for value in values
    )


def addresses(stretches: Sequence[Stretch]) -> list[int]:
    """What the kernels take: rows, now (0: zeros) and following of each in turn."""
    flat: list[int] = []
    for rows, now, following in stretches:
        flat += (rows, 0 if now is None else now.data_ptr(), following.data_ptr())
    return flat

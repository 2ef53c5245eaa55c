"""Memory for weights that are laid out anew."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from plait.runtime.kernels import native

__all__ = ["Rooms"]

# Weights begin where a line of the cache does, areas where a large page does.
_LINE: Final = 64
_PAGE: Final = 2**21
_AREA: Final = 2**26


class Rooms:
    """Rooms in few large areas, which lie on large pages where the system has them.

    All weights are read from end to end for every token: large pages spare most of the look-ups of addresses, and a
    weight alone would have its ends on small ones. A page that no room touches takes no memory.
    """

    def __init__(self) -> None:
        self._left: list[Tensor] = []

    def take(self, nbytes: int) -> Tensor:
        """Room for so many bytes, uint8, not written yet."""
        needed = -(-nbytes // _LINE) * _LINE
        place = next((at for at, left in enumerate(self._left) if left.numel() >= needed), None)
        if place is None:
            place = len(self._left)
            self._left.append(_area(max(_AREA, -(-needed // _PAGE) * _PAGE)))
        left = self._left[place]
        self._left[place] = left[needed:]
        return left[:nbytes]


def _area(size: int) -> Tensor:
    held = torch.empty(size + _PAGE, dtype=torch.uint8)
    area = held[-held.data_ptr() % _PAGE :][:size]
    if native() is not None:
        from plait.runtime._native import in_large_pages

        in_large_pages(area.data_ptr(), size)
    return area

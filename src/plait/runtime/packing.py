"""Weights on their way into panels, beside whatever else is done to load a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from plait.runtime._native import Packer

__all__ = ["Packing"]


class Packing:
    """Packs blocks by threads of its own. Nobody may read what they write before `wait` has returned."""

    def __init__(self) -> None:
        self._packer: Packer | None = None
        self._held: list[tuple[Tensor, Tensor]] = []

    def add(self, rows: Tensor, room: Tensor, shape: tuple[int, int], form: int, first: int, step: int) -> None:
        """Rows of a file go to panels first, first + step, ... of a room. Waits where very much is to be done.

        shape  outputs and columns
        form   by its number there
        """
        from plait.runtime._native import Packer

        if self._packer is None:
            self._packer = Packer(torch.get_num_threads())
        self._held.append((rows, room))
        self._packer.add(rows.data_ptr(), room.data_ptr(), *shape, form, first, step)

    def wait(self) -> None:
        """All is packed."""
        if self._packer is not None:
            self._packer.wait()
            self._packer = None
        self._held.clear()

    def __del__(self) -> None:
        # The threads end before what they read and write is let go of.
        self._packer = None

"""Memory on large pages: for weights that are laid out anew, and for slabs.

What is read from end to end for every token is read faster from large pages: most look-ups of addresses are spared.
"""

from __future__ import annotations

import mmap
from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import Final

import torch
from torch import Tensor

from plait.runtime.kernels import native

__all__ = ["Lot", "Lots", "Rooms", "on_large_pages"]

# Rooms begin where a line of the cache does, areas where a large page does.
_LINE: Final = 64
_PAGE: Final = 2**21
_AREA: Final = 2**28
_SHARED: Final = 2**24


class Rooms:
    """Rooms of any size in few large areas, for as long as something reads there.

    A weight alone would have its ends on small pages. A page that no room touches takes no memory. Where the system
    can, areas are written on small pages, and `gather` makes large ones of them while other work goes on.
    """

    def __init__(self, area: int = _AREA) -> None:
        """area: bytes of one, where no room needs more."""
        self._size = area
        self._areas: list[Tensor] = []
        self._left: list[Tensor] = []

    def take(self, nbytes: int) -> Tensor:
        """Room for so many bytes, uint8, not written yet."""
        needed = -(-nbytes // _LINE) * _LINE
        place = next((at for at, left in enumerate(self._left) if left.numel() >= needed), None)
        if place is None:
            place = len(self._left)
            area = _area(max(self._size, needed), later=_gathers())
            self._areas.append(area)
            self._left.append(area)
        left = self._left[place]
        self._left[place] = left[needed:]
        return left[:nbytes]

    def gather(self) -> None:
        """Let the system put what was taken so far on large pages. Returns at once; see `settle`."""
        # With the page on which an area's rooms end: a product that lies there would be slower than others.
        used = [
            -(-(area.numel() - left.numel()) // _PAGE) * _PAGE
            for area, left in zip(self._areas, self._left, strict=True)
        ]
        ranges = [(area.data_ptr(), size) for area, size in zip(self._areas, used, strict=True) if size >= _PAGE]
        if ranges and _gathers():
            from plait.runtime._native import gather

            gather(ranges)

    @staticmethod
    def settle() -> None:
        """Wait until no pages are being put together, for measurements."""
        if _gathers():
            from plait.runtime._native import settle_pages

            while not settle_pages():
                pass


def _gathers() -> bool:
    if native() is None:
        return False
    from plait.runtime._native import can_gather

    return can_gather()


@dataclass(frozen=True, slots=True)
class Lot:
    """One of the `Lots`: its bytes, uint8, with whatever was there before."""

    area: int
    index: int
    data: Tensor


class Lots:
    """Lots of one size, many to an area; an area is let go with the last of its lots. Any thread may call.

    size  bytes of a lot
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._step = -(-size // _LINE) * _LINE
        self._each = max(1, _SHARED // self._step)
        self._areas: dict[int, Tensor] = {}
        self._free: dict[int, list[int]] = {}
        self._made = 0
        self._lock = Lock()
        # What was given back and is not sorted in yet: giving back must not wait, it may happen within `take`.
        self._given: deque[tuple[int, int]] = deque()

    @property
    def areas(self) -> int:
        """Areas that are held, each for one lot in use at least."""
        with self._lock:
            self._sort_in()
            return len(self._areas)

    def take(self) -> Lot:
        """A lot nobody has, in the oldest area that has one: so the younger ones empty."""
        with self._lock:
            self._sort_in()
            area = next((area for area, free in self._free.items() if free), None)
            if area is None:
                area, self._made = self._made, self._made + 1
                self._areas[area] = _area(self._each * self._step)
                self._free[area] = list(reversed(range(self._each)))
            index = self._free[area].pop()
            return Lot(area, index, self._areas[area][index * self._step :][: self.size])

    def give(self, lot: Lot) -> None:
        """Nobody reads or writes there any more."""
        self._given.append((lot.area, lot.index))
        if self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def _sort_in(self) -> None:
        while self._given:
            area, index = self._given.popleft()
            self._free[area].append(index)
            if len(self._free[area]) == self._each:
                del self._areas[area], self._free[area]


def on_large_pages(data: Tensor) -> Tensor:
    """The tensor; the system is asked for large pages where it holds whole ones that were not touched yet."""
    if data.device.type == "cpu" and data.numel() * data.element_size() >= 2 * _PAGE and native() is not None:
        from plait.runtime._native import in_large_pages

        in_large_pages(data.data_ptr(), data.numel() * data.element_size())
    return data


def _area(size: int, *, later: bool = False) -> Tensor:
    """Whole large pages. `later`: they are to become that after they were written."""
    whole = -(-size // _PAGE) * _PAGE
    if later:
        # Not torch's: it asks for large pages at once.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        held = torch.frombuffer(mmap.mmap(-1, whole + _PAGE, flags=private), dtype=torch.uint8)
    else:
        held = torch.empty(whole + _PAGE, dtype=torch.uint8)
    area = held[-held.data_ptr() % _PAGE :][:whole]
    return area if later else on_large_pages(area)

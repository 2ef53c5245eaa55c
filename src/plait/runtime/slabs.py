"""Slabs: the rows of 64 consecutive tokens, for every layer of one law class, in one allocation.

A class is all full rows together, or all windows of one size together. In a slab each part of each layer lies as
[heads, SLAB, width]; rows not yet written are zero. Full slabs are never written again and are shared by reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.spec import Blueprint
from plait.blueprint.state import SLAB, Category, LayerLaw, Part, Rows, WindowRows, laws, row_classes, slab_span
from plait.runtime.ops.codes import stored_width
from plait.runtime.rooms import Lot, Lots
from plait.runtime.values import BASES, value_classes

__all__ = ["Place", "Slab", "SlabClass", "SlabPool", "SlabRun"]

# Slabs of so many bytes share areas of large pages.
_LARGE: Final = 2**18


@dataclass(frozen=True, slots=True)
class Place:
    """Where one part of one layer lies in a slab: elements [start, stop) as [heads, SLAB, width].

    dim    of the vectors that are stored
    width  elements of the slab's type that one of them takes
    """

    start: int
    stop: int
    heads: int
    dim: int
    width: int


@dataclass(frozen=True, slots=True)
class SlabClass:
    """Laws that share slabs. `places[layer]` are the layer's parts in the order of its law."""

    index: int
    category: Category
    law: Rows | WindowRows
    places: Mapping[int, tuple[Place, ...]]
    elements: int

    @staticmethod
    def of(index: int, items: tuple[LayerLaw, ...], dtype: torch.dtype) -> SlabClass:
        """The class of laws that `row_classes` put together, for slabs of a type."""
        places: dict[int, tuple[Place, ...]] = {}
        at = 0

        def place(part: Part) -> Place:
            nonlocal at
            width = stored_width(part.dim, dtype)
            start, at = at, at + part.heads * SLAB * width
            return Place(start, at, part.heads, part.dim, width)

        for item in items:
            assert isinstance(item.law, Rows | WindowRows)
            places[item.layer] = tuple(place(part) for part in item.law.parts)
        first = items[0].law
        assert isinstance(first, Rows | WindowRows)
        return SlabClass(index, items[0].category, first, places, at)


class Slab:
    """One allocation. `views[layer]` are the parts' tensors [heads, SLAB, width], as `ops.codes` reads them.

    `holders` is how many keep it: while there are several, nobody writes it. A cache.protocol.HeldSlab.
    `address` is where it lies in memory.
    """

    __slots__ = ("_class", "_lot", "_pool", "_views", "address", "data", "holders")

    def __init__(self, pool: SlabPool, slab_class: SlabClass) -> None:
        self._pool = pool
        self._class = slab_class
        self.holders = 1
        self._lot: Lot | None = None  # should there be no memory: what was not made is let go of as well
        self._lot = pool.lot(slab_class)
        if self._lot is None:
            self.data = torch.zeros(slab_class.elements, dtype=pool.dtype, device=pool.device)
        else:
            self.data = self._lot.data.view(pool.dtype).zero_()
        self.address = self.data.data_ptr()
        self._views: dict[int, tuple[Tensor, ...]] | None = None
        pool.count(slab_class.category, self.nbytes)

    def __del__(self) -> None:
        # Not when the last holder lets go of it: a call that runs may still read there.
        if self._lot is not None:
            self._pool.lots[self._class.index].give(self._lot)

    @property
    def views(self) -> dict[int, tuple[Tensor, ...]]:
        """Made when first asked for: native programs read at the address."""
        if self._views is None:
            self._views = {
                layer: tuple(self.data[p.start : p.stop].view(p.heads, SLAB, p.width) for p in places)
                for layer, places in self._class.places.items()
            }
        return self._views

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def share(self) -> None:
        """One more holder: from now on nobody writes it."""
        with self._pool.counting:
            self.holders += 1

    def release(self) -> None:
        """A holder lets go of it."""
        with self._pool.counting:
            self.holders -= 1
            gone = self.holders == 0
        if gone:
            self._pool.count(self._class.category, -self.nbytes)

    @torch.inference_mode()
    def copy(self, rows: int) -> Slab:
        """A slab of one's own with the first rows of this one."""
        made = Slab(self._pool, self._class)
        for layer, parts in self.views.items():
            for source, target in zip(parts, made.views[layer], strict=True):
                target[:, :rows] = source[:, :rows]
        return made

    @torch.inference_mode()
    def clear_from(self, row: int) -> None:
        """Rows from `row` on are as if never written."""
        for part in (part for parts in self.views.values() for part in parts):
            part[:, row:] = 0


class SlabPool:
    """Allocates slabs and knows how many bytes of each category are held.

    dtype  of the slabs; torch.int8 stands for blocks of codes, see `ops.codes`
    """

    def __init__(self, blueprint: Blueprint, dtype: torch.dtype, device: torch.device) -> None:
        items = laws(blueprint)
        self.classes = tuple(SlabClass.of(i, group, dtype) for i, group in enumerate(row_classes(items)))
        self.values = value_classes(items)
        self._class_of = {(layer, c.category): c.index for c in self.classes for layer in c.places}
        self.dtype = dtype
        # Values carry every token's rounding on to all later ones: float64 runs keep them as float64.
        self.value_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.device = device
        sizes = {c.index: c.elements * dtype.itemsize for c in self.classes} if device.type == "cpu" else {}
        self.lots = {index: Lots(size) for index, size in sizes.items() if size >= _LARGE}
        self._held: Counter[Category] = Counter()
        # Sessions may run in several threads.
        self.counting = Lock()

    def rows_of(self, layer: int) -> int:
        """The class in which a layer keeps its keys and values or its latents. KeyError: it keeps none."""
        found = self._class_of.get((layer, "windows"))
        return self._class_of[layer, "rows"] if found is None else found

    def index_keys_of(self, layer: int) -> int:
        """The class in which a layer keeps its indexer's keys. KeyError: it keeps none."""
        return self._class_of[layer, "indexer"]

    def value_of(self, category: Category) -> int:
        """Which of `values` holds a category. KeyError: the model has no such values."""
        return {c.category: i for i, c in enumerate(self.values)}[category]

    def lot(self, slab_class: SlabClass) -> Lot | None:
        """Where a new slab lies; None: by itself, since it is small or on another device."""
        lots = self.lots.get(slab_class.index)
        return None if lots is None else lots.take()

    def count(self, category: Category, nbytes: int) -> None:
        """Bytes of a category are held, or, where negative, no longer."""
        with self.counting:
            self._held[category] += nbytes

    def tail_bytes(self) -> int:
        """Bytes of one slab of every class: what a fork copies at most, and the prefix store at a time."""
        return sum(slab_class.elements for slab_class in self.classes) * self.dtype.itemsize

    def store_room(self, left: int) -> int:
        """Bytes the prefix store may hold where `left` are left: it copies a tail before it lets others go."""
        return max(0, left - self.tail_bytes())

    def most(self, length: int, rows: int) -> int:
        """A bound on the bytes one sequence holds on its way to `length` tokens, in calls of up to `rows` tokens.

        A call has its new rows beside what the laws keep, and neither needs to begin where a slab does: windows hold
        more on the way than at the end. A call makes its values beside those it starts from and those to go back to.
        """
        total = sum((2 + BASES) * value_class.elements * self.value_dtype.itemsize for value_class in self.values)
        for slab_class in self.classes:
            reach = min(length, len(slab_class.law.kept(length)) + rows)
            slabs = min(len(slab_span(range(length))), (reach + SLAB - 2) // SLAB + 1)
            total += slabs * slab_class.elements * self.dtype.itemsize
        return total

    def held(self) -> dict[str, int]:
        """Bytes of all slabs and values that are held, by category."""
        categories = [c.category for c in self.classes] + [c.category for c in self.values]
        return {category: self._held[category] for category in categories}


class SlabRun:
    """A session's slabs of one class: consecutive slabs, the first of which holds absolute rows from `first` * SLAB."""

    __slots__ = ("_class", "_pool", "first", "slabs")

    def __init__(self, pool: SlabPool, slab_class: SlabClass) -> None:
        self._pool = pool
        self._class = slab_class
        self.first = 0
        self.slabs: list[Slab] = []

    @property
    def dtype(self) -> torch.dtype:
        """Of the slabs."""
        return self._pool.dtype

    def reach(self, stop: int) -> None:
        """Allocate so that rows up to `stop` have a place."""
        while (self.first + len(self.slabs)) * SLAB < stop:
            self.slabs.append(Slab(self._pool, self._class))

    def trim(self, position: int) -> None:
        """Keep what the law keeps at `position`: earlier window slabs and slabs beyond the last row go."""
        kept = slab_span(self._class.law.kept(position))
        while self.slabs and self.first < kept.start:
            self.slabs.pop(0).release()
            self.first += 1
        while self.slabs and self.first + len(self.slabs) > kept.stop:
            self.slabs.pop().release()

    def covers(self, position: int) -> bool:
        """The rows that resuming at `position` needs are here; no later position was reached without them."""
        required = self._class.law.required(position)
        return not required or self.first * SLAB <= required.start

    def fork(self, position: int) -> SlabRun:
        """The same rows [.., position) for another session: whole slabs are shared, the last rows copied."""
        made = SlabRun(self._pool, self._class)
        made.first = self.first
        for index, slab in enumerate(self.slabs, self.first):
            if (index + 1) * SLAB <= position:
                slab.share()
                made.slabs.append(slab)
            else:
                made.slabs.append(slab.copy(position - index * SLAB))
        return made

    def since(self, position: int) -> list[Slab]:
        """Slabs with rows from `position` on."""
        return self.slabs[max(0, position // SLAB - self.first) :]

    def cut(self, position: int) -> None:
        """Take back the rows from `position` on, which is one this run covers."""
        while self.slabs and (self.first + len(self.slabs) - 1) * SLAB >= position:
            self.slabs.pop().release()
        if not self.slabs:
            self.first = self._class.law.kept(position).start // SLAB
            return
        rows, last = position - (self.first + len(self.slabs) - 1) * SLAB, self.slabs[-1]
        if rows < SLAB and last.holders > 1:
            self.slabs[-1] = last.copy(rows)
            last.release()
        elif rows < SLAB:
            last.clear_from(rows)

    def clear(self) -> None:
        """Give all slabs back."""
        while self.slabs:
            self.slabs.pop().release()

    @property
    def nbytes(self) -> int:
        return sum(slab.nbytes for slab in self.slabs)

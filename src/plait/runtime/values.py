"""Values: what a layer remembers of all tokens together, at one position only (recurrent states, convolution tails).

A class is all layers of one category, in one allocation: float32, or float64 where keys and values are. A value is
never written twice: a call reads the value at its first position and makes the one at its end, which takes its place
when the call has succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from plait.blueprint.state import Category, LayerLaw, Snapshot
from plait.runtime.rooms import on_large_pages

if TYPE_CHECKING:
    from plait.runtime.slabs import SlabPool

__all__ = ["BASES", "Value", "ValueClass", "ValueRun", "value_classes"]

# Values to go back to that a session keeps at most: two of the last `SLACK` tokens, and the one before those.
BASES: Final = 3


@dataclass(frozen=True, slots=True)
class ValueClass:
    """Laws that share an allocation. `places[layer]`: for each part of the layer (start, heads, dim) in it."""

    category: Category
    places: Mapping[int, tuple[tuple[int, int, int], ...]]
    elements: int


def value_classes(items: tuple[LayerLaw, ...]) -> tuple[ValueClass, ...]:
    """The snapshots of a model, a class for each category."""
    places: dict[Category, dict[int, tuple[tuple[int, int, int], ...]]] = {}
    sizes: dict[Category, int] = {}
    for item in items:
        if not isinstance(item.law, Snapshot):
            continue
        at = sizes.get(item.category, 0)
        parts = []
        for part in item.law.parts:
            if part.store != "f32":
                raise ValueError(f"layer {item.layer}: a value is not kept as {part.store}")
            parts.append((at, part.heads, part.dim))
            at += part.elements
        places.setdefault(item.category, {})[item.layer] = tuple(parts)
        sizes[item.category] = at
    return tuple(ValueClass(category, layers, sizes[category]) for category, layers in places.items())


class Value:
    """One allocation. `views[layer]` are the parts' tensors [heads, dim]. A cache.protocol.HeldSnapshot.

    position  where it was computed
    holders   how many keep it
    """

    __slots__ = ("_class", "_pool", "_views", "address", "data", "holders", "position")

    def __init__(self, pool: SlabPool, value_class: ValueClass, position: int, data: Tensor | None = None) -> None:
        self._pool = pool
        self._class = value_class
        self.position = position
        self.holders = 1
        if data is None:
            data = on_large_pages(torch.empty(value_class.elements, dtype=pool.value_dtype, device=pool.device))
        self.data = data
        self.address = data.data_ptr()
        self._views: dict[int, tuple[Tensor, ...]] | None = None
        pool.count(value_class.category, self.nbytes)

    @property
    def views(self) -> dict[int, tuple[Tensor, ...]]:
        """Made when first asked for: native programs read at the address."""
        if self._views is None:
            self._views = {
                layer: tuple(self.data[at : at + heads * dim].view(heads, dim) for at, heads, dim in parts)
                for layer, parts in self._class.places.items()
            }
        return self._views

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def share(self) -> None:
        """One more holder."""
        with self._pool.counting:
            self.holders += 1

    def release(self) -> None:
        """A holder lets go of it."""
        self.let_go()

    def let_go(self) -> bool:
        """The same. True: it was the last holder, and nobody has the value any more."""
        with self._pool.counting:
            self.holders -= 1
            gone = self.holders == 0
        if gone:
            self._pool.count(self._class.category, -self.nbytes)
        return gone


class ValueRun:
    """A session's value of one class: `now` at the session's position (None before the first token), `next` in a call.

    A step reads `now`, or starts from zeros, and must fill all of `next`.

    bases  values at earlier positions, for going back: (position, value; None at 0), the earliest first. A value's own
           `position` is where the call that made it ended
    """

    __slots__ = ("_class", "_pool", "bases", "next", "now", "spare")

    def __init__(self, pool: SlabPool, value_class: ValueClass) -> None:
        self._class = value_class
        self._pool = pool
        self.now: Value | None = None
        self.next: Value | None = None
        self.bases: list[tuple[int, Value | None]] = []
        # Memory of a value that nobody has any more, for the next call: fresh pages are dear.
        self.spare: Tensor | None = None

    @property
    def addresses(self) -> tuple[int, int]:
        """Where `now` (0: None) and `next` lie in memory."""
        if self.next is None:
            raise AssertionError("a call's values are made before its steps run")
        return 0 if self.now is None else self.now.address, self.next.address

    def prepare(self, stop: int) -> None:
        """Make room for the value at the end of a call, which ends at `stop`."""
        if self.next is None:
            self.next = Value(self._pool, self._class, stop, self.spare)
            self.spare = None

    def advance(self, base: int | None) -> None:
        """The call has succeeded: its value is the session's. `base`: the one before, of this position, is kept."""
        if self.next is None:
            return
        if base is None:
            self._release(self.now)
        else:
            self.bases.append((base, self.now))
        self.now, self.next = self.next, None

    def forget(self, position: int) -> None:
        """Let go of bases that going back to `position` or later does not need."""
        while len(self.bases) > 1 and self.bases[1][0] <= position:
            self._release(self.bases.pop(0)[1])

    def settle(self) -> None:
        """Let go of all bases."""
        while self.bases:
            self._release(self.bases.pop()[1])

    def fork(self) -> ValueRun:
        """The same value for another session: it is shared."""
        made = ValueRun(self._pool, self._class)
        made.now = self.now
        if self.now is not None:
            self.now.share()
        return made

    def at(self, position: int) -> Value | None:
        """The value at `position`, where it is kept."""
        kept = (self.now, *(value for _, value in self.bases))
        return next((value for value in kept if value is not None and value.position == position), None)

    def cut(self, position: int) -> None:
        """Go back to the value at `position`, the session's own or that of a base. ValueError: there is none."""
        self.trim()
        while self.bases and self.bases[-1][0] >= position:
            at, value = self.bases.pop()
            self._release(self.now)
            self.now = value
            if at == position:
                return
        raise ValueError(f"no value of position {position} is kept")

    def trim(self) -> None:
        """Let go of a call's value that is not to be."""
        self._release(self.next)
        self.next = None

    def clear(self) -> None:
        """Give everything back."""
        self.trim()
        self._release(self.now)
        self.now = None
        self.settle()
        self.spare = None

    def _release(self, value: Value | None) -> None:
        if value is not None and value.let_go():
            self.spare = value.data

    @property
    def nbytes(self) -> int:
        """Bytes of the session's value, and of a call's."""
        return sum(value.nbytes for value in (self.now, self.next) if value is not None)

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return self._class.elements * self._pool.value_dtype.itemsize

    @property
    def base_bytes(self) -> int:
        """Bytes of values to go back to."""
        return sum(value.nbytes for _, value in self.bases if value is not None)

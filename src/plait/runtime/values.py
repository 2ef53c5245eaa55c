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
    """One allocation. `views[layer]` are the parts' tensors [heads, dim]; `holders` is how many share it."""

    __slots__ = ("data", "holders", "views")

    def __init__(self, value_class: ValueClass, dtype: torch.dtype, device: torch.device) -> None:
        self.holders = 1
        self.data = torch.empty(value_class.elements, dtype=dtype, device=device)
        self.views: dict[int, tuple[Tensor, ...]] = {
            layer: tuple(self.data[at : at + heads * dim].view(heads, dim) for at, heads, dim in parts)
            for layer, parts in value_class.places.items()
        }

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()


class ValueRun:
    """A session's value of one class: `now` at the session's position (None before the first token), `next` in a call.

    A step reads `now`, or starts from zeros, and must fill all of `next`.

    bases  values at earlier positions, for going back: (position, value; None at 0), the earliest first
    """

    __slots__ = ("_class", "_pool", "bases", "next", "now")

    def __init__(self, pool: SlabPool, value_class: ValueClass) -> None:
        self._class = value_class
        self._pool = pool
        self.now: Value | None = None
        self.next: Value | None = None
        self.bases: list[tuple[int, Value | None]] = []

    def prepare(self) -> None:
        """Make room for the value at the end of a call."""
        if self.next is None:
            self.next = self._pool.make_value(self._class)

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

    def fork(self) -> ValueRun:
        """The same value for another session: it is shared."""
        made = ValueRun(self._pool, self._class)
        made.now = self.now
        if self.now is not None:
            self._pool.share(self.now)
        return made

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
        while self.bases:
            self._release(self.bases.pop()[1])

    def _release(self, value: Value | None) -> None:
        if value is not None:
            self._pool.release_value(self._class, value)

    @property
    def nbytes(self) -> int:
        held = (self.now, self.next, *(value for _, value in self.bases))
        return sum(value.nbytes for value in held if value is not None)

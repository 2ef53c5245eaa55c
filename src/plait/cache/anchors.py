"""Anchors: positions the store promises to resume at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from plait.cache.branches import Key
from plait.cache.pages import Page
from plait.cache.protocol import HeldSlab, HeldSnapshot

__all__ = ["KINDS", "Anchor", "Kind", "Mark"]

Kind = Literal["system", "turn", "prompt", "reply", "fork", "grid", "ladder"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A position at which an anchor is wanted, and why."""

    position: int
    kind: Kind


@dataclass(slots=True, eq=False)
class Anchor:
    """Up to a page's tokens beyond the end of `page`, with a copy of their rows, and the snapshots at `position`.

    While it exists, the slabs the laws need at every position from `lowest` to `position` exist: without snapshots
    rows may be cut, and one anchor stands for all the positions promised in its tail.

    tail       tokens [page.stop, position), fewer than a page
    slabs      a copy of the tail's rows for each row class; None where no row is needed
    snapshots  one a class, computed at exactly `position`
    """

    page: Page
    tail: Key
    lowest: int
    kind: Kind
    slabs: tuple[HeldSlab | None, ...] = field(repr=False)
    snapshots: tuple[HeldSnapshot, ...] = field(repr=False)

    @property
    def position(self) -> int:
        return self.page.stop + len(self.tail)

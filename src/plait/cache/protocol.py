"""What the store asks of a runtime: slabs, snapshots and sessions. The store never looks inside any of them.

A slab holds the rows of `page` consecutive tokens for one class of row laws; a snapshot is one class's value at one
position. Both are counted: whoever keeps one has called `share` (or was handed it as its maker) and calls `release`
once. While something has more than one holder, nobody writes into it: a session that must, copies it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from plait.blueprint.state import LayerLaw, Rows, Snapshot, WindowRows, row_classes
from plait.cache.fingerprint import Fingerprint

__all__ = ["Held", "HeldSlab", "HeldSnapshot", "SessionState", "Shape", "StateRun"]


class Held(Protocol):
    """Memory with a count of its holders."""

    @property
    def nbytes(self) -> int:
        """Bytes of the allocation, whatever part of it is in use."""

    @property
    def holders(self) -> int:
        """How many keep it: sessions, the store, whoever made it."""

    def share(self) -> None:
        """One more holder."""

    def release(self) -> None:
        """One holder less; the last one frees it."""


class HeldSlab(Held, Protocol):
    """Rows of `page` consecutive tokens. A full one is never written again."""

    def copy(self, rows: int) -> HeldSlab:
        """A new slab with the first `rows` rows of this one; the caller is its only holder."""


class HeldSnapshot(Held, Protocol):
    """A value at one position."""

    @property
    def position(self) -> int:
        """The position the step that made it ended at."""


@dataclass(frozen=True, slots=True)
class StateRun:
    """Consecutive slabs of one class: the first has the absolute rows from `first` * page; the last may be partial."""

    first: int
    slabs: Sequence[HeldSlab]


class SessionState(Protocol):
    """A session as the store sees it."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What its state was computed with."""

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens processed. Content other than text stands in them as integers made from its digest."""

    @property
    def settled(self) -> int:
        """Tokens that will not be taken back. Drafts that may be rejected lie behind; nothing of them is published."""

    def run(self, index: int) -> StateRun:
        """Slabs of the row class `index`. Classes of `Rows` begin at slab 0."""

    def snapshots(self, position: int) -> Sequence[HeldSnapshot] | None:
        """One snapshot a class, from the step that ended exactly at `position`; None: no step did, or they are gone."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The law classes of a model: `rows[i]` is the law of row class i, `snapshots` the number of snapshot classes.

    windows  (class, W) of the classes that keep windows
    """

    rows: tuple[Rows | WindowRows, ...]
    snapshots: int
    windows: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        windows = tuple((i, law.window) for i, law in enumerate(self.rows) if isinstance(law, WindowRows))
        object.__setattr__(self, "windows", windows)

    @staticmethod
    def of(layer_laws: tuple[LayerLaw, ...]) -> Shape:
        """Classes in the order sessions keep them (`state.row_classes`; snapshots by category). Aliases add nothing."""
        rows = tuple(
            items[0].law for items in row_classes(layer_laws) if isinstance(items[0].law, Rows | WindowRows)
        )
        return Shape(rows, len({item.category for item in layer_laws if isinstance(item.law, Snapshot)}))

"""What a session is built from: shared full slabs, a private copy of the partial one, snapshots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plait.cache.holdings import Holdings
from plait.cache.match import Match
from plait.cache.protocol import HeldSlab, HeldSnapshot, Shape
from plait.cache.report import Report
from plait.errors import PlaitError, fault

__all__ = ["Restored", "RestoredRun", "restore"]


@dataclass(frozen=True, slots=True)
class RestoredRun:
    """One row class. `shared[i]` holds the absolute rows from (first + i) * page and must not be written.

    tail  a private slab with the rows behind the shared ones, at the beginning of the slab; None: there are none
    rows  the absolute rows that are there: what the law requires, or more, from where a slab begins
    """

    first: int
    shared: tuple[HeldSlab, ...] = field(repr=False)
    tail: HeldSlab | None = field(repr=False)
    rows: range


@dataclass(frozen=True, slots=True)
class Restored:
    """The state at `position`, of which the caller is now a holder; `release` gives it all back."""

    found: Match
    runs: tuple[RestoredRun, ...]
    snapshots: tuple[HeldSnapshot, ...] = field(repr=False)

    @property
    def report(self) -> Report:
        return self.found.report

    @property
    def position(self) -> int:
        return self.found.position

    def release(self) -> None:
        """For a caller who cannot use it. Once, and not after a session has taken it over."""
        for run in self.runs:
            for slab in run.shared:
                slab.release()
            if run.tail is not None:
                run.tail.release()
        for snapshot in self.snapshots:
            snapshot.release()


def restore(shape: Shape, page_size: int, holdings: Holdings, found: Match) -> Restored:
    """Shares and copies what a match found; completes, or leaves nothing behind.

    PlaitError: a snapshot does not belong to the position. Errors of `HeldSlab.copy` pass through.
    """
    position, base = found.position, found.base
    if not position:
        return Restored(found, tuple(RestoredRun(0, (), None, range(0)) for _ in shape.rows), ())
    undo: list[Callable[[], None]] = []
    try:
        runs = []
        for index, law in enumerate(shape.rows):
            needed = law.required(position)
            slabs: list[HeldSlab] = []
            for page in base.path():
                if page.stop <= needed.start:
                    break
                slab = page.slabs[index]
                if slab is None:
                    raise PlaitError(fault(f"prefix store: rows of class {index} before {page.stop} are missing"))
                holdings.lend(slab)
                undo.append(slab.release)
                slabs.append(slab)
            slabs.reverse()
            first = base.stop // page_size - len(slabs)
            tail = None
            source = found.tail[index] if position > base.stop else None
            if needed and position > base.stop:
                if source is None:
                    raise PlaitError(fault(f"prefix store: rows of class {index} from {base.stop} are missing"))
                tail = source.copy(position - base.stop)
                undo.append(tail.release)
            rows = range(first * page_size, position) if needed else range(position, position)
            runs.append(RestoredRun(first, tuple(slabs), tail, rows))
        snapshots = found.anchor.snapshots if found.anchor is not None and shape.snapshots else ()
        if len(snapshots) != shape.snapshots or any(s.position != position for s in snapshots):
            at = sorted({s.position for s in snapshots})
            raise PlaitError(fault("prefix store: snapshots", expected=f"{shape.snapshots} at {position}", found=at))
        for snapshot in snapshots:
            holdings.lend(snapshot)
            undo.append(snapshot.release)
    except BaseException:
        for give_back in reversed(undo):
            give_back()
        holdings.settle()
        raise
    return Restored(found, tuple(runs), snapshots)

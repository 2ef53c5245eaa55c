"""Publishing what a session has computed: pages for its full slabs, anchors where they are wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plait.blueprint.state import Rows
from plait.cache.anchors import Anchor, Mark
from plait.cache.branches import Key
from plait.cache.eviction import Eviction
from plait.cache.holdings import Holdings
from plait.cache.match import covered
from plait.cache.pages import Page
from plait.cache.placement import Placement
from plait.cache.protocol import HeldSlab, SessionState, Shape, StateRun
from plait.cache.report import LeftOut, Published
from plait.errors import PlaitError, UsageError, fault

__all__ = ["Commit"]


@dataclass(frozen=True, slots=True)
class Commit:
    """One session's commit into one trie. Whatever fails, the store stays sound: pages and anchors come one by one.

    budget  bytes the store may hold alone; it holds the copies of one anchor's tail more at most
    """

    shape: Shape
    page_size: int
    placement: Placement
    holdings: Holdings
    eviction: Eviction
    budget: int
    root: Page

    def publish(self, session: SessionState, marks: Iterable[Mark]) -> Published:
        """Pages for all settled full slabs, then an anchor for each mark that is of use.

        UsageError: a mark lies behind what is settled. PlaitError: the session breaks the protocol.
        """
        settled = session.settled
        tokens = tuple(session.tokens[:settled])
        if len(tokens) != settled:
            raise PlaitError(fault("session: settled tokens", expected=settled, found=len(tokens)))
        wanted = sorted(marks)
        for mark in wanted:
            if not 0 < mark.position <= settled:
                raise UsageError(
                    fault(f"mark {mark.kind}", expected=f"a settled position in 1..{settled}", found=mark.position)
                )
        runs = [session.run(index) for index in range(len(self.shape.rows))]
        for index, law in enumerate(self.shape.rows):
            held = (runs[index].first + len(runs[index].slabs)) * self.page_size
            short = held < settled and bool(law.required(settled))
            if short or (isinstance(law, Rows) and runs[index].first):
                rows = range(runs[index].first * self.page_size, held)
                raise PlaitError(fault(f"session: rows of class {index}", expected=f"up to {settled}", found=rows))
        path, new, healed = self._pages(tokens, runs)
        anchors: list[Mark] = []
        left_out: list[LeftOut] = []
        for number, mark in enumerate(wanted):
            if number:
                self.eviction.fit(self.budget, path[-1])
            refused = self._anchor(session, path, tokens, runs, mark)
            if refused is None:
                anchors.append(mark)
            else:
                left_out.append(refused)
        return Published(new, healed, tuple(anchors), tuple(left_out))

    def _pages(self, tokens: Key, runs: list[StateRun]) -> tuple[list[Page], int, int]:
        """The path of the full slabs; how many pages are new, how many window slabs came back."""
        path, new, healed = [self.root], 0, 0
        size, windows = self.page_size, self.shape.windows
        # Below this page no run has a window slab to heal with.
        heal_from = min((runs[index].first for index, _ in windows), default=len(tokens))
        for number in range(len(tokens) // size):
            key = tokens[number * size : (number + 1) * size]
            above = path[-1]
            page = above.children.get(key)
            if page is None:
                slabs = [_slab(run, number) for run in runs]
                page = Page(above, key, hash((above.key, key)), slabs)
                for slab in slabs:
                    if slab is not None:
                        self.holdings.keep(slab)
                above.children.add(key, page)
                self.eviction.page_came(page)
                new += 1
            elif number >= heal_from:
                for index, _ in windows:
                    slab = _slab(runs[index], number)
                    if page.slabs[index] is None and slab is not None:
                        self.holdings.keep(slab)
                        page.slabs[index] = slab
                        self.eviction.window_came(page, index)
                        healed += 1
            path.append(page)
        return path, new, healed

    def _anchor(
        self, session: SessionState, path: list[Page], tokens: Key, runs: list[StateRun], mark: Mark
    ) -> LeftOut | None:
        """Places one anchor, or says why not."""
        if mark.kind not in self.placement.kinds:
            return LeftOut(mark, "off")
        page = path[mark.position // self.page_size]
        tail = tokens[page.stop : mark.position]
        same = page.anchors.get(tail)
        if same is not None:
            self.eviction.renewed(same, mark.kind)
        if same is not None or self._near(path, tokens, mark):
            return LeftOut(mark, "near")
        snapshots = session.snapshots(mark.position) if self.shape.snapshots else ()
        if snapshots is None:
            return LeftOut(mark, "no_snapshot")
        if len(snapshots) != self.shape.snapshots or any(s.position != mark.position for s in snapshots):
            raise PlaitError(
                fault(
                    "session: snapshots",
                    expected=f"{self.shape.snapshots} at {mark.position}",
                    found=[s.position for s in snapshots],
                )
            )
        number = mark.position // self.page_size
        sources = tuple(_slab(run, number) for run in runs) if tail else (None,) * len(runs)
        if not covered(self.shape, page, sources, mark.position):
            return LeftOut(mark, "window_gone")
        lowest = mark.position
        merged = self._shorter(page, tail)
        slabs = self._copies(sources, len(tail), mark.position)
        if merged is not None:
            if covered(self.shape, page, sources, merged.lowest):
                lowest = merged.lowest
            self.eviction.take_anchor(merged)
        anchor = Anchor(page, tail, lowest, mark.kind, slabs, tuple(snapshots))
        for snapshot in snapshots:
            self.holdings.keep(snapshot)
        page.anchors.add(tail, anchor)
        self.eviction.anchor_came(anchor)
        return None

    def _near(self, path: list[Page], tokens: Key, mark: Mark) -> bool:
        """Whether an anchor on the session's way makes a mark needless."""
        position = mark.position
        apart = self.placement.apart(self.shape, self.page_size, mark.kind)
        first = max(0, position - apart) // self.page_size
        last = min(len(path) - 1, (position + apart) // self.page_size)
        for page in path[first : last + 1]:
            if page.anchors:
                rest = tokens[page.stop : page.stop + self.page_size]
                for anchor in page.anchors.beginnings(rest):
                    if self.placement.serves(anchor.position, mark, apart):
                        return True
        if self.shape.snapshots:
            return False
        page = path[position // self.page_size]
        tail = tokens[page.stop : position]
        # Rows can be cut: an anchor with a longer tail on the same page, promised from here on, does as well.
        longest = next(page.anchors.nearest(tail), None)
        return longest is not None and longest[0] == len(tail) and longest[1].lowest <= position

    def _shorter(self, page: Page, tail: Key) -> Anchor | None:
        """An anchor without snapshots whose tail a new one contains: the new one takes over its promise."""
        if self.shape.snapshots:
            return None
        found = [a for a in page.anchors.beginnings(tail) if a.tail]
        return found[0] if found else None

    def _copies(self, sources: tuple[HeldSlab | None, ...], rows: int, position: int) -> tuple[HeldSlab | None, ...]:
        """Private copies of a tail's rows, owned by the store."""
        copies: list[HeldSlab | None] = []
        try:
            for law, source in zip(self.shape.rows, sources, strict=True):
                copies.append(source.copy(rows) if source is not None and law.required(position) else None)
        except BaseException:
            for copied in copies:
                if copied is not None:
                    copied.release()
            raise
        for copied in copies:
            if copied is not None:
                self.holdings.own(copied)
        return tuple(copies)


def _slab(run: StateRun, number: int) -> HeldSlab | None:
    """The slab with that number, where the session still holds it."""
    at = number - run.first
    return run.slabs[at] if 0 <= at < len(run.slabs) else None

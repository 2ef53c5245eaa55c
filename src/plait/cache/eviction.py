"""What goes first where the budget is short, and the bookkeeping that finds it at once.

    1  window slabs that no anchor needs, the longest idle first
    2  pages without children or anchors, the longest unused first
    3  rungs of ladders and grids and ends of replies, then other anchors, then ends of system text: in each group the
       longest unconsumed first. A reply's anchor saves the reply only, where the prompt's saves the prompt: on
       agents' traces this order beats one queue for all (benchmarks/cache_policy.py)

An anchor takes with it what only it needed. A session's slabs could not be freed, so what holds them stays as long as
something else can go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from plait.blueprint.state import Rows
from plait.cache.anchors import KINDS, Anchor, Kind
from plait.cache.ghosts import Ghosts
from plait.cache.holdings import Holdings
from plait.cache.pages import Page
from plait.cache.placement import Placement
from plait.cache.protocol import Shape

__all__ = ["Eviction"]


class Eviction:
    """Keeps the candidates in order while pages and anchors come and go.

    windows  (page, class) of window slabs no anchor needs
    leaves   pages without children and anchors
    anchors  three queues, the first of which goes first
    """

    def __init__(self, shape: Shape, placement: Placement, holdings: Holdings, ghosts: Ghosts) -> None:
        self._shape = shape
        self._ranks = {kind: 0 if kind in placement.first else 2 if kind in placement.last else 1 for kind in KINDS}
        self._holdings = holdings
        self._ghosts = ghosts
        self.windows: OrderedDict[tuple[Page, int], None] = OrderedDict()
        self.leaves: OrderedDict[Page, None] = OrderedDict()
        self.anchors: tuple[OrderedDict[Anchor, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self.windows_gone = 0
        self.pages_gone = 0
        self.anchors_gone = 0

    # What comes.

    def page_came(self, page: Page) -> None:
        """A page is in the trie; its window slabs are needed by nobody yet."""
        assert page.parent is not None
        self.leaves.pop(page.parent, None)
        self.leaves[page] = None
        for index, _ in self._shape.windows:
            self.window_came(page, index)
        self._ghosts.page_came(page.key)

    def window_came(self, page: Page, index: int) -> None:
        """A page has got a window slab."""
        if page.slabs[index] is not None and not page.needed[index]:
            self.windows[page, index] = None

    def anchor_came(self, anchor: Anchor) -> None:
        """An anchor is on its page: what its laws need stays."""
        for page, index in self.needs(anchor):
            page.needed[index] += 1
            self.windows.pop((page, index), None)
        self.leaves.pop(anchor.page, None)
        self.queue(anchor)[anchor] = None
        self._ghosts.anchor_came(anchor)

    def consumed(self, anchor: Anchor) -> None:
        """A session was built from an anchor."""
        self.queue(anchor).move_to_end(anchor)

    def renewed(self, anchor: Anchor, kind: Kind) -> None:
        """An anchor is asked for again; the kind that goes later counts."""
        del self.queue(anchor)[anchor]
        if self._ranks[kind] > self._ranks[anchor.kind]:
            anchor.kind = kind
        self.queue(anchor)[anchor] = None

    def used(self, page: Page, position: int) -> None:
        """A session was built from rows on and above a page, without an anchor."""
        if page in self.leaves:
            self.leaves.move_to_end(page)
        for key in self._windows(page, position):
            if key in self.windows:
                self.windows.move_to_end(key)

    def queue(self, anchor: Anchor) -> OrderedDict[Anchor, None]:
        """Where an anchor waits."""
        return self.anchors[self._ranks[anchor.kind]]

    def needs(self, anchor: Anchor) -> Iterator[tuple[Page, int]]:
        """Pages and classes of the window slabs an anchor's promise rests on."""
        return self._windows(anchor.page, anchor.lowest)

    def _windows(self, page: Page, position: int) -> Iterator[tuple[Page, int]]:
        for index, _ in self._shape.windows:
            start = self._shape.rows[index].required(position).start
            for above in page.path():
                if above.stop <= start:
                    break
                yield above, index

    # What goes.

    def clear(self) -> None:
        """Pages and anchors are all gone."""
        self.windows.clear()
        self.leaves.clear()
        for queue in self.anchors:
            queue.clear()

    def take_anchor(self, anchor: Anchor) -> None:
        """Take an anchor away; what only it needed becomes a candidate."""
        for page, index in self.needs(anchor):
            page.needed[index] -= 1
            self.window_came(page, index)
        del self.queue(anchor)[anchor]
        anchor.page.anchors.remove(anchor.tail)
        self._leaf(anchor.page)
        for held in (*anchor.slabs, *anchor.snapshots):
            if held is not None:
                self._holdings.drop(held)

    def fit(self, budget: int, kept: Page | None = None) -> None:
        """Let things go until no more than `budget` bytes are held by the store alone.

        kept  a page that stays, and so those above it: something is about to be added there
        """
        self._holdings.settle()
        if not any(isinstance(law, Rows) for law in self._shape.rows):
            self._drop_empty(kept)
        while self._holdings.bytes > budget and self._step(kept):
            pass

    def _step(self, kept: Page | None) -> bool:
        for key in self.windows:
            slab = key[0].slabs[key[1]]
            if slab is not None and not self._holdings.lent(slab):
                return self._drop_window(*key)
        for page in self.leaves:
            if page is not kept and not all(slab is None or self._holdings.lent(slab) for slab in page.slabs):
                return self._drop_page(page)
        for queue in self.anchors:
            for anchor in queue:
                self.take_anchor(anchor)
                self._ghosts.anchor_went(anchor)
                self.anchors_gone += 1
                return True
        # Only pages that sessions hold are left, and what lies above them.
        for page in self.leaves:
            if page is not kept:
                return self._drop_page(page)
        return False

    def _drop_empty(self, kept: Page | None) -> None:
        """Where no full rows are kept, pages may hold nothing at all: those that lead to no anchor serve nobody."""
        while empty := [p for p in self.leaves if p is not kept and all(slab is None for slab in p.slabs)]:
            for page in empty:
                self._drop_page(page)

    def _drop_window(self, page: Page, index: int) -> bool:
        slab = page.slabs[index]
        del self.windows[page, index]
        page.slabs[index] = None
        if slab is not None:
            self._holdings.drop(slab)
        self.windows_gone += 1
        return True

    def _drop_page(self, page: Page) -> bool:
        assert page.parent is not None
        del self.leaves[page]
        for index, slab in enumerate(page.slabs):
            self.windows.pop((page, index), None)
            if slab is not None:
                self._holdings.drop(slab)
        page.parent.children.remove(page.tokens)
        self._leaf(page.parent)
        self._ghosts.page_went(page)
        self.pages_gone += 1
        return True

    def _leaf(self, page: Page) -> None:
        if page.parent is not None and not page.children and not page.anchors:
            self.leaves[page] = None

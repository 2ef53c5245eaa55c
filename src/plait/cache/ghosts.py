"""What was evicted, remembered as hashes, so that a miss can say so.

Only reports and the choice of positions look here. A collision of hashes could misname a reason; it can share no state.
"""

from __future__ import annotations

from collections import OrderedDict

from plait.cache.anchors import Anchor
from plait.cache.branches import Key
from plait.cache.pages import Page

# A tail's length and the hash of its tokens.
_Tail = tuple[int, int]

__all__ = ["Ghosts"]


class Ghosts:
    """The latest `limit` pages and anchors that went."""

    __slots__ = ("_anchors", "_limit", "_order")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # (page key, None) for a page, (page key, tail) for an anchor.
        self._order: OrderedDict[tuple[int, _Tail | None], None] = OrderedDict()
        self._anchors: dict[int, set[_Tail]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def page_went(self, page: Page) -> None:
        self._add((page.key, None))

    def anchor_went(self, anchor: Anchor) -> None:
        tail = (len(anchor.tail), hash(anchor.tail))
        self._anchors.setdefault(anchor.page.key, set()).add(tail)
        self._add((anchor.page.key, tail))

    def page_came(self, key: int) -> None:
        self._order.pop((key, None), None)

    def anchor_came(self, anchor: Anchor) -> None:
        key, tail = anchor.page.key, (len(anchor.tail), hash(anchor.tail))
        if (key, tail) in self._order:
            del self._order[key, tail]
            self._forget(key, tail)

    def was_page(self, key: int) -> bool:
        return (key, None) in self._order

    def anchors(self, key: int, rest: Key) -> list[int]:
        """Lengths of the tails that stood on a page and that `rest` begins with."""
        tails = self._anchors.get(key, ())
        return [length for length, found in tails if length <= len(rest) and hash(rest[:length]) == found]

    def clear(self) -> None:
        self._order.clear()
        self._anchors.clear()

    def _add(self, entry: tuple[int, _Tail | None]) -> None:
        self._order[entry] = None
        self._order.move_to_end(entry)
        while len(self._order) > self._limit:
            (key, tail), _ = self._order.popitem(last=False)
            if tail is not None:
                self._forget(key, tail)

    def _forget(self, key: int, tail: _Tail) -> None:
        tails = self._anchors[key]
        tails.discard(tail)
        if not tails:
            del self._anchors[key]

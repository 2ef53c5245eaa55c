"""Pages: the nodes of the store's tries, one trie a fingerprint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plait.cache.branches import Branches, Key
from plait.cache.fingerprint import Fingerprint
from plait.cache.protocol import HeldSlab

if TYPE_CHECKING:
    from plait.cache.anchors import Anchor

__all__ = ["Page", "root_of"]


class Page:
    """`tokens` after those of its parent, and references to the slabs of their rows. Pages never split.

    stop     position behind its last token; 0 for a root, which has no tokens and no slabs
    key      hash of all tokens up to `stop`, for remembering what is gone; never for reuse
    slabs    one a row class; None only where a window's slab was let go of
    needed   for each row class, how many anchors need this page's slab
    anchors  under their tails
    """

    __slots__ = ("anchors", "children", "key", "needed", "parent", "slabs", "stop", "tokens", "used")

    def __init__(self, parent: Page | None, tokens: Key, key: int, slabs: list[HeldSlab | None]) -> None:
        self.parent = parent
        self.tokens = tokens
        self.key = key
        self.stop: int = parent.stop + len(tokens) if parent is not None else 0
        self.slabs = slabs
        self.needed = [0] * len(slabs)
        self.children: Branches[Page] = Branches()
        self.anchors: Branches[Anchor] = Branches()
        self.used = 0

    def path(self) -> Iterator[Page]:
        """This page and those above it; the root is left out."""
        page = self
        while page.parent is not None:
            yield page
            page = page.parent

    def below(self) -> Iterator[Page]:
        """This page and all under it."""
        waiting = [self]
        while waiting:
            page = waiting.pop()
            yield page
            waiting.extend(page.children)


def root_of(fingerprint: Fingerprint) -> Page:
    """An empty trie."""
    return Page(None, (), hash(fingerprint), [])

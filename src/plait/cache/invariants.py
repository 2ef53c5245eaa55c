"""Every invariant of the store's structure, checked from scratch: it walks everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from plait.blueprint.state import Rows
from plait.cache.anchors import Anchor
from plait.cache.eviction import Eviction
from plait.cache.fingerprint import Fingerprint
from plait.cache.holdings import Holdings
from plait.cache.pages import Page
from plait.cache.protocol import Held, Shape
from plait.errors import PlaitError, fault

__all__ = ["check"]


def _that(holds: bool, what: str) -> None:
    if not holds:
        raise PlaitError(fault(f"prefix store: {what}", advice="this is a defect of Plait; report it"))


def check(
    shape: Shape,
    page_size: int,
    budget: int,
    roots: Mapping[Fingerprint, Page],
    holdings: Holdings,
    eviction: Eviction,
) -> None:
    """PlaitError: an invariant does not hold."""
    pages = [page for root in roots.values() for page in root.below()]
    anchors = [anchor for page in pages for anchor in page.anchors]
    needed: Counter[tuple[Page, int]] = Counter()
    for root in roots.values():
        _that(root.parent is None and root.stop == 0 and not root.tokens, "a root begins at 0")
    for page in pages:
        if page.parent is not None:
            _page(shape, page_size, page)
    for anchor in anchors:
        _anchor(shape, page_size, anchor)
        for index, law in enumerate(shape.rows):
            # Said again, apart from the code that counts: rows of a window from the lowest promised position on.
            start = law.required(anchor.lowest).start
            for page in anchor.page.path():
                if page.stop > start:
                    _that(page.slabs[index] is not None, f"an anchor at {anchor.position} lacks rows of class {index}")
                    if not isinstance(law, Rows):
                        needed[page, index] += 1
    _candidates(shape, pages, anchors, needed, eviction)
    _bytes(budget, pages, anchors, holdings)


def _page(shape: Shape, page_size: int, page: Page) -> None:
    assert page.parent is not None
    _that(len(page.tokens) == page_size, "a page is full")
    _that(page.parent.children.get(page.tokens) is page, "a page is its parent's child under its tokens")
    _that(page.stop == page.parent.stop + page_size, "a page follows its parent")
    _that(page.key == hash((page.parent.key, page.tokens)), "a page's key is that of its tokens")
    _that(len(page.slabs) == len(shape.rows), "a page has a place for each row class")
    for slab, law in zip(page.slabs, shape.rows, strict=True):
        _that(slab is not None or not isinstance(law, Rows), "a page keeps the slabs of full rows")


def _anchor(shape: Shape, page_size: int, anchor: Anchor) -> None:
    page = anchor.page
    _that(page.anchors.get(anchor.tail) is anchor, "an anchor stands on its page under its tail")
    _that(len(anchor.tail) < page_size, "an anchor's tail is shorter than a page")
    _that(page.stop <= anchor.lowest <= anchor.position and anchor.position > 0, "an anchor's positions are in order")
    _that(not shape.snapshots or anchor.lowest == anchor.position, "a snapshot serves one position")
    _that(len(anchor.snapshots) == shape.snapshots, "an anchor has a snapshot for each class")
    for snapshot in anchor.snapshots:
        _that(snapshot.position == anchor.position, "an anchor's snapshots were computed at its position")
        _that(snapshot.holders > 0, "an anchor's snapshots are held")
    for slab, law in zip(anchor.slabs, shape.rows, strict=True):
        needs = bool(anchor.tail) and bool(law.required(anchor.position))
        _that((slab is not None) == needs, "an anchor holds the rows of its tail")
        _that(slab is None or slab.holders == 1, "an anchor's tail is held by the store alone")


def _candidates(
    shape: Shape, pages: list[Page], anchors: list[Anchor], needed: Counter[tuple[Page, int]], eviction: Eviction
) -> None:
    """What may go is exactly what nothing rests on."""
    idle = set()
    for page in pages:
        for index, _ in shape.windows:
            if page.parent is not None:
                _that(page.needed[index] == needed[page, index], "a page knows how many anchors need its windows")
                if page.slabs[index] is not None and not needed[page, index]:
                    idle.add((page, index))
    _that(idle == set(eviction.windows), "window slabs that may go are those no anchor needs")
    leaves = {p for p in pages if p.parent is not None and not p.children and not p.anchors}
    _that(leaves == set(eviction.leaves), "pages that may go have no children and no anchors")
    queued = [anchor for queue in eviction.anchors for anchor in queue]
    _that(len(queued) == len(anchors) and set(queued) == set(anchors), "every anchor waits in one queue")
    _that(all(anchor in eviction.queue(anchor) for anchor in queued), "an anchor waits where its kind does")


def _bytes(budget: int, pages: list[Page], anchors: list[Anchor], holdings: Holdings) -> None:
    """Each slab and snapshot once; what a session holds too is counted there."""
    found: dict[int, tuple[Held, int]] = {}
    everything: list[Held | None] = [slab for page in pages for slab in page.slabs]
    everything += [held for anchor in anchors for held in (*anchor.slabs, *anchor.snapshots)]
    for held in everything:
        if held is not None:
            found[id(held)] = (held, found.get(id(held), (held, 0))[1] + 1)
    kept = {id(held): (held, times) for held, times in holdings.held()}
    _that(kept == found, "what is held is what pages and anchors refer to")
    for held, times in found.values():
        _that(held.holders >= times, "what is held has not been freed")
        _that(held.holders == times or holdings.lent(held), "what sessions hold is known to be lent")
    total = sum(held.nbytes for held, _ in found.values())
    _that(holdings.total == total, "bytes are those of the slabs and snapshots")
    alone = sum(held.nbytes for held, _ in found.values() if not holdings.lent(held))
    _that(holdings.bytes == alone, "bytes of what only the store holds add up")
    _that(holdings.bytes <= budget, f"{holdings.bytes} bytes are held, the budget is {budget}")

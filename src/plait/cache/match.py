"""Where a prompt can resume: the largest position that every law covers, and why it is not larger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from plait.blueprint.state import Rows
from plait.cache.anchors import Anchor, Mark
from plait.cache.branches import Key
from plait.cache.fingerprint import Fingerprint
from plait.cache.ghosts import Ghosts
from plait.cache.pages import Page, root_of
from plait.cache.protocol import HeldSlab, Shape
from plait.cache.report import Reason, Report

__all__ = ["Match", "covered", "match"]

# Children looked at for a partly shared page: only where windows were let go of can the first not serve.
_TRIES: Final = 32


@dataclass(frozen=True, slots=True)
class Match:
    """Where a prompt resumes. Rows below `base.stop` come from pages, the rest, `tail` a class, is to be copied.

    anchor      the promise that is used; None where rows are cut without one
    generation  state of the store when this was found
    """

    fingerprint: Fingerprint
    tokens: Key
    report: Report
    base: Page = field(repr=False)
    tail: tuple[HeldSlab | None, ...] = field(repr=False)
    anchor: Anchor | None = field(repr=False)
    generation: int = field(repr=False)

    @property
    def position(self) -> int:
        return self.report.resume


def walk(root: Page, tokens: Key, page_size: int) -> list[Page]:
    """The root and the pages whose tokens the prompt begins with."""
    path = [root]
    page: Page | None = root
    for start in range(0, len(tokens) - page_size + 1, page_size):
        page = path[-1].children.get(tokens[start : start + page_size])
        if page is None:
            break
        path.append(page)
    return path


def covered(shape: Shape, base: Page, tail: tuple[HeldSlab | None, ...], position: int) -> bool:
    """Whether all row laws hold at `position`: rows below base.stop on its pages, the rest in `tail`."""
    for index, law in enumerate(shape.rows):
        needed = law.required(position)
        if not needed:
            continue
        if position > base.stop and tail[index] is None:
            return False
        if isinstance(law, Rows):
            continue  # a page never lets go of them
        for page in base.path():
            if page.stop <= needed.start:
                break
            if page.slabs[index] is None:
                return False
    return True


def _promised(path: list[Page], tokens: Key, limit: int, page_size: int) -> Iterator[Anchor]:
    """Anchors whose tokens the prompt begins with, deepest first, at most at `limit`."""
    for page in reversed(path):
        if page.anchors:
            for anchor in page.anchors.beginnings(tokens[page.stop : page.stop + page_size]):
                if anchor.position <= limit:
                    yield anchor


Found = tuple[Page, tuple[HeldSlab | None, ...], int, Anchor | None]


def _by_snapshots(shape: Shape, path: list[Page], tokens: Key, limit: int, page_size: int) -> Found | None:
    for anchor in _promised(path, tokens, limit, page_size):
        if covered(shape, anchor.page, anchor.slabs, anchor.position):
            return anchor.page, anchor.slabs, anchor.position, anchor
    return None


def _by_rows(shape: Shape, path: list[Page], tokens: Key, limit: int, page_size: int) -> Found | None:
    """Rows may be cut anywhere: in an anchor's tail, in a page, between pages."""
    full = tuple[HeldSlab | None, ...]
    for base in reversed(path):
        if base.stop > limit:
            continue
        rest = tokens[base.stop : base.stop + page_size]
        offers: list[tuple[int, full, Anchor | None]] = []
        for common, anchor in islice(base.anchors.nearest(rest), 1):
            offers.append((min(base.stop + common, limit), anchor.slabs, anchor))
        # Where windows were let go of on the prompt's own way, a page that parts from it later may still have them.
        for common, child in islice(base.children.nearest(rest), _TRIES):
            offers.append((min(base.stop + common, limit), tuple(child.slabs), None))
        whole = base.anchors.get(())
        offers.append((base.stop, (None,) * len(shape.rows), whole))
        # The sort is stable: at one position the anchor's own rows come first.
        for position, tail, used in sorted(offers, key=lambda offer: -offer[0]):
            if covered(shape, base, tail, position):
                return base, tail, position, used
    return None


def _known(path: list[Page], tokens: Key, page_size: int) -> int:
    """Tokens in common with what is stored, exactly."""
    last = path[-1]
    rest = tokens[last.stop : last.stop + page_size]
    beyond = [common for common, _ in islice(last.children.nearest(rest), 1)]
    beyond += [common for common, _ in islice(last.anchors.nearest(rest), 1)]
    return last.stop + max(beyond, default=0)


def _remembered(ghosts: Ghosts, last: Page, tokens: Key, page_size: int) -> int:
    """Tokens in common with pages that were stored beyond `last`, in whole pages."""
    stop, key = last.stop, last.key
    while stop + page_size <= len(tokens):
        key = hash((key, tokens[stop : stop + page_size]))
        if not ghosts.was_page(key):
            break
        stop += page_size
    return stop


def _anchor_went(ghosts: Ghosts, path: list[Page], tokens: Key, above: int, limit: int, page_size: int) -> bool:
    """Whether an anchor that was evicted lay on the way, behind `above`."""
    return any(
        above < page.stop + length <= limit
        for page in reversed(path)
        for length in ghosts.anchors(page.key, tokens[page.stop : page.stop + page_size])
    )


def _strays(path: list[Page], resume: int, tokens: Key, page_size: int) -> bool:
    """Whether the prompt leaves the way to an anchor within the anchor's tail."""
    last = path[-1]
    rest = tokens[last.stop : last.stop + page_size]
    return any(
        common < len(anchor.tail) and anchor.position > resume
        for common, anchor in islice(last.anchors.nearest(rest), 1)
    ) or len(last.anchors) > len(last.anchors.beginnings(rest))


def match(
    shape: Shape,
    page_size: int,
    roots: dict[Fingerprint, Page],
    ghosts: Ghosts,
    fingerprint: Fingerprint,
    tokens: Key,
    generation: int,
) -> Match:
    """Finds the largest position at which `tokens` can resume. Changes nothing."""
    limit = max(0, len(tokens) - 1)
    root = roots.get(fingerprint) or root_of(fingerprint)
    path = walk(root, tokens, page_size)
    find = _by_snapshots if shape.snapshots else _by_rows
    base, tail, resume, anchor = find(shape, path, tokens, limit, page_size) or (root, (), 0, None)
    known = _known(path, tokens, page_size)
    common = max(known, _remembered(ghosts, path[-1], tokens, page_size))
    marks = tuple(sorted(Mark(a.position, a.kind) for a in _promised(path, tokens, len(tokens), page_size)))
    reason: Reason = "none"
    if resume < min(common, limit):
        if common > known or _anchor_went(ghosts, path, tokens, resume, min(common, limit), page_size):
            reason = "evicted"
        elif not shape.snapshots:
            reason = "window_dropped"
        else:
            reason = "tail_differs" if _strays(path, resume, tokens, page_size) else "no_anchor"
    report = Report(len(tokens), common, resume, reason, marks)
    if not common:
        report = _elsewhere(report, roots, fingerprint, tokens, page_size)
    return Match(fingerprint, tokens, report, base, tail, anchor, generation)


def _elsewhere(
    report: Report, roots: dict[Fingerprint, Page], fingerprint: Fingerprint, tokens: Key, page_size: int
) -> Report:
    """The report, with what is known under the nearest other fingerprint of the same salt."""
    best, other = 0, fingerprint
    for candidate, root in roots.items():
        if candidate.salt == fingerprint.salt and candidate != fingerprint:
            known = _known(walk(root, tokens, page_size), tokens, page_size)
            if known > best:
                best, other = known, candidate
    if not best:
        return report
    return replace(report, reason="fingerprint", elsewhere=best, facts=fingerprint.differs(other))

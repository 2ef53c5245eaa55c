"""Which positions of a prompt become anchors, and which of them go first.

    system, turn   given by who rendered the prompt: ends of text that the next request will share; where that is all of
                   the prompt, one token earlier, so that a snapshot serves an exact repeat as well
    prompt         n - 1, so that an exact repeat works: its last token has to be computed
    fork           the last whole page before the place where a prompt left what is known, seen a second time
    ladder         n - 1 less 1, 2, 4, 8... pages, in whole pages: whatever a prompt shares up to a distance d from its
                   end, about d more is lost at most. Whole pages need no copy of a tail, and prompts that share
                   text have rungs in common
    grid           every so many tokens
    reply          where generation ended; whoever generates marks it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from plait.cache.anchors import KINDS, Kind, Mark
from plait.cache.match import Match
from plait.cache.protocol import Shape
from plait.errors import UsageError, fault

__all__ = ["Placement", "Plan"]

_USED: Final[frozenset[Kind]] = frozenset(kind for kind in KINDS if kind != "grid")
# Kinds that stand for no prompt seen so far.
_ON_THE_WAY: Final[frozenset[Kind]] = frozenset({"ladder", "grid"})
# Parts of a page that other anchors are apart: chats of short messages have several in a page.
_NEAR: Final = 4
# Pages of a prompt that is too short for a ladder: without one it loses less than this.
_SHORT: Final = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What a prefill is to do: stop at each of `stops`, in order, and commit it; commit `end` behind the last token.

    A stop costs a call that ends there and changes no bits. Where only full rows are kept none is needed.
    """

    stops: tuple[Mark, ...]
    end: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """How a store chooses.

    kinds        kinds of anchors in use
    grid         tokens between anchors of the kind `grid`, in whole pages
    spacing      how many tokens two anchors of one sequence are apart at least; None: a quarter of a page, and a page
                 for those that are placed on the way
    first, last  kinds that go before and after all others where the budget is short
    """

    kinds: frozenset[Kind] = _USED
    grid: int = 512
    spacing: int | None = None
    first: frozenset[Kind] = frozenset({"ladder", "grid", "reply"})
    last: frozenset[Kind] = frozenset({"system"})

    def __post_init__(self) -> None:
        if unknown := (self.kinds | self.first | self.last) - set(KINDS):
            raise UsageError(fault("kinds of anchors", expected=", ".join(KINDS), found=", ".join(sorted(unknown))))
        if both := self.first & self.last:
            raise UsageError(fault("kinds of anchors", expected="first or last", found=", ".join(sorted(both))))
        if self.grid < 1 or (self.spacing is not None and self.spacing < 1):
            raise UsageError(fault("grid and spacing", expected="at least 1", found=f"{self.grid}, {self.spacing}"))

    def apart(self, shape: Shape, page_size: int, kind: Kind) -> int:
        """Tokens from an anchor of a kind to the next. Without snapshots an anchor costs the copy of a tail at most:
        none are left out."""
        if not shape.snapshots:
            return 1
        if self.spacing is not None:
            return self.spacing
        return page_size if kind in _ON_THE_WAY else -(-page_size // _NEAR)

    @staticmethod
    def serves(anchor: int, mark: Mark, apart: int) -> bool:
        """Whether an anchor at a position makes a mark needless.

        An anchor behind the mark serves longer prompts only: a prompt that ends between them would lose everything
        before. What is placed on the way, and not for a prompt seen, is kept apart from those as well.
        """
        if mark.kind in _ON_THE_WAY:
            return abs(mark.position - anchor) < apart
        return 0 <= mark.position - anchor < apart

    def plan(self, shape: Shape, page_size: int, found: Match, marks: Iterable[Mark]) -> Plan:
        """Positions after `found.position`; those of the caller's `marks` may be the prompt's end.

        UsageError: a mark lies outside the prompt.
        """
        count, resume = len(found.tokens), found.position
        wanted: list[Mark] = []
        # Where two are too near to each other the first stays: of turns the later, which every next request reaches.
        for mark in sorted(marks, key=lambda mark: (mark.kind != "system", -mark.position)):
            if not 0 < mark.position <= count:
                raise UsageError(fault(f"mark {mark.kind}", expected=f"a position in 1..{count}", found=mark.position))
            if mark.kind in self.kinds:
                wanted.append(Mark(min(mark.position, count - 1), mark.kind) if shape.snapshots and count > 1 else mark)
        wanted += [mark for mark in self._own(page_size, found) if mark.kind in self.kinds]
        there = [mark.position for mark in found.report.anchors]
        chosen: list[Mark] = []
        for mark in wanted:
            apart = self.apart(shape, page_size, mark.kind)
            if (
                mark.position > resume
                and not any(self.serves(other, mark, apart) for other in there)
                and all(abs(mark.position - other.position) >= apart for other in chosen)
            ):
                chosen.append(mark)
        chosen.sort()
        if not shape.snapshots and not shape.windows:
            # Rows can be cut anywhere later: one anchor behind all of them serves every position before it.
            return Plan((), tuple(mark for mark in chosen if mark.kind == "prompt"))
        end = tuple(mark for mark in chosen if mark.position == count or self._late(shape, mark))
        return Plan(tuple(mark for mark in chosen if mark not in end), end)

    @staticmethod
    def _late(shape: Shape, mark: Mark) -> bool:
        """Rows one token back are still there at the end; a snapshot is not."""
        return mark.kind == "prompt" and not shape.snapshots

    def _own(self, page_size: int, found: Match) -> Iterable[Mark]:
        """In order of worth: where two are too near to each other, the first stays."""
        count, limit, resume = len(found.tokens), len(found.tokens) - 1, found.position
        yield Mark(limit, "prompt")
        if found.report.lost >= page_size:
            yield Mark(min(found.report.common, limit) // page_size * page_size, "fork")
        if count > _SHORT * page_size:
            back = page_size
            while limit - back > resume:
                yield Mark((limit - back) // page_size * page_size, "ladder")
                back *= 2
        if "grid" in self.kinds:
            step = -(-self.grid // page_size) * page_size
            for position in range((resume // step + 1) * step, count, step):
                yield Mark(position, "grid")

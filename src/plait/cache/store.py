"""The prefix store: finds how much of a prompt is known, hands its state out, takes new state in, keeps a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from threading import RLock
from types import MappingProxyType
from typing import Final

from plait.blueprint.state import SLAB
from plait.cache.anchors import Kind, Mark
from plait.cache.commit import Commit
from plait.cache.eviction import Eviction
from plait.cache.fingerprint import Fingerprint
from plait.cache.ghosts import Ghosts
from plait.cache.holdings import Holdings
from plait.cache.invariants import check
from plait.cache.match import Match, match
from plait.cache.pages import Page, root_of
from plait.cache.placement import Placement, Plan
from plait.cache.protocol import SessionState, Shape
from plait.cache.report import Published, Reason, Stats
from plait.cache.restore import Restored, restore
from plait.errors import UsageError, fault

__all__ = ["Store"]

_REMEMBERED: Final = 16_384


class Store:
    """State of prompts that were computed, for all sessions of one model.

        found = store.match(tokens, fingerprint)
        state = store.restore(found)                 the session is built of it, from state.position on
        plan = store.plan(state.found, marks)
        at each of plan.stops:                       store.commit(session, [mark])
        behind the last token of the prompt:         store.commit(session, plan.end)
        when generation has ended:                   store.commit(session, [Mark(session.settled, "reply")])
        when sessions have been closed:              store.settle()

    Calls may come from several threads; the store's work is between forward passes, never in one.
    """

    def __init__(
        self, shape: Shape, budget: int, *, page_size: int = SLAB, placement: Placement | None = None
    ) -> None:
        """`budget`: bytes the store may hold that no session holds too. UsageError: it is negative."""
        if budget < 0 or page_size < 1:
            raise UsageError(fault("prefix store", expected="a budget of 0 or more", found=f"{budget}, {page_size}"))
        self.shape = shape
        self.page_size = page_size
        self._placement = Placement() if placement is None else placement
        self._budget = budget
        self._roots: dict[Fingerprint, Page] = {}
        self._ghosts = Ghosts(_REMEMBERED)
        self._holdings = Holdings()
        self._eviction = Eviction(shape, self._placement, self._holdings, self._ghosts)
        self._reasons: Counter[Reason] = Counter()
        self._prompt_tokens = self._reused = self._lost = self._healed = 0
        self._generation = 0
        self._lock = RLock()

    @property
    def budget(self) -> int:
        """Bytes the store may hold alone. Setting it lets go of what is too much. UsageError: it is negative."""
        return self._budget

    @budget.setter
    def budget(self, budget: int) -> None:
        if budget < 0:
            raise UsageError(fault("prefix store: budget", expected="0 bytes or more", found=budget))
        with self._lock:
            self._budget = budget
            self.settle()

    def match(self, tokens: Sequence[int], fingerprint: Fingerprint) -> Match:
        """How much of a prompt can be resumed, and why not more. Changes nothing and counts nothing."""
        with self._lock:
            return match(
                self.shape,
                self.page_size,
                self._roots,
                self._ghosts,
                fingerprint,
                tuple(tokens),
                self._generation,
            )

    def restore(self, found: Match) -> Restored:
        """The state a match found; where the store has changed since, it is looked for anew (`Restored.found`).

        Completes, or leaves nothing behind. Errors of `HeldSlab.copy` pass through.
        """
        with self._lock:
            if found.generation != self._generation:
                found = self.match(found.tokens, found.fingerprint)
            state = restore(self.shape, self.page_size, self._holdings, found)
            if found.anchor is not None:
                self._eviction.consumed(found.anchor)
            else:
                self._eviction.used(found.base, found.position)
            self._reasons[found.report.reason] += 1
            self._prompt_tokens += found.report.prompt
            self._reused += found.report.resume
            self._lost += found.report.lost
            return state

    def plan(self, found: Match, marks: Iterable[Mark] = ()) -> Plan:
        """Where the prefill of a prompt stops and what is committed there. UsageError: a mark outside the prompt."""
        return self._placement.plan(self.shape, self.page_size, found, marks)

    def commit(self, session: SessionState, marks: Iterable[Mark] = ()) -> Published:
        """Publish what a session has settled: pages for full slabs, anchors at `marks`; then keep to the budget.

        UsageError: a mark lies behind what is settled. PlaitError: the session breaks the protocol.
        """
        with self._lock:
            root = self._roots.get(session.fingerprint)
            if root is None:
                root = self._roots[session.fingerprint] = root_of(session.fingerprint)
            commit = Commit(
                self.shape, self.page_size, self._placement, self._holdings, self._eviction, self._budget, root
            )
            try:
                published = commit.publish(session, marks)
            finally:
                self.settle()
            self._healed += published.healed
            return published

    def settle(self) -> None:
        """Count anew what sessions have let go of, and let go of what the budget does not allow."""
        with self._lock:
            self._generation += 1
            self._eviction.fit(self._budget)
            for fingerprint in [f for f, root in self._roots.items() if not root.children and not root.anchors]:
                del self._roots[fingerprint]

    def clear(self) -> None:
        """Let go of everything, and of what is remembered of it. Sessions keep what they hold."""
        with self._lock:
            for held, times in self._holdings.held():
                for _ in range(times):
                    self._holdings.drop(held)
            self._roots.clear()
            self._ghosts.clear()
            self._eviction.clear()
            self._generation += 1

    def check(self) -> None:
        """Look at every invariant of the store. PlaitError: one does not hold."""
        with self._lock:
            check(self.shape, self.page_size, self._budget, self._roots, self._holdings, self._eviction)

    def stats(self) -> Stats:
        """Bytes, pages and anchors now; look-ups and evictions since the store was made."""
        with self._lock:
            pages = [page for root in self._roots.values() for page in root.below() if page.parent is not None]
            anchors = [anchor for queue in self._eviction.anchors for anchor in queue]
            kinds: Counter[Kind] = Counter(anchor.kind for anchor in anchors)
            return Stats(
                budget=self._budget,
                bytes=self._holdings.bytes,
                lent_bytes=self._holdings.lent_bytes(),
                page_bytes=sum(slab.nbytes for page in pages for slab in page.slabs if slab is not None),
                tail_bytes=sum(slab.nbytes for a in anchors for slab in a.slabs if slab is not None),
                snapshot_bytes=sum(snapshot.nbytes for a in anchors for snapshot in a.snapshots),
                pages=len(pages),
                anchors=MappingProxyType(dict(kinds)),
                lookups=self._reasons.total(),
                prompt_tokens=self._prompt_tokens,
                reused=self._reused,
                lost=self._lost,
                reasons=MappingProxyType(dict(self._reasons)),
                healed=self._healed,
                evicted_windows=self._eviction.windows_gone,
                evicted_pages=self._eviction.pages_gone,
                evicted_anchors=self._eviction.anchors_gone,
            )

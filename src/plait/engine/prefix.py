"""Sessions that begin where earlier work ended: the prefix store bound to the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from plait.blueprint.state import laws
from plait.cache.anchors import Mark
from plait.cache.fingerprint import Fingerprint
from plait.cache.placement import Placement, Plan
from plait.cache.protocol import Shape
from plait.cache.report import Report, Stats
from plait.cache.store import Store
from plait.runtime.model import Model
from plait.runtime.session import Session
from plait.runtime.slabs import Slab
from plait.runtime.values import Value

__all__ = ["Lease", "Prefixes", "fingerprint_of"]


@dataclass(slots=True)
class Lease:
    """A session at `report.resume`, on its way to the end of `tokens`, and what the store is to be given on the way."""

    session: Session
    tokens: tuple[int, ...]
    report: Report
    plan: Plan

    def next_stop(self) -> int:
        """Where the next call of the prefill has to end at the latest: at a planned stop, or with the prompt."""
        later = (mark.position for mark in self.plan.stops if mark.position > self.session.position)
        return min(later, default=len(self.tokens))


class Prefixes:
    """Finds for a prompt what is known of it, and publishes what is computed.

        lease = prefixes.begin(tokens, marks)
        after each call of the prefill:   prefixes.reached(lease)
        after the last token:             prefixes.end(lease)           closes the session

    A lease that is not to publish anything is given up with `drop`.
    """

    def __init__(self, model: Model, fingerprint: Fingerprint, budget: int, placement: Placement | None = None) -> None:
        self._model = model
        self.fingerprint = fingerprint
        self.store = Store(Shape.of(laws(model.blueprint)), budget, placement=placement)

    def begin(self, tokens: tuple[int, ...], marks: Iterable[Mark] = (), *, returns: bool = False) -> Lease:
        """A session with the longest beginning of `tokens` that is known, less than all of them.

        marks    ends of text that the next request will share (`system`, `turn`)
        returns  see `Session`
        """
        session = self._model.session(returns=returns, fingerprint=self.fingerprint)
        state = self.store.restore(self.store.match(tokens, self.fingerprint))
        try:
            session.resume(
                tokens[: state.position],
                [
                    (run.first, cast("list[Slab]", [*run.shared, *(() if run.tail is None else (run.tail,))]))
                    for run in state.runs
                ],
                cast("tuple[Value, ...]", state.snapshots),
            )
        except BaseException:
            state.release()
            raise
        session.trim()
        try:
            # A store that may hold nothing needs no stops.
            plan = self.store.plan(state.found, marks) if self.store.budget else Plan((), ())
        except BaseException:
            session.close()
            self.store.settle()
            raise
        return Lease(session, tokens, state.report, plan)

    def reached(self, lease: Lease) -> None:
        """The prefill has come to the session's position: what is planned for there is published."""
        if not self.store.budget:
            return
        position = lease.session.position
        marks = [mark for mark in lease.plan.stops if mark.position == position]
        if position == len(lease.tokens):
            marks += lease.plan.end
            self.store.commit(lease.session, marks)
        elif marks:
            self.store.commit(lease.session, marks)

    def end(self, lease: Lease) -> None:
        """Generation has ended: its end is published, and the session closed."""
        session = lease.session
        try:
            if session.position > len(lease.tokens) and self.store.budget:
                self.store.commit(session, [Mark(session.position, "reply")])
        finally:
            self.drop(lease)

    def drop(self, lease: Lease) -> None:
        """Close the session and publish nothing more."""
        lease.session.close()
        self.store.settle()

    def make_room(self, budget: int) -> None:
        """Hold `budget` bytes at most from now on."""
        if budget != self.store.budget:
            self.store.budget = budget

    def clear(self) -> None:
        """Forget everything."""
        self.store.clear()

    def stats(self) -> Stats:
        """See `Stats`."""
        return self.store.stats()


def fingerprint_of(model: Model, weights: Iterable[str], threads: Callable[[], int]) -> Fingerprint:
    """What the state of this model's sessions depends on.

    weights  what names the weights' content: files with their sizes and times
    threads  products by a library give other bits for another number of threads
    """
    numbers = model.numbers
    native = all(form.startswith("native") for form in model.forms)
    return Fingerprint.of(
        blueprint=repr(model.blueprint),
        weights=" ".join(weights),
        types=f"{numbers.words} {numbers.weights} {numbers.kv}",
        forms=" ".join(sorted(model.forms)),
        threads="any" if native else str(threads()),
        device=str(model.device),
    )

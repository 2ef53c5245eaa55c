"""A session: one sequence, its position, its slabs and its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from plait.blueprint.state import SLAB, SLACK
from plait.cache.fingerprint import Fingerprint
from plait.cache.protocol import StateRun
from plait.errors import ContextExceeded, PlaitError, fault
from plait.runtime.slabs import Slab, SlabPool, SlabRun
from plait.runtime.values import Value, ValueRun

__all__ = ["BASE_STEP", "Session", "Span"]

# Values that going back starts from are at least this many tokens apart.
BASE_STEP: Final = 32


class Session:
    """State of one sequence. The position is kept here and nowhere else: nothing is read off a tensor's length.

    A forward pass that fails or is interrupted leaves the session at its old position.

    limit    the longest context
    fingerprint  what its state is computed with, for the prefix store
    returns  values of earlier positions are kept so that the last tokens can be taken back; rows always can, as far as
             they are kept
    """

    def __init__(
        self, pool: SlabPool, limit: int, *, returns: bool = False, fingerprint: Fingerprint | None = None
    ) -> None:
        self._pool = pool
        self.fingerprint = Fingerprint() if fingerprint is None else fingerprint
        self.limit = limit
        self.returns = returns
        self.tokens: list[int] = []
        self.runs = tuple(SlabRun(pool, slab_class) for slab_class in pool.classes)
        self.values = tuple(ValueRun(pool, value_class) for value_class in pool.values)
        self.closed = False

    @property
    def position(self) -> int:
        """Tokens processed; the next token has this index."""
        return len(self.tokens)

    def check(self, count: int) -> None:
        """PlaitError: the session is closed. ContextExceeded: `count` more tokens do not fit into the context."""
        if self.closed:
            raise PlaitError("the session is closed")
        if self.position + count > self.limit:
            raise ContextExceeded(needed=self.position + count, limit=self.limit)

    def prepare(self, count: int) -> None:
        """Make room for `count` more tokens. Raises as `check` does."""
        self.check(count)
        for run in self.runs:
            run.reach(self.position + count)
        for value in self.values:
            value.prepare(self.position + count)

    def advance(self, tokens: Sequence[int]) -> None:
        """The rows and values of `tokens` are written: move on and let go of what no law needs."""
        before = self.position
        self.tokens.extend(tokens)
        for value in self.values:
            kept = self.returns and (not value.bases or before - value.bases[-1][0] >= BASE_STEP)
            value.advance(before if kept else None)
            value.forget(self.position - SLACK)
        self.trim()

    def trim(self) -> None:
        """Hold exactly what the laws keep at this position."""
        for run in self.runs:
            run.trim(self.position)
        for value in self.values:
            value.trim()

    def stay(self, *, returns: bool) -> None:
        """What is processed will not be taken back; `returns`: what the next calls process may be."""
        for value in self.values:
            value.settle()
        self.returns = returns

    def resume_point(self, position: int) -> int | None:
        """Where to go back to on the way to `position`: there, or the nearest earlier one that has values.

        The tokens from there to `position` have to be run again. None: it is too far back for what is kept.
        """
        if not 0 <= position <= self.position:
            return None
        if not self.values or position == self.position:
            point = position
        else:
            earlier = [at for at, _ in self.values[0].bases if at <= position]
            if not earlier:
                return None
            point = earlier[-1]
        return point if all(run.covers(point) for run in self.runs) else None

    def anew(self, position: int) -> int:
        """Bytes that going back to `position` makes beside what is held: slabs that others hold too, and values."""
        point = self.resume_point(position)
        if point is None:
            return 0
        shared = (slab for run in self.runs for slab in run.since(point) if slab.holders > 1)
        return sum(slab.nbytes for slab in shared) + sum(value.size for value in self.values)

    def cut(self, point: int) -> None:
        """Take back all tokens from `point` on. It is what `resume_point` gave."""
        if point == self.position:
            return
        for run in self.runs:
            run.cut(point)
        for value in self.values:
            value.cut(point)
        del self.tokens[point:]
        self.trim()

    @property
    def settled(self) -> int:
        """Tokens that will not be taken back: all of them."""
        return self.position

    def run(self, index: int) -> StateRun:
        """Slabs of a row class, for the prefix store."""
        return StateRun(self.runs[index].first, self.runs[index].slabs)

    def snapshots(self, position: int) -> tuple[Value, ...] | None:
        """The values at `position`, where a call ended there and they are kept."""
        found = tuple(value for run in self.values if (value := run.at(position)) is not None)
        return found if len(found) == len(self.values) else None

    def resume(
        self, tokens: Sequence[int], runs: Sequence[tuple[int, Sequence[Slab]]], values: Sequence[Value]
    ) -> None:
        """Take over the state of `tokens`: this session is at position 0 and holds nothing.

        runs    of each row class the number of its first slab, and its slabs, the last of which may be partial
        values  of each value class the one at the end of `tokens`; none at position 0

        PlaitError: it stands elsewhere already, or a value does.
        """
        if self.tokens or len(runs) != len(self.runs) or (tokens and len(values) != len(self.values)):
            raise PlaitError("only a new session can take over a state, and only a whole one")
        position = len(tokens)
        for value in values:
            if value.position != position:
                raise PlaitError(fault("a value to resume from", expected=f"position {position}", found=value.position))
        for run, (first, slabs) in zip(self.runs, runs, strict=True):
            run.first, run.slabs = first if slabs else position // SLAB, list(slabs)
        if position:
            for held, value in zip(self.values, values, strict=True):
                held.now = value
        self.tokens.extend(tokens)

    def fork(self) -> Session:
        """Another session at the same position. Whole slabs and values are shared, the last rows copied."""
        if self.closed:
            raise PlaitError("the session is closed")
        made = Session(self._pool, self.limit, returns=self.returns, fingerprint=self.fingerprint)
        made.tokens = list(self.tokens)
        made.runs = tuple(run.fork(self.position) for run in self.runs)
        made.values = tuple(value.fork() for value in self.values)
        return made

    def parts(self) -> Iterator[Slab | Value | Tensor]:
        """Every slab and value this session holds, and memory it keeps for the next value."""
        for run in self.runs:
            yield from run.slabs
        for held in self.values:
            kept = (held.now, held.next, held.spare, *(base for _, base in held.bases))
            yield from (part for part in kept if part is not None)

    def held(self) -> dict[str, int]:
        """Bytes this session holds, by category; `returns`: values of earlier positions, to go back to."""
        totals: dict[str, int] = {}
        for run, slab_class in zip(self.runs, self._pool.classes, strict=True):
            totals[slab_class.category] = totals.get(slab_class.category, 0) + run.nbytes
        for value, value_class in zip(self.values, self._pool.values, strict=True):
            totals[value_class.category] = totals.get(value_class.category, 0) + value.nbytes
        if self.returns:
            totals["returns"] = sum(value.base_bytes for value in self.values)
        return totals

    def close(self) -> None:
        """Give everything back. Closing twice is fine."""
        for run in self.runs:
            run.clear()
        for value in self.values:
            value.clear()
        self.closed = True


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one session in a ragged call."""

    session: Session
    tokens: tuple[int, ...]

"""The memory cap: what is promised to sequences that run, what open ones hold, and what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from plait.engine.prefix import Prefixes
from plait.errors import PlaitError, fault
from plait.runtime.model import CALL_ROWS, Model
from plait.runtime.session import Session
from plait.units import binary_bytes

__all__ = ["Cap"]


class Cap:
    """Bytes of weights and all state under one cap, None: no cap. No allocation passes it.

    What runs has claims: bounds on what it will hold. Conversations are open and count what they hold; while they grow
    they count by a claim instead. The store has what is left, but for the rows it copies before it lets others go. The
    engine's thread alone changes claims and open sessions.
    """

    def __init__(self, model: Model, prefixes: Prefixes, cap: int | None, cache: int) -> None:
        """`cache`: bytes the prefix store may hold where there is room."""
        self._model = model
        self._prefixes = prefixes
        self._cap = cap
        self._cache = cache
        self._claims: dict[int, int] = {}
        self._open: dict[int, Session] = {}
        shape = prefixes.store.shape
        # Rows of all tokens stay with a session as long as it goes on.
        self._leaves = bool(shape.windows or shape.snapshots)

    def most(self, length: int) -> int:
        """A bound on the state of a sequence on its way to `length` tokens."""
        return self._model.pool.most(min(length, self._model.blueprint.max_context), CALL_ROWS)

    def refuse(self, length: int) -> None:
        """PlaitError: `length` tokens would not fit if nothing else ran."""
        self._check(length, _held_by(tuple(self._open.values())))

    def fits(self, length: int) -> bool:
        """`length` tokens fit beside what runs."""
        if self._cap is None:
            return True
        return self._model.weight_bytes + self._taken() + self.most(length) <= self._cap

    def claim(self, owner: object, length: int) -> None:
        """Promise the room for `length` tokens until `release`. PlaitError: they do not fit beside what runs."""
        self._check(length, self._taken())
        self._claims[id(owner)] = self.most(length)
        self._give_way(0)

    def release(self, owner: object) -> None:
        """The owner of a claim, if it has one, holds nothing more."""
        self._claims.pop(id(owner), None)

    def open(self, session: Session) -> None:
        """A session stays open; what it holds counts until it is closed."""
        self._open[id(session)] = session

    def close(self, session: Session) -> None:
        """It is closed."""
        self._open.pop(id(session), None)

    @property
    def promised(self) -> int:
        """Bytes of all claims."""
        return sum(self._claims.values())

    @property
    def opened(self) -> int:
        """How many sessions are open beside what runs."""
        return len(self._open)

    @contextmanager
    def growing(self, session: Session, length: int) -> Iterator[None]:
        """An open session goes on to `length` tokens, between the steps of others. PlaitError: they do not fit."""
        self.alone(session)
        self._check(length, self.promised + self._open_bytes(session))
        try:
            self._claims[id(session)] = self.most(length)
            self._give_way(0)
            yield
        finally:
            self._claims.pop(id(session), None)

    def alone(self, session: Session) -> None:
        """PlaitError: the session grows, for another thread."""
        if id(session) in self._claims:
            raise PlaitError("this conversation goes on for another thread; wait until that call has ended")

    def more(self, count: int, what: str) -> None:
        """PlaitError: `count` more bytes of state do not fit."""
        if self._cap is None:
            return
        needed = self._model.weight_bytes + self._taken() + count
        if needed > self._cap:
            found = f"{binary_bytes(needed)} with the weights and the sequences that are open"
            raise PlaitError(fault(what, expected=f"at most {binary_bytes(self._cap)}, the memory cap", found=found))
        self._give_way(count)

    def settle(self) -> None:
        """What sessions have let go of is the store's alone from now on."""
        if self._cap is not None:
            self._prefixes.store.settle()

    def stepped(self) -> None:
        """After each call of the model: sessions have left behind what their laws no longer need."""
        if self._leaves:
            self.settle()

    def _check(self, length: int, others: int) -> None:
        if self._cap is None:
            return
        needed = self._model.weight_bytes + others + self.most(length)
        if needed > self._cap:
            beside = "the weights and the sequences that are open" if others else "the weights"
            raise PlaitError(
                f"{length} tokens need {binary_bytes(needed)} with {beside}, "
                f"the memory cap is {binary_bytes(self._cap)}"
            )

    def _give_way(self, count: int) -> None:
        """What is known of earlier prompts gives way to what runs, and to `count` bytes beside."""
        if self._cap is not None:
            room = self._cap - self._model.weight_bytes - self._taken() - count
            self._prefixes.make_room(min(self._cache, self._model.pool.store_room(room)))

    def _taken(self) -> int:
        return self.promised + self._open_bytes(None)

    def _open_bytes(self, but: Session | None) -> int:
        """Bytes that open sessions hold, but for one and those that grow."""
        open_ = tuple(self._open.items())
        return _held_by(tuple(s for ident, s in open_ if s is not but and ident not in self._claims))


def _held_by(sessions: Sequence[Session]) -> int:
    """Bytes that sessions hold; what several share counts once."""
    return sum({id(part): part.nbytes for session in sessions for part in session.parts()}.values())

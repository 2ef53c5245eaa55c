"""A sequence of tokens that a caller holds and takes on."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from plait.engine.calls import run_pieces, whole
from plait.errors import UsageError, fault
from plait.runtime.session import Session, Span

if TYPE_CHECKING:
    from plait.engine.engine import Engine

__all__ = ["Conversation"]


class Conversation:
    """A sequence of tokens that is processed, and the logits of its last token.

    The engine's thread does the work, between the steps of requests.
    """

    def __init__(self, engine: Engine, session: Session, logits: Tensor) -> None:
        self._engine = engine
        self._session = session
        self.logits = logits
        """float32 [vocabulary]: what follows the last token."""
        self._collected = weakref.finalize(self, engine.schedule.close_later, session)
        self._collected.atexit = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens processed."""
        return tuple(self._session.tokens)

    @property
    def position(self) -> int:
        """How many tokens are processed; the next one has this index."""
        return self._session.position

    def append(self, tokens: Sequence[int]) -> Tensor:
        """Process more tokens; returns and keeps the logits of the last.

        ContextExceeded, PlaitError: they do not fit into the context, or under the memory cap.
        """
        checked = self._engine.checked(tokens)

        def work() -> Generator[None, None, Tensor]:
            self._session.check(len(checked))
            with self._engine.cap.growing(self._session, self.position + len(checked)):
                return (yield from run_pieces(self._engine.model, self._session, checked))

        self.logits = self._engine.schedule.call_in_steps(work)
        return self.logits

    def can_rollback(self, position: int) -> bool:
        """Whether `rollback` can go back to `position`."""
        at = self._session.position
        return position == at or (0 < position < at and self._engine.model.can_rollback(self._session, position - 1))

    def rollback(self, position: int) -> Tensor:
        """Take back all tokens from `position` on, at least one stays; returns and keeps the logits of the last.

        What follows has the bits of a sequence that never had them. UsageError, and nothing changes: too far back for
        what the model's layers keep (`can_rollback`), or no position of this sequence. PlaitError: what others share
        is copied first, and that does not fit under the memory cap.
        """
        at = whole(position, "position", f"an integer in [1, {self.position}]")
        if not self.can_rollback(at):
            expected = f"in [1, {self.position}], with its state still kept"
            raise UsageError(fault("position to go back to", expected=expected, found=at, advice="begin a new session"))
        if at != self.position:

            def work() -> Tensor:
                self._engine.cap.alone(self._session)
                self._engine.cap.more(self._session.anew(at - 1), "going back")
                last = self._session.tokens[at - 1]
                self._engine.model.rollback(self._session, at - 1)
                return self._engine.model.run([Span(self._session, (last,))])[0][0]

            self.logits = self._engine.schedule.call(work)
        return self.logits

    def fork(self) -> Conversation:
        """Another sequence with the same tokens. Whole slabs of 64 tokens are shared, the last rows copied.

        PlaitError: these do not fit under the memory cap.
        """

        def work() -> Session:
            self._engine.cap.alone(self._session)
            self._engine.cap.more(self._engine.model.pool.tail_bytes(), "a fork")
            made = self._session.fork()
            self._engine.cap.open(made)
            return made

        return Conversation(self._engine, self._engine.schedule.call(work), self.logits)

    def held(self) -> dict[str, int]:
        """Bytes of state this sequence holds, by category; what it shares with others is counted here too."""
        return self._session.held()

    def close(self) -> None:
        """Give the state back."""
        self._collected.detach()
        self._engine.schedule.call_if_open(lambda: self._engine.schedule.close_now(self._session))

"""Work for the engine's thread that is no request: it is done between the steps of those."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from operator import index
from typing import Generic, TypeVar

from torch import Tensor

from plait.blueprint.state import SLACK
from plait.errors import PlaitError, UsageError, fault
from plait.runtime.model import CALL_ROWS, Model
from plait.runtime.session import Session, Span

__all__ = ["Call", "run_pieces", "whole"]

T = TypeVar("T")


class Call(Generic[T]):
    """A piece of work and what comes of it. It is done up to its next `yield` at a time."""

    __slots__ = ("_steps", "given_up", "outcome")

    def __init__(self, work: Callable[[], Generator[None, None, T]]) -> None:
        self._steps = work()
        self.outcome: Future[T] = Future()
        self.given_up = False
        """Nobody waits for it any more."""

    def give_up(self, error: PlaitError) -> None:
        """It is not done, or not to its end."""
        self._steps.close()
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def step(self) -> bool:
        """Do the next part; True: it was the last. Errors go to who waits for the outcome."""
        try:
            if self.given_up:
                self._steps.close()
                self.outcome.cancel()
                return True
            next(self._steps)
        except StopIteration as stop:
            self.outcome.set_result(stop.value)
            return True
        except BaseException as error:
            self.outcome.set_exception(error)
            return True
        return False


def run_pieces(model: Model, session: Session, tokens: Sequence[int]) -> Generator[None, None, Tensor]:
    """Run tokens through a session, a part at a time; gives the logits of the last, [vocabulary]."""
    stop = session.position + len(tokens)
    tokens = tuple(tokens)
    while True:
        # A session that may go back needs a value that far before its end.
        at = session.position
        end = min(at + CALL_ROWS, stop - SLACK if session.values and at < stop - SLACK else stop)
        first = len(tokens) - (stop - at)
        logits = model.run([Span(session, tokens[first : first + end - at])], "last" if end == stop else "none")[0]
        if end == stop:
            return logits[0]
        yield


def whole(value: object, what: str, expected: str) -> int:
    """An integer of any library as int; a truth value is none. UsageError names `what`."""
    if isinstance(value, bool):
        raise UsageError(fault(what, expected=expected, found=repr(value)))
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(fault(what, expected=expected, found=repr(value))) from error

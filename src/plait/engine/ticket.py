"""A ticket: what a request's sender holds, and the channel its events come through."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from time import monotonic
from typing import Final

from plait.engine.events import Event, Result

__all__ = ["Channel", "Ticket"]

# Seconds a reader sleeps at most: a signal that comes just as it falls asleep does not wake it, and is noticed then.
_NAP: Final = 0.5


class Channel:
    """Events on their way from the engine's thread to one reader.

    The engine holds this and never the ticket, so that a ticket nobody holds is collected and cancels.

    id         of the request
    wake       tells the engine's thread to look; called from collected tickets too, so it takes no lock
    stepwise   the engine makes an event only when the reader asks for it
    cancelled  nobody wants more
    """

    __slots__ = (
        "_asked",
        "_changed",
        "_error",
        "_events",
        "_given",
        "_result",
        "_sleeper",
        "_wake",
        "cancelled",
        "ended",
        "given_at",
        "id",
        "stepwise",
    )

    def __init__(self, ident: str, wake: Callable[[], None], *, stepwise: bool) -> None:
        self.id = ident
        self.stepwise = stepwise
        self.cancelled = False
        self.ended = False
        self.given_at = 0.0
        self._wake = wake
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._asked = 0
        self._given = 0
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._sleeper: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    # -- the engine's side

    @property
    def wanted(self) -> bool:
        """The reader has taken what there is and wants more; always, where it does not go step by step."""
        return not self.stepwise or self._asked > self._given

    def give(self, events: Iterable[Event]) -> None:
        """More events."""
        made = list(events)
        if not made:
            return
        self._given += len(made)
        self.given_at = monotonic()
        self._change(made)

    def end(self, result: Result) -> None:
        """The last event; what the request held has been given back."""
        self._change([result], result=result)

    def fail(self, error: BaseException) -> None:
        """The request ends without a result: a PlaitError, or an interrupt, which the reader is to notice."""
        self._change([], error=error)

    def _change(
        self, events: list[Event], *, result: Result | None = None, error: BaseException | None = None
    ) -> None:
        # A reader must not see the end before the last events.
        with self._changed:
            self._events.extend(events)
            if result is not None or error is not None:
                self._result, self._error, self.ended = result, error, True
            sleeper, self._sleeper = self._sleeper, None
            self._changed.notify_all()
        if sleeper is not None:
            loop, future = sleeper
            try:
                loop.call_soon_threadsafe(_awake, future)
            except RuntimeError:  # the reader's event loop is closed: nobody reads any more
                self.cancelled = True

    # -- the reader's side

    def cancel(self) -> None:
        """Nobody wants more. Takes no lock: it may run in the middle of anything."""
        if not (self.cancelled or self.ended):
            self.cancelled = True
            self._wake()

    def take(self) -> Event | None:
        """The next event, waited for; None after the last. PlaitError: the request failed."""
        self._ask()
        with self._changed:
            while not (self._events or self.ended):
                self._changed.wait(_NAP)
            return self._next()

    async def take_async(self) -> Event | None:
        """`take` without holding up the event loop."""
        self._ask()
        while True:
            with self._changed:
                if self._events or self.ended:
                    return self._next()
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                self._sleeper = loop, future
            await future

    def _ask(self) -> None:
        if self.stepwise:
            self._asked += 1
            self._wake()

    def _next(self) -> Event | None:
        if self._events:
            return self._events.popleft()
        if self._error is not None:
            raise self._error
        return None

    def wait(self, timeout: float | None = None) -> None:
        """Until the request has ended. TimeoutError."""
        until = math.inf if timeout is None else monotonic() + timeout
        with self._changed:
            while not self.ended:
                left = until - monotonic()
                if left <= 0.0:
                    raise TimeoutError(f"request {self.id} has not ended within {timeout} s")
                self._changed.wait(min(left, _NAP))

    def outcome(self) -> Result:
        """The result of a request that has ended. PlaitError: it failed."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def _awake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Ticket:
    """A request that an engine has taken.

    Iterating, with `for` or `async for`, gives its events in order, `Result` last; each event is given once. A
    PlaitError of the request is raised where its events end. Leaving the iteration early cancels, and so does letting
    go of a ticket.
    """

    __slots__ = ("_channel", "_engine", "_inside")

    def __init__(self, engine: object, channel: Channel, *, inside: Callable[[], bool]) -> None:
        """`engine` lives as long as its tickets; `inside`: whether this is the engine's own thread."""
        self._engine = engine
        self._channel = channel
        self._inside = inside

    @property
    def id(self) -> str:
        """What `engine.cancel` takes."""
        return self._channel.id

    @property
    def done(self) -> bool:
        """The request has ended; events may still be there to be read."""
        return self._channel.ended

    def __iter__(self) -> Generator[Event, None, None]:
        try:
            while (event := self._channel.take()) is not None:
                yield event
        finally:
            self.close()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        try:
            while (event := await self._channel.take_async()) is not None:
                yield event
        finally:
            self.cancel()

    def result(self, timeout: float | None = None) -> Result:
        """The result, waited for. TimeoutError after `timeout` seconds; PlaitError: the request failed."""
        self._channel.wait(timeout)
        return self._channel.outcome()

    def cancel(self) -> None:
        """Nobody wants more: the request ends within a step, with a `Result` of what there is."""
        self._channel.cancel()

    def close(self) -> None:
        """Cancel, and wait until what the request held has been given back."""
        self._channel.cancel()
        if not self._inside():
            self._channel.wait()

    def __del__(self) -> None:
        self._channel.cancel()

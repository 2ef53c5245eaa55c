"""What is under way, and how it ends when the server is told to stop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from plait.engine.ticket import Ticket
from plait.server.faults import stopping

__all__ = ["Lifecycle"]


class Lifecycle:
    """Requests under way. First the server serves, then it drains (finishes what runs), then it halts."""

    __slots__ = ("_idle", "_tickets", "draining", "grace", "halted", "requests")

    def __init__(self, grace: float = 30.0) -> None:
        """`grace`: seconds from the beginning of draining to halting."""
        self.grace = grace
        self.draining = False
        self.halted = False
        self.requests = 0
        self._tickets: set[Ticket] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a request that asks for work. ApiFault: the server takes no more."""
        if self.draining:
            raise stopping(max(1, math.ceil(self.grace)))
        self.requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.requests -= 1
            if not self.requests:
                self._idle.set()

    @contextmanager
    def holding(self, tickets: Sequence[Ticket]) -> Iterator[None]:
        """Around the work of a request: halting cancels it, and so does leaving it early."""
        self._tickets.update(tickets)
        if self.halted:
            self._cancel()
        try:
            yield
        finally:
            self._tickets.difference_update(tickets)
            for ticket in tickets:
                ticket.cancel()

    def drain(self) -> None:
        """Take no more work."""
        self.draining = True

    def halt(self) -> None:
        """End what runs."""
        self.draining = self.halted = True
        self._cancel()

    async def finished(self, seconds: float) -> bool:
        """Wait until nothing is under way; False: something still is after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _cancel(self) -> None:
        for ticket in tuple(self._tickets):
            ticket.cancel()

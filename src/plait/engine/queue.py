"""Requests that wait: first come, first served, and never more than a bound."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic

from plait.engine.request import Request
from plait.engine.ticket import Channel
from plait.errors import QueueFull

__all__ = ["Pace", "Queue", "Waiting"]

_FIRST_GUESS = 1.0
_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request, the channel of its events, and when it came."""

    request: Request
    channel: Channel
    since: float


class Pace:
    """How long one request takes the engine, from those that have ended."""

    __slots__ = ("_last", "_mean")

    def __init__(self) -> None:
        self._mean: float | None = None
        self._last: float | None = None

    def began(self) -> None:
        """Work begins after a pause: the time before it counts for no request."""
        self._last = monotonic()

    def ended(self) -> None:
        """One more has ended."""
        now = monotonic()
        if self._last is not None:
            took = now - self._last
            self._mean = took if self._mean is None else (1 - _WEIGHT) * self._mean + _WEIGHT * took
        self._last = now

    def wait(self) -> float:
        """Seconds until the next one is likely to end."""
        mean = _FIRST_GUESS if self._mean is None else self._mean
        since = 0.0 if self._last is None else monotonic() - self._last
        # Where one takes longer than usual, so may the rest of it.
        return max(0.1, mean - since, since - mean)


class Queue:
    """Requests in the order they came. Any thread puts; the engine's thread alone takes.

    limit  how many may wait beside those that run
    """

    __slots__ = ("_items", "_lock", "inside", "limit", "pace")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        """Requests that were taken and have not ended, those that run among them."""
        self.pace = Pace()
        self._items: deque[Waiting] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Waiting, running: int) -> None:
        """Wait with the others; `running`: how many may run at once. QueueFull: too many do."""
        with self._lock:
            if self.inside >= self.limit + running:
                raise QueueFull(waiting=len(self._items), retry_after=self.pace.wait())
            if not self.inside:
                self.pace.began()
            self.inside += 1
            self._items.append(item)

    def left(self) -> None:
        """One that was inside has ended."""
        with self._lock:
            self.inside -= 1
            self.pace.ended()

    def first(self) -> Waiting | None:
        """Whose turn it is."""
        with self._lock:
            return self._items[0] if self._items else None

    def pop(self) -> Waiting:
        """Take the first."""
        with self._lock:
            return self._items.popleft()

    def take_all(self) -> list[Waiting]:
        """Take out all."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
            return items

    def take_cancelled(self) -> list[Waiting]:
        """Take out those nobody waits for any more."""
        with self._lock:
            gone = [item for item in self._items if item.channel.cancelled]
            if gone:
                self._items = deque(item for item in self._items if not item.channel.cancelled)
            return gone

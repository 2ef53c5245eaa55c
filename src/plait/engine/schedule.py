"""The engine's thread: it alone touches sessions and the prefix store, and runs all requests together.

Each step is one ragged call of the model: the next token of every sequence that decodes, and a bounded number of
prompt tokens of those that do not yet. Sequences join and leave between steps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from itertools import count
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from plait.engine.batch import Part, compose
from plait.engine.calls import Call
from plait.engine.cap import Cap
from plait.engine.events import Event, Result
from plait.engine.prefix import Prefixes
from plait.engine.queue import Queue, Waiting
from plait.engine.request import Request
from plait.engine.sequence import Sequence, untouched
from plait.engine.ticket import Channel
from plait.errors import PlaitError, fault
from plait.runtime.model import Model
from plait.runtime.session import Session

__all__ = ["Progress", "Schedule"]

T = TypeVar("T")

# A reader that goes step by step is waited for this long, so that several of them are served together.
_GRACE: Final = 0.002


class Progress:
    """What the thread has done so far; read by any thread, written by that one.

    steps   calls of the model
    tokens  tokens generated
    prompt  prompt tokens processed
    at      when the last step ended, in seconds of `time.monotonic`; None: there was none
    busy    when work that goes on now began; None: there is none
    """

    __slots__ = ("at", "busy", "ended", "failed", "prompt", "steps", "tokens")

    def __init__(self) -> None:
        self.steps = self.tokens = self.prompt = self.ended = self.failed = 0
        self.at: float | None = None
        self.busy: float | None = None

    def idle(self) -> float:
        """Seconds without a step although there is something to do."""
        busy, at = self.busy, self.at
        return 0.0 if busy is None else monotonic() - max(busy, busy if at is None else at)


class Schedule:
    """Runs requests and calls on a thread of its own, which begins with the first of them."""

    def __init__(self, model: Model, prefixes: Prefixes, cap: Cap, *, waiting: int, running: int) -> None:
        """`waiting`: requests that may wait beside those that run; `running`: how many run at once at most."""
        self.model = model
        self.prefixes = prefixes
        self.cap = cap
        self.limit = running
        self.queue = Queue(waiting)
        self.progress = Progress()
        self.running: list[Sequence] = []
        self._mail: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._calls: deque[Call[Any]] = deque()
        self._channels: dict[str, Channel] = {}
        self._numbers = count(1)
        self._turn = 0
        self._thread: threading.Thread | None = None
        # What was taken before the engine is closed reaches the thread.
        self._opening = threading.Lock()
        self._closing = False

    # -- any thread

    def submit(self, request: Request, *, stepwise: bool) -> Channel:
        """Take a request. QueueFull: too many wait."""
        channel = Channel(f"r{next(self._numbers)}", self._wake, stepwise=stepwise)
        with self._opening:
            self._start()
            self.queue.put(Waiting(request, channel, monotonic()), self.limit)
            self._channels[channel.id] = channel
        self._wake()
        return channel

    def cancel(self, ident: str) -> bool:
        """Nobody wants more of a request; False: there is none of that name, or it has ended."""
        channel = self._channels.get(ident)
        if channel is None or channel.ended:
            return False
        channel.cancel()
        return True

    def call(self, work: Callable[[], T]) -> T:
        """Do some work on the engine's thread, and wait for it."""

        def steps() -> Generator[None, None, T]:
            return work()
            yield

        return self.call_in_steps(steps)

    def call_in_steps(self, work: Callable[[], Generator[None, None, T]]) -> T:
        """`call` for work that goes on after each `yield` when it is its turn again."""
        call = Call(work)
        if self.inside():  # an object that is collected may close a session from here
            while not call.step():
                pass
            return call.outcome.result()
        with self._opening:
            self._start()
            self._mail.put(call)
        try:
            return call.outcome.result()
        finally:
            call.given_up = True

    def close_later(self, session: Session) -> None:
        """A session that nobody holds any more is closed when there is time. Takes no lock."""

        def steps() -> Generator[None, None, None]:
            self.close_now(session)
            return
            yield

        self._mail.put(Call(steps))

    def close_now(self, session: Session) -> None:
        """Close a session. The engine's thread does."""
        session.close()
        self.cap.close(session)
        self.prefixes.store.settle()

    def call_if_open(self, work: Callable[[], T]) -> T:
        """`call`; once the thread has ended, work is done right here."""
        if self._closing and self._thread is not None and not self.inside():
            self._thread.join()
            return work()
        return work() if self._thread is None else self.call(work)

    def inside(self) -> bool:
        """This is the engine's thread."""
        return threading.current_thread() is self._thread

    @property
    def closed(self) -> bool:
        """Nothing more is taken."""
        return self._closing

    def stop(self) -> None:
        """Cancel all and end the thread; waits for it. Stopping twice is fine."""
        with self._opening:
            self._closing = True
        thread = self._thread
        if thread is not None and not self.inside():
            self._wake()
            thread.join()

    def _wake(self) -> None:
        self._mail.put(None)

    def _start(self) -> None:
        if self._closing:
            raise PlaitError("the engine is closed; load the model again")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="plait-engine", daemon=True)
            self._thread.start()

    # -- the engine's thread

    @torch.inference_mode()
    def _work(self) -> None:
        while not self._closing:
            try:
                self._round()
            except BaseException as error:  # no failure may end the thread and leave readers waiting
                for sequence in tuple(self.running):
                    self._fail(sequence, error)
        for waiting in self.queue.take_all():
            self._end(waiting.channel, untouched(waiting))
        for sequence in tuple(self.running):
            self._leave(sequence)
        self._collect()
        for call in self._calls:
            call.give_up(PlaitError("the engine was closed"))

    def _round(self) -> None:
        self._collect(wait=self._idle())
        for waiting in self.queue.take_cancelled():
            self._end(waiting.channel, untouched(waiting))
        for sequence in tuple(self.running):
            if sequence.channel.cancelled:
                self._leave(sequence)
        self._admit()
        if self._calls:
            call = self._calls.popleft()
            if not call.step():
                self._calls.append(call)
            self.cap.settle()
        ready = self._ready()
        if ready and self._gathered():
            for parts in compose(ready, self._turn):
                self._step(parts)
            self._turn += 1

    def _idle(self) -> bool:
        """Nothing can be done before something new comes."""
        return not (self._calls or self._ready() or self._can_admit())

    def _collect(self, *, wait: bool = False) -> None:
        """Take what has come in; `wait` for something."""
        try:
            if wait:
                self.progress.busy = None
                self._take(self._mail.get())
                self.progress.busy = monotonic()
            while True:
                self._take(self._mail.get_nowait())
        except Empty:
            return

    def _take(self, item: Call[Any] | None) -> None:
        if item is not None:
            self._calls.append(item)

    def _ready(self) -> list[Sequence]:
        """Sequences to go on with. Where others wait for a place, a slow reader does not keep his."""
        if len(self.queue):
            return self.running
        return [sequence for sequence in self.running if sequence.channel.wanted]

    def _gathered(self) -> bool:
        """No reader who goes step by step is about to ask."""
        paused = [s.channel.given_at for s in self.running if not s.channel.wanted] if not len(self.queue) else []
        left = max(paused, default=0.0) + _GRACE - monotonic()
        if left <= 0:
            return True
        try:
            self._take(self._mail.get(timeout=left))
        except Empty:
            return True
        return False

    def _can_admit(self) -> bool:
        waiting = self.queue.first()
        if waiting is None or len(self.running) >= self.limit:
            return False
        # Where nothing will let go of anything, it is told why it cannot run.
        return waiting.channel.cancelled or not self.cap.promised or self.cap.fits(waiting.request.length)

    def _admit(self) -> None:
        """Begin with those whose turn it is, as many as there is room for."""
        while self._can_admit():
            waiting = self.queue.pop()
            if waiting.channel.cancelled:
                self._end(waiting.channel, untouched(waiting))
                continue
            try:
                self.cap.claim(waiting.channel, waiting.request.length)
                self.running.append(Sequence(waiting, self.prefixes))
            except BaseException as error:
                self.cap.release(waiting.channel)
                self._end(waiting.channel, error)

    def _step(self, parts: list[Part]) -> None:
        try:
            logits = self.model.run([part.span for part in parts], [part.want for part in parts])
        except BaseException as error:
            if len(parts) == 1:
                self._fail(parts[0].sequence, error)
                return
            # One of them cannot go on; the others can. A call that fails leaves all of them where they were.
            for part in parts:
                self._step([part])
            return
        self.progress.steps += 1
        self.cap.stepped()
        for part, rows in zip(parts, logits, strict=True):
            self._took(part, rows)
        self.progress.at = monotonic()

    def _took(self, part: Part, rows: Tensor) -> None:
        sequence = part.sequence
        before = len(sequence.known)
        events: list[Event] = []
        try:
            events.extend(sequence.took(rows, prompt=part.prompt))
            if sequence.finish is not None:
                events.extend(sequence.tail())
        except BaseException as error:
            sequence.channel.give(events)
            self._fail(sequence, error)
            return
        finally:
            self.progress.tokens += len(sequence.known) - before
            self.progress.prompt += len(part.span.tokens) if part.prompt else 0
        sequence.channel.give(events)
        if sequence.finish is not None:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """A sequence has ended, or nobody wants more of it: give back what it holds, then say so."""
        try:
            if sequence.finish is None:
                sequence.finish = "cancelled"
                sequence.channel.give(sequence.tail())
            elif (rest := sequence.rest()) is not None:
                self.model.run([rest], "none")
            self._remove(sequence, keep=True)
            result = sequence.result()
        except BaseException as error:
            self._fail(sequence, error)
            return
        self._end(sequence.channel, result)

    def _fail(self, sequence: Sequence, error: BaseException) -> None:
        try:
            self._remove(sequence, keep=False)
        except BaseException as second:
            error = second
        self._end(sequence.channel, error)

    def _remove(self, sequence: Sequence, *, keep: bool) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
            try:
                sequence.close(keep=keep)
            finally:
                self.cap.release(sequence.channel)
                if sequence.request.ended is not None:
                    sequence.request.ended(sequence.generated)

    def _end(self, channel: Channel, outcome: BaseException | Result) -> None:
        self._channels.pop(channel.id, None)
        self.queue.left()
        self.progress.ended += 1
        if isinstance(outcome, Result):
            channel.end(outcome)
            return
        self.progress.failed += 1
        if isinstance(outcome, PlaitError) or not isinstance(outcome, Exception):
            channel.fail(outcome)
        else:
            error = PlaitError(fault("the request failed", found=f"{type(outcome).__name__}: {outcome}"))
            error.__cause__ = outcome
            channel.fail(error)

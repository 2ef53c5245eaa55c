"""From the events of an engine to pieces of answers, the same for streams and whole answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field

from plait.engine.events import Prefill, Result, Tail, Token
from plait.engine.ticket import Ticket
from plait.server.answers import Cached, Report, Usage
from plait.server.metrics import Watch

__all__ = ["Ended", "Piece", "Quiet", "Step", "pieces", "report_of", "usage_of"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text and tokens that a choice has got."""

    index: int
    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice is complete."""

    index: int
    result: Result


@dataclass(frozen=True, slots=True)
class Quiet:
    """No text for a while: how far the prompts of the choices are, tokens; `total` 0: all are queued."""

    done: int
    total: int


Step = Piece | Ended | Quiet


@dataclass(slots=True)
class _Progress:
    done: dict[int, int] = field(default_factory=dict)
    total: dict[int, int] = field(default_factory=dict)

    def quiet(self) -> Quiet:
        return Quiet(sum(self.done.values()), sum(self.total.values()))


async def pieces(
    tickets: Sequence[Ticket], quiet_seconds: float, watch: Watch, *, every: bool
) -> AsyncGenerator[Step, None]:
    """What happens to the choices of a request, in the order it happens; ends when all are complete.

    watch  is told of every token
    every  tokens that complete no text make a piece too
    However it is left, nothing of the request goes on running. The first failure of a choice is raised.
    """
    happened: asyncio.Queue[tuple[int, Prefill | Piece | Result | Exception]] = asyncio.Queue()

    async def follow(index: int, ticket: Ticket) -> None:
        try:
            async for event in ticket:
                if isinstance(event, Token):
                    watch.token(index)
                    if event.text or every:
                        happened.put_nowait((index, Piece(index, event.text, (event,))))
                elif isinstance(event, Tail):
                    happened.put_nowait((index, Piece(index, event.text, ())))
                else:
                    happened.put_nowait((index, event))
        except Exception as error:
            happened.put_nowait((index, error))

    tasks = [asyncio.create_task(follow(index, ticket)) for index, ticket in enumerate(tickets)]
    progress = _Progress()
    running = len(tickets)
    try:
        while running:
            try:
                async with asyncio.timeout(quiet_seconds):
                    index, event = await happened.get()
            except TimeoutError:
                yield progress.quiet()
                continue
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Prefill):
                progress.done[index], progress.total[index] = event.done, event.total
                yield progress.quiet()
            elif isinstance(event, Result):
                running -= 1
                watch.ended(event)
                yield Ended(index, event)
            else:
                yield event
    finally:
        for ticket in tickets:
            ticket.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def report_of(result: Result) -> Report:
    """What is said of a choice beside its text."""
    cache, timing = result.cache, result.timing
    return {
        "common": cache.common,
        "resume": cache.resume,
        "lost": cache.lost,
        "reason": cache.reason,
        "seed": result.seed,
        "stop": result.stop,
        "queued_seconds": _rounded(timing.queued_seconds),
        "prompt_seconds": _rounded(timing.prompt_seconds),
        "decode_seconds": _rounded(timing.decode_seconds),
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 6) if math.isfinite(seconds) else 0.0


def usage_of(results: Iterable[Result], answers: int) -> Usage:
    """Tokens of all choices; each run of `answers` results is of one prompt, which counts once."""
    found = list(results)
    firsts = found[::answers]
    prompt = sum(result.usage.prompt for result in firsts)
    completion = sum(result.usage.completion for result in found)
    cached: Cached = {"cached_tokens": sum(result.usage.reused for result in firsts)}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": cached,
    }

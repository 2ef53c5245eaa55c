"""Server-sent events, and noticing that nobody reads them any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import ExitStack, aclosing, suppress
from time import monotonic
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plait.server.choices import Ended, Quiet, Step
from plait.server.faults import fault_of
from plait.server.forms import Form

__all__ = ["EventStream", "Gone", "frames", "unless_gone"]

T = TypeVar("T")


class Gone(Exception):
    """The client has left."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Gone: it has. The body must be read before."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(watching, working, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def frames(
    form: Form, steps: AsyncGenerator[Step, None], *, usage: bool, quiet_seconds: float
) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream: chunks as `data:` lines and [DONE]. A failure is a last event with `error`.

    usage          a chunk before [DONE] says the usage
    quiet_seconds  without text for so long, a comment says how far the prompt is: a connection stays alive by it
    """
    opened: set[int] = set()
    results = {}
    said = monotonic()
    try:
        async with aclosing(steps):
            async for step in steps:
                if isinstance(step, Quiet):
                    if monotonic() - said >= quiet_seconds:
                        said = monotonic()
                        yield _comment(step)
                    continue
                said = monotonic()
                if step.index not in opened:
                    opened.add(step.index)
                    opening = form.opening(step.index)
                    if opening is not None:
                        yield _data(form.chunk([opening], usage=usage))
                if isinstance(step, Ended):
                    results[step.index] = step.result
                    yield _data(form.chunk([form.ended(step)], usage=usage))
                else:
                    yield _data(form.chunk([form.piece(step)], usage=usage))
        if usage:
            yield _data(form.last([results[index] for index in sorted(results)]))
        yield b"data: [DONE]\n\n"
    except Exception as error:
        # The status has been sent: the error is what the stream ends with.
        yield _data(dict(fault_of(error).body()))


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode() + b"\n\n"


def _comment(quiet: Quiet) -> bytes:
    where = f"prompt {quiet.done} of {quiet.total} tokens" if quiet.total else "waiting"
    return f": {where}\n\n".encode()


class EventStream(Response):
    """A response whose body is made while it is sent."""

    media_type = "text/event-stream"

    def __init__(self, body: AsyncGenerator[bytes, None], entered: ExitStack) -> None:
        """`entered`: left when the stream ends, however it does."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = body
        self._entered = entered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            async with aclosing(self._frames) as body:
                async for data in body:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        with self._entered, suppress(Gone):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await unless_gone(receive, write())

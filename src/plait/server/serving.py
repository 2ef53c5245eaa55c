"""A server's parts, and how a request becomes work."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from plait.engine.engine import Engine
from plait.engine.events import Result, Token
from plait.server.choices import Ended, Piece, Step
from plait.server.faults import ApiFault, fault_of, not_found
from plait.server.forms import Form
from plait.server.lifecycle import Lifecycle
from plait.server.metrics import Metrics
from plait.server.settings import Settings
from plait.server.stream import Gone

__all__ = ["LEFT", "Endpoint", "Serving", "begun", "guarded", "whole"]

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

LEFT = 499
"""The status in the metrics of a request whose client left; nobody reads it."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What routes work with."""

    engine: Engine
    settings: Settings
    lifecycle: Lifecycle
    metrics: Metrics

    @property
    def fingerprint(self) -> str:
        """What answers depend on beside the request: weights, types, kernels."""
        return "fp_" + sha256(repr(self.engine.prefixes.fingerprint).encode()).hexdigest()[:12]

    def checked_model(self, name: str | None) -> None:
        """ApiFault: a model that is not served here."""
        if name is not None and name != self.settings.name:
            shown = f"{name[:80]!r}"
            fault = not_found(f"model {shown}: not served here; the model is {self.settings.name!r}")
            fault.param, fault.code = "model", "model_not_found"
            raise fault

    def checked_key(self, request: Request) -> None:
        """ApiFault: the key is missing or another one."""
        key = self.settings.api_key
        if key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Bytes of a header come as Latin-1, whatever they stand for.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), key.encode()):
            raise ApiFault(
                "Authorization: expected `Bearer` and the API key of this server",
                status=HTTPStatus.UNAUTHORIZED,
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def guarded(serving: Serving, endpoint: Endpoint, *, keyed: bool) -> Endpoint:
    """An endpoint whose every failure is an answer of the API. `keyed`: it is asked with the API key."""

    async def answer(request: Request) -> Response:
        try:
            if keyed:
                serving.checked_key(request)
            return await endpoint(request)
        except Gone:
            return Response(status_code=LEFT)
        except Exception as error:
            fault = fault_of(error, "messages" if "chat" in request.url.path else "prompt")
            for place in serving.settings.places:
                fault.message = fault.message.replace(place, serving.settings.name)
            return fault.response()

    return answer


async def begun(begin: Callable[[], T], forget: Callable[[T], None]) -> T:
    """Run `begin`, which checks and tokenizes, beside the event loop; `forget` undoes it where it is left meanwhile."""
    working = asyncio.ensure_future(asyncio.to_thread(begin))

    def late(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            forget(done.result())

    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(late)
        raise


async def whole(form: Form, steps: AsyncGenerator[Step, None], choices: int) -> dict[str, Any]:
    """The answer of a request that is no stream."""
    texts: list[list[str]] = [[] for _ in range(choices)]
    tokens: list[list[Token]] = [[] for _ in range(choices)]
    results: dict[int, Result] = {}
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, Piece):
                texts[step.index].append(step.text)
                tokens[step.index].extend(step.tokens)
            elif isinstance(step, Ended):
                results[step.index] = step.result
    order = [results[index] for index in range(choices)]
    made = [form.whole(i, "".join(texts[i]), tokens[i], result) for i, result in enumerate(order)]
    return form.answer(made, order)

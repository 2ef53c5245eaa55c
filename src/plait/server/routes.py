"""/v1/completions and /v1/chat/completions."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import Any, Final, TypeVar
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.engine.request import Options
from plait.engine.sampling import Sampling
from plait.engine.ticket import Ticket
from plait.errors import PlaitError, QueueFull, UserError, fault
from plait.server.body import parsed, read_body
from plait.server.choices import pieces
from plait.server.faults import ApiFault
from plait.server.forms import Chat, Completion, Form, Head
from plait.server.schema import ChatRequest, CompletionRequest
from plait.server.serving import Endpoint, Serving, begun, whole
from plait.server.spelling import Speller
from plait.server.stream import EventStream, frames, unless_gone

__all__ = ["chat_completions", "completions"]

_DEFAULT_TOKENS: Final = 16  # of /v1/completions, in the OpenAI API
_SEEDS: Final = 2**64
_EXACT: Final = 2**53

Body = TypeVar("Body", bound=CompletionRequest | ChatRequest)


@dataclass(frozen=True, slots=True)
class _Work:
    """A request that the engine has taken."""

    form: Form
    tickets: list[Ticket]


def completions(serving: Serving) -> Endpoint:
    """POST /v1/completions"""

    def begin(data: bytes) -> tuple[_Work, CompletionRequest]:
        body, _ = parsed(data, CompletionRequest)
        _checked(serving, body)
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise _invalid("best_of", "the same as n", body.best_of)
        if body.echo and body.logprobs is not None:
            raise ApiFault(
                "echo: with logprobs not supported by this server", param="echo", code="unsupported_parameter"
            )
        prompts = _prompts(body)
        answers = body.n or 1
        _bounded(serving, len(prompts) * answers)
        engine = serving.engine

        def submit(prompt: str | list[int], sampling: Sampling) -> Ticket:
            return engine.submit(
                prompt,
                sampling=sampling,
                max_tokens=body.max_tokens or serving.settings.max_tokens or _DEFAULT_TOKENS,
                stop=_stops(body.stop),
                ignore_eos=bool(body.ignore_eos),
                logprobs=body.logprobs,
            )

        calls = [_call(submit, prompt, body, answer) for prompt in prompts for answer in range(answers)]
        tickets = _all(calls)
        echo = [_echo(serving, prompt) if body.echo else "" for prompt in prompts for _ in range(answers)]
        head = _head(serving, "cmpl-", answers, body.logprobs is not None)
        return _Work(Completion(head, _speller(serving), echo), tickets), body

    return _endpoint(serving, begin)


def chat_completions(serving: Serving) -> Endpoint:
    """POST /v1/chat/completions"""

    def begin(data: bytes) -> tuple[_Work, ChatRequest]:
        body, sent = parsed(data, ChatRequest)
        _checked(serving, body)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiFault("top_logprobs: only with logprobs", param="top_logprobs", code="invalid_value")
        most, other = body.max_completion_tokens, body.max_tokens
        if most is not None and other is not None and most != other:
            raise _invalid("max_tokens", "the same as max_completion_tokens", other)
        answers = body.n or 1
        _bounded(serving, answers)
        variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
        effort = body.reasoning_effort
        if effort is not None and variables.setdefault("reasoning_effort", effort) != effort:
            raise _invalid("reasoning_effort", "the same as in chat_template_kwargs", repr(effort))
        # As they were sent: templates write arguments and schemas in the order of the keys.
        tools = None if body.tool_choice == "none" else sent.get("tools") or None
        engine = serving.engine

        def submit(messages: list[dict[str, Any]], sampling: Sampling) -> Ticket:
            options: Options = {
                "sampling": sampling,
                "max_tokens": most or other or serving.settings.max_tokens,
                "stop": _stops(body.stop),
                "ignore_eos": bool(body.ignore_eos),
                "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
            }
            # A variable of a template may have any name, one of an argument too: they go as what they are.
            documents = sent.get("documents") or None
            asked = {"tools": tools, "documents": documents, "variables": variables}
            made = engine.chats.request(messages, options, **asked)
            if options["max_tokens"] is None and serving.settings.share is not None:
                made = replace(made, limit=min(made.limit, max(1, serving.settings.share - len(made.tokens))))
            return engine.take(made)

        tickets = _all([_call(submit, sent["messages"], body, answer) for answer in range(answers)])
        head = _head(serving, "chatcmpl-", answers, bool(body.logprobs))
        return _Work(Chat(head, _speller(serving)), tickets), body

    return _endpoint(serving, begin)


def _endpoint(serving: Serving, begin: Callable[[bytes], tuple[_Work, Any]]) -> Endpoint:
    """Read, begin in a thread, then answer at once or as a stream; the client's leaving ends it at every place."""

    async def endpoint(request: Request) -> Response:
        arrived = monotonic()
        with ExitStack() as stack:
            stack.enter_context(serving.lifecycle.request())
            data = await read_body(request, serving.settings)
            work, body = await unless_gone(request.receive, begun(lambda: begin(data), _forget))
            watch = serving.metrics.watch(arrived)
            stack.enter_context(serving.lifecycle.holding(work.tickets))
            quiet = serving.settings.quiet_seconds
            steps = pieces(work.tickets, quiet, watch, every=work.form.head.logprobs)
            if not body.stream:
                return JSONResponse(await unless_gone(request.receive, whole(work.form, steps, len(work.tickets))))
            usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            # What was entered is left when the stream has ended.
            return EventStream(frames(work.form, steps, usage=usage, quiet_seconds=quiet), stack.pop_all())

    return endpoint


def _forget(begun: tuple[_Work, Any]) -> None:
    for ticket in begun[0].tickets:
        ticket.cancel()


def _checked(serving: Serving, body: CompletionRequest | ChatRequest) -> None:
    serving.checked_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise ApiFault("stream_options: only with stream", param="stream_options", code="invalid_value")


def _bounded(serving: Serving, choices: int) -> None:
    if choices > serving.settings.choices:
        raise _invalid("n", f"at most {serving.settings.choices} answers to one request", choices)


def _invalid(param: str, expected: str, found: object) -> ApiFault:
    return ApiFault(fault(param, expected=expected, found=found), param=param, code="invalid_value")


def _sampling(body: CompletionRequest | ChatRequest, answer: int) -> Sampling:
    """Absent fields have the defaults of the API; each answer has a seed of its own."""

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    made = Sampling(
        temperature=given(body.temperature, 1.0),
        top_k=body.top_k,
        top_p=given(body.top_p, 1.0),
        min_p=given(body.min_p, 0.0),
        repetition_penalty=given(body.repetition_penalty, 1.0),
        presence_penalty=given(body.presence_penalty, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
    )
    # One that is drawn here is told, so it is a number that every reader of JSON keeps.
    return replace(made, seed=secrets.randbelow(_EXACT) if body.seed is None else (body.seed + answer) % _SEEDS)


T = TypeVar("T")


def _call(
    submit: Callable[[T, Sampling], Ticket], prompt: T, body: CompletionRequest | ChatRequest, answer: int
) -> Callable[[], Ticket]:
    sampling = _sampling(body, answer)
    return lambda: submit(prompt, sampling)


def _all(calls: Sequence[Callable[[], Ticket]]) -> list[Ticket]:
    """All or none."""
    tickets: list[Ticket] = []
    try:
        for call in calls:
            tickets.append(call())
    except BaseException as error:
        for ticket in tickets:
            ticket.cancel()
        if isinstance(error, PlaitError) and not isinstance(error, UserError | QueueFull):
            # Not a failure: it would not fit if nothing else ran.
            raise ApiFault(str(error), param="max_tokens", code="memory_exceeded") from error
        raise
    return tickets


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(item, int) for item in prompt):
        return [prompt]  # type: ignore[list-item]
    return list(prompt)  # type: ignore[arg-type]


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def _echo(serving: Serving, prompt: str | list[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    return serving.engine.tokenizer.decode(prompt) if serving.engine.has_tokenizer else ""


def _speller(serving: Serving) -> Speller:
    return Speller(serving.engine.tokenizer if serving.engine.has_tokenizer else None)


def _head(serving: Serving, prefix: str, answers: int, logprobs: bool) -> Head:
    return Head(prefix + uuid4().hex, int(time()), serving.settings.name, serving.fingerprint, answers, logprobs)

"""One request, from prompt to result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from plait.cache.anchors import Mark
from plait.engine.events import Event, FinishReason, Prefill, Result, Tail, Timing, Token, Usage
from plait.engine.sampling import Sampler, Sampling
from plait.engine.stops import StopStrings
from plait.engine.tokenizer import TextStream
from plait.errors import ContextExceeded, UsageError, fault
from plait.runtime.model import CALL_ROWS
from plait.runtime.session import Span

if TYPE_CHECKING:
    from plait.engine.engine import Engine

__all__ = ["Request", "run_request"]


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request.

    limit  how many tokens may be generated
    text   False where there is no tokenizer
    marks  positions of the prompt that later ones will share, for the prefix store
    """

    tokens: tuple[int, ...]
    sampling: Sampling
    limit: int
    stop: tuple[str, ...]
    eos: frozenset[int]
    text: bool
    marks: tuple[Mark, ...] = ()

    @staticmethod
    def of(
        engine: Engine,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int | None,
        stop: str | Sequence[str],
        markup: bool,
        ignore_eos: bool,
        marks: Sequence[Mark] = (),
    ) -> Request:
        """Check everything before any work is done."""
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1
        ):
            raise UsageError(fault("max_tokens", expected="a positive integer", found=repr(max_tokens)))
        if not isinstance(sampling, Sampling):
            raise UsageError(fault("sampling", expected="a Sampling", found=repr(sampling)))
        if not isinstance(stop, str | Sequence) or isinstance(stop, bytes):
            raise UsageError(fault("stop", expected="a string or several", found=repr(stop)))
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        for index, item in enumerate(stops):
            if not isinstance(item, str):
                raise UsageError(fault(f"stop string {index}", expected="text", found=repr(item)))
        StopStrings(stops)
        # Stop strings are looked for in the text; token ids alone are enough for the rest.
        tokenizer = engine.tokenizer if isinstance(prompt, str) or stops or engine.has_tokenizer else None
        if isinstance(prompt, str):
            assert tokenizer is not None
            if not prompt:
                raise UsageError("the prompt is empty; write at least one character")
            tokens = engine.checked(tokenizer.encode_markup(prompt) if markup else tokenizer.encode(prompt))
        else:
            tokens = engine.checked(prompt)
        context = engine.blueprint.max_context
        if len(tokens) >= context:
            raise ContextExceeded(needed=len(tokens) + 1, limit=context, advice="one place is needed for the answer")
        room = context - len(tokens)
        limit = room if max_tokens is None else min(max_tokens, room)
        engine.admit(len(tokens) + limit)
        ends = () if ignore_eos else tokenizer.eos if tokenizer is not None else engine.blueprint.tokens.eos
        return Request(tokens, sampling, limit, stops, frozenset(ends), tokenizer is not None, tuple(marks))


def run_request(engine: Engine, request: Request) -> Generator[Event, None, None]:
    """Prefill, then one token at a time. The state is given back however the iteration ends."""
    started = perf_counter()
    sampler = Sampler(request.sampling)
    stops = StopStrings(request.stop)
    # The text goes on where the prompt ends, so a space that it begins with is part of it.
    stream: TextStream | None = engine.tokenizer.stream(start=False) if request.text else None
    lease = engine.prefixes.begin(request.tokens, request.marks)
    session, ended = lease.session, False
    counts: Counter[int] = Counter()
    generated: list[int] = []
    shown: list[str] = []
    reason: FinishReason = "length"
    first = started
    try:
        total = len(request.tokens)
        while (at := session.position) < total:
            stop = min(at + CALL_ROWS, lease.next_stop())
            want: Literal["last", "none"] = "last" if stop == total else "none"
            logits = engine.model.run([Span(session, request.tokens[at:stop])], want=want)[0]
            engine.prefixes.reached(lease)
            yield Prefill(stop, total)
        while True:
            position = total + len(generated)
            choice = sampler.choose(logits[0], position, counts)
            if not generated:
                first = perf_counter()
            if choice.token in request.eos:
                reason = "stop"
                break
            generated.append(choice.token)
            counts[choice.token] += 1
            text, hit = stops.push(stream.push(choice.token)) if stream is not None else ("", False)
            shown.append(text)
            yield Token(choice.token, position, text, choice.logprob)
            if hit:
                reason = "stop"
                break
            if len(generated) == request.limit:
                break
            logits = engine.model.run([Span(session, (choice.token,))])[0]
        finished = perf_counter()
        ended = True
        if stream is not None and stops.matched is None:
            tail, hit = stops.push(stream.finish())
            tail += stops.finish()
            if stops.matched is not None:
                reason = "stop"
            if tail:
                shown.append(tail)
                yield Tail(tail)
        yield Result(
            text="".join(shown),
            tokens=tuple(generated),
            finish_reason=reason,
            stop=stops.matched,
            usage=Usage(prompt=total, completion=len(generated), reused=lease.report.resume),
            timing=Timing(prompt_seconds=first - started, decode_seconds=finished - first),
            seed=sampler.seed,
            cache=lease.report,
        )
    except GeneratorExit:
        # Nobody wants more of it, but what there is may be gone on from: a chat whose answer was stopped.
        ended = True
        raise
    finally:
        (engine.prefixes.end if ended else engine.prefixes.drop)(lease)

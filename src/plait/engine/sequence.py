"""One request that runs: its tokens, its state, its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from time import monotonic

from torch import Tensor

from plait.cache.report import Report
from plait.engine.events import Event, FinishReason, Prefill, Result, Tail, Timing, Token, Usage
from plait.engine.prefix import Lease, Prefixes
from plait.engine.queue import Waiting
from plait.engine.sampling import Sampler, leading
from plait.engine.speculate import Lookup
from plait.engine.stops import StopStrings
from plait.engine.tokenizer import TextStream
from plait.runtime.model import Want
from plait.runtime.session import Span

__all__ = ["Sequence", "untouched"]


class Sequence:
    """A request on its way. `span` says what to compute next, `took` what came of it, `close` gives the state back.

    Of prompt and generated tokens together the session has processed all but those that are to come; the last of them
    gives the logits of the next token.
    """

    __slots__ = (
        "_counts",
        "_draft",
        "_first",
        "_last",
        "_lookup",
        "_prefixes",
        "_sampler",
        "_shown",
        "_started",
        "_stops",
        "_stream",
        "_unprocessed",
        "channel",
        "finish",
        "known",
        "lease",
        "request",
        "since",
    )

    def __init__(self, waiting: Waiting, prefixes: Prefixes) -> None:
        """Begins where the prefix store's knowledge of the prompt ends."""
        self.request = waiting.request
        self.channel = waiting.channel
        self.since = waiting.since
        self._started = monotonic()
        self._first: float | None = None
        self._last = self._started
        self._sampler = Sampler(self.request.sampling)
        self._stops = StopStrings(self.request.stop)
        self._stream: TextStream | None = None if self.request.stream is None else self.request.stream()
        self._counts: Counter[int] = Counter()
        self._shown: list[str] = []
        self.known = list(self.request.tokens)
        self.finish: FinishReason | None = None
        """Why it has ended; None: it has not."""
        self._lookup = Lookup(self.request.speculate) if self.request.speculate else None
        if self._lookup is not None:
            self._lookup.push(self.known)
        self._draft: tuple[int, ...] = ()
        # Of the known tokens the last is chosen and not processed, unless it was the end that was chosen.
        self._unprocessed = 1
        self._prefixes = prefixes
        self.lease: Lease = prefixes.begin(self.request.tokens, self.request.marks)

    @property
    def generated(self) -> tuple[int, ...]:
        """Tokens generated so far."""
        return tuple(self.known[len(self.request.tokens) :])

    @property
    def in_prompt(self) -> bool:
        """Some of the prompt is not processed yet."""
        return self.lease.session.position < len(self.request.tokens)

    def span(self, room: int) -> tuple[Span, Want]:
        """What to compute next, at most `room` tokens of the prompt, and which logits are needed."""
        session = self.lease.session
        at, total = session.position, len(self.request.tokens)
        if at < total:
            stop = min(at + room, self.lease.next_stop())
            return Span(session, self.request.tokens[at:stop]), "last" if stop == total else "none"
        self._draft = ()
        # After a guess that was wrong, values may stand further back: first they catch up.
        if self._lookup is not None and at == len(self.known) - 1:
            self._draft = self._lookup.draft(total + self.request.limit - len(self.known) - 1)
        session.stay(returns=bool(self._draft))
        return Span(session, (*self.known[at:], *self._draft)), "all" if self._draft else "last"

    def took(self, logits: Tensor, *, prompt: bool) -> Iterator[Event]:
        """The span was computed: what that means.

        logits  [1, vocabulary] of its last token; of a span with a guess [n, vocabulary]; [0, vocabulary] in a prompt
        """
        if prompt:
            self._prefixes.reached(self.lease)
            yield Prefill(self.lease.session.position, len(self.request.tokens))
        draft, self._draft = self._draft, ()
        accepted = 0
        for row in logits:
            yield from self._choose(row)
            if self.finish is not None or accepted == len(draft) or self.known[-1] != draft[accepted]:
                break
            accepted += 1
        if draft:
            assert self._lookup is not None
            self._lookup.told(len(draft), accepted)
            self._go_back()

    def _choose(self, row: Tensor) -> Iterator[Event]:
        """The next token, from its logits [vocabulary]."""
        choice = self._sampler.choose(row, len(self.known), self._counts)
        self._last = monotonic()
        if self._first is None:
            self._first = self._last
        if choice.token in self.request.eos:
            self.finish = "stop"
            self._unprocessed = 0
            return
        self.known.append(choice.token)
        if self._lookup is not None:
            self._lookup.push((choice.token,))
        self._counts[choice.token] += 1
        text, hit = "", False
        if self._stream is not None:
            text, hit = self._stops.push(self._stream.push(choice.token))
        self._shown.append(text)
        top = leading(row, self.request.top) if self.request.top else ()
        yield Token(choice.token, len(self.known) - 1, text, choice.logprob, top)
        if hit:
            self.finish = "stop"
        elif len(self.known) - len(self.request.tokens) == self.request.limit:
            self.finish = "length"

    def _go_back(self) -> None:
        """Take back what was guessed and does not stand."""
        session, stop = self.lease.session, len(self.known) - self._unprocessed
        if session.position > stop:
            point = session.resume_point(stop)
            assert point is not None
            session.cut(point)

    def rest(self) -> Span | None:
        """At the end: tokens whose state went with a guess that was wrong, and that another request may go on from."""
        session = self.lease.session
        left = tuple(self.known[session.position : len(self.known) - self._unprocessed])
        return Span(session, left) if left and not self.in_prompt else None

    def tail(self) -> Iterator[Event]:
        """Text that was held back, now that no more comes."""
        if self._stream is not None and self._stops.matched is None:
            tail, _ = self._stops.push(self._stream.finish())
            tail += self._stops.finish()
            if self._stops.matched is not None:
                self.finish = "stop"
            if tail:
                self._shown.append(tail)
                yield Tail(tail)

    def result(self) -> Result:
        """What there is, once it has ended."""
        assert self.finish is not None
        first = self._first if self._first is not None else self._last
        return Result(
            text="".join(self._shown),
            tokens=self.generated,
            finish_reason=self.finish,
            stop=self._stops.matched,
            usage=Usage(
                len(self.request.tokens),
                len(self.generated),
                self.lease.report.resume,
                0 if self._lookup is None else self._lookup.drafted,
                0 if self._lookup is None else self._lookup.accepted,
            ),
            timing=Timing(first - self._started, self._last - first, self._started - self.since),
            seed=self._sampler.seed,
            cache=self.lease.report,
        )

    def close(self, *, keep: bool) -> None:
        """Give the state back; `keep`: what was computed may be gone on from."""
        (self._prefixes.end if keep else self._prefixes.drop)(self.lease)


def untouched(waiting: Waiting) -> Result:
    """The result of a request that was cancelled before it ran."""
    count = len(waiting.request.tokens)
    return Result(
        text="",
        tokens=(),
        finish_reason="cancelled",
        stop=None,
        usage=Usage(count, 0, 0),
        timing=Timing(0.0, 0.0, monotonic() - waiting.since),
        seed=Sampler(waiting.request.sampling).seed,
        cache=Report(prompt=count, common=0, resume=0, reason="none", anchors=()),
    )

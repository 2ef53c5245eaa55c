"""The engine: a loaded model and its tokenizer, asked for logits and text."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any, Final, Unpack, cast

import torch
from torch import Tensor

from plait.blueprint.spec import Blueprint
from plait.engine.calls import run_pieces, whole
from plait.engine.cap import Cap
from plait.engine.chat.read import Templates
from plait.engine.chat.run import Chats
from plait.engine.conversation import Conversation
from plait.engine.events import Event
from plait.engine.prefix import Prefixes, fingerprint_of
from plait.engine.request import Options, Request
from plait.engine.sampling import Sampling
from plait.engine.schedule import Schedule
from plait.engine.ticket import Ticket
from plait.engine.tokenizer import Tokenizer
from plait.errors import TokenizerError, UsageError, fault
from plait.runtime.model import CALL_ROWS, Model
from plait.runtime.session import Session, Span

__all__ = ["MOST", "QUEUE", "SEQUENCES", "Conversation", "Engine"]

QUEUE: Final = 64
SEQUENCES: Final = 8
MOST: Final = 1 << 16
_CHAT: Final = ("sampling", "max_tokens", "stop", "ignore_eos", "logprobs", "speculate")


class Engine:
    """A loaded model. Made by `plait.load`."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | TokenizerError,
        cap: int | None = None,
        *,
        cache: int = 0,
        weights: Sequence[str] = (),
        templates: Templates | TokenizerError | None = None,
        queue: int = QUEUE,
        sequences: int = SEQUENCES,
        speculate: int = 0,
    ) -> None:
        """`cache`: bytes the prefix store may hold; `weights`: what tells these weights from others; `templates`: for
        chats; `queue`, `sequences`, `speculate`: see `plait.load`."""
        self.model = model
        self._tokenizer = tokenizer
        self.speculate = speculate
        self.prefixes = Prefixes(model, fingerprint_of(model, weights, torch.get_num_threads), cache)
        self.cap = Cap(model, self.prefixes, cap, cache)
        self.schedule = Schedule(
            model,
            self.prefixes,
            self.cap,
            waiting=queue,
            running=sequences,
        )
        self.chats = Chats(self, templates)
        # Also where the program ends: a thread must not be in the middle of a product then.
        weakref.finalize(self, self.schedule.stop)

    @property
    def blueprint(self) -> Blueprint:
        return self.model.blueprint

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. TokenizerError: it has none that can be read."""
        if isinstance(self._tokenizer, TokenizerError):
            raise self._tokenizer
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Text can be read and written."""
        return not isinstance(self._tokenizer, TokenizerError)

    def checked(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Token ids as a tuple. UsageError: none at all, or something that is no id of this vocabulary."""
        vocabulary = self.blueprint.vocabulary
        expected = f"an integer in [0, {vocabulary})"
        if isinstance(tokens, str | bytes | bytearray):
            raise UsageError(fault("token ids", expected="a sequence of integers", found=type(tokens).__name__))
        try:
            given = list(tokens)
        except TypeError as error:
            kind = type(tokens).__name__
            raise UsageError(fault("token ids", expected="a sequence of integers", found=kind)) from error
        if not given:
            raise UsageError("the prompt has no tokens; at least one is needed")
        made = tuple(whole(token, "token id", expected) for token in given)
        for token in made:
            if not 0 <= token < vocabulary:
                raise UsageError(fault("token id", expected=expected, found=token))
        return made

    def _lengths(self, total: int, split: Sequence[int] | None) -> list[int]:
        """Lengths of the calls: those of `split`, checked; one call where it is None."""
        if split is None:
            return [total]
        expected = f"positive lengths that sum to {total}"
        try:
            lengths = [whole(n, "split", expected) for n in split]
        except TypeError as error:
            raise UsageError(fault("split", expected=expected, found=repr(split))) from error
        if any(n < 1 for n in lengths) or sum(lengths) != total:
            raise UsageError(fault("split", expected=expected, found=f"a sum of {sum(lengths)}"))
        return lengths

    def logits(self, tokens: Sequence[int], split: Sequence[int] | None = None) -> Tensor:
        """Logits after each token: float32 [n, vocabulary].

        split  lengths of the calls the tokens are cut into, through one session; the bits do not depend on it
        """
        checked = self.checked(tokens)
        lengths = self._lengths(len(checked), split)

        def work() -> Generator[None, None, Tensor]:
            session = self.model.session()
            try:
                self.cap.claim(session, len(checked))
                parts = []
                for n in lengths:
                    stop = session.position + n
                    while (at := session.position) < stop:
                        piece = checked[at : min(stop, at + CALL_ROWS)]
                        parts.extend(self.model.run([Span(session, piece)], want="all"))
                        yield
                return torch.cat(parts)
            finally:
                self.cap.release(session)
                session.close()

        return self.schedule.call_in_steps(work)

    def session(self, tokens: Sequence[int]) -> Conversation:
        """Process `tokens` and keep their state; what is known of their beginning is not processed again."""
        checked = self.checked(tokens)

        def work() -> Generator[None, None, tuple[Session, Tensor]]:
            claim = object()
            try:
                self.cap.claim(claim, len(checked))
                lease = self.prefixes.begin(checked, returns=True)
                session = lease.session
                try:
                    while True:
                        piece = checked[session.position : lease.next_stop()]
                        logits = yield from run_pieces(self.model, session, piece)
                        self.prefixes.reached(lease)
                        if session.position == len(checked):
                            break
                        yield
                except BaseException:
                    self.prefixes.drop(lease)
                    raise
            finally:
                self.cap.release(claim)
            self.cap.open(session)
            return session, logits

        session, logits = self.schedule.call_in_steps(work)
        return Conversation(self, session, logits)

    def submit(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Ticket:
        """Take a request to continue a prompt, text or token ids; the ticket gives its events and its result.

        It is checked here and done on the engine's thread, together with others. Tokens, text and logprobs do not
        depend on the company it has. The options are told at `plait.engine.request.Options`.

        UsageError, ContextExceeded, PlaitError: it can never be met. QueueFull: too many wait.
        """
        return self.take(Request.of(self, prompt, **options))

    def take(self, request: Request, *, stepwise: bool = False) -> Ticket:
        """A ticket for a checked request. `stepwise`: its events are made when they are asked for.

        PlaitError: it could not be met under the memory cap even if nothing else ran; QueueFull.
        """
        self.cap.refuse(request.length)
        return Ticket(self, self.schedule.submit(request, stepwise=stepwise), inside=self.schedule.inside)

    def cancel(self, ident: str) -> bool:
        """Nobody wants more of the request with this `Ticket.id`. False: there is none, or it has ended."""
        return self.schedule.cancel(ident)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Generator[Event, None, None]:
        """Continue a prompt: yields `Prefill`, `Token` and `Tail` events and ends with a `Result`.

        Prompt and options are those of `submit`. Nothing is computed before it is asked for, unless others wait.
        """
        return iter(self.take(Request.of(self, prompt, **options), stepwise=True))

    def agenerate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> AsyncGenerator[Event, None]:
        """`generate` for async code."""
        return aiter(self.take(Request.of(self, prompt, **options), stepwise=True))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: object,
    ) -> tuple[int, ...]:
        """Token ids of a chat as the model's template writes it; what a message spells is never a control token.

        Answers that this engine generated for the same conversation keep their ids. The request is described at
        `plait.engine.chat.ChatFormat.prompt`; `variables` are what else the template reads.
        """
        return self.chats.encode(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            template=template,
            variables=variables,
        )

    def submit_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        speculate: int | None = None,
        **variables: object,
    ) -> Ticket:
        """`submit` for a chat. Messages and what belongs to them as in `encode_chat`, the rest as in `submit`."""
        options: Options = {
            "sampling": sampling,
            "max_tokens": max_tokens,
            "stop": stop,
            "ignore_eos": ignore_eos,
            "logprobs": logprobs,
            "speculate": speculate,
        }
        asked = {"tools": tools, "documents": documents, "template": template, "variables": variables}
        return self.take(self.chats.request(messages, options, **asked))

    def chat(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> Generator[Event, None, None]:
        """Answer a chat: events as those of `generate`, the request as that of `submit_chat`."""
        return iter(self._chat(messages, request))

    def achat(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> AsyncGenerator[Event, None]:
        """`chat` for async code."""
        return aiter(self._chat(messages, request))

    def _chat(self, messages: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> Ticket:
        """What is no field of a chat request is a variable of the template."""
        options = {name: request[name] for name in _CHAT if name in request}
        asked = {name: request[name] for name in ("tools", "documents", "template") if name in request}
        variables = {name: value for name, value in request.items() if name not in options and name not in asked}
        made = self.chats.request(messages, cast("Options", options), **asked, variables=variables)
        return self.take(made, stepwise=True)

    def stats(self) -> dict[str, object]:
        """What is held and what is going on; answers at once, whatever the engine does.

        weight_bytes     prepared weights
        held             bytes of state by category, of sequences and store together
        cache, forms     the prefix store; how many products each form of `ops.linear` serves
        queued, running  requests
        sequence_bytes   of `held` what requests and conversations hold, not only the store
        sessions         conversations that are open
        anchors          positions the store promises
        tokens, prompt_tokens, requests, failed   generated, processed and ended since the engine was made
        steps            calls of the model for requests
        idle_seconds     since the last step, where there is something to do; 0.0 where there is not
        """
        schedule, cache, held = self.schedule, self.prefixes.stats(), self.model.pool.held()
        done = schedule.progress
        return {
            "weight_bytes": self.model.weight_bytes,
            "held": held,
            "cache": cache,
            "forms": self.model.forms,
            "queued": len(schedule.queue),
            "running": len(schedule.running),
            "sequence_bytes": sum(held.values()) - cache.bytes,
            "sessions": self.cap.opened,
            "anchors": sum(cache.anchors.values()),
            "tokens": done.tokens,
            "prompt_tokens": done.prompt,
            "requests": done.ended,
            "failed": done.failed,
            "steps": done.steps,
            "idle_seconds": done.idle(),
        }

    def clear_cache(self) -> None:
        """Forget all earlier prompts. Open sequences keep what they hold."""
        self.schedule.call_if_open(self.prefixes.clear)

    def close(self) -> None:
        """Cancel all requests and end the engine's thread; nothing more can be asked. Closing twice is fine."""
        self.schedule.stop()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The engine: a loaded model and its tokenizer, asked for logits and text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from plait.blueprint.spec import Blueprint
from plait.cache.anchors import Mark
from plait.engine.chat.read import Templates
from plait.engine.chat.run import Chats, in_threads
from plait.engine.events import Event
from plait.engine.generate import Request, run_request
from plait.engine.prefix import Prefixes, fingerprint_of
from plait.engine.sampling import Sampling
from plait.engine.tokenizer import Tokenizer
from plait.errors import PlaitError, TokenizerError, UsageError, fault
from plait.runtime.model import CALL_ROWS, Model
from plait.runtime.session import Session, Span
from plait.units import binary_bytes

__all__ = ["Conversation", "Engine"]


def whole(value: object, what: str, expected: str) -> int:
    """An integer of any library as int; a truth value is none. UsageError names `what`."""
    if isinstance(value, bool):
        raise UsageError(fault(what, expected=expected, found=repr(value)))
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(fault(what, expected=expected, found=repr(value))) from error


class Conversation:
    """A sequence of tokens that is processed, and the logits of its last token."""

    def __init__(self, engine: Engine, session: Session, logits: Tensor) -> None:
        self._engine = engine
        self._session = session
        self.logits = logits
        """float32 [vocabulary]: what follows the last token."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens processed."""
        return tuple(self._session.tokens)

    @property
    def position(self) -> int:
        """How many tokens are processed; the next one has this index."""
        return self._session.position

    def append(self, tokens: Sequence[int]) -> Tensor:
        """Process more tokens; returns and keeps the logits of the last."""
        checked = self._engine.checked(tokens)
        self._engine.admit(self.position + len(checked), own=sum(self.held().values()))
        self.logits = self._engine.model.run([Span(self._session, checked)])[0][0]
        return self.logits

    def can_rollback(self, position: int) -> bool:
        """Whether `rollback` can go back to `position`."""
        at = self._session.position
        return position == at or (0 < position < at and self._engine.model.can_rollback(self._session, position - 1))

    def rollback(self, position: int) -> Tensor:
        """Take back all tokens from `position` on, at least one stays; returns and keeps the logits of the last.

        What follows has the bits of a sequence that never had them. UsageError, and nothing changes: too far back for
        what the model's layers keep (`can_rollback`), or no position of this sequence.
        """
        at = whole(position, "position", f"an integer in [1, {self.position}]")
        if not self.can_rollback(at):
            expected = f"in [1, {self.position}], with its state still kept"
            raise UsageError(fault("position to go back to", expected=expected, found=at, advice="begin a new session"))
        if at != self.position:
            last = self._session.tokens[at - 1]
            self._engine.model.rollback(self._session, at - 1)
            self.logits = self._engine.model.run([Span(self._session, (last,))])[0][0]
        return self.logits

    def fork(self) -> Conversation:
        """Another sequence with the same tokens. Whole slabs of 64 tokens are shared, the last rows copied."""
        self._engine.admit_more(self._engine.model.pool.tail_bytes(), "a fork")
        return Conversation(self._engine, self._session.fork(), self.logits)

    def held(self) -> dict[str, int]:
        """Bytes of state this sequence holds, by category; what it shares with others is counted here too."""
        return self._session.held()

    def close(self) -> None:
        """Give the state back."""
        self._session.close()
        self._engine.prefixes.store.settle()


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
    ) -> None:
        """`cache`: bytes the prefix store may hold; `weights`: what tells these weights from others; `templates`: for
        chats."""
        self.model = model
        self._tokenizer = tokenizer
        self._cap = cap
        self._cache = cache
        self.prefixes = Prefixes(model, fingerprint_of(model, weights, torch.get_num_threads), cache)
        self.chats = Chats(self, templates)

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

    def admit(self, length: int, own: int = 0) -> None:
        """Refuse a sequence of `length` tokens whose state does not fit under the memory cap.

        own  bytes the sequence holds already; what other sequences hold stays theirs
        """
        if self._cap is None:
            return
        others = self._open_bytes() - own
        state = self.model.pool.most(min(length, self.blueprint.max_context), CALL_ROWS)
        needed = self.model.weight_bytes + others + state
        if needed <= self._cap:
            # What is known of earlier prompts gives way to what is asked for now.
            self.prefixes.make_room(min(self._cache, self._cap - needed))
        else:
            beside = "the weights and the sequences that are open" if others else "the weights"
            raise PlaitError(
                f"{length} tokens need {binary_bytes(needed)} with {beside}, "
                f"the memory cap is {binary_bytes(self._cap)}"
            )

    def _open_bytes(self) -> int:
        """Bytes of state that sequences hold; what only the prefix store holds is apart."""
        return sum(self.model.pool.held().values()) - self.prefixes.stats().bytes

    def admit_more(self, count: int, what: str) -> None:
        """Refuse `count` more bytes of state that do not fit under the memory cap."""
        if self._cap is None:
            return
        needed = self.model.weight_bytes + self._open_bytes() + count
        if needed <= self._cap:
            self.prefixes.make_room(min(self._cache, self._cap - needed))
        else:
            found = f"{binary_bytes(needed)} with the weights and the sequences that are open"
            raise PlaitError(fault(what, expected=f"at most {binary_bytes(self._cap)}, the memory cap", found=found))

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
        self.admit(len(checked))
        session = self.model.session()
        try:
            parts = []
            at = 0
            for n in lengths:
                parts.extend(self.model.run([Span(session, checked[at : at + n])], want="all"))
                at += n
            return torch.cat(parts)
        finally:
            session.close()

    def session(self, tokens: Sequence[int]) -> Conversation:
        """Process `tokens` and keep their state; what is known of their beginning is not processed again."""
        checked = self.checked(tokens)
        self.admit(len(checked))
        lease = self.prefixes.begin(checked, returns=True)
        session = lease.session
        try:
            while session.position < len(checked):
                piece = checked[session.position : lease.next_stop()]
                logits = self.model.run([Span(session, piece)])[0][0]
                self.prefixes.reached(lease)
        except BaseException:
            self.prefixes.drop(lease)
            raise
        return Conversation(self, session, logits)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        markup: bool = True,
        ignore_eos: bool = False,
        marks: Sequence[Mark] = (),
    ) -> Generator[Event, None, None]:
        """Continue a prompt: yields `Prefill`, `Token` and `Tail` events and ends with a `Result`.

        prompt      text or token ids
        sampling    None: greedy
        max_tokens  None: up to the end of the context
        stop        strings that end the text; they are not part of it
        markup      control tokens written out in a text prompt become control tokens; False: they stay text
        ignore_eos  end-of-text tokens do not end the generation
        marks       positions of the prompt up to which later ones will share it (`plait.cache.Mark`)
        """
        request = Request.of(
            self,
            prompt,
            sampling=sampling if sampling is not None else Sampling(),
            max_tokens=max_tokens,
            stop=stop,
            markup=markup,
            ignore_eos=ignore_eos,
            marks=marks,
        )
        return run_request(self, request)

    async def agenerate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        markup: bool = True,
        ignore_eos: bool = False,
        marks: Sequence[Mark] = (),
    ) -> AsyncIterator[Event]:
        """`generate` for async code: each step runs in a worker thread."""
        events = self.generate(
            prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            stop=stop,
            markup=markup,
            ignore_eos=ignore_eos,
            marks=marks,
        )
        while (event := await asyncio.to_thread(next, events, None)) is not None:
            yield event

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

    def chat(
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
        **variables: object,
    ) -> Generator[Event, None, None]:
        """Answer a chat: events as those of `generate`. Messages and the rest of the request as in `encode_chat`."""
        return self.chats.chat(
            messages,
            tools=tools,
            documents=documents,
            template=template,
            sampling=sampling,
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=ignore_eos,
            variables=variables,
        )

    def achat(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> AsyncIterator[Event]:
        """`chat` for async code: each step runs in a worker thread."""
        return in_threads(self.chat(messages, **request))

    def stats(self) -> dict[str, object]:
        """Bytes held: prepared weights, state by category (sequences and store together); the store; forms."""
        return {
            "weight_bytes": self.model.weight_bytes,
            "held": self.model.pool.held(),
            "cache": self.prefixes.stats(),
            "forms": self.model.forms,
        }

    def clear_cache(self) -> None:
        """Forget all earlier prompts. Open sequences keep what they hold."""
        self.prefixes.clear()

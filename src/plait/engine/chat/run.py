"""Chats with an engine: from messages to events, remembering the tokens of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plait.engine.chat.format import ChatFormat, ChatPrompt
from plait.engine.chat.read import Templates
from plait.engine.chat.replies import Replies
from plait.engine.events import Event, Token
from plait.engine.sampling import Sampling
from plait.engine.tokenizer import Tokenizer
from plait.errors import TokenizerError, UsageError

if TYPE_CHECKING:
    from plait.engine.engine import Engine

__all__ = ["Chats", "in_threads"]


class Chats:
    """The chat side of an engine: its format, and the answers it has given.

    Asked of an engine: `engine.chats`. The format is made when it is first needed.
    """

    __slots__ = ("_engine", "_format", "_templates", "replies")

    def __init__(self, engine: Engine, templates: Templates | TokenizerError | None) -> None:
        """`templates`: what the model's files hold, or why they cannot be read; None: nothing is known of them."""
        self._engine = engine
        self._templates = templates
        self._format: ChatFormat | None = None
        self.replies = Replies()

    @property
    def format(self) -> ChatFormat:
        """Templates and tokenizer. TokenizerError: one of them cannot be read. UsageError: there is no template."""
        if self._format is None:
            if isinstance(self._templates, TokenizerError):
                raise self._templates
            if self._templates is None or not self._templates.texts:
                name = self._engine.blueprint.name
                raise UsageError(f"{name}: the model has no chat template; `generate` continues texts with it")
            tokenizer: Tokenizer = self._engine.tokenizer
            self._format = ChatFormat(self._templates, tokenizer)
        return self._format

    def prompt(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> ChatPrompt:
        """The prompt of a chat, with the ids of answers that were generated here; fields as `ChatFormat.prompt`."""
        return self.format.prompt(messages, replies=self.replies, **request)

    def encode(self, messages: Sequence[Mapping[str, Any]], **request: Any) -> tuple[int, ...]:
        """Its tokens alone; fields as `ChatFormat.encode`."""
        return self.format.encode(messages, replies=self.replies, **request)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sampling: Sampling | None,
        max_tokens: int | None,
        stop: str | Sequence[str],
        ignore_eos: bool,
        **request: Any,
    ) -> Generator[Event, None, None]:
        """Answer a chat. The request is checked here, the work is done as the events are taken."""
        prompt = self.prompt(messages, **request)
        events = self._engine.generate(
            prompt.tokens,
            sampling=sampling,
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=ignore_eos,
            marks=prompt.marks,
        )
        return self._remembering(list(messages), events)

    def _remembering(
        self, messages: Sequence[Mapping[str, Any]], events: Generator[Event, None, None]
    ) -> Generator[Event, None, None]:
        tokens: list[int] = []
        try:
            for event in events:
                if isinstance(event, Token):
                    tokens.append(event.id)
                yield event
        finally:
            # An answer that was stopped stays in the history as far as it came.
            events.close()
            self.replies.remember(self._engine.tokenizer, messages, tokens)


async def in_threads(events: Generator[Event, None, None]) -> AsyncIterator[Event]:
    """Events for async code: each step runs in a worker thread."""
    try:
        while (event := await asyncio.to_thread(next, events, None)) is not None:
            yield event
    finally:
        events.close()

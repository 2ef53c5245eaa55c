"""Chats with an engine: from messages to events, remembering the tokens of every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plait.engine.chat.format import ChatFormat, ChatPrompt
from plait.engine.chat.read import Templates
from plait.engine.chat.replies import Replies
from plait.engine.request import Options, Request
from plait.engine.tokenizer import Tokenizer
from plait.errors import TokenizerError, UsageError

if TYPE_CHECKING:
    from plait.engine.engine import Engine

__all__ = ["Chats"]


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

    def request(self, messages: Sequence[Mapping[str, Any]], options: Options, **request: Any) -> Request:
        """A checked request for the answer to a chat, which is remembered however it ends."""
        prompt = self.prompt(messages, **request)
        chat = list(messages)
        tokenizer, replies = self._engine.tokenizer, self.replies

        def ended(tokens: tuple[int, ...]) -> None:
            # An answer that was stopped stays in the history as far as it came.
            replies.remember(tokenizer, chat, tokens)

        asked = options.copy()
        asked["marks"] = prompt.marks
        return Request.of(self._engine, prompt.tokens, ended=ended, **asked)

"""How the two kinds of answers look, whole and in pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plait.engine.events import Result, Token
from plait.server.answers import ChatChoice, ChatChunkChoice, CompletionChoice, Finish
from plait.server.choices import Ended, Piece, report_of, usage_of
from plait.server.faults import ApiFault
from plait.server.spelling import Speller

__all__ = ["Chat", "Completion", "Form", "Head", "finish_of"]


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of an answer carry.

    answers    how many each prompt gets
    logprobs   whether tokens are told
    """

    id: str
    created: int
    model: str
    fingerprint: str
    answers: int
    logprobs: bool


def finish_of(result: Result) -> Finish:
    """Why a choice ended. ApiFault: it was cut off, which is no ending."""
    if result.finish_reason == "cancelled":
        raise ApiFault(
            "the server stopped before the answer was complete", status=503, kind="server_error", code="stopping"
        )
    return result.finish_reason


class Form(ABC):
    """Makes the objects of one answer."""

    def __init__(self, head: Head, speller: Speller) -> None:
        self.head = head
        self.speller = speller

    @abstractmethod
    def opening(self, index: int) -> Any | None:
        """What a choice begins with in a stream, before any text."""

    @abstractmethod
    def piece(self, piece: Piece) -> Any:
        """A piece of a choice."""

    @abstractmethod
    def ended(self, ended: Ended) -> Any:
        """The end of a choice in a stream."""

    @abstractmethod
    def whole(self, index: int, text: str, tokens: Sequence[Token], result: Result) -> Any:
        """A choice at once."""

    @abstractmethod
    def kind(self, chunk: bool) -> str:
        """The value of `object`."""

    def answer(self, choices: Sequence[Any], results: Sequence[Result]) -> dict[str, Any]:
        """A whole answer."""
        return {**self._envelope(choices, chunk=False), "usage": usage_of(results, self.head.answers)}

    def chunk(self, choices: Sequence[Any], *, usage: bool) -> dict[str, Any]:
        """A chunk of a stream. `usage`: its last chunk will say the usage, the others say null."""
        made = self._envelope(choices, chunk=True)
        return {**made, "usage": None} if usage else made

    def last(self, results: Sequence[Result]) -> dict[str, Any]:
        """The chunk that says the usage."""
        return {**self._envelope((), chunk=True), "usage": usage_of(results, self.head.answers)}

    def _envelope(self, choices: Sequence[Any], *, chunk: bool) -> dict[str, Any]:
        head = self.head
        return {
            "id": head.id,
            "object": self.kind(chunk),
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "choices": list(choices),
        }


class Completion(Form):
    """Texts. `echo`: what the text of each choice begins with."""

    def __init__(self, head: Head, speller: Speller, echo: Sequence[str]) -> None:
        super().__init__(head, speller)
        self._echo = tuple(echo)
        self._offsets = [len(text) for text in echo]

    def kind(self, chunk: bool) -> Literal["text_completion"]:
        return "text_completion"

    def opening(self, index: int) -> CompletionChoice | None:
        if not self._echo[index]:
            return None
        return {"index": index, "text": self._echo[index], "logprobs": None, "finish_reason": None}

    def piece(self, piece: Piece) -> CompletionChoice:
        offset = self._offsets[piece.index]
        self._offsets[piece.index] += len(piece.text)
        told = self.speller.completion(piece.tokens, offset) if self.head.logprobs else None
        return {"index": piece.index, "text": piece.text, "logprobs": told, "finish_reason": None}

    def ended(self, ended: Ended) -> CompletionChoice:
        made: CompletionChoice = {"index": ended.index, "text": "", "logprobs": None, "finish_reason": None}
        return {**made, "finish_reason": finish_of(ended.result), "plait": report_of(ended.result)}

    def whole(self, index: int, text: str, tokens: Sequence[Token], result: Result) -> CompletionChoice:
        return {
            **self.piece(Piece(index, text, tuple(tokens))),
            "text": self._echo[index] + text,
            "finish_reason": finish_of(result),
            "plait": report_of(result),
        }


class Chat(Form):
    """Messages of an assistant."""

    def kind(self, chunk: bool) -> Literal["chat.completion", "chat.completion.chunk"]:
        return "chat.completion.chunk" if chunk else "chat.completion"

    def opening(self, index: int) -> ChatChunkChoice:
        return {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def piece(self, piece: Piece) -> ChatChunkChoice:
        told = self.speller.chat(piece.tokens) if self.head.logprobs else None
        return {"index": piece.index, "delta": {"content": piece.text}, "logprobs": told, "finish_reason": None}

    def ended(self, ended: Ended) -> ChatChunkChoice:
        finish, report = finish_of(ended.result), report_of(ended.result)
        return {"index": ended.index, "delta": {}, "logprobs": None, "finish_reason": finish, "plait": report}

    def whole(self, index: int, text: str, tokens: Sequence[Token], result: Result) -> ChatChoice:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "logprobs": self.speller.chat(tuple(tokens)) if self.head.logprobs else None,
            "finish_reason": finish_of(result),
            "plait": report_of(result),
        }

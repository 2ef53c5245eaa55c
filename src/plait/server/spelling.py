"""Tokens as the API writes them beside their log probabilities."""

from __future__ import annotations

from typing import Final

from plait.engine.events import Token
from plait.engine.tokenizer import Tokenizer
from plait.server.answers import ChatLogprobs, ChatToken, CompletionLogprobs, TopToken

__all__ = ["Speller"]

# The API has no number below it.
_LEAST: Final = -9999.0


class Speller:
    """Writes tokens; `tokenizer` None: by their number."""

    __slots__ = ("_tokenizer",)

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def chat(self, tokens: tuple[Token, ...]) -> ChatLogprobs:
        """As /v1/chat/completions writes them."""
        content: list[ChatToken] = [
            {**self._top(token.id, token.logprob), "top_logprobs": [self._top(*other) for other in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def completion(self, tokens: tuple[Token, ...], offset: int) -> CompletionLogprobs:
        """As /v1/completions writes them. `offset`: characters of the text that are final before these tokens."""
        made: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            made["tokens"].append(self._key(token.id))
            made["token_logprobs"].append(_logprob(token.logprob))
            tops: dict[str, float] = {}
            for other, logprob in ((token.id, token.logprob), *token.top):
                # Two tokens may be spelt alike: the more probable one comes first.
                tops.setdefault(self._key(other), _logprob(logprob))
            made["top_logprobs"].append(tops)
            made["text_offset"].append(offset)
            offset += len(token.text)
        return made

    def _top(self, token: int, logprob: float) -> TopToken:
        data = self._tokenizer.token_bytes(token) if self._tokenizer is not None else b""
        text = data.decode("utf-8", errors="replace") if data else f"token_id:{token}"
        return {"token": text, "logprob": _logprob(logprob), "bytes": list(data) if data else None}

    def _key(self, token: int) -> str:
        """Text, or the bytes of a token that is none by itself, so that two such stay two keys."""
        data = self._tokenizer.token_bytes(token) if self._tokenizer is not None else b""
        if not data:
            return f"token_id:{token}"
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _logprob(value: float) -> float:
    return max(value, _LEAST)

"""Answers that were generated, with their tokens, so that a chat's history keeps the very ids.

A text can be cut into tokens in many ways, and a model does not always choose the one its tokenizer would. Encoding an
answer again from its text can therefore give other ids than were generated, and everything computed for them is lost.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plait.engine.chat.traced import TEMPLATE, UNKNOWN, Traced, origins_of
from plait.engine.tokenizer import Tokenizer
from plait.errors import UsageError, fault

__all__ = ["Kept", "Replies", "Reply", "place_reply"]

_ANSWERS: Final = 4  # for one and the same conversation: an answer may be asked for again
_PLACES: Final = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """Characters [start, stop) of a rendered chat, and the tokens that were generated as them."""

    start: int
    stop: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """Generated tokens.

    text   what they spell, control tokens included
    bounds length n + 1: characters before each token and at the end; None where a token ends inside a character
    """

    tokens: tuple[int, ...]
    text: str
    bounds: tuple[int | None, ...]

    @staticmethod
    def of(tokenizer: Tokenizer, tokens: Iterable[int]) -> Reply:
        ids = tuple(tokens)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        texts: list[str] = []
        bounds: list[int | None] = [0]
        count = 0
        for token in ids:
            texts.append(decoder.decode(tokenizer.token_bytes(token)))
            count += len(texts[-1])
            bounds.append(None if decoder.getstate()[0] else count)
        texts.append(decoder.decode(b"", final=True))
        bounds[-1] = count + len(texts[-1])
        return Reply(ids, "".join(texts), tuple(bounds))


class Replies:
    """Answers by the conversation they were given to. Bounded: the oldest are forgotten. May be shared by threads."""

    __slots__ = ("_by_chat", "_held", "_limit", "_lock")

    def __init__(self, limit: int = 1 << 20) -> None:
        """`limit`: tokens kept in all."""
        if limit < 0:
            raise UsageError(fault("limit of remembered replies", expected="a number of tokens", found=limit))
        self._by_chat: OrderedDict[bytes, tuple[Reply, ...]] = OrderedDict()
        self._limit = limit
        self._held = 0
        self._lock = threading.Lock()

    def remember(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], tokens: Iterable[int]) -> None:
        """`tokens` were generated as the answer to `messages`, given as the caller gives them."""
        reply = Reply.of(tokenizer, tokens)
        if not reply.tokens:
            return
        key = list(_keys(messages))[-1]
        with self._lock:
            before = self._by_chat.pop(key, ())
            after = (*(old for old in before if old.tokens != reply.tokens), reply)[-_ANSWERS:]
            self._by_chat[key] = after
            self._held += sum(len(r.tokens) for r in after) - sum(len(r.tokens) for r in before)
            while self._held > self._limit and self._by_chat:
                _, gone = self._by_chat.popitem(last=False)
                self._held -= sum(len(r.tokens) for r in gone)

    def recall(self, messages: Sequence[Mapping[str, Any]]) -> dict[int, tuple[Reply, ...]]:
        """For each assistant message, by its index, the answers generated where it stands; the latest first."""
        found = {}
        with self._lock:
            if not self._by_chat:
                return {}
            keys = list(_keys(messages))
            for place, message in enumerate(messages):
                if isinstance(message, Mapping) and message.get("role") == "assistant":
                    replies = self._by_chat.get(keys[place])
                    if replies is not None:
                        self._by_chat.move_to_end(keys[place])
                        found[place] = replies[::-1]
        return found

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._by_chat.clear()
            self._held = 0

    @property
    def held(self) -> int:
        """Tokens kept."""
        return self._held


def _keys(messages: Sequence[Mapping[str, Any]]) -> Iterable[bytes]:
    """A digest of the messages before each place, and of all of them."""
    state = hashlib.sha256()
    yield state.digest()
    for message in messages:
        state.update(json.dumps(message, sort_keys=True, default=repr, ensure_ascii=True).encode() + b"\n")
        yield state.digest()


def place_reply(text: Traced, message: int, reply: Reply, floor: int, prompt: Callable[[], str | None]) -> Kept | None:
    """Where the answer stands in the rendered chat, as far as the text is the same; whole tokens only.

    message  index of the answer in the chat
    floor    characters that are taken already
    prompt   the text the answer was generated for; asked where no character of the answer tells its place
    """
    origins = origins_of(text)
    best = (0, 0, 0)
    for start, stop in _runs(origins, message):
        if start < floor:
            continue
        wanted = str.__getitem__(text, slice(start, stop))
        place = reply.text.rfind(wanted)
        for _ in range(_PLACES):
            if place < 0:
                break
            found = _extended(text, origins, message, reply.text, start, place, stop - start, floor)
            best = max(best, found, key=lambda item: item[2])
            place = reply.text.rfind(wanted, 0, place + len(wanted) - 1)
    if not best[2]:
        before = prompt()
        if before is None or len(before) < floor or not text.startswith(before):
            return None
        best = _extended(text, origins, message, reply.text, len(before), 0, 0, floor)
    start, place, length = best
    end = place + length
    inside = [(number, at) for number, at in enumerate(reply.bounds) if at is not None and place <= at <= end]
    if not length or not inside:
        return None
    # Tokens that write nothing stand at a bound that several share: all of them are kept.
    (first, begins), (last, ends) = inside[0], inside[-1]
    if begins == ends:
        return None
    return Kept(start + begins - place, start + ends - place, reply.tokens[first:last])


def _runs(origins: Sequence[int], message: int) -> list[tuple[int, int]]:
    """The longest stretches of one origin, at most a few."""
    runs: list[tuple[int, int]] = []
    place = 0
    count = len(origins)
    while place < count:
        if origins[place] != message:
            place += 1
            continue
        start = place
        while place < count and origins[place] == message:
            place += 1
        runs.append((start, place))
    return sorted(runs, key=lambda run: run[0] - run[1])[:_PLACES]


def _extended(
    text: str, origins: Sequence[int], message: int, answer: str, start: int, place: int, length: int, floor: int
) -> tuple[int, int, int]:
    """(start in text, start in answer, length) of the longest equal stretch around a known one.

    What other messages say is never taken for the answer, even where it is the same.
    """
    own = (TEMPLATE, UNKNOWN, message)
    stop, end = start + length, place + length
    while start > floor and place > 0 and origins[start - 1] in own and text_at(text, start - 1) == answer[place - 1]:
        start, place = start - 1, place - 1
    while stop < len(text) and end < len(answer) and origins[stop] in own and text_at(text, stop) == answer[end]:
        stop, end = stop + 1, end + 1
    return start, place, stop - start


def text_at(text: str, place: int) -> str:
    """One character, as a plain string."""
    return str.__getitem__(text, place)

"""From traced text to token ids: what the template wrote is markup, the rest spells no control token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from plait.engine.chat.replies import Kept
from plait.engine.chat.traced import TEMPLATE, Traced, origins_of
from plait.engine.tokenizer import Tokenizer
from plait.engine.tokenizer.matcher import Matcher

__all__ = ["ControlToken", "Encoder", "bare"]

# Tokenizers that mark the beginning of a text see it go on behind one of these.
_BEFORE: Final = ("\n", ".", "a", "0")


@dataclass(frozen=True, slots=True)
class ControlToken:
    """The spelling of a control token found in a text at [start, stop).

    trusted  all of it was written by the template
    known    every character has an origin
    """

    start: int
    stop: int
    id: int
    trusted: bool
    known: bool


class Encoder:
    """Encodes traced texts with one tokenizer."""

    __slots__ = ("_matcher", "_positional", "_tokenizer", "beginnings")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spelled = {tokenizer.token_text(token): token for token in sorted(tokenizer.control)}
        spelled.pop("", None)
        self._matcher = Matcher(spelled)
        self.beginnings = frozenset(text[:2] for text in spelled)
        """The first two characters of control tokens."""
        # Some tokenizers write the first word of a text in another way than the same word further on.
        self._positional = any(
            tokenizer.encode_markup(text + "a b", start=False) != [token, *tokenizer.encode("a b", start=False)]
            for text, token in list(spelled.items())[:1]
        )

    def control_tokens(self, text: str) -> Iterator[ControlToken]:
        """Every spelling of a control token, whoever wrote it: at each place the longest, from left to right."""
        origins = origins_of(text)
        place = 0
        for piece, token in self._matcher.split(bare(text)):
            stop = place + len(piece)
            if token is not None:
                by = set(origins[place:stop])
                yield ControlToken(place, stop, token, by == {TEMPLATE}, min(by) >= TEMPLATE)
            place = stop

    def encode(self, text: Traced, kept: Sequence[Kept] = ()) -> list[int]:
        """Ids of the whole text; the ranges `kept` (ascending, apart) become the tokens they hold."""
        ids: list[int] = []
        done = 0
        for part in kept:
            ids += self._region(text[done : part.start], done)
            ids += part.tokens
            done = part.stop
        return ids + self._region(text[done:], done)

    def _region(self, text: Traced, place: int) -> list[int]:
        """Ids of a stretch that begins at `place` of the whole text."""
        if not text:
            return []
        found = list(self.control_tokens(text))
        inside = place > 0 and self._positional and not (found and found[0].start == 0)
        if not inside and all(control.trusted for control in found):
            ids = self._tokenizer.encode_markup(bare(text), start=False)
            if sum(1 for token in ids if token in self._tokenizer.control) == len(found):
                return ids
        return self._pieces(text, [control for control in found if control.trusted], place)

    def _pieces(self, text: Traced, trusted: Sequence[ControlToken], place: int) -> list[int]:
        """Control tokens that are the template's own, and plain text between them."""
        ids: list[int] = []
        done = 0
        whole = bare(text)
        for control in trusted:
            piece = whole[done : control.start]
            if piece.rstrip() != piece and self._swallows(control.id, before=True):
                piece = piece.rstrip()
            ids += self._plain(piece, place + done)
            ids.append(control.id)
            done = control.stop
            if whole[done : done + 1].isspace() and self._swallows(control.id, before=False):
                done = len(whole) - len(whole[done:].lstrip())
        return ids + self._plain(whole[done:], place + done)

    def _plain(self, piece: str, place: int) -> list[int]:
        if not piece:
            return []
        tokenizer = self._tokenizer
        if self._positional and place > 0:
            for before in _BEFORE:
                begin = tokenizer.encode(before, start=False)
                ids = tokenizer.encode(before + piece, start=False)
                if ids[: len(begin)] == begin:
                    return ids[len(begin) :]
        return tokenizer.encode(piece, start=False)

    def _swallows(self, token: int, *, before: bool) -> bool:
        """Whether a control token takes the white space beside it, as some vocabularies say."""
        spelled = self._tokenizer.token_text(token)
        texts = ("x  " + spelled, "x" + spelled) if before else (spelled + "  x", spelled + "x")
        with_space, without = (self._tokenizer.encode_markup(text, start=False) for text in texts)
        return with_space == without


def bare(text: str) -> str:
    """The plain string of a traced one."""
    return str.__add__("", text) if type(text) is str else str.replace(text, "", "")

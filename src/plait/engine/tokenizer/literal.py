"""Tokens that are matched literally, around a library tokenizer that knows none of them."""

from __future__ import annotations

from collections.abc import Mapping

from plait.engine.tokenizer.backend import Library
from plait.engine.tokenizer.base import Facts, Tokenizer
from plait.engine.tokenizer.matcher import Matcher
from plait.engine.tokenizer.spelling import Spelling

__all__ = ["LiteralTokenizer"]


class LiteralTokenizer(Tokenizer):
    """One library tokenizer for the text between tokens that stand for exactly what they spell.

    Markup is cut at control and user-defined tokens, plain text at user-defined ones, before the library sees
    it. No text makes the library yield a control token: that is for whoever builds it to see to.
    """

    __slots__ = ("_for_markup", "_for_plain", "_prefix", "_spelling", "_user", "_words")

    def __init__(
        self,
        facts: Facts,
        *,
        words: Library,
        control: Mapping[str, int],
        prefix: str,
        user: Mapping[str, int],
        spelling: Spelling,
    ) -> None:
        """`control` and `user`: spelling and id of tokens, none in both; `words` knows the ids of all tokens, those
        of `control` by names that begin with `prefix`."""
        super().__init__(facts)
        self._words = words
        self._for_markup = Matcher({**control, **user} if user else control)
        self._for_plain = Matcher(user)
        self._prefix = prefix
        self._spelling = spelling
        self._user = frozenset(user.values())

    def _plain(self, text: str) -> list[int]:
        return self._cut(self._for_plain, text)

    def _markup(self, text: str) -> list[int]:
        return self._cut(self._for_markup, text)

    def _cut(self, matcher: Matcher, text: str) -> list[int]:
        ids: list[int] = []
        for piece, token in matcher.split(text):
            if token is None:
                ids += self._words.encode(piece)
            else:
                ids.append(token)
        return ids

    def _bytes(self, token: int) -> bytes:
        text = self._words.text_of(token)
        if text is None:
            return b""
        if token in self.facts.control:
            return self._spelling.spell(text.removeprefix(self._prefix), added=True)
        return self._spelling.spell(text, added=token in self._user)

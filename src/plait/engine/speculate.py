"""Guessing ahead where a text repeats itself: prompt lookup.

What followed the latest earlier occurrence of a sequence's last tokens is guessed to follow again (Saxena 2023,
"Prompt Lookup Decoding"). The guess is computed together with the next token, and those of its tokens stand that the
sampler chooses too; so it changes the speed and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["Lookup"]

# Lengths of what has to agree, the longest first. One token alone says too little.
_SIZES: Final = (4, 3, 2)
_FIRST: Final = 4  # tokens guessed at the beginning
_REST: Final = 4  # steps without a guess after one of which nothing stood, doubled each time in a row
_LONGEST_REST: Final = 64


class Lookup:
    """The guesses for one sequence, which grows by `push`.

    Each guess is twice as long after one that stood to its end, and shorter after one that did not; after one of
    which nothing stood there is a rest.

    most  tokens guessed at a time at most
    """

    __slots__ = ("_followed", "_length", "_most", "_rest", "_resting", "_tokens", "accepted", "drafted")

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = min(_FIRST, most)
        self._tokens: list[int] = []
        # Where the token after the latest occurrence of some tokens stands.
        self._followed: dict[tuple[int, ...], int] = {}
        self._rest = 0
        self._resting = 0
        self.drafted = 0
        """Tokens guessed in all."""
        self.accepted = 0
        """Of those, how many stood."""

    def push(self, tokens: Iterable[int]) -> None:
        """The sequence goes on with these."""
        for token in tokens:
            at = len(self._tokens)
            for size in _SIZES:
                if size <= at:
                    self._followed[tuple(self._tokens[at - size :])] = at
            self._tokens.append(token)

    def draft(self, room: int) -> tuple[int, ...]:
        """What may come next, at most `room` tokens; nothing where nothing is known or guessing has not paid."""
        if self._resting:
            self._resting -= 1
            return ()
        count = min(room, self._length)
        place = self._place() if count > 0 else None
        if place is None:
            return ()
        # A guess that reaches the end of what is known goes on with itself: the text is a loop.
        period = len(self._tokens) - place
        return tuple(self._tokens[place + number % period] for number in range(count))

    def _place(self) -> int | None:
        """Where what followed the last tokens begins."""
        end = len(self._tokens)
        for size in _SIZES:
            if size <= end and (place := self._followed.get(tuple(self._tokens[end - size :]))) is not None:
                return place
        return None

    def told(self, drafted: int, accepted: int) -> None:
        """Of a guess so many tokens stood."""
        self.drafted += drafted
        self.accepted += accepted
        if accepted == drafted:
            self._length = min(self._most, 2 * self._length)
        else:
            self._length = min(self._most, max(1, accepted + 1))
        if accepted:
            self._rest = 0
        else:
            self._rest = min(_LONGEST_REST, max(_REST, 2 * self._rest))
            self._resting = self._rest

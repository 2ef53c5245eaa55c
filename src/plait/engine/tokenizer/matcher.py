"""Finding fixed strings in a text: at each place the longest, from left to right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["Matcher"]


class Matcher:
    """Splits texts at the occurrences of given strings.

    A first character leads to the few lengths that strings with it have, so thousands of strings that
    all begin with "<" cost no more than a handful.
    """

    __slots__ = ("_first", "_ids", "_lengths")

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids`: what to look for (none empty), and the id to report for it. It is kept, and must not change."""
        lengths: dict[str, set[int]] = {}
        for first, length in {(text[0], len(text)) for text in ids}:
            lengths.setdefault(first, set()).add(length)
        self._ids = ids
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, lengths)) + "]") if lengths else None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """(piece, its id) for a match, (text, None) for what lies between; no piece is empty."""
        done = place = 0
        while self._first is not None:
            candidate = self._first.search(text, place)
            if candidate is None:
                break
            place = candidate.start()
            found = self._at(text, place)
            if found is None:
                place += 1
                continue
            if done < place:
                yield text[done:place], None
            yield found, self._ids[found]
            done = place = place + len(found)
        if done < len(text):
            yield text[done:], None

    def _at(self, text: str, place: int) -> str | None:
        for length in self._lengths[text[place]]:
            piece = text[place : place + length]
            if piece in self._ids:
                return piece
        return None

"""Text that knows, for each character, who wrote it: the template, a message, or nobody knows.

What a template does with text (joining, cutting, trimming, replacing) keeps the origins. Everything else gives an
ordinary string, whose characters have no known origin and are never read as control tokens: losing track is safe.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final, SupportsIndex

__all__ = ["TEMPLATE", "UNKNOWN", "Traced", "joined", "origins_of"]

TEMPLATE: Final = -1
"""Written by the template, or by what is trusted as much: the names of roles, the special tokens of the model."""
UNKNOWN: Final = -2
"""Of no known origin; other origins are the index of a message."""


def _same(origin: int, count: int) -> array[int]:
    return array("i", [origin]) * count


def origins_of(text: str) -> array[int]:
    """One origin for each character."""
    return text._origins if isinstance(text, Traced) else _same(UNKNOWN, len(text))


def joined(parts: Iterable[object]) -> Traced:
    """The parts one after the other, each as `str` writes it."""
    texts = [part if isinstance(part, str) else str(part) for part in parts]
    origins = array("i")
    for text in texts:
        origins += origins_of(text)
    return Traced("".join(texts), origins)


class Traced(str):
    """A string with the origin of each character. Equal to, and hashed as, the plain string."""

    __slots__ = ("_origins",)
    _origins: array[int]

    def __new__(cls, text: object = "", origins: array[int] | int = UNKNOWN) -> Traced:
        """`origins`: one for each character, or one for all."""
        made = super().__new__(cls, text)
        made._origins = _same(origins, len(made)) if isinstance(origins, int) else origins
        assert len(made._origins) == len(made)
        return made

    def _part(self, start: int, stop: int) -> Traced:
        return Traced(str.__getitem__(self, slice(start, stop)), self._origins[start:stop])

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        text = str.__getitem__(self, key)
        if isinstance(key, slice):
            return Traced(text, self._origins[key])
        return Traced(text, self._origins[key.__index__()])

    def __iter__(self) -> Iterator[str]:
        return (self._part(place, place + 1) for place in range(len(self)))

    def __add__(self, other: str) -> Traced:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Traced:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Traced:
        return Traced(str.__mul__(self, count), self._origins * max(0, count.__index__()))

    __rmul__ = __mul__

    def strip(self, chars: str | None = None, /) -> Traced:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Traced:
        return self._part(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> Traced:
        return self._part(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> Traced:
        return self._part(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix: str, /) -> Traced:
        return self._part(0, len(self) - (len(suffix) if self.endswith(suffix) else 0))

    def _cut(self, pieces: Iterable[str]) -> list[Traced]:
        """`pieces` of this text, in order of place, with their origins."""
        place = 0
        found = []
        for piece in pieces:
            place = str.index(self, piece, place)
            found.append(self._part(place, place + len(piece)))
            place += len(piece)
        return found

    def _between(self, pieces: list[str], separator: str) -> list[Traced]:
        """`pieces` that lie one separator apart, from the beginning."""
        place = 0
        found = []
        for piece in pieces:
            found.append(self._part(place, place + len(piece)))
            place += len(piece) + len(separator)
        return found

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        pieces = str.split(self, sep, maxsplit)
        return self._cut(pieces) if sep is None else self._between(pieces, sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        pieces = str.rsplit(self, sep, maxsplit)
        return self._cut(pieces) if sep is None else self._between(pieces, sep)

    def splitlines(self, keepends: bool = False) -> list[Any]:
        place = 0
        lines = []
        for whole, line in zip(str.splitlines(self, True), str.splitlines(self, keepends), strict=True):
            lines.append(self._part(place, place + len(line)))
            place += len(whole)
        return lines

    def partition(self, sep: str, /) -> tuple[Any, Any, Any]:
        return self._three(self.find(sep), sep, absent=len(self))

    def rpartition(self, sep: str, /) -> tuple[Any, Any, Any]:
        return self._three(self.rfind(sep), sep, absent=0)

    def _three(self, place: int, sep: str, absent: int) -> tuple[Traced, Traced, Traced]:
        if not sep:
            raise ValueError("empty separator")
        end = place + len(sep)
        if place < 0:
            # The whole text stands where the searching began; the two other parts are empty.
            end = absent
            place = absent
        return self._part(0, place), self._part(place, end), self._part(end, len(self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Traced:
        limit = count.__index__()
        if not old:
            text = str.replace(self, old, new, limit)
            return self if text == self else Traced(text)
        return Traced.join(Traced(new, origins_of(new)), self.split(old, limit if limit >= 0 else -1))

    def join(self, parts: Iterable[str], /) -> Traced:
        pieces: list[str] = []
        for part in parts:
            if not isinstance(part, str):
                raise TypeError(f"expected text to join, found {type(part).__name__}")
            pieces += (self, part) if pieces else (part,)
        return joined(pieces)

    def _respelled(self, text: str) -> str:
        # Letters such as the sharp s change the length; then no character can be told.
        return Traced(text, self._origins) if len(text) == len(self) else text

    def upper(self) -> str:
        return self._respelled(str.upper(self))

    def lower(self) -> str:
        return self._respelled(str.lower(self))

    def title(self) -> str:
        return self._respelled(str.title(self))

    def capitalize(self) -> str:
        return self._respelled(str.capitalize(self))

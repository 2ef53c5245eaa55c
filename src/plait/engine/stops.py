"""Stop strings: ending a text at the first of them, without a piece of one ever being shown."""

from __future__ import annotations

from collections.abc import Sequence

from plait.errors import UsageError, fault

__all__ = ["StopStrings"]


class StopStrings:
    """Cuts a growing text before the earliest stop string in it.

    The match that *begins* first wins, as if the whole text had been searched at once; how the text
    is split over `push` calls changes nothing. Only text that could begin a stop string is held back.
    With stops "abcd" and "bc" the text "abc" is therefore undecided until one more character or
    `finish`. After a hit all further text is swallowed.
    """

    __slots__ = ("_held", "_longest", "_matched", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises UsageError for an empty stop string."""
        for index, stop in enumerate(stops):
            if not stop:
                raise UsageError(fault(f"stop string {index}", expected="at least one character", found="none"))
        # Shortest first: of two that begin at the same place the one completed first is reported.
        self._stops = tuple(sorted(set(stops), key=lambda stop: (len(stop), stop)))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, once there was a hit."""
        return self._matched

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is safe to emit, whether a stop string has been hit by now)."""
        if self._matched is not None:
            return "", True
        self._held += text
        pending = self._pending()
        found = self._earliest()
        if found is not None and found[0] <= pending:
            return self._end(*found), True
        safe, self._held = self._held[:pending], self._held[pending:]
        return safe, False

    def finish(self) -> str:
        """The rest, when no more text comes; cut if a match was still waiting (see `matched`)."""
        found = self._earliest()
        if found is not None:
            return self._end(*found)
        rest, self._held = self._held, ""
        return rest

    def _end(self, place: int, stop: str) -> str:
        safe, self._held = self._held[:place], ""
        self._matched = stop
        return safe

    def _earliest(self) -> tuple[int, str] | None:
        best: tuple[int, str] | None = None
        for stop in self._stops:
            place = self._held.find(stop)
            if place >= 0 and (best is None or place < best[0]):
                best = place, stop
        return best

    def _pending(self) -> int:
        """Where the earliest unfinished beginning of a stop string lies; the length if there is none."""
        held = self._held
        for place in range(max(0, len(held) - self._longest + 1), len(held)):
            tail = held[place:]
            if any(stop.startswith(tail) and stop != tail for stop in self._stops):
                return place
        return len(held)

"""What the store holds, in bytes: each slab and snapshot counted once.

What a session holds as well is *lent*: it could not be freed, and is counted where it is pinned, with the session.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.cache.protocol import Held

__all__ = ["Holdings"]


@dataclass(slots=True)
class _Entry:
    held: Held
    nbytes: int
    times: int


class Holdings:
    """Counts what is kept; `bytes` is what only the store keeps, as of the last `settle`."""

    __slots__ = ("_entries", "_lent", "bytes", "total")

    def __init__(self) -> None:
        # By identity: what is held need not be hashable, and two slabs with equal rows are still two.
        self._entries: dict[int, _Entry] = {}
        self._lent: dict[int, _Entry] = {}
        self.bytes = 0
        self.total = 0

    def keep(self, held: Held) -> None:
        """The store becomes a holder of what somebody else holds."""
        held.share()
        self.own(held)

    def own(self, held: Held) -> None:
        """The store takes over what it was handed, with the holder's place in the count."""
        entry = self._entries.get(id(held))
        if entry is not None:
            entry.times += 1
            return
        entry = self._entries[id(held)] = _Entry(held, held.nbytes, 1)
        self.total += entry.nbytes
        self.bytes += entry.nbytes
        self._look(entry)

    def lend(self, held: Held) -> None:
        """A session becomes a holder of what the store holds."""
        held.share()
        self._look(self._entries[id(held)])

    def drop(self, held: Held) -> None:
        """The store lets go of it once."""
        entry = self._entries[id(held)]
        entry.times -= 1
        if not entry.times:
            del self._entries[id(held)]
            self.total -= entry.nbytes
            if self._lent.pop(id(held), None) is None:
                self.bytes -= entry.nbytes
        held.release()

    def settle(self) -> None:
        """Look at what was lent: what sessions have let go of counts here again."""
        for key, entry in list(self._lent.items()):
            if entry.held.holders <= entry.times:
                del self._lent[key]
                self.bytes += entry.nbytes

    def lent(self, held: Held) -> bool:
        """Whether a session held it at the last look."""
        return id(held) in self._lent

    def held(self) -> tuple[tuple[Held, int], ...]:
        """All that is held and how many times the store does."""
        return tuple((entry.held, entry.times) for entry in self._entries.values())

    def lent_bytes(self) -> int:
        """Bytes the store shares with sessions, added up anew."""
        return sum(entry.nbytes for entry in self._lent.values())

    def _look(self, entry: _Entry) -> None:
        key = id(entry.held)
        if key not in self._lent and entry.held.holders > entry.times:
            self._lent[key] = entry
            self.bytes -= entry.nbytes

"""What a state was computed with: nothing crosses from one fingerprint to another."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fingerprint"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Named facts, compared as they are: weights, blueprint, types, quantization, adapter, layout, forms of operations.

    `salt` keeps groups of users apart: a report never tells one salt what another has stored.
    """

    facts: tuple[tuple[str, str], ...] = ()
    salt: str = ""

    @staticmethod
    def of(*, salt: str = "", **facts: str) -> Fingerprint:
        """Facts by name, in any order."""
        return Fingerprint(tuple(sorted(facts.items())), salt)

    def differs(self, other: Fingerprint) -> tuple[str, ...]:
        """Names of the facts that are not the same."""
        mine, others = dict(self.facts), dict(other.facts)
        return tuple(sorted(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name)))

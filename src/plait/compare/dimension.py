"""What a row of a comparison is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from plait.blueprint.spec import Blueprint

__all__ = ["Dimension", "under"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One row of the dimension table.

    text      what stands in a model's cell
    shows     names of `leaves` whose values the text writes out, so that different ones look different
    evidence  names of a blueprint's evidence that tell where the cell comes from; `a.*` stands for all below a
    """

    key: str
    group: str
    label: str
    text: Callable[[Blueprint], str]
    shows: tuple[str, ...]
    evidence: tuple[str, ...]


def under(parents: Iterable[str], *names: str) -> tuple[str, ...]:
    """Every name under every parent: `full.heads`, `window.heads`."""
    return tuple(f"{parent}.{name}" for name in names for parent in parents)

"""What a check says of an invariant, and how two results are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Broken", "Check", "NotTried", "Outcome", "Tried", "require_equal"]

Outcome = Literal["holds", "fails", "not tried"]


@dataclass(frozen=True, slots=True)
class Check:
    """One invariant and what became of it.

    name     a word for programs: splits, company, window, state, back, failure, finite, containers
    claim    the invariant
    tried    what was done, or why nothing was
    count    comparisons made
    found    where it does not hold, at the first place that was seen; None: nowhere
    """

    name: str
    claim: str
    outcome: Outcome
    tried: str
    count: int
    found: str | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """A check has found nothing: what it did, and how many comparisons that was."""

    what: str
    count: int


class NotTried(Exception):
    """A check cannot be made of this model; the message says why."""


class Broken(Exception):
    """An invariant does not hold; the message says where."""


def require_equal(found: Tensor, expected: Tensor, where: str) -> None:
    """Broken: logits [n, vocabulary] differ in a bit. Not-a-number equals itself here: `finite` looks for it."""
    if found.shape != expected.shape:
        raise Broken(f"{where}: {tuple(found.shape)} logits, expected {tuple(expected.shape)}")
    differs = (found != expected) & ~(found.isnan() & expected.isnan())
    if not bool(differs.any()):
        return
    token, entry = (int(index) for index in torch.nonzero(differs)[0])
    values = f"{float(found[token, entry])!r}, expected {float(expected[token, entry])!r}"
    rows = int(differs.any(-1).sum())
    raise Broken(
        f"{where}: {rows} of {found.shape[0]} rows differ, the first at row {token}: logit {entry} is {values}"
    )

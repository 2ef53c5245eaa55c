"""Penalties on tokens generated so far; `sampling` says which and in what order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plait.errors import PlaitError, fault

if TYPE_CHECKING:
    from plait.engine.sampling import Sampling

__all__ = ["check_counts", "penalised"]


def penalised(row: NDArray[np.float64], sampling: Sampling, counts: Mapping[int, int]) -> NDArray[np.float64]:
    """[vocabulary] scores, in a new array; they may hold +inf where a penalty overflows."""
    check_counts(counts, len(row))
    seen = [token for token, count in counts.items() if count > 0]
    times = np.array([counts[token] for token in seen], dtype=np.float64)
    places = np.array(seen, dtype=np.int64)
    values = row[places]
    with np.errstate(over="ignore", under="ignore"):  # the caller refuses +inf
        factor = sampling.repetition_penalty
        values = np.where(values > 0.0, values / factor, values * factor)
        values = values - times * sampling.frequency_penalty - sampling.presence_penalty
    scores = row.copy()
    scores[places] = values
    return scores


def check_counts(counts: Mapping[int, int], size: int) -> None:
    """Raises PlaitError for a token outside the vocabulary or a count that is none."""
    expected = f"token ids in [0, {size}) with counts in [0, 2**63)"
    for token, count in counts.items():
        if not 0 <= token < size or not 0 <= count < 2**63:
            raise PlaitError(fault("counts of generated tokens", expected=expected, found=f"{token}: {count}"))

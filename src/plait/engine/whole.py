"""A token of a row of which any may be chosen: by sums of weights that the kernels make, without a sort of all.

What is right is said by `sampling.candidates` and its choice. Weights are good to 3e-16 of themselves here, and 0 below
e^-700; sums over many of them round differently. Tokens that a penalty changes are few: the kernels read a
row without them, and their scores beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from plait.engine.penalties import check_counts, penalised
from plait.engine.shortlist import NativeRow

if TYPE_CHECKING:
    from plait.engine.sampling import Sampling

__all__ = ["chosen_of_all"]

_LEAST: Final = 4096  # shorter rows are sorted as fast


def chosen_of_all(row: NativeRow, sampling: Sampling, counts: Mapping[int, int], fraction: float) -> int | None:
    """The token that `fraction`, in [0, 1), of the weights of all that may be chosen leads to, in the order of tokens.

    None: top-k or greedy decoding is asked for, the row is short, or the reference is to refuse what penalties do.
    """
    if sampling.greedy or sampling.top_k is not None or len(row.values) < _LEAST:
        return None
    if sampling.penalised:
        check_counts(counts, len(row.values))
    seen = sorted(token for token, count in counts.items() if count > 0) if sampling.penalised else []
    tokens, values = np.array(seen, dtype=np.int64), row.values
    if not seen:
        return row.choose(values, tokens, np.empty(0), row.peak, sampling, fraction)
    places = {place: counts[token] for place, token in enumerate(seen)}
    scores = penalised(values[tokens].astype(np.float64), sampling, places)
    values = values.copy()
    values[tokens] = -math.inf
    peak = max(float(values.max()), float(scores.max()))
    return None if math.isinf(peak) else row.choose(values, tokens, scores, peak, sampling, fraction)

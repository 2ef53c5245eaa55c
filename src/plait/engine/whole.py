"""A token of a row of which any may be chosen: by sums of weights that the kernels make, without a sort.

What is right is said by `sampling.candidates` and its choice; only sums over many weights round differently here.
Tokens that a penalty changes are few: the kernels read a row without them, and their scores beside it.
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

    None: top-k or greedy decoding leaves few tokens, the row is short, or the reference is to refuse what penalties do.
    """
    if sampling.greedy or sampling.top_k is not None or len(row.values) < _LEAST:
        return None
    if sampling.penalised:
        check_counts(counts, len(row.values))
    seen = sorted(token for token, count in counts.items() if count > 0) if sampling.penalised else []
    tokens = np.array(seen, dtype=np.int64)
    if not seen:
        return row.choose(tokens, np.empty(0), row.peak, sampling, fraction)
    places = {place: counts[token] for place, token in enumerate(seen)}
    scores = penalised(row.values[tokens].astype(np.float64), sampling, places)
    values = row.values.copy()
    values[tokens] = -math.inf
    others = row.alike(values)  # None: a penalty changes every token
    peak = math.inf if others is None else max(others.peak, float(scores.max()))
    if others is None or peak == math.inf:
        return None
    return others.choose(tokens, scores, peak, sampling, fraction)

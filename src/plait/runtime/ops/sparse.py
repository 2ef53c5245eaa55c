"""Gaussian top-k (Gemma 3n): of a row about the share 1 - s is kept, as far as its elements are normally distributed.

keep_largest_reference   mean and deviation by torch          oracle; does not keep the contract
keep_largest             each row reduced by itself in pieces   keeps it
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import torch
from torch import Tensor

__all__ = ["keep_largest", "keep_largest_reference", "quantile"]

# torch gives the sum of a single long row to several threads, which changes its order: rows are summed in pieces.
_PIECE: Final = 16384


def quantile(share: float) -> float:
    """How many standard deviations above its mean a normal variable is with probability 1 - share."""
    return NormalDist().inv_cdf(share)


def keep_largest_reference(x: Tensor, deviations: float) -> Tensor:
    """What x [n, width] exceeds the mean plus `deviations` standard deviations of its row by, and 0."""
    cutoff = x.mean(-1, keepdim=True) + x.std(-1, keepdim=True, unbiased=False) * deviations
    return (x - cutoff).relu()


def keep_largest(x: Tensor, deviations: float) -> Tensor:
    """The same to rounding. Keeps the contract."""
    centred = x - _mean(x)
    # The mean of what is centred is 0 to rounding, and is what the reference has taken off.
    return centred.sub_(_mean(centred.square()).sqrt() * deviations).relu_()


def _mean(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[0], 1, dtype=x.dtype, device=x.device)
    for piece in torch.split(x, _PIECE, -1):
        total += piece.sum(-1, keepdim=True)
    return total / x.shape[1]

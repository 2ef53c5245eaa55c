"""Alternating updates (https://arxiv.org/abs/2301.13310): several copies of the residual stream, as in Gemma 3n.

    *_reference   one einsum each                          oracle; does not keep the contract
    the others    a product and a sum per stream, in order  keep it: every element is computed by itself

Streams are [streams, n, hidden]. Coefficients come from products that keep their bits.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["correct", "correct_reference", "mean", "mean_reference", "predict", "predict_reference", "to_magnitude"]

# The mean square of a projected stream is at least this (transformers: `clamp(min=1e-5)`).
_LEAST: Final = 1e-5


def predict_reference(streams: Tensor, coefficients: Tensor) -> Tensor:
    """streams + the mix of all streams; coefficients [n, streams, streams]: of the first for each of the second."""
    return streams + torch.einsum("nji,inh->jnh", coefficients, streams)


def predict(streams: Tensor, coefficients: Tensor) -> Tensor:
    """The same to rounding. Keeps the contract."""
    factors = coefficients.permute(2, 1, 0)[..., None]
    mixed = factors[0] * streams[0]
    for factor, stream in zip(factors[1:], streams[1:], strict=True):
        mixed += factor * stream
    return mixed.add_(streams)


def correct_reference(streams: Tensor, computed: Tensor, active: int, coefficients: Tensor) -> Tensor:
    """Predictions + coefficients [n, streams] times what was computed [n, hidden] beyond the active prediction."""
    return streams + torch.einsum("nj,nh->jnh", coefficients, computed - streams[active])


def correct(streams: Tensor, computed: Tensor, active: int, coefficients: Tensor) -> Tensor:
    """The same to rounding. Keeps the contract."""
    return ((computed - streams[active]) * coefficients.T[..., None]).add_(streams)


def mean_reference(streams: Tensor) -> Tensor:
    """The mean of all streams [n, hidden]."""
    return streams.mean(0)


def mean(streams: Tensor) -> Tensor:
    """The same to rounding, summed from the first stream on. Keeps the contract."""
    total = streams[0].clone()
    for stream in streams[1:]:
        total += stream
    return total / streams.shape[0]


def to_magnitude(x: Tensor, like: Tensor) -> Tensor:
    """x [..., hidden] scaled to the root mean square of `like`. Keeps the contract: each row is reduced by itself."""
    target = like.square().mean(-1, keepdim=True).sqrt()
    return x * target / x.square().mean(-1, keepdim=True).clamp(min=_LEAST).sqrt()

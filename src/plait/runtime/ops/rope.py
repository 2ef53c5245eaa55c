"""Rotary position embedding (https://arxiv.org/abs/2104.09864) for every `Rope` of a blueprint."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.spec import FactorScaling, LinearScaling, Llama3Scaling, Rope, YarnScaling

__all__ = ["RopeTable", "frequencies", "rotate"]

_BLOCK: Final = 1024


def _llama3(freq: Tensor, scaling: Llama3Scaling) -> Tensor:
    low = scaling.original_context / scaling.low_frequency_factor
    high = scaling.original_context / scaling.high_frequency_factor
    wavelength = 2 * math.pi / freq
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    smooth = (scaling.original_context / wavelength - scaling.low_frequency_factor) / span
    between = (1 - smooth) * freq / scaling.factor + smooth * freq
    scaled = torch.where(wavelength > low, freq / scaling.factor, freq)
    return torch.where((wavelength <= low) & (wavelength >= high), between, scaled)


def _yarn(freq: Tensor, rope: Rope, scaling: YarnScaling) -> Tensor:
    def dimension(rotations: float) -> float:
        turns = scaling.original_context / (rotations * 2 * math.pi)
        return rope.divisor * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.divisor - 1)
    # Beyond the ends `high` may lie below `low`, and the ramp goes down: so it does in the reference.
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(rope.pairs, dtype=torch.float64) - low) / span).clamp(0, 1)
    return freq / scaling.factor * ramp + freq * (1 - ramp)


def frequencies(rope: Rope) -> Tensor:
    """Angle per position of each pair, float64 [pairs]."""
    freq = rope.theta ** (-torch.arange(rope.pairs, dtype=torch.float64) * 2 / rope.divisor)
    match rope.scaling:
        case None:
            return freq
        case LinearScaling(factor=factor):
            return freq / factor
        case Llama3Scaling():
            return _llama3(freq, rope.scaling)
        case FactorScaling(factors=factors):
            return freq / torch.tensor(factors, dtype=torch.float64)
        case YarnScaling():
            return _yarn(freq, rope, rope.scaling)


class RopeTable:
    """cos and sin of one `Rope` by position, made in blocks as positions are first asked for. Angles are float64."""

    def __init__(self, rope: Rope, dtype: torch.dtype, device: torch.device) -> None:
        self._freq = frequencies(rope)
        self._factor = rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0
        self._dtype = dtype
        self._device = device
        empty = torch.empty(0, rope.pairs, dtype=dtype, device=device)
        self._rows = (empty, empty)

    def __call__(self, positions: Tensor, last: int) -> tuple[Tensor, Tensor]:
        """cos, sin [n, pairs] at `positions` [n], none of which is above `last`."""
        cos, sin = self.reach(last)
        return cos[positions], sin[positions]

    def reach(self, last: int) -> tuple[Tensor, Tensor]:
        """cos, sin [positions, pairs] up to `last` at least."""
        # Calls may come from several threads: each grows what it found, and puts both tables there at once.
        cos, sin = self._rows
        while cos.shape[0] <= last:
            start = cos.shape[0]
            angles = torch.arange(start, start + _BLOCK, dtype=torch.float64)[:, None] * self._freq
            cos = torch.cat((cos, (angles.cos() * self._factor).to(self._dtype).to(self._device)))
            sin = torch.cat((sin, (angles.sin() * self._factor).to(self._dtype).to(self._device)))
            self._rows = (cos, sin)
        return cos, sin


def rotate(x: Tensor, rope: Rope, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, dim] with the pairs of `rope` turned; cos, sin [n, pairs]. Keeps the contract. Writes into x."""
    cos, sin = cos[:, None], sin[:, None]
    if rope.pairing == "half":
        first = x[..., rope.start : rope.start + rope.pairs]
        second = x[..., rope.start + rope.distance : rope.start + rope.distance + rope.pairs]
    else:
        turned = x[..., rope.start : rope.start + 2 * rope.pairs]
        first, second = turned[..., 0::2], turned[..., 1::2]
    a = first * cos - second * sin
    b = second * cos + first * sin
    first.copy_(a)
    second.copy_(b)
    return x

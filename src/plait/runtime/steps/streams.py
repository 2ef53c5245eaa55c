"""The steps of alternating updates: several streams are made, predicted, corrected and merged; a learned residual.

Registers: `streams` [streams, n, hidden]. Within a layer `h` is the active one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plait.runtime.ops.exact import pointwise
from plait.runtime.ops.linear import Linear
from plait.runtime.ops.norm import rms_norm
from plait.runtime.ops.streams import correct, mean, predict, to_magnitude
from plait.runtime.steps.call import Call, Step

__all__ = ["Augment", "Correct", "Merge", "Modalities", "Predict", "Widen"]


@dataclass(frozen=True, slots=True)
class Widen(Step):
    """streams = h and, for each of the others, its projection of h scaled to the magnitude of h.

    linear  the projections end to end, None where there is one stream
    """

    linear: Linear | None

    def __call__(self, call: Call) -> None:
        h = call.registers["h"]
        rest = []
        if self.linear is not None:
            rest = [to_magnitude(x, h) for x in torch.split(self.linear(h), h.shape[1], 1)]
        call.registers["streams"] = torch.stack((h, *rest))


@dataclass(frozen=True, slots=True)
class Modalities:
    """tanh(router(norm(x) / hidden)): what the coefficients of a row are made of."""

    weight: Tensor | None
    eps: float
    router: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, hidden] -> [n, streams]. Keeps the contract."""
        return pointwise(torch.tanh, self.router(rms_norm(x, self.weight, self.eps) / x.shape[1]))


@dataclass(frozen=True, slots=True)
class Predict(Step):
    """streams = prediction of all streams, with coefficients of the active one; h = the active prediction."""

    active: int
    modalities: Modalities
    coefficients: Linear

    def __call__(self, call: Call) -> None:
        streams = call.registers["streams"]
        made = self.coefficients(self.modalities(streams[self.active]))
        streams = predict(streams, made.view(-1, streams.shape[0], streams.shape[0]))
        call.registers["streams"] = streams
        # The layer adds to h in place, and the prediction is needed after it.
        call.registers["h"] = streams[self.active].clone()


@dataclass(frozen=True, slots=True)
class Correct(Step):
    """streams += coefficients of h times what h has beyond the active prediction."""

    active: int
    modalities: Modalities
    coefficients: Linear

    def __call__(self, call: Call) -> None:
        h = call.registers["h"]
        made = self.coefficients(self.modalities(h)) + 1.0
        call.registers["streams"] = correct(call.registers["streams"], h, self.active, made)


@dataclass(frozen=True, slots=True)
class Augment(Step):
    """h = (h + laurel) / sqrt(2)."""

    def __call__(self, call: Call) -> None:
        call.registers["h"] = (call.registers["h"] + call.registers["laurel"]) / 2**0.5


@dataclass(frozen=True, slots=True)
class Merge:
    """The streams in one: the mean of the first and the projections of the others, scaled to its magnitude."""

    linears: tuple[Linear, ...]

    def __call__(self, streams: Tensor) -> Tensor:
        """streams [streams, n, hidden] -> [n, hidden]. Keeps the contract."""
        first, *rest = streams.unbind()
        made = [to_magnitude(linear(x), first) for linear, x in zip(self.linears, rest, strict=True)]
        return mean(torch.stack((first, *made)))

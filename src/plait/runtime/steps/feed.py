"""The step of a gated feed-forward part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plait.runtime.ops.activation import gated
from plait.runtime.ops.linear import Linear
from plait.runtime.ops.sparse import keep_largest
from plait.runtime.steps.call import Call, Step

__all__ = ["Feed"]


@dataclass(frozen=True, slots=True)
class Feed(Step):
    """y = down(activation(gate) * up), gate and up the two halves of `x`'s projection.

    deviations  of the gate only what exceeds the mean of its row by so many standard deviations is kept, None: all
    """

    width: int
    activation: str
    fused: Linear
    fused_bias: Tensor | None
    down: Linear
    down_bias: Tensor | None
    deviations: float | None = None

    def __call__(self, call: Call) -> None:
        both = self.fused(call.registers["x"])
        if self.fused_bias is not None:
            both += self.fused_bias
        if self.deviations is not None:
            both[:, : self.width] = keep_largest(both[:, : self.width], self.deviations)
        y = self.down(gated(self.activation, both))
        call.registers["y"] = y if self.down_bias is None else y + self.down_bias

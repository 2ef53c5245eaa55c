"""The step of a gated feed-forward part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plait.runtime.ops.activation import activate
from plait.runtime.ops.linear import Linear
from plait.runtime.steps.call import Call, Step

__all__ = ["Feed"]


@dataclass(frozen=True, slots=True)
class Feed(Step):
    """y = down(activation(gate) * up), gate and up the two halves of `x`'s projection."""

    width: int
    activation: str
    fused: Linear
    fused_bias: Tensor | None
    down: Linear
    down_bias: Tensor | None

    def __call__(self, call: Call) -> None:
        both = self.fused(call.registers["x"])
        if self.fused_bias is not None:
            both += self.fused_bias
        inner = activate(self.activation, both[:, : self.width])
        inner *= both[:, self.width :]
        y = self.down(inner)
        call.registers["y"] = y if self.down_bias is None else y + self.down_bias

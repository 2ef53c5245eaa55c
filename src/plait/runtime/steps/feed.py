"""The step of a gated feed-forward part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor

from plait.runtime.ops.activation import NATIVE_ACTIVATIONS, gated
from plait.runtime.ops.linear import Gating, Linear
from plait.runtime.ops.sparse import keep_largest
from plait.runtime.steps.call import Call, Step

if TYPE_CHECKING:
    from plait.runtime.lower import Lowering

__all__ = ["Feed"]

_ROWS: Final = 128


@dataclass(frozen=True, slots=True)
class Feed(Step):
    """y = down(activation(gate) * up), gate and up the two halves of `x`'s projection.

    in_turn     gate and up lie together as `ops.linear.in_turn` puts them, and one kernel does both
    deviations  of the gate only what exceeds the mean of its row by so many standard deviations is kept, None: all
    """

    width: int
    activation: str
    fused: Linear
    fused_bias: Tensor | None
    down: Linear
    down_bias: Tensor | None
    in_turn: bool = False
    deviations: float | None = None

    def __call__(self, call: Call) -> None:
        if self.in_turn:
            fused = cast("Gating", self.fused)
            call.registers["y"] = self.down(fused.gated(self.activation, call.registers["x"]))
            return
        # A few rows at a time: what is between the products then stays in the cache.
        parts = [self._rows(x) for x in torch.split(call.registers["x"], _ROWS)]
        call.registers["y"] = parts[0] if len(parts) == 1 else torch.cat(parts)

    def lower(self, plan: Lowering) -> bool:
        fused = plan.prepared(self.fused, self.activation if self.in_turn else None)
        down = plan.prepared(self.down)
        if fused is None or down is None or self.deviations is not None or self.activation not in NATIVE_ACTIVATIONS:
            return False
        source = plan.read("x")
        both = inner = plan.write("_both", fused.out)
        plan.program.product(source.at, both.at, fused)
        if self.fused_bias is not None:
            plan.program.add_vector(both.at, plan.address(self.fused_bias), fused.out)
        if not self.in_turn:
            inner = plan.write("_inner", self.width)
            plan.program.gated(both.at, inner.at, NATIVE_ACTIVATIONS[self.activation], self.width)
        target = plan.write("y", down.out)
        plan.program.product(inner.at, target.at, down)
        if self.down_bias is not None:
            plan.program.add_vector(target.at, plan.address(self.down_bias), down.out)
        plan.drop("_both", "_inner")
        return True

    def _rows(self, x: Tensor) -> Tensor:
        both = self.fused(x)
        if self.fused_bias is not None:
            both += self.fused_bias
        if self.deviations is not None:
            both[:, : self.width] = keep_largest(both[:, : self.width], self.deviations)
        y = self.down(gated(self.activation, both))
        return y if self.down_bias is None else y + self.down_bias

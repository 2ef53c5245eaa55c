"""The steps of a mixture of experts: tokens are routed, visit their experts, and what comes back is summed.

Registers: `experts` and `weights` [n, active] hold the choice of a layer, experts in ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plait.blueprint.spec import Router
from plait.runtime.ops.activation import activate, gated
from plait.runtime.ops.linear import Linear
from plait.runtime.ops.norm import rms_norm
from plait.runtime.ops.router import route
from plait.runtime.steps.call import Call, Step

__all__ = ["Expert", "GateRows", "Mix", "Route", "Sum"]


@dataclass(frozen=True, slots=True)
class Route(Step):
    """`experts`, `weights` = choice by the scores of `source`.

    norm  weight [hidden] and eps of the norm of the router's input, None: it has none
    """

    source: str
    norm: tuple[Tensor, float] | None
    linear: Linear
    router: Router
    active: int
    bias: Tensor | None
    factors: Tensor | None

    def __call__(self, call: Call) -> None:
        x = call.registers[self.source]
        if self.norm is not None:
            x = rms_norm(x, *self.norm)
        experts, weights = route(self.linear(x), self.active, self.router, self.bias, self.factors)
        call.registers["experts"], call.registers["weights"] = experts, weights


@dataclass(frozen=True, slots=True)
class Expert:
    """down(activation(gate) * up), gate and up the two halves of one product."""

    activation: str
    fused: Linear
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, hidden] -> [n, hidden]. Keeps the contract."""
        return self.down(gated(self.activation, self.fused(x)))


@dataclass(frozen=True, slots=True)
class Mix(Step):
    """y = sum of the chosen experts' outputs of x, each times its weight; experts that no token chose do no work.

    A row's sum runs over its experts in ascending order, from zero, whichever other rows visit them.

    joins  what stands in `y` already is added last (shared experts)
    """

    experts: tuple[Expert, ...]
    joins: bool

    def __call__(self, call: Call) -> None:
        x, chosen = call.registers["x"], call.registers["experts"].flatten()
        weights = call.registers["weights"].flatten()
        order = chosen.argsort(stable=True)
        rows = order.div(chosen.shape[0] // x.shape[0], rounding_mode="floor")
        counts = chosen.bincount(minlength=len(self.experts)).tolist()
        total = torch.zeros_like(x)
        start = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                visits = slice(start, start + count)
                own = rows[visits]
                # An expert is chosen at most once by a row, so each row takes one addend here.
                total.index_add_(0, own, expert(x.index_select(0, own)) * weights[order[visits], None])
                start += count
        call.registers["y"] = total.add_(call.registers["y"]) if self.joins else total


@dataclass(frozen=True, slots=True)
class GateRows(Step):
    """y = y * sigmoid(one number per row of x)."""

    linear: Linear

    def __call__(self, call: Call) -> None:
        call.registers["y"] = call.registers["y"] * activate("sigmoid", self.linear(call.registers["x"]))


@dataclass(frozen=True, slots=True)
class Sum(Step):
    """target = target + source."""

    source: str
    target: str

    def __call__(self, call: Call) -> None:
        call.registers[self.target] = call.registers[self.target] + call.registers[self.source]

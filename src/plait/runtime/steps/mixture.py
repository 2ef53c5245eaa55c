"""The steps of a mixture of experts: tokens are routed, visit their experts, and what comes back is summed.

Registers: `experts` and `weights` [n, active] hold the choice of a layer, experts in ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.blueprint.spec import Router
from plait.runtime.ops.activation import NATIVE_ACTIVATIONS, gated
from plait.runtime.ops.joins import gate_heads
from plait.runtime.ops.linear import Linear
from plait.runtime.ops.norm import rms_norm
from plait.runtime.ops.router import native_routing, route
from plait.runtime.steps.call import Call, Step

if TYPE_CHECKING:
    from plait.runtime.lower import Lowering

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

    def lower(self, plan: Lowering) -> bool:
        product = plan.prepared(self.linear)
        if product is None:
            return False
        source = plan.read(self.source)
        if self.norm is not None:
            weight, eps = self.norm
            normed = plan.write("_normed", weight.shape[0])
            plan.program.norm(source.at, normed.at, plan.address(weight), eps, 1, weight.shape[0])
            source = normed
        scores = plan.write("_scores", product.out)
        plan.program.product(source.at, scores.at, product)
        bias, factors = plan.address(self.bias), plan.address(self.factors)
        chosen, weights = (plan.write(name, self.active) for name in ("experts", "weights"))
        routing = native_routing(product.out, self.active, self.router, bias, factors)
        plan.program.route(scores.at, chosen.at, weights.at, routing)
        plan.drop("_normed", "_scores")
        return True


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
        # A program leaves their numbers as floats.
        x, chosen = call.registers["x"], call.registers["experts"].flatten().long()
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

    def lower(self, plan: Lowering) -> bool:
        first, active = self.experts[0], plan.width_of("experts")
        prepared = [(plan.prepared(expert.fused), plan.prepared(expert.down)) for expert in self.experts]
        pairs = [(fused, down) for fused, down in prepared if fused is not None and down is not None]
        if active is None or len(pairs) < len(prepared) or first.activation not in NATIVE_ACTIVATIONS:
            return False
        x, chosen, weights = (plan.read(name) for name in ("x", "experts", "weights"))
        shared = plan.read("y") if self.joins else None
        hidden = pairs[0][1].out
        target = plan.write("y", hidden)
        number = NATIVE_ACTIVATIONS[first.activation]
        plan.program.mix(x.at, chosen.at, weights.at, target.at, active, number, pairs)
        if shared is not None:
            plan.program.add(target.at, shared.at, hidden)
        plan.drop("experts", "weights")
        return True


@dataclass(frozen=True, slots=True)
class GateRows(Step):
    """y = y * sigmoid(one number per row of x)."""

    linear: Linear

    def __call__(self, call: Call) -> None:
        y = call.registers["y"]
        call.registers["y"] = gate_heads(y[:, None], self.linear(call.registers["x"]), "sigmoid", None)

    def lower(self, plan: Lowering) -> bool:
        width, product = plan.width_of("y"), plan.prepared(self.linear)
        if width is None or product is None:
            return False
        x, y, gate = plan.read("x"), plan.read("y"), plan.write("_gate", 1)
        plan.program.product(x.at, gate.at, product)
        out, number = plan.write("y", width), NATIVE_ACTIVATIONS["sigmoid"]
        plan.program.gate(y.at, gate.at, out.at, number, True, False, 0, 0.0, 1, width)
        plan.drop("_gate")
        return True


@dataclass(frozen=True, slots=True)
class Sum(Step):
    """target = target + source."""

    source: str
    target: str

    def __call__(self, call: Call) -> None:
        call.registers[self.target] = call.registers[self.target] + call.registers[self.source]

    def lower(self, plan: Lowering) -> bool:
        width = plan.width_of(self.target)
        if width is None:
            return False
        held, source = plan.read(self.target), plan.read(self.source)
        # A new place: parts of the old one may be read by other names.
        target = plan.write(self.target, width)
        plan.program.copy(held.at, target.at, width)
        plan.program.add(target.at, source.at, width)
        return True

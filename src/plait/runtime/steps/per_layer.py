"""The steps of per-layer embeddings, and of the number that scales a layer's output.

Registers: `inputs` [n, layers, dim], what each layer gets of each token of a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.runtime.ops.activation import NATIVE_ACTIVATIONS
from plait.runtime.ops.joins import gate_heads
from plait.runtime.ops.linear import Linear
from plait.runtime.ops.norm import rms_norm
from plait.runtime.packed import Packed
from plait.runtime.steps.call import Call, Step

if TYPE_CHECKING:
    from plait.runtime.lower import Lowering

__all__ = ["AddInput", "Inputs", "Scale"]


@dataclass(frozen=True, slots=True)
class Inputs(Step):
    """inputs = (rows of the table * token_scale + norm(projection of h * projection_scale)) * combine_scale.

    Only the rows of the call's tokens are read. Tokens beyond the table read its row 0 (transformers 5.24,
    Gemma3nTextModel.get_per_layer_inputs).

    table   as stored, mapped
    stored  the type its rows are rounded to first
    """

    table: Packed
    dim: int
    stored: torch.dtype
    token_scale: float
    projection: Linear
    projection_scale: float
    combine_scale: float
    weight: Tensor | None
    eps: float

    def __call__(self, call: Call) -> None:
        h = call.registers["h"]
        ids = call.tokens.where(call.tokens < self.table.shape[0], 0)
        rows = self.table.rows(ids, self.stored).to(h.device, h.dtype) * self.token_scale
        projected = (self.projection(h) * self.projection_scale).view(h.shape[0], -1, self.dim)
        own = rms_norm(projected, self.weight, self.eps)
        call.registers["inputs"] = (own + rows.view_as(own)) * self.combine_scale


@dataclass(frozen=True, slots=True)
class AddInput(Step):
    """h += norm(projection(activation(gate(h)) * the layer's input)).

    active  of several streams: the gate reads stream `active`, and what comes of it is added to all but the first
    factor  on that stream before the gate
    """

    layer: int
    activation: str
    gate: Linear
    projection: Linear
    weight: Tensor | None
    eps: float
    active: int | None = None
    factor: Tensor | None = None

    def __call__(self, call: Call) -> None:
        if self.active is None:
            call.registers["h"] += self._of(call.registers["h"], call)
            return
        streams = call.registers["streams"]
        x = streams[self.active]
        streams[1:] += self._of(x if self.factor is None else x * self.factor, call)

    def _of(self, x: Tensor, call: Call) -> Tensor:
        own = call.registers["inputs"][:, self.layer, None]
        gated = gate_heads(own, self.gate(x), self.activation, None)
        return rms_norm(self.projection(gated), self.weight, self.eps)

    def lower(self, plan: Lowering) -> bool:
        gate, projection, hidden = plan.prepared(self.gate), plan.prepared(self.projection), plan.width_of("h")
        if gate is None or projection is None or hidden is None:
            return False
        if self.active is not None or self.activation not in NATIVE_ACTIVATIONS:
            return False
        h, dim = plan.read("h"), gate.out
        own = plan.read("inputs").part(self.layer * dim, dim)
        gates, inner = plan.write("_gate", dim), plan.write("_inner", dim)
        plan.program.product(h.at, gates.at, gate)
        plan.program.gate(own.at, gates.at, inner.at, NATIVE_ACTIVATIONS[self.activation], False, False, 0, 0.0, 1, dim)
        made, normed = plan.write("_made", hidden), plan.write("_joins", hidden)
        plan.program.product(inner.at, made.at, projection)
        plan.program.norm(made.at, normed.at, plan.address(self.weight), self.eps, 1, hidden)
        plan.program.add(h.at, normed.at, hidden)
        plan.drop("_gate", "_inner", "_made", "_joins")
        return True


@dataclass(frozen=True, slots=True)
class Scale(Step):
    """h *= one stored number."""

    factor: Tensor

    def __call__(self, call: Call) -> None:
        call.registers["h"] *= self.factor

    def lower(self, plan: Lowering) -> bool:
        width = plan.width_of("h")
        if width is None or self.factor.numel() != 1:
            return False
        plan.program.scale(plan.read("h").at, self.factor.item(), width)
        return True

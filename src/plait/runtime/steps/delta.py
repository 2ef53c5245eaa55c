"""The steps of a Gated DeltaNet: convolution, the delta rule, the norm and gate of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.runtime.ops.activation import NATIVE_ACTIVATIONS
from plait.runtime.ops.convolution import convolve
from plait.runtime.ops.gated_delta import DeltaShape, gated_delta
from plait.runtime.ops.joins import RmsNorm, gate_heads
from plait.runtime.ops.sequences import Stretch
from plait.runtime.steps.call import Call, Step

if TYPE_CHECKING:
    from plait.runtime.lower import Lowering

__all__ = ["Convolve", "DeltaRule", "NormGate"]


def _stretches(call: Call, value_class: int, layer: int) -> list[Stretch]:
    """The layer's value of each sequence at its position, None before the first token, and the one to fill."""
    made = []
    for span in call.spans:
        run = span.session.values[value_class]
        if run.next is None:
            raise AssertionError("a call's values are made before its steps run")
        now = None if run.now is None else run.now.views[layer][0]
        made.append(Stretch(len(span.tokens), now, run.next.views[layer][0]))
    return made


@dataclass(frozen=True, slots=True)
class Convolve(Step):
    """qkv = silu(convolution(qkv)) of each sequence.

    weight       [kernel, channels]
    value_class  where the layer's tail lies, [channels, kernel - 1]
    """

    layer: int
    value_class: int
    weight: Tensor

    def __call__(self, call: Call) -> None:
        stretches = _stretches(call, self.value_class, self.layer)
        call.registers["qkv"] = convolve(call.registers["qkv"], self.weight, "silu", stretches)

    def lower(self, plan: Lowering) -> bool:
        if plan.pool.value_dtype != torch.float32:
            return False
        kernel, channels = self.weight.shape
        x, y = plan.read("qkv"), plan.write("qkv", channels)
        offset, weight = plan.value_at(self.value_class, self.layer), plan.address(self.weight)
        activation = NATIVE_ACTIVATIONS["silu"]
        plan.program.convolve(x.at, y.at, self.value_class, offset, weight, channels, kernel, activation)
        return True


@dataclass(frozen=True, slots=True)
class DeltaRule(Step):
    """y [n, value_heads, value_dim] = the delta rule over `qkv`, with the rates in `beta` and `decay`.

    value_class  where the layer's state lies, [value_heads, key_dim * value_dim]
    rate, bias   [value_heads]: log decay = -rate * softplus(decay + bias)
    """

    layer: int
    value_class: int
    shape: DeltaShape
    rate: Tensor
    bias: Tensor

    def __call__(self, call: Call) -> None:
        qkv, beta, decay = (call.registers[name] for name in ("qkv", "beta", "decay"))
        stretches = _stretches(call, self.value_class, self.layer)
        call.registers["y"] = gated_delta(qkv, beta, decay, self.rate, self.bias, self.shape, stretches)

    def lower(self, plan: Lowering) -> bool:
        if plan.pool.value_dtype != torch.float32:
            return False
        shape = self.shape
        qkv, beta, decay = plan.read("qkv"), plan.read("beta"), plan.read("decay")
        y = plan.write("y", shape.value_heads * shape.value_dim, shape.value_heads)
        plan.program.delta(
            qkv.at,
            beta.at,
            decay.at,
            y.at,
            self.value_class,
            plan.value_at(self.value_class, self.layer),
            plan.address(self.rate),
            plan.address(self.bias),
            shape.key_heads,
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
            shape.l2_eps,
            shape.key_dim**-0.5,
        )
        return True


@dataclass(frozen=True, slots=True)
class NormGate(Step):
    """y [n, value_heads * value_dim] = norm(y) of each head * activation(g), the norm first."""

    weight: Tensor | None
    eps: float
    activation: str

    def __call__(self, call: Call) -> None:
        norm = RmsNorm(self.weight, self.eps)
        call.registers["y"] = gate_heads(call.registers["y"], call.registers["g"], self.activation, norm)

    def lower(self, plan: Lowering) -> bool:
        y = plan.known("y")
        if y is None or y.width is None or y.heads is None or self.activation not in NATIVE_ACTIVATIONS:
            return False
        gate, out = plan.read("g"), plan.write("y", y.width)
        number, weight = NATIVE_ACTIVATIONS[self.activation], plan.address(self.weight)
        plan.program.gate(
            y.at, gate.at, out.at, number, False, True, weight, self.eps, y.heads, y.width // y.heads
        )
        return True

"""The steps of a Gated DeltaNet: convolution, the delta rule, the norm and gate of its output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plait.runtime.ops.activation import activate
from plait.runtime.ops.convolution import convolution
from plait.runtime.ops.delta import delta_rule, l2_normalise, log_decays
from plait.runtime.ops.norm import rms_norm
from plait.runtime.session import Span
from plait.runtime.steps.call import Call, Step

__all__ = ["Convolve", "DeltaRule", "NormGate"]


def _values_of(span: Span, value_class: int, layer: int) -> tuple[Tensor | None, Tensor]:
    """The layer's value at the session's position, None before the first token, and the one to fill."""
    run = span.session.values[value_class]
    if run.next is None:
        raise AssertionError("a call's values are made before its steps run")
    return None if run.now is None else run.now.views[layer][0], run.next.views[layer][0]


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
        x = call.registers["qkv"]
        outs, row = [], 0
        for span in call.spans:
            stop = row + len(span.tokens)
            now, following = _values_of(span, self.value_class, self.layer)
            outs.append(convolution(x[row:stop], self.weight, now, following))
            row = stop
        call.registers["qkv"] = activate("silu", outs[0] if len(outs) == 1 else torch.cat(outs))


@dataclass(frozen=True, slots=True)
class DeltaRule(Step):
    """y [n, value_heads, value_dim] = the delta rule over `qkv`, with the rates in `beta` and `decay`.

    The rule runs in the type its state is kept in: were it wider, calls would round where one call does not.

    value_class  where the layer's state lies, [value_heads, key_dim * value_dim]
    rate, bias   [value_heads]: log decay = -rate * softplus(decay + bias)
    """

    layer: int
    value_class: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    l2_eps: float
    rate: Tensor
    bias: Tensor

    def __call__(self, call: Call) -> None:
        qkv = call.registers["qkv"]
        n, width = qkv.shape[0], self.key_heads * self.key_dim
        both = qkv[:, : 2 * width].reshape(n, 2, self.key_heads, self.key_dim)
        both = l2_normalise(both, self.l2_eps)
        inputs = (
            both[:, 0] * self.key_dim**-0.5,
            both[:, 1],
            qkv[:, 2 * width :].reshape(n, self.value_heads, self.value_dim),
            log_decays(call.registers["decay"], self.bias, self.rate),
            activate("sigmoid", call.registers["beta"]),
        )
        outs, row = [], 0
        for span in call.spans:
            stop = row + len(span.tokens)
            outs.append(self._one(span, tuple(x[row:stop] for x in inputs)))
            row = stop
        call.registers["y"] = (outs[0] if len(outs) == 1 else torch.cat(outs)).to(qkv.dtype)

    def _one(self, span: Span, inputs: tuple[Tensor, ...]) -> Tensor:
        """One sequence: queries, keys, values, log decay and beta of its rows."""
        shape = (self.value_heads, self.key_dim, self.value_dim)
        now, following = _values_of(span, self.value_class, self.layer)
        state = None if now is None else now.view(shape)
        queries, keys, values, decay, beta = (x.to(following.dtype) for x in inputs)
        return delta_rule(queries, keys, values, decay, beta, state, following.view(shape))


@dataclass(frozen=True, slots=True)
class NormGate(Step):
    """y [n, value_heads * value_dim] = norm(y) of each head * activation(g), the norm first."""

    weight: Tensor | None
    eps: float
    activation: str

    def __call__(self, call: Call) -> None:
        y = rms_norm(call.registers["y"], self.weight, self.eps).flatten(1)
        call.registers["y"] = y * activate(self.activation, call.registers["g"])

"""What a Gated DeltaNet does between convolution and norm: inputs are made ready and run through the delta rule.

    reference           l2 norms, rates and `delta_rule_reference`, sequence by sequence   oracle
    gated_delta         the kernels where they take it, else the same with `delta_rule`    keeps the contract
    native_gated_delta  all sequences in one call of the kernels, in recurrence order      keeps the contract

Queries and keys are scaled to length 1 (https://arxiv.org/abs/2412.06464, section 3.3), queries by key_dim^-1/2 more;
the state keeps exp(-rate softplus(decay + bias)) of itself and takes sigmoid(beta) of the new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.runtime.kernels import native, takes
from plait.runtime.ops.activation import activate
from plait.runtime.ops.delta import delta_rule, delta_rule_reference, l2_normalise, log_decays
from plait.runtime.ops.sequences import Stretch, addresses, fits, pieces

if TYPE_CHECKING:
    from plait.runtime._native import Native

__all__ = ["DeltaShape", "gated_delta", "native_gated_delta", "reference"]


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Heads and what they hold; value head i is served by key head i // (value_heads / key_heads).

    l2_eps  added to the square of a length
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    l2_eps: float

    @property
    def state(self) -> tuple[int, int, int]:
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def elements(self) -> int:
        """Of a state."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def width(self) -> int:
        """Columns of queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


def gated_delta(
    qkv: Tensor,
    beta: Tensor,
    decay: Tensor,
    rate: Tensor,
    bias: Tensor,
    shape: DeltaShape,
    stretches: Sequence[Stretch],
) -> Tensor:
    """y [rows, value_heads, value_dim] of all sequences' rows.

    qkv          [rows, width]: queries, keys and values of all heads
    beta, decay  [rows, value_heads], as they are projected
    rate, bias   [value_heads]
    stretches    states of `elements`, any shape; the rule runs in their type: were it wider, calls would round where
                 one call does not

    ValueError: sizes that do not belong together.
    """
    kernels = native()
    if kernels is not None and all(takes(x) for x in (qkv, beta, decay)):
        fast = fits(qkv.shape[0], shape.elements, stretches)
        if fast:
            return native_gated_delta(kernels, qkv, beta, decay, rate, bias, shape, stretches)
    return _by_sequence(delta_rule, qkv, beta, decay, rate, bias, shape, stretches)


def reference(
    qkv: Tensor,
    beta: Tensor,
    decay: Tensor,
    rate: Tensor,
    bias: Tensor,
    shape: DeltaShape,
    stretches: Sequence[Stretch],
) -> Tensor:
    """As `gated_delta`."""
    return _by_sequence(delta_rule_reference, qkv, beta, decay, rate, bias, shape, stretches)


def _by_sequence(
    rule: Callable[..., Tensor],
    qkv: Tensor,
    beta: Tensor,
    decay: Tensor,
    rate: Tensor,
    bias: Tensor,
    shape: DeltaShape,
    stretches: Sequence[Stretch],
) -> Tensor:
    n, width = qkv.shape[0], shape.key_heads * shape.key_dim
    fits(n, shape.elements, stretches)
    both = l2_normalise(qkv[:, : 2 * width].reshape(n, 2, shape.key_heads, shape.key_dim), shape.l2_eps)
    inputs = (
        both[:, 0] * shape.key_dim**-0.5,
        both[:, 1],
        qkv[:, 2 * width :].reshape(n, shape.value_heads, shape.value_dim),
        log_decays(decay, bias, rate),
        activate("sigmoid", beta),
    )
    outs = []
    for parts, (_, now, following) in zip(
        zip(*(pieces(x, stretches) for x in inputs), strict=True), stretches, strict=True
    ):
        state = None if now is None else now.view(shape.state)
        outs.append(rule(*(x.to(following.dtype) for x in parts), state, following.view(shape.state)))
    return (outs[0] if len(outs) == 1 else torch.cat(outs)).to(qkv.dtype)


def native_gated_delta(
    kernels: Native,
    qkv: Tensor,
    beta: Tensor,
    decay: Tensor,
    rate: Tensor,
    bias: Tensor,
    shape: DeltaShape,
    stretches: Sequence[Stretch],
) -> Tensor:
    """As `gated_delta`, of float32 tensors whose rows lie side by side."""
    rows, heads = qkv.shape[0], shape.value_heads
    if qkv.shape[1] != shape.width or beta.shape != (rows, heads) or decay.shape != (rows, heads):
        raise ValueError(f"inputs {[tuple(x.shape) for x in (qkv, beta, decay)]} of {shape}")
    y = torch.empty(rows, heads, shape.value_dim)
    kernels.delta(
        qkv.data_ptr(),
        qkv.stride(0),
        beta.data_ptr(),
        beta.stride(0),
        decay.data_ptr(),
        decay.stride(0),
        rate.data_ptr(),
        bias.data_ptr(),
        y.data_ptr(),
        addresses(stretches),
        shape.key_heads,
        heads,
        shape.key_dim,
        shape.value_dim,
        shape.l2_eps,
        shape.key_dim**-0.5,
    )
    return y

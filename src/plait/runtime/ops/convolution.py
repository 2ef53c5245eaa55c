"""Causal depthwise convolution over the tokens of one sequence: y[t] = sum over i of weight[i] * x[t - kernel + 1 + i].

    convolution_reference   one library convolution                  oracle; does not keep the contract
    convolution             a product and an addition for each tap   keeps it

The `tail` holds the last kernel - 1 inputs, oldest first, so a sequence may be cut into calls of any length. Inputs
are rounded to the tail's type before any tap reads them, within a call too.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["convolution", "convolution_reference"]


def convolution_reference(x: Tensor, weight: Tensor, tail: Tensor | None, next_tail: Tensor) -> Tensor:
    """As `convolution`."""
    inputs = _extended(x, tail, next_tail).T[None]
    y: Tensor = torch.nn.functional.conv1d(inputs, weight.T[:, None], groups=weight.shape[1])
    return y[0].T


def convolution(x: Tensor, weight: Tensor, tail: Tensor | None, next_tail: Tensor) -> Tensor:
    """Outputs [n, channels] of x [n, channels].

    weight     [kernel, channels], the tap of the oldest input first
    tail       [channels, kernel - 1] before x, None at the start of a sequence
    next_tail  the same after x, written; not the memory of `tail`
    """
    n = x.shape[0]
    inputs = _extended(x, tail, next_tail)
    # Products and sums of two numbers have one rounding each: no loop of the library can give other bits.
    y = inputs[:n] * weight[0]
    for i in range(1, weight.shape[0]):
        y += inputs[i : i + n] * weight[i]
    return y


def _extended(x: Tensor, tail: Tensor | None, next_tail: Tensor) -> Tensor:
    """Tail and x as one run of inputs [kernel - 1 + n, channels] in x's type; its end becomes the next tail."""
    before = torch.zeros_like(next_tail) if tail is None else tail
    inputs = torch.cat((before.T, x.to(next_tail.dtype)))
    next_tail.copy_(inputs[x.shape[0] :].T)
    return inputs.to(x.dtype)

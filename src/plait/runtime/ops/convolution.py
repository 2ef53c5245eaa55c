"""Causal depthwise convolution over the tokens of one sequence: y[t] = sum over i of weight[i] * x[t - kernel + 1 + i].

    convolution_reference   one library convolution                  oracle; does not keep the contract
    convolution             a product and an addition for each tap   keeps it
    convolve                all sequences of a call and an activation: kernels, or `convolution`    keeps it

The `tail` holds the last kernel - 1 inputs, oldest first, so a sequence may be cut into calls of any length. Inputs
are rounded to the tail's type before any tap reads them, within a call too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.runtime.kernels import native, takes
from plait.runtime.ops.activation import NATIVE_ACTIVATIONS, activate
from plait.runtime.ops.sequences import Stretch, addresses, fits, pieces

if TYPE_CHECKING:
    from plait.runtime._native import Native

__all__ = ["convolution", "convolution_reference", "convolve", "native_convolve"]


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


def convolve(x: Tensor, weight: Tensor, activation: str, stretches: Sequence[Stretch]) -> Tensor:
    """activation(convolution) [rows, channels] of all sequences' rows x [rows, channels].

    weight     [kernel, channels], rows side by side
    stretches  values are tails [channels, kernel - 1]

    ValueError: sizes that do not belong together.
    """
    fast = fits(x.shape[0], (weight.shape[0] - 1) * weight.shape[1], stretches)
    kernels = native()
    if kernels is not None and fast and takes(x) and weight.is_contiguous() and activation in NATIVE_ACTIVATIONS:
        return native_convolve(kernels, x, weight, activation, stretches)
    parts = zip(pieces(x, stretches), stretches, strict=True)
    outs = [convolution(part, weight, now, following) for part, (_, now, following) in parts]
    return activate(activation, outs[0] if len(outs) == 1 else torch.cat(outs))


def native_convolve(
    kernels: Native, x: Tensor, weight: Tensor, activation: str, stretches: Sequence[Stretch]
) -> Tensor:
    """As `convolve`, in one call of the kernels, of float32 tensors whose rows lie side by side."""
    kernel, channels = weight.shape
    if x.shape[1] != channels:
        raise ValueError(f"inputs of {x.shape[1]} channels for a convolution of {channels}")
    y = torch.empty(x.shape)
    kernels.convolution(
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        y.data_ptr(),
        addresses(stretches),
        channels,
        kernel,
        NATIVE_ACTIVATIONS[activation],
    )
    return y


def _extended(x: Tensor, tail: Tensor | None, next_tail: Tensor) -> Tensor:
    """Tail and x as one run of inputs [kernel - 1 + n, channels] in x's type; its end becomes the next tail."""
    before = torch.zeros_like(next_tail) if tail is None else tail
    inputs = torch.cat((before.T, x.to(next_tail.dtype)))
    next_tail.copy_(inputs[x.shape[0] :].T)
    return inputs.to(x.dtype)

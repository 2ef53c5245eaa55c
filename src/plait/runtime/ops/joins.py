"""What stands between products: gates of heads, and additions to the stream with the norms around them.

Each has its kernel, and the same in torch from `norm` and `activation` where that does not take the tensors. Keeps the
contract: every row is computed by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from plait.runtime.kernels import native, takes
from plait.runtime.ops.activation import NATIVE_ACTIVATIONS, activate
from plait.runtime.ops.norm import rms_norm

if TYPE_CHECKING:
    from plait.runtime._native import Native

__all__ = ["RmsNorm", "gate_heads", "join", "native_gate_heads", "native_join"]


class RmsNorm(NamedTuple):
    """weight [width], None: all ones."""

    weight: Tensor | None
    eps: float


def gate_heads(x: Tensor, gate: Tensor, activation: str, norm: RmsNorm | None) -> Tensor:
    """norm(x) * activation(gate), [n, heads * width]; without `norm` x itself.

    x     [n, heads, width]
    gate  [n, heads * width], or [n, heads]: one number per head
    """
    n, heads, width = x.shape
    if gate.shape not in ((n, heads * width), (n, heads)):
        raise ValueError(f"a gate {tuple(gate.shape)} for heads {tuple(x.shape)}")
    kernels = native()
    if kernels is not None and activation in NATIVE_ACTIVATIONS and takes(x) and takes(gate) and x.stride(1) == width:
        return native_gate_heads(kernels, x, gate, activation, norm)
    y = x if norm is None else rms_norm(x, *norm)
    factor = activate(activation, gate)
    return (y * factor.view(n, heads, -1)).flatten(1)


def native_gate_heads(kernels: Native, x: Tensor, gate: Tensor, activation: str, norm: RmsNorm | None) -> Tensor:
    """The same by the kernels: float32, heads of a row side by side."""
    n, heads, width = x.shape
    y = torch.empty(n, heads * width)
    weight = None if norm is None else norm.weight
    kernels.gate(
        NATIVE_ACTIVATIONS[activation],
        x.data_ptr(),
        x.stride(0),
        gate.data_ptr(),
        gate.stride(0),
        gate.shape[1] == heads,
        norm is not None,
        0 if weight is None else weight.data_ptr(),
        0.0 if norm is None else norm.eps,
        y.data_ptr(),
        n,
        heads,
        width,
    )
    return y


def join(h: Tensor, y: Tensor, before: RmsNorm | None, after: RmsNorm | None) -> Tensor | None:
    """h [n, width] += before(y), in place; returns after(h), None without `after`."""
    kernels = native()
    if kernels is not None and takes(h) and takes(y) and h.dim() == 2 and h.is_contiguous():
        return native_join(kernels, h, y, before, after)
    h += y if before is None else rms_norm(y, *before)
    return None if after is None else rms_norm(h, *after)


def native_join(kernels: Native, h: Tensor, y: Tensor, before: RmsNorm | None, after: RmsNorm | None) -> Tensor | None:
    """The same by the kernels, in one pass over the rows."""
    if y.shape != h.shape:
        raise ValueError(f"{tuple(y.shape)} added to a stream {tuple(h.shape)}")
    out = None if after is None else torch.empty(h.shape)
    kernels.join(
        h.data_ptr(),
        y.data_ptr(),
        y.stride(0),
        before is not None,
        *_address(before),
        *_address(after),
        0 if out is None else out.data_ptr(),
        *h.shape,
    )
    return out


def _address(norm: RmsNorm | None) -> tuple[int, float]:
    if norm is None:
        return 0, 0.0
    return 0 if norm.weight is None else norm.weight.data_ptr(), norm.eps

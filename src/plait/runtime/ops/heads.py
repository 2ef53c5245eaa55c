"""Heads of queries and keys made ready: each normalised, where the model does, and turned by its position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.runtime.kernels import native, takes
from plait.runtime.ops.norm import rms_norm
from plait.runtime.ops.rope import rotate

if TYPE_CHECKING:
    from plait.runtime._native import Native

__all__ = ["native_heads", "ready_heads"]


def ready_heads(x: Tensor, weight: Tensor | None, eps: float, rope: Rope, cos: Tensor, sin: Tensor) -> Tensor:
    """rotate(norm(x)) of x [n, heads, dim]; cos, sin [n, pairs]. Keeps the contract. x may be written into.

    weight  [heads, dim], None: not normalised
    """
    kernels = native()
    if kernels is not None and takes(x) and x.stride(1) == x.shape[2]:
        return native_heads(kernels, x, weight, eps, rope, cos, sin)
    return rotate(x if weight is None else rms_norm(x, weight, eps), rope, cos, sin)


def native_heads(
    kernels: Native, x: Tensor, weight: Tensor | None, eps: float, rope: Rope, cos: Tensor, sin: Tensor
) -> Tensor:
    """The same by the kernels, in one pass."""
    n, heads, dim = x.shape
    y = torch.empty(n, heads, dim)
    kernels.heads(
        x.data_ptr(),
        x.stride(0),
        0 if weight is None else weight.data_ptr(),
        eps,
        cos.data_ptr(),
        sin.data_ptr(),
        rope.pairs,
        rope.start,
        rope.distance,
        rope.pairing == "adjacent",
        y.data_ptr(),
        n,
        heads,
        dim,
    )
    return y

"""RMSNorm (https://arxiv.org/abs/1910.07467) and LayerNorm (https://arxiv.org/abs/1607.06450) over the last axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.runtime.kernels import native, takes

if TYPE_CHECKING:
    from plait.runtime._native import Native

__all__ = ["layer_norm", "rms_norm", "rms_norm_reference"]


def rms_norm_reference(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, weight already holding the norm's offset. Keeps the contract."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """The same to rounding with fewer passes over memory. Keeps the contract: each row is reduced by itself.

    weight  [width], or [groups, width] for x [n, groups, width]
    """
    kernels = native()
    if kernels is not None and takes(x) and (weight is None or weight.is_contiguous()):
        return native_rms_norm(kernels, x, weight, eps)
    scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    y: Tensor = x * scale
    return y if weight is None else y.mul_(weight)


def native_rms_norm(kernels: Native, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """`rms_norm` by the kernels."""
    shape, width = x.shape, x.shape[-1]
    grouped = weight is not None and weight.dim() == 2
    groups = x.shape[-2] if grouped else 1
    # Rows of the kernel: [groups, width] side by side, at an even distance from each other.
    inner = (groups, width) if grouped else (width,)
    if x.dim() != len(inner) + 1 or (grouped and x.stride(-2) != width):
        x = x.reshape(-1, *inner)
    y = torch.empty(x.shape)
    address = 0 if weight is None else weight.data_ptr()
    kernels.rms_norm(x.data_ptr(), x.stride(0), address, eps, y.data_ptr(), x.shape[0], groups, width)
    return y.view(shape)


def layer_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight. Keeps the contract: each row is reduced by itself."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight

"""RMSNorm over the last axis (https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rms_norm", "rms_norm_reference"]


def rms_norm_reference(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, weight already holding the norm's offset. Keeps the contract."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """The same to rounding with fewer passes over memory. Keeps the contract: each row is reduced by itself."""
    scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    y: Tensor = x * scale
    return y if weight is None else y.mul_(weight)

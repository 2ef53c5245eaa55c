"""Activations, with bits that do not depend on the number of rows (see `exact`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from plait.runtime.kernels import native, takes
from plait.runtime.ops.exact import pointwise

__all__ = ["ACTIVATIONS", "NATIVE_ACTIVATIONS", "activate", "gated", "softcap"]


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {"silu": functional.silu, "gelu": functional.gelu, "gelu_tanh": _gelu_tanh, "sigmoid": torch.sigmoid}
)

# Those the kernels have, by their number there.
NATIVE_ACTIVATIONS: Final[Mapping[str, int]] = MappingProxyType({"silu": 0, "gelu_tanh": 1, "sigmoid": 2, "gelu": 3})


def activate(name: str, x: Tensor) -> Tensor:
    """The activation `name` of x [rows, width]. Keeps the contract."""
    return pointwise(ACTIVATIONS[name], x)


def gated(name: str, both: Tensor) -> Tensor:
    """activation(first half of the columns) * second half, both [rows, 2 width]. Keeps the contract."""
    width = both.shape[1] // 2
    kernels = native()
    if kernels is None or name not in NATIVE_ACTIVATIONS or not takes(both):
        inner = activate(name, both[:, :width])
        return inner.mul_(both[:, width:])
    y = torch.empty(both.shape[0], width)
    kernels.gated(NATIVE_ACTIVATIONS[name], both.data_ptr(), both.stride(0), y.data_ptr(), both.shape[0], width)
    return y


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap) of x [rows, width]. Keeps the contract."""
    kernels = native()
    if kernels is not None and takes(x) and x.is_contiguous():
        y = torch.empty(x.shape)
        kernels.softcap(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], cap)
        return y
    return pointwise(torch.tanh, x / cap) * cap

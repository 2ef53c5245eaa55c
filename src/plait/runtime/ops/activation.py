"""Activations, with bits that do not depend on the number of rows (see `exact`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from plait.runtime.ops.exact import pointwise

__all__ = ["ACTIVATIONS", "activate", "softcap"]


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {"silu": functional.silu, "gelu": functional.gelu, "gelu_tanh": _gelu_tanh, "sigmoid": torch.sigmoid}
)


def activate(name: str, x: Tensor) -> Tensor:
    """The activation `name` of x [rows, width]. Keeps the contract."""
    return pointwise(ACTIVATIONS[name], x)


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap) of x [rows, width]. Keeps the contract."""
    return pointwise(torch.tanh, x / cap) * cap

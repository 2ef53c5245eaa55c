"""Logits, at the end of the residual stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.runtime.kernels import native, takes
from plait.runtime.ops.activation import softcap
from plait.runtime.ops.linear import Linear, Prepares
from plait.runtime.ops.norm import rms_norm
from plait.runtime.steps.streams import Merge

if TYPE_CHECKING:
    from plait.runtime._native import Program

__all__ = ["Logits"]


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of chosen rows: head(norm(h)), with the model's softcap. On the CPU with kernels, one native program.

    merge  makes h of several streams, None: there is one
    """

    weight: Tensor | None
    eps: float
    linear: Linear
    cap: float | None
    merge: Merge | None = None
    _program: tuple[Program, int] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_program", self._lowered())

    def _lowered(self) -> tuple[Program, int] | None:
        """The program, which reads h, of one row of scratch each, and writes as many columns as stands beside it."""
        kernels = native()
        product = self.linear.prepared() if kernels is not None and isinstance(self.linear, Prepares) else None
        plain = self.weight is None or (takes(self.weight) and self.weight.is_contiguous())
        if kernels is None or product is None or not plain:
            return None
        h, normed, y = (-1, 0), (0, 0), (-2, 0)
        made = kernels.program()
        made.norm(h, normed, 0 if self.weight is None else self.weight.data_ptr(), self.eps, 1, product.width)
        made.product(normed, y, product)
        if self.cap is not None:
            made.softcap(y, self.cap, product.out)
        return made, product.out

    def __call__(self, h: Tensor) -> Tensor:
        """h [n, hidden], or [streams, n, hidden] with `merge` -> [n, vocabulary]."""
        if self.merge is not None:
            h = self.merge(h)
        if self._program is not None and takes(h):
            return self._run(*self._program, h)
        y = self.linear(rms_norm(h, self.weight, self.eps))
        return y if self.cap is None else softcap(y, self.cap)

    def _run(self, program: Program, width: int, h: Tensor) -> Tensor:
        from plait.runtime._native import Ragged

        rows, hidden = h.shape
        normed, y = torch.empty(rows, hidden), torch.empty(rows, width)
        program.run(
            Ragged(), rows, [(normed.data_ptr(), hidden)], [(h.data_ptr(), h.stride(0)), (y.data_ptr(), width)]
        )
        return y

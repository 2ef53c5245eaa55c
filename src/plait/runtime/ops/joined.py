"""Products of one input whose weights are held in different forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.runtime.ops.linear import Linear, Prepares

if TYPE_CHECKING:
    from plait.runtime._native import Prepared

__all__ = ["Joined"]


class Joined:
    """Products side by side; each keeps the contract, so their outputs end to end do."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = tuple(parts)
        self.out_features = sum(part.out_features for part in parts)
        self.nbytes = sum(part.nbytes for part in parts)
        self.form = ", ".join(dict.fromkeys(part.form for part in parts))

    def prepared(self, activation: str | None = None) -> Prepared | None:
        """See `Prepares`."""
        parts = [part.prepared() if isinstance(part, Prepares) else None for part in self.parts]
        found = [part for part in parts if part is not None]
        if activation is not None or len(found) < len(parts):
            return None
        from plait.runtime._native import prepared_joined

        return prepared_joined(found)

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, in] -> [n, outputs of all parts end to end]."""
        return torch.cat([part(x) for part in self.parts], 1)

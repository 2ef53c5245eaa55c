"""Matrix products with stored weights: y [n, out] = x [n, in] W^T.

    reference   x @ W.T                                      any dtype    does not keep the contract
    Tiled       calls of exactly `TILE` rows, the last padded  any dtype    keeps it: every call has one shape
    Reordered   oneDNN product over reordered weights        float32 CPU  keeps it: checked for each shape at load

In bf16 and f16 the inputs and outputs of a product are rounded to that type; sums are float32 inside it.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor

__all__ = ["TILE", "Linear", "Reordered", "Tiled", "make_linear", "reference"]

TILE: Final = 32
# oneDNN takes another path for a single row, so a single row is sent twice.
_MIN_ROWS: Final = 2
# Row counts at which the reordered form is compared with itself when a weight is loaded.
_PROBED: Final = (2, 3, 17, 33)
_PROBE_ROWS: Final = 64
# Rows per call over matrices this large are bounded, so that outputs and scratch stay small.
_LARGE: Final = 2**25
_LARGE_ROWS: Final = 64


class Linear(Protocol):
    """A prepared weight; calling it keeps the exactness contract. `form` names the form for reports."""

    form: str
    out_features: int
    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, in] in the compute type -> [n, out] in the compute type."""


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """The plain product, the truth the forms are tested against."""
    return x @ weight.T


class Tiled:
    """Calls of exactly `TILE` rows: the library sees one shape only, whatever a call holds."""

    form = "tiled"

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.contiguous()
        self._transposed = self._weight.T
        self.out_features = weight.shape[0]
        self.nbytes = weight.numel() * weight.element_size()

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        tiles = -(-rows // TILE)
        padded = torch.zeros(tiles * TILE, x.shape[1], dtype=self._weight.dtype, device=x.device)
        padded[:rows] = x
        out = torch.empty(rows, self.out_features, dtype=x.dtype, device=x.device)
        for tile in range(tiles):
            start = tile * TILE
            stop = min(start + TILE, rows)
            out[start:stop] = torch.mm(padded[start : start + TILE], self._transposed)[: stop - start]
        return out


class Reordered:
    """oneDNN's product over weights reordered once: near the memory's speed for few rows, near the cores' for many."""

    form = "reordered"

    def __init__(self, weight: Tensor) -> None:
        self.out_features, self._in = weight.shape
        self.nbytes = weight.numel() * weight.element_size()
        # The row count the layout is chosen for. It decides which bits come out, so it is fixed; 64 reads fastest.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 64)
        self._large = weight.numel() >= _LARGE

    def _product(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        return result

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows < _MIN_ROWS:
            return self._product(x.expand(_MIN_ROWS, -1).contiguous())[:rows]
        if not self._large or rows <= _LARGE_ROWS:
            return self._product(x.contiguous())
        out = torch.empty(rows, self.out_features, dtype=x.dtype)
        for start in range(0, rows, _LARGE_ROWS):
            stop = min(start + _LARGE_ROWS, rows)
            out[start:stop] = self(x[start:stop])
        return out

    def keeps_bits(self) -> bool:
        """Rows come out alike in calls of several sizes, on this machine and for this shape."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(_PROBE_ROWS, self._in, generator=generator)
        whole = self._product(x)
        return all(torch.equal(self._product(x[-m:].contiguous()), whole[-m:]) for m in _PROBED)

    @staticmethod
    def available(weight: Tensor) -> bool:
        """This form can hold the weight on this machine."""
        return weight.dtype == torch.float32 and weight.device.type == "cpu" and torch._C._has_mkldnn


def make_linear(weight: Tensor) -> Linear:
    """The fastest form that keeps the contract for this weight [out, in] on this machine."""
    if Reordered.available(weight):
        fast = Reordered(weight)
        if fast.keeps_bits():
            return fast
    return Tiled(weight)

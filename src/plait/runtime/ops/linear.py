"""Matrix products with stored weights: y [n, out] = x [n, in] W^T.

    reference   x @ W.T                                        any dtype    does not keep the contract
    Tiled       calls of exactly `TILE` rows, the last padded  any dtype    keeps it: every call has one shape
    Reordered   oneDNN product over reordered weights          float32 CPU  keeps it: checked for each shape at load

In bf16 and f16 the inputs and outputs of a product are rounded to that type; sums are float32 inside it.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor

__all__ = ["TILE", "Linear", "Reordered", "Tiled", "make_linear", "reference"]

TILE: Final = 32
# Row counts at which the reordered form is compared with itself when a weight is loaded.
_PROBED: Final = (1, 2, 3, 17, 33)
_LAYOUT_ROWS: Final = 64
# Rows per call over matrices this large are bounded, so that scratch stays small.
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


def _reordered(weight: Tensor, rows: int) -> Tensor | None:
    """The weight in oneDNN's layout for calls of about `rows` rows; None where oneDNN cannot take it here."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn or weight.dtype == torch.float64:
        return None
    try:
        made: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        _product(torch.zeros(rows, weight.shape[1], dtype=weight.dtype), made)
    except RuntimeError:  # e.g. float16 on a processor without float16 products
        return None
    return made


def _product(x: Tensor, reordered: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, reordered, None, "none", [], "")
    return result


class Tiled:
    """Calls of exactly `TILE` rows: the library sees one shape only, whatever a call holds."""

    form = "tiled"

    def __init__(self, weight: Tensor) -> None:
        self.out_features = weight.shape[0]
        self.nbytes = weight.numel() * weight.element_size()
        self._dtype = weight.dtype
        self._reordered = _reordered(weight, TILE) if weight.dtype != torch.float32 else None
        self._transposed = weight.contiguous().T if self._reordered is None else None

    def _tile(self, x: Tensor) -> Tensor:
        if self._reordered is not None:
            return _product(x, self._reordered)
        assert self._transposed is not None
        return torch.mm(x, self._transposed)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        stored = torch.nn.functional.pad(x.to(self._dtype), (0, 0, 0, -rows % TILE))
        if rows <= TILE:
            return self._tile(stored)[:rows].to(x.dtype)
        out = torch.empty(stored.shape[0], self.out_features, dtype=x.dtype, device=x.device)
        for start in range(0, stored.shape[0], TILE):
            out[start : start + TILE] = self._tile(stored[start : start + TILE])
        return out[:rows]


class Reordered:
    """oneDNN's product over weights reordered once: near the memory's speed for few rows, near the cores' for many."""

    form = "reordered"

    def __init__(self, reordered: Tensor, out_features: int, in_features: int) -> None:
        self.out_features = out_features
        self._in = in_features
        self.nbytes = 4 * out_features * in_features
        self._weight = reordered
        self._large = out_features * in_features >= _LARGE
        # oneDNN takes another path for a single row of a long weight; such a row is sent twice.
        self._single = True
        self._single = self._agree((1,))

    @staticmethod
    def of(weight: Tensor) -> Reordered | None:
        """This form of a weight [out, in], None where it cannot hold it or does not keep its bits."""
        if weight.dtype != torch.float32:
            return None
        # The row count the layout is chosen for decides which bits come out, so it is fixed; 64 reads fastest.
        reordered = _reordered(weight, _LAYOUT_ROWS)
        if reordered is None:
            return None
        made = Reordered(reordered, *weight.shape)
        return made if made.keeps_bits() else None

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows == 1 and not self._single:
            return _product(x.expand(2, -1).contiguous(), self._weight)[:1]
        if not self._large or rows <= _LARGE_ROWS:
            return _product(x.contiguous(), self._weight)
        out = torch.empty(rows, self.out_features, dtype=x.dtype)
        for start in range(0, rows, _LARGE_ROWS):
            stop = min(start + _LARGE_ROWS, rows)
            out[start:stop] = self(x[start:stop])
        return out

    def _agree(self, sizes: tuple[int, ...]) -> bool:
        """The last rows of a call come out alike when they are a call of their own."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(_LARGE_ROWS, self._in, generator=generator)
        whole = self(x)
        return all(torch.equal(self(x[-m:]), whole[-m:]) for m in sizes)

    def keeps_bits(self) -> bool:
        """Rows come out alike in calls of several sizes, on this machine and for this shape."""
        return self._agree(_PROBED)


def make_linear(weight: Tensor) -> Linear:
    """The fastest form that keeps the contract for this weight [out, in] on this machine."""
    return Reordered.of(weight) or Tiled(weight)

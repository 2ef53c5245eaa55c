"""Matrix products with stored weights: y [n, out] = x [n, in] W^T.

    reference   x @ W.T                                        any dtype    does not keep the contract
    Tiled       calls of exactly `TILE` rows, the last padded  any dtype    keeps it: every call has one shape
    Reordered   oneDNN product over reordered weights          float32 CPU  keeps it: checked for each shape at load
    Native      kernels over weights packed once               32, 16 bits  CPU  keeps it: sums over k in order

In bf16, and f16 without kernels, the inputs of a product are rounded to that type unless it is to be `exact`; sums are
float32 inside it. Library products round their outputs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from plait.dtypes import Format
from plait.runtime.blocks import DENSE
from plait.runtime.kernels import native
from plait.runtime.ops.activation import NATIVE_ACTIVATIONS

if TYPE_CHECKING:
    from plait.runtime._native import Native as Kernels
    from plait.runtime._native import Prepared

__all__ = [
    "TILE",
    "Gating",
    "Linear",
    "Native",
    "Prepares",
    "Reordered",
    "Tiled",
    "gates",
    "in_turn",
    "make_linear",
    "make_linears",
    "prepared_bytes",
    "reference",
    "stored_type",
]

TILE: Final = 32
# Numbers of 64 bits in the widest vectors.
_VECTOR: Final = 8
# Row counts at which the reordered form is compared with itself when a weight is loaded.
_PROBED: Final = (1, 2, 3, 17, 33)
_LAYOUT_ROWS: Final = 64
# Rows per call over matrices this large are bounded, so that scratch stays small.
_LARGE: Final = 2**25
_LARGE_ROWS: Final = 64
# What the kernels pack weights in: outputs of a panel, and what columns are padded to a multiple of.
_PANEL: Final = 16
_HALVES: Final = (torch.float16, torch.bfloat16)
_COLUMNS: Final = MappingProxyType({torch.float32: 2, torch.float16: 2, torch.bfloat16: 32})
# What the kernels know a product without an activation by.
_PLAIN: Final = -1


class Linear(Protocol):
    """A prepared weight; calling it keeps the exactness contract. `form` names the form for reports."""

    form: str
    out_features: int
    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, in] in the compute type -> [n, out] in the compute type."""


@runtime_checkable
class Prepares(Protocol):
    """A form of `Linear` that native programs can call, over the same weights and with the same bits."""

    def prepared(self, activation: str | None = None) -> Prepared | None:
        """The product as programs call it, None: it has none. It reads this object's weights: keep both.

        activation  of a product that is gate and up in one, None: a plain product
        """


class Gating(Linear, Protocol):
    """A product with gate and up that gates as well."""

    def gated(self, activation: str, x: Tensor) -> Tensor:
        """activation(gate x) * (up x) [n, width]."""


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """The plain product, the truth the forms are tested against."""
    return x @ weight.T


def _reordered(weight: Tensor, rows: int) -> Tensor | None:
    """The weight in oneDNN's layout for calls of about `rows` rows; None where oneDNN cannot take it here."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn or weight.dtype == torch.float64:
        return None
    try:
        made = _reorder(weight, rows)
        _product(torch.zeros(rows, weight.shape[1], dtype=weight.dtype), made)
    except RuntimeError:  # e.g. float16 on a processor without float16 products
        return None
    return made


def _reorder(weight: Tensor, rows: int) -> Tensor:
    made: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    return made


def _product(x: Tensor, reordered: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, reordered, None, "none", [], "")
    return result


def _missing(size: int, dtype: torch.dtype, device: torch.device) -> int:
    """Outputs or columns of zeros that fill up a weight of `size`, for `Tiled`."""
    return -size % _VECTOR if dtype == torch.float64 and device.type == "cpu" else 0


def _filled(weight: Tensor) -> Tensor:
    out, columns = (_missing(size, weight.dtype, weight.device) for size in weight.shape)
    # Nothing is copied where nothing is missing: the tensor may be a file's map.
    filled = torch.nn.functional.pad(weight, (0, columns, 0, out)) if out or columns else weight
    return filled.contiguous()


class Tiled:
    """Calls of exactly `TILE` rows: the library sees one shape only, whatever a call holds.

    In float64 outputs and columns are filled up with zeros to whole vectors: at odd sizes a library takes the rows of
    one call in unlike ways, so that a row's bits depend on its place in it (seen with MKL on AMD's processors).
    """

    form = "tiled"

    def __init__(self, weight: Tensor) -> None:
        self.out_features = weight.shape[0]
        self._dtype = weight.dtype
        self._reordered = _reordered(weight, TILE) if weight.dtype != torch.float32 else None
        self._transposed = _filled(weight).T if self._reordered is None else None
        self.nbytes = (weight if self._transposed is None else self._transposed).numel() * weight.element_size()

    def like(self, weight: Tensor) -> Tiled:
        """This form of another weight of the same shape and type."""
        made = copy(self)
        made._reordered = _reorder(weight, TILE) if self._reordered is not None else None
        made._transposed = _filled(weight).T if self._transposed is not None else None
        return made

    def _tile(self, x: Tensor) -> Tensor:
        if self._reordered is not None:
            return _product(x, self._reordered)
        assert self._transposed is not None
        return torch.mm(x, self._transposed)[:, : self.out_features]

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        columns = x.shape[1] if self._transposed is None else self._transposed.shape[0]
        stored = torch.nn.functional.pad(x.to(self._dtype), (0, columns - x.shape[1], 0, -rows % TILE))
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

    def like(self, weight: Tensor) -> Reordered:
        """This form of another weight of the same shape and type; what was found out about the shape holds for it."""
        made = copy(self)
        made._weight = _reorder(weight, _LAYOUT_ROWS)
        return made

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


class Native:
    """Kernels of `native/linear.hpp`: panels of 16 outputs, each output one chain of multiply-adds over the columns.

    exact  bf16 weights: inputs are not rounded. A level with products of bf16 alone takes them as the sum of two bf16
           numbers (within 2^-16 of them); the others widen the weights, as they do float16 ones, and read inputs as
           they are.
    """

    def __init__(self, kernels: Kernels, weight: Tensor, *, exact: bool = False) -> None:
        from plait.runtime._native import pack_bf16, pack_f16, pack_f32

        self._kernels = kernels
        self._exact = exact
        self.out_features, self._in = weight.shape
        self._packed = torch.empty(_packed(self.out_features, self._in, weight.dtype), dtype=weight.dtype)
        # Held by a name: the kernel reads at its address.
        whole = weight.contiguous()
        pack = {torch.float32: pack_f32, torch.float16: pack_f16, torch.bfloat16: pack_bf16}[weight.dtype]
        pack(whole.data_ptr(), self._packed.data_ptr(), self.out_features, self._in)
        if weight.dtype == torch.bfloat16:
            self._prepared: Callable[[int, int, int, int], Prepared] = partial(kernels.prepared_bf16, exact=exact)
        else:
            self._prepared = kernels.prepared_f32 if weight.dtype == torch.float32 else kernels.prepared_f16
        self._plain = self.prepared()
        self.nbytes = self._packed.numel() * self._packed.element_size()
        self.form = _form(kernels, weight.dtype, exact)

    @staticmethod
    def of(weight: Tensor, *, exact: bool = False) -> Native | None:
        """This form of a weight [out, in], None where there are no kernels for it."""
        kernels = _kernels(weight.device, weight.dtype)
        return None if kernels is None else Native(kernels, weight, exact=exact)

    def like(self, weight: Tensor) -> Native:
        """This form of another weight of the same shape and type."""
        return Native(self._kernels, weight, exact=self._exact)

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(self._plain, x)

    def gated(self, activation: str, x: Tensor) -> Tensor:
        """activation(gate x) * (up x) [n, width]; the weight is gate and up as `in_turn` has put them together."""
        return self._run(self.prepared(activation), x)

    def prepared(self, activation: str | None = None) -> Prepared:
        """See `Prepares`."""
        if activation is None:
            return self._prepared(self._packed.data_ptr(), self.out_features, self._in, _PLAIN)
        number = NATIVE_ACTIVATIONS[activation]
        return self._prepared(self._packed.data_ptr(), self.out_features // 2, self._in, number)

    def _run(self, product: Prepared, x: Tensor) -> Tensor:
        if x.dtype != torch.float32 or x.stride(-1) != 1:
            x = x.to(torch.float32).contiguous()
        y = torch.empty(x.shape[0], product.out)
        product.run(x.data_ptr(), x.stride(0), y.data_ptr(), product.out, x.shape[0])
        return y


def gates(width: int, activation: str, dtype: torch.dtype, device: torch.device) -> bool:
    """`Native.gated` serves a gate and an up weight of `width` outputs each, once `in_turn` has put them together."""
    return _kernels(device, dtype) is not None and activation in NATIVE_ACTIVATIONS and width % _PANEL == 0


def in_turn(both: Tensor) -> Tensor:
    """Rows of gate and then up [2 width, in], now 16 of the one and 16 of the other in turn."""
    return both.view(2, -1, _PANEL, both.shape[1]).transpose(0, 1).reshape(both.shape)


def _kernels(device: torch.device, dtype: torch.dtype) -> Kernels | None:
    """The kernels for weights of a type on a device, None where there are none."""
    return native() if device.type == "cpu" and dtype in _COLUMNS else None


def stored_type(form: Format | None, device: torch.device) -> torch.dtype | None:
    """The 16-bit type a weight stored in a format can be used in, inputs rounded or not; None: it is widened."""
    dtype = None if form is None else DENSE.get(form.name)
    return dtype if dtype in _HALVES and _kernels(device, dtype) is not None else None


def _form(kernels: Kernels, dtype: torch.dtype, exact: bool) -> str:
    """What reports call a form."""
    if dtype == torch.float32:
        return f"native {kernels.name}"
    if dtype == torch.bfloat16 and not exact:
        return f"native {kernels.bf16_form} bf16"
    if dtype == torch.bfloat16 and kernels.bf16_form == "amx":
        return "native amx bf16 x2"
    return f"native {kernels.name} {'f16' if dtype == torch.float16 else 'bf16'} widened"


def _packed(out_features: int, in_features: int, dtype: torch.dtype) -> int:
    """Elements of a weight in the kernels' panels: outputs and columns are padded."""
    columns = -(-in_features // _COLUMNS[dtype]) * _COLUMNS[dtype]
    return -(-out_features // _PANEL) * _PANEL * columns


def prepared_bytes(
    out_features: int, in_features: int, dtype: torch.dtype, device: torch.device, *, exact: bool = False
) -> int:
    """Bytes of what `make_linear` makes here of a weight of this shape and type on a device."""
    if _kernels(device, dtype) is None:
        out_features += _missing(out_features, dtype, device)
        in_features += _missing(in_features, dtype, device)
        widened = exact and dtype in _HALVES
        return out_features * in_features * (torch.float32 if widened else dtype).itemsize
    return _packed(out_features, in_features, dtype) * dtype.itemsize


def make_linear(weight: Tensor, *, exact: bool = False) -> Linear:
    """The fastest form that keeps the contract for this weight [out, in] on this machine.

    exact  inputs are not rounded to a 16-bit weight's type; without kernels the weight is widened to float32 for it
    """
    return _fastest(weight, exact)


def make_linears(weights: Iterable[Tensor], *, exact: bool = False) -> Iterator[Linear]:
    """The same for many weights of one shape and type, one after the other; the form is chosen once for all.

    ValueError: weights of unlike shapes or types.
    """
    chosen, kind = None, None
    for weight in weights:
        if chosen is None:
            # Chosen on random values: in a product with zeros no order of summation shows.
            chosen, kind = _fastest(_random_like(weight), exact), (weight.shape, weight.dtype)
        elif kind != (weight.shape, weight.dtype):
            raise ValueError(f"a weight {tuple(weight.shape)} {weight.dtype} among weights of {kind}")
        yield chosen.like(_usable(weight, exact))


def _random_like(weight: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(weight.shape, generator=generator).to(weight)


def _usable(weight: Tensor, exact: bool) -> Tensor:
    """The weight as a form takes it: libraries round inputs to its type, so where they must not it is widened."""
    widened = exact and weight.dtype in _HALVES and _kernels(weight.device, weight.dtype) is None
    return weight.to(torch.float32) if widened else weight


def _fastest(weight: Tensor, exact: bool) -> Native | Reordered | Tiled:
    weight = _usable(weight, exact)
    return Native.of(weight, exact=exact) or Reordered.of(weight) or Tiled(weight)

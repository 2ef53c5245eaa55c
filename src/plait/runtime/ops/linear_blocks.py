"""Matrix products with weights in GGUF's block formats, which stay the integers they are.

A weight is A (u - zero) + O: u a code of 4 to 8 bits, A and O numbers of its group of columns. Of each 32 numbers of a
row the largest decides a scale s, so that q = round(x / s) is an integer; sums of q (u - zero) are exact in any order,
and one chain of float multiply-adds over the groups makes an output of them. So weights lose nothing, a row's bits do
not depend on what is computed beside it, and what is rounded is x. Where the largest number of a group is large beside
those of other groups, what rounding has left is added in the same way, so that an outlier costs its neighbours nothing;
with 8 bits, one of more than 220 times their size.

Integers have 8 bits or 16. Of 8 bits, s is the 127th of the largest number or a little more: the next of eight steps
between powers of two, so that its products with whole numbers and scales are exact. Of 16, s is a power of two, x is
rounded by a 32,512th of the largest number at most, and beside codes so large that a group's sum could pass 2^24, to
which float32 adds whole numbers exactly, groups whose |q| add up to too much have a larger s: in Q5_1 and Q5_K twice,
in Q8_0 up to 8 times, mostly 2 or 4.

    reference   integers in float64        any device   the truth the kernels are tested against
    Blocks      kernels over packed codes  float32 CPU  keeps the contract
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import torch
from torch import Tensor

from plait.dtypes import Format
from plait.runtime.blocks import unpack
from plait.runtime.kernels import BLOCK_FORMATS, native
from plait.runtime.ops.activation import NATIVE_ACTIVATIONS
from plait.runtime.packed import Packed
from plait.runtime.packing import Packing
from plait.runtime.rooms import Rooms

if TYPE_CHECKING:
    from plait.runtime._native import Native as Kernels
    from plait.runtime._native import Prepared

__all__ = [
    "Blocks",
    "InputBits",
    "block_bytes",
    "gates_blocks",
    "quantised",
    "reference",
    "rounded",
    "sum_limit",
    "takes_format",
]

InputBits = Literal[8, 16]
"""Of the integers that rows become."""

_PANEL: Final = 16
_GROUP: Final = 32
# Of integers of 16 bits, without the sign; the largest of those of 8.
_BITS: Final = 15
_LARGEST_BYTE: Final = 127
# The largest integers of a whole group.
_NO_LIMIT: Final = 32 * 32512
# A group whose largest number is smaller is zero; one with a number as large is no number.
_LEAST: Final = 2.0**-100
_MOST: Final = 2.0**108
_PLAIN: Final = -1


def sum_limit(form: Format) -> int:
    """What the sizes of a group's integers of 16 bits may add up to beside weights in this format."""
    from plait.runtime._native import sum_limit

    return sum_limit(BLOCK_FORMATS.index(form.name))


def _stepped(scale: Tensor) -> Tensor:
    """The least float32 with three bits behind the first that is no smaller."""
    rest = 2**20 - 1
    return ((scale.view(torch.int32) + rest) & ~rest).view(torch.float32)


def quantised(x: Tensor, bits: InputBits, limit: int = _NO_LIMIT) -> tuple[Tensor, Tensor]:
    """Rows [n, in] as integers [n, in / 32, 32] in float64, and the scales [n, in / 32, 1] of their groups, float32.

    limit  what the sizes of a group's integers of 16 bits add up to at most
    """
    groups = x.to(torch.float32).reshape(x.shape[0], -1, _GROUP)
    most = groups.abs().amax(-1, keepdim=True)
    most = torch.where(most < _MOST, most, torch.nan)
    if bits == 8:
        # As tensors: a number over a tensor is its reciprocal times the number to torch, which rounds twice.
        scale = torch.where(most < _LEAST, 0, _stepped(most / torch.full_like(most, _LARGEST_BYTE)))
        q = torch.where(scale == 0, 0, groups * (1 / scale)).round()
        return q.to(torch.float64), scale
    # The largest integer is at most 2^15 - 256, so that its high byte has room for what the low one carries.
    mantissa, exponent = most.frexp()
    scale = torch.ldexp(torch.ones_like(most), exponent + (mantissa >= 1 - 2.0**-7) - _BITS)
    scale = torch.where(most < _LEAST, 0, torch.where(most.isnan(), most, scale))
    q = torch.where(scale == 0, 0, groups / scale).round()
    total = q.abs().sum(-1, keepdim=True, dtype=torch.float64)
    less = (total > limit).to(torch.int32)
    # Rounding the numbers anew adds a half each, where rounding them before may have taken one.
    for _ in range(_BITS):
        less += (less > 0) & (((total + 16) / 2.0**less).floor() + 17 > limit)
    scale = torch.ldexp(scale, less)
    q = torch.where(scale == 0, 0, groups / scale).round()
    return q.to(torch.float64), scale


def rounded(x: Tensor, bits: InputBits, limit: int = _NO_LIMIT) -> Tensor:
    """Rows [n, in] as the kernels read them, in float64. limit: see `quantised`."""
    q, scales = quantised(x, bits, limit)
    found = q * scales.to(torch.float64)
    # Where the largest number is more than three times such numbers' average, what is left is rounded as well.
    most = x.to(torch.float32).reshape_as(q).abs().amax(-1, keepdim=True)
    rest, finer = quantised((x.to(torch.float64).reshape_as(q) - found).flatten(1), bits, limit)
    over = most > 3 * most.mean(1, keepdim=True)
    return torch.where(over, found + rest * finer.to(torch.float64), found).flatten(1)


def reference(x: Tensor, weight: Packed, bits: InputBits) -> Tensor:
    """The product of rows as `rounded` gives them with the weight's exact values: [n, out] in float64."""
    return rounded(x, bits, sum_limit(weight.format)) @ unpack(weight.format, weight.data).to(torch.float64).T


def takes_format(form: Format | None, device: torch.device) -> bool:
    """There are kernels here for weights in this format."""
    return form is not None and form.name in BLOCK_FORMATS and device.type == "cpu" and native() is not None


def gates_blocks(width: int, activation: str) -> bool:
    """`Blocks.gated` serves a gate and an up weight in one format, `width` outputs each."""
    return activation in NATIVE_ACTIVATIONS and width % _PANEL == 0


def block_bytes(form: Format, out_features: int, in_features: int) -> int:
    """Bytes of a weight as `Blocks` holds it. Only where `takes_format`."""
    from plait.runtime._native import packed_bytes

    return packed_bytes(BLOCK_FORMATS.index(form.name), out_features, in_features)


class Blocks:
    """Kernels of `native/blocks*`: weights [out, in] that meet one input, outputs end to end, packed once.

    bits     of the integers that rows become
    in_turn  two weights, gate and up in one format: made for `gated`, not to be called
    rooms    where they are packed; None: in an area of their own
    packing  what packs them, to be waited for; None: they are packed when this returns
    """

    def __init__(
        self,
        kernels: Kernels,
        weights: Sequence[Packed],
        *,
        bits: InputBits,
        in_turn: bool = False,
        rooms: Rooms | None = None,
        packing: Packing | None = None,
    ) -> None:
        self._kernels = kernels
        self._planes = bits // 8
        packer = Packing() if packing is None else packing
        self._rooms = Rooms() if rooms is None else rooms
        self._in = weights[0].shape[1]
        self.out_features = sum(weight.shape[0] for weight in weights)
        self.nbytes = 0
        names = "+".join(dict.fromkeys(weight.format.name for weight in weights))
        self.form = f"native {kernels.blocks_form} {names} x int{bits}"
        self._held: list[Tensor] = []
        self._parts: list[tuple[int, int, int]] = []
        if in_turn:
            gate, up = weights
            if gate.format != up.format or gate.shape != up.shape or gate.shape[0] % _PANEL:
                raise ValueError(f"gate {gate.format.name} {gate.shape} and up {up.format.name} {up.shape} in turn")
            room = self._room(gate.format, self.out_features)
            self._pack(packer, gate, room, 0, 2)
            self._pack(packer, up, room, 1, 2)
        else:
            for weight in weights:
                self._pack(packer, weight, self._room(weight.format, weight.shape[0]), 0, 1)
        self._made: dict[str | None, Prepared] = {}
        if packing is None:
            packer.wait()

    def _room(self, form: Format, outputs: int) -> Tensor:
        size = block_bytes(form, outputs, self._in)
        room = self._rooms.take(size)
        self._held.append(room)
        self._parts.append((room.data_ptr(), outputs, BLOCK_FORMATS.index(form.name)))
        self.nbytes += size
        return room

    def _pack(self, packer: Packing, weight: Packed, room: Tensor, first: int, step: int) -> None:
        """Panels of the weight go to every `step`th place from `first` on."""
        outputs, columns = weight.shape
        if columns != self._in or weight.typed:
            raise ValueError(f"a weight {weight.shape} in {weight.format.name} among rows of {self._in} columns")
        form = BLOCK_FORMATS.index(weight.format.name)
        packer.add(weight.data, room, (outputs, columns), form, first, step)

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, in] -> [n, out]."""
        return self._run(x, None)

    def gated(self, activation: str, x: Tensor) -> Tensor:
        """activation(gate x) * (up x) [n, width] of weights that were packed in turn."""
        return self._run(x, activation)

    def prepared(self, activation: str | None = None) -> Prepared:
        """See `Prepares`."""
        if activation not in self._made:
            number = _PLAIN if activation is None else NATIVE_ACTIVATIONS[activation]
            self._made[activation] = self._kernels.prepared_blocks(self._parts, self._in, number, self._planes)
        return self._made[activation]

    def _run(self, x: Tensor, activation: str | None) -> Tensor:
        if x.dtype != torch.float32 or x.stride(-1) != 1:
            x = x.to(torch.float32).contiguous()
        product = self.prepared(activation)
        y = torch.empty(x.shape[0], product.out)
        product.run(x.data_ptr(), x.stride(0), y.data_ptr(), product.out, x.shape[0])
        return y

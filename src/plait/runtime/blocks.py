"""What the bytes of each storage format mean: the reference form of unpacking, and packing.

Source: ggml-common.h (layout of the blocks) and ggml-quants.c (reference quantisers) of the ggml project.
A row is a whole number of blocks. In the layouts below d and m are float16, n is a nibble: byte i of 16 (or
32) holds element i in its low half and the element 16 (or 32) further on in its high half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from plait.dtypes import Format
from plait.errors import UnsupportedError, WeightsError, fault

__all__ = ["DENSE", "pack", "packable", "unpack", "unpackable"]

DENSE: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "f64": torch.float64,
        "f8_e4m3": torch.float8_e4m3fn,
        "f8_e5m2": torch.float8_e5m2,
        "f8_e8m0": torch.float8_e8m0fnu,
        "i8": torch.int8,
        "i16": torch.int16,
        "i32": torch.int32,
        "i64": torch.int64,
        "u8": torch.uint8,
        "u16": torch.uint16,
        "u32": torch.uint32,
        "u64": torch.uint64,
        "bool": torch.bool,
    }
)
"""The torch type of each dense format, by name."""

_FLOATS: Final = ("f32", "f16", "bf16", "f64", "f8_e4m3", "f8_e5m2")


def unpack(form: Format, data: Tensor) -> Tensor:
    """Rows as stored, uint8 [..., row bytes], to float32 [..., elements].

    Bit for bit what ggml's reference gives; f64 is rounded to float32. UnsupportedError: a format with no reader.
    WeightsError: bytes that do not fill blocks.
    """
    if form.name not in unpackable():
        known = ", ".join(unpackable())
        raise UnsupportedError(fault(f"format {form.name} cannot be read", expected=f"one of {known}"))
    if data.dtype != torch.uint8 or data.ndim == 0 or data.shape[-1] % form.block_bytes:
        found = f"{data.dtype} {tuple(data.shape)}"
        raise WeightsError(fault(f"rows in {form.name}", expected=f"uint8 [..., n * {form.block_bytes}]", found=found))
    if form.name in _FLOATS:
        return _typed(data, DENSE[form.name]).to(torch.float32)
    lead = data.shape[:-1]
    blocks = data.reshape(-1, form.block_bytes)
    return _UNPACK[form.name](blocks).reshape(*lead, data.shape[-1] // form.block_bytes * form.block)


def pack(form: Format, x: Tensor) -> Tensor:
    """Real rows [..., elements] to bytes as stored, uint8 [..., row bytes], each value to the nearest one it can be.

    The 32-element formats are bit for bit ggml's reference quantisers; the k formats take their scales from the
    extremes of each group, without ggml's search. UnsupportedError: a format with no writer. WeightsError: rows that
    do not fill blocks, values (or the scales they lead to) that are not finite in the format.
    """
    if form.name not in packable():
        known = ", ".join(packable())
        raise UnsupportedError(fault(f"format {form.name} cannot be written", expected=f"one of {known}"))
    if not x.is_floating_point() or x.ndim == 0 or x.shape[-1] % form.block:
        expected = f"floats [..., n * {form.block}]"
        raise WeightsError(fault(f"rows for {form.name}", expected=expected, found=f"{x.dtype} {tuple(x.shape)}"))
    if form.name in _FLOATS:
        dense = x.to(DENSE[form.name])
        _check_finite(form, dense)
        return _bytes(dense)
    single = x.to(torch.float32)
    _check_finite(form, single)
    lead = x.shape[:-1]
    blocks = _PACK[form.name](single.reshape(-1, form.block))
    _check_finite(form, *(_half(blocks, at) for at in _HALVES[form.name]))
    return blocks.reshape(*lead, x.shape[-1] // form.block * form.block_bytes)


def unpackable() -> tuple[str, ...]:
    """Names of the formats that `unpack` reads."""
    return (*_FLOATS, *_UNPACK)


def packable() -> tuple[str, ...]:
    """Names of the formats that `pack` writes."""
    return (*_FLOATS, *_PACK)


def _check_finite(form: Format, *values: Tensor) -> None:
    # torch has no isfinite for types of one byte
    wide = (v.to(torch.float32) if v.element_size() == 1 else v for v in values)
    if not all(bool(torch.isfinite(v).all()) for v in wide):
        raise WeightsError(fault(f"values to write as {form.name}", expected="finite ones", found="infinity or NaN"))


def _typed(data: Tensor, dtype: torch.dtype) -> Tensor:
    # A file may place elements anywhere; a copy is always aligned.
    return data.clone(memory_format=torch.contiguous_format).view(dtype)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block, as float32 [blocks, 1]."""
    return _typed(blocks[:, at : at + 2], torch.float16).to(torch.float32)


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


def _bits(packed: Tensor, width: int) -> Tensor:
    """[blocks, groups, n] bytes to [blocks, groups, 8 / width, n]: the lowest `width` bits first."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device).reshape(1, 1, -1, 1)
    fields: Tensor = (packed.unsqueeze(-2) >> shifts) & (2**width - 1)
    return fields


def _gather_bits(values: Tensor, width: int) -> Tensor:
    """The inverse of `_bits`."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=values.device).reshape(1, 1, -1, 1)
    # the fields do not overlap, so their sum is their union
    return (values << shifts).sum(-2, dtype=torch.int32).to(torch.uint8)


def _nibbles(blocks: Tensor, at: int) -> Tensor:
    return _bits(blocks[:, None, at : at + 16], 4).flatten(1)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """Bit 4 of each of 32 elements, from a little-endian u32: [blocks, 32]."""
    return _bits(blocks[:, at : at + 4, None], 1).flatten(1) << 4


def _unpack_q4_0(b: Tensor) -> Tensor:
    # d, 16 n;  x = d * (q - 8)
    return _half(b, 0) * (_nibbles(b, 2).to(torch.float32) - 8)


def _unpack_q4_1(b: Tensor) -> Tensor:
    # d, m, 16 n;  x = d * q + m
    return _half(b, 0) * _nibbles(b, 4) + _half(b, 2)


def _unpack_q5_0(b: Tensor) -> Tensor:
    # d, 32 fifth bits, 16 n;  x = d * (q - 16)
    return _half(b, 0) * ((_nibbles(b, 6) | _fifth_bits(b, 2)).to(torch.float32) - 16)


def _unpack_q5_1(b: Tensor) -> Tensor:
    # d, m, 32 fifth bits, 16 n;  x = d * q + m
    return _half(b, 0) * (_nibbles(b, 8) | _fifth_bits(b, 4)) + _half(b, 2)


def _unpack_q8_0(b: Tensor) -> Tensor:
    # d, 32 int8;  x = d * q
    return _half(b, 0) * _typed(b[:, 2:], torch.int8)


def _scales_and_mins(b: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and eight 6-bit minima from bytes 4 to 15, each [blocks, 8].

    Bytes 0 to 3 hold scales 0 to 3 and, in their upper two bits, the top of scales 4 to 7; bytes 4 to 7 likewise the
    minima; bytes 8 to 11 the low halves of scales (low) and minima (high) 4 to 7.
    """
    scales, mins, low = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    return (
        torch.cat([scales & 63, (low & 15) | ((scales >> 6) << 4)], -1),
        torch.cat([mins & 63, (low >> 4) | ((mins >> 6) << 4)], -1),
    )


def _unpack_k(b: Tensor, q: Tensor) -> Tensor:
    # d, dmin, scales and minima, ...;  x = d * scale * q - dmin * min, for q [blocks, 8, 32]
    scales, mins = _scales_and_mins(b)
    return ((_half(b, 0) * scales).unsqueeze(-1) * q - (_half(b, 2) * mins).unsqueeze(-1)).flatten(1)


def _unpack_q4_k(b: Tensor) -> Tensor:
    # ..., 4 groups of 32 n
    return _unpack_k(b, _bits(b[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32))


def _unpack_q5_k(b: Tensor) -> Tensor:
    # ..., 32 bytes whose bit j is the fifth bit of group j's element, 4 groups of 32 n
    q = _bits(b[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _unpack_k(b, q | (_bits(b[:, None, 16:48], 1).reshape(-1, 8, 32) << 4))


def _unpack_q6_k(b: Tensor) -> Tensor:
    # 2 halves of 64 n, 2 halves of 32 bytes with the upper two bits, 16 int8 scales, d;  x = d * scale * (q - 32)
    low = _bits(b[:, :128].reshape(-1, 2, 64), 4).flatten(1)
    high = _bits(b[:, 128:192].reshape(-1, 2, 32), 2).flatten(1)
    q = ((low | (high << 4)).to(torch.float32) - 32).reshape(-1, 16, 16)
    return ((_half(b, 208) * _typed(b[:, 192:208], torch.int8)).unsqueeze(-1) * q).flatten(1)


def _inverse(scale: Tensor) -> Tensor:
    # 0 where the scale is 0, or so small that its inverse is no number
    inverse = 1 / scale
    return torch.where(torch.isfinite(inverse), inverse, 0)


def _extreme(x: Tensor) -> Tensor:
    """The first value of the largest magnitude along the last axis, with its sign: [..., 1]."""
    size = x.abs()
    places = torch.arange(x.shape[-1], device=x.device).expand_as(x)
    first = torch.where(size == size.amax(-1, keepdim=True), places, x.shape[-1]).amin(-1, keepdim=True)
    return x.gather(-1, first)


def _levels(x: Tensor, offset: float, top: int) -> Tensor:
    return (x + offset).trunc().clamp(0, top).to(torch.uint8)


def _centred(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    d = _extreme(x) / -(2 ** (bits - 1))
    return d, _levels(x * _inverse(d), 2 ** (bits - 1) + 0.5, 2**bits - 1)


def _ranged(x: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    least = x.amin(-1, keepdim=True)
    d = (x.amax(-1, keepdim=True) - least) / (2**bits - 1)
    return d, least, _levels((x - least) * _inverse(d), 0.5, 2**bits - 1)


def _halves(*values: Tensor) -> list[Tensor]:
    return [_bytes(v.to(torch.float16)) for v in values]


def _put_nibbles(q: Tensor) -> Tensor:
    return _gather_bits((q & 15).reshape(-1, 1, 2, 16), 4).flatten(1)


def _put_fifth_bits(q: Tensor) -> Tensor:
    return _gather_bits((q >> 4).reshape(-1, 4, 8, 1), 1).flatten(1)


def _pack_q4_0(x: Tensor) -> Tensor:
    d, q = _centred(x, 4)
    return torch.cat([*_halves(d), _put_nibbles(q)], -1)


def _pack_q4_1(x: Tensor) -> Tensor:
    d, least, q = _ranged(x, 4)
    return torch.cat([*_halves(d, least), _put_nibbles(q)], -1)


def _pack_q5_0(x: Tensor) -> Tensor:
    d, q = _centred(x, 5)
    return torch.cat([*_halves(d), _put_fifth_bits(q), _put_nibbles(q)], -1)


def _pack_q5_1(x: Tensor) -> Tensor:
    d, least, q = _ranged(x, 5)
    return torch.cat([*_halves(d, least), _put_fifth_bits(q), _put_nibbles(q)], -1)


def _pack_q8_0(x: Tensor) -> Tensor:
    d = x.abs().amax(-1, keepdim=True) / 127
    y = x * _inverse(d)
    size = y.abs()
    floor = size.floor()
    q = y.sign() * (floor + (2 * (size - floor)).floor())  # halves away from zero, as C's roundf
    return torch.cat([*_halves(d), _bytes(q.to(torch.int8))], -1)


def _as_half(x: Tensor) -> Tensor:
    return x.to(torch.float16).to(torch.float32)


def _k_levels(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The first 16 bytes of a q4_k or q5_k block, and the levels [blocks, 8, 32]."""
    groups = x.reshape(-1, 8, 32)
    low = (-groups.amin(-1)).clamp(min=0)  # a minimum is stored negated and cannot be below 0
    step = (groups.amax(-1) + low).clamp(min=0) / (2**bits - 1)
    d, dmin = (_as_half(v.amax(-1, keepdim=True) / 63) for v in (step, low))
    scales, mins = ((v * _inverse(u)).round().clamp(0, 63).to(torch.uint8) for v, u in ((step, d), (low, dmin)))
    q = _levels((groups + (dmin * mins)[..., None]) * _inverse(d * scales)[..., None], 0.5, 2**bits - 1)
    head = [scales[:, :4] | ((scales[:, 4:] >> 4) << 6), mins[:, :4] | ((mins[:, 4:] >> 4) << 6)]
    return torch.cat([*_halves(d, dmin), *head, (scales[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4)], -1), q


def _pack_q4_k(x: Tensor) -> Tensor:
    head, q = _k_levels(x, 4)
    return torch.cat([head, _gather_bits(q.reshape(-1, 4, 2, 32), 4).flatten(1)], -1)


def _pack_q5_k(x: Tensor) -> Tensor:
    head, q = _k_levels(x, 5)
    high = _gather_bits((q >> 4).reshape(-1, 1, 8, 32), 1).flatten(1)
    return torch.cat([head, high, _gather_bits((q & 15).reshape(-1, 4, 2, 32), 4).flatten(1)], -1)


def _pack_q6_k(x: Tensor) -> Tensor:
    groups = x.reshape(-1, 16, 16)
    step = (_extreme(groups) / -32).squeeze(-1)
    d = _as_half(step.abs().amax(-1, keepdim=True) / 127)
    scales = (step * _inverse(d)).round().clamp(-128, 127)
    q = _levels(groups * _inverse(d * scales)[..., None], 32.5, 63).flatten(1)
    low = _gather_bits((q & 15).reshape(-1, 2, 2, 64), 4).flatten(1)
    high = _gather_bits((q >> 4).reshape(-1, 2, 4, 32), 2).flatten(1)
    return torch.cat([low, high, _bytes(scales.to(torch.int8)), *_halves(d)], -1)


_UNPACK: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "q4_0": _unpack_q4_0,
        "q4_1": _unpack_q4_1,
        "q5_0": _unpack_q5_0,
        "q5_1": _unpack_q5_1,
        "q8_0": _unpack_q8_0,
        "q4_k": _unpack_q4_k,
        "q5_k": _unpack_q5_k,
        "q6_k": _unpack_q6_k,
    }
)
_PACK: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "q4_0": _pack_q4_0,
        "q4_1": _pack_q4_1,
        "q5_0": _pack_q5_0,
        "q5_1": _pack_q5_1,
        "q8_0": _pack_q8_0,
        "q4_k": _pack_q4_k,
        "q5_k": _pack_q5_k,
        "q6_k": _pack_q6_k,
    }
)
# Where the float16 values of a block lie: what can overflow in packing.
_HALVES: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "q4_0": (0,),
        "q4_1": (0, 2),
        "q5_0": (0,),
        "q5_1": (0, 2),
        "q8_0": (0,),
        "q4_k": (0, 2),
        "q5_k": (0, 2),
        "q6_k": (208,),
    }
)

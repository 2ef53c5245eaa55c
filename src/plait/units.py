"""Numbers as people write them: bytes, counts, sizes given on the command line.

1 KiB = 2^10 bytes, 1 GiB = 2^30 bytes; 1 kB = 10^3 bytes, 1 GB = 10^9 bytes. The two are never mixed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from plait.errors import UsageError

__all__ = ["binary_bytes", "count", "parse_bytes", "parse_count"]

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS: Final = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_BYTE_UNITS: Final = MappingProxyType(
    {"": 1, "b": 1}
    | {f"{p}ib": 2 ** (10 * (i + 1)) for i, p in enumerate("kmgtp")}
    | {f"{p}b": 1000 ** (i + 1) for i, p in enumerate("kmgtp")}
)
_LARGEST: Final = 2**60
_COUNT_UNITS: Final = MappingProxyType({"": 1, "k": 1024, "m": 1024**2})


def binary_bytes(n: int) -> str:
    """`n` bytes with a binary unit, exact digits below 1 KiB, otherwise at most three decimals."""
    size = float(n)
    for unit in _BINARY:
        if abs(size) < 1024 or unit == _BINARY[-1]:
            break
        size /= 1024
    if unit == "B":
        return f"{n:,} B"
    return f"{size:,.3f}".rstrip("0").rstrip(".") + f" {unit}"


def count(n: int) -> str:
    """A count in short form: 268.1M, 4.112B."""
    for scale, letter in _COUNTS:
        if n >= scale:
            return f"{n / scale:.4g}{letter}"
    return str(n)


def _parse(text: str, units: Mapping[str, int], what: str, examples: str) -> int:
    match = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    scale = units.get(match[2].lower()) if match is not None else None
    if match is None or scale is None:
        raise UsageError(f"{what} {text!r} is not understood; write it like {examples}")
    value = Fraction(match[1].replace("_", "").replace(",", "")) * scale
    if value > _LARGEST:
        raise UsageError(f"{what} {text[:20]!r}... is too large")
    if value.denominator != 1:
        raise UsageError(f"{what} {text!r} is not a whole number")
    return value.numerator


def parse_bytes(text: str) -> int:
    """`8GiB`, `8GB`, `1.5GiB` or plain bytes."""
    return _parse(text, _BYTE_UNITS, "size", "8GiB, 8GB or 1500000000")


def parse_count(text: str) -> int:
    """A number of tokens: `32768`, `32k` (= 32 * 1024), `1m` (= 1024 * 1024)."""
    return _parse(text, _COUNT_UNITS, "number of tokens", "32768, 32k or 1m")

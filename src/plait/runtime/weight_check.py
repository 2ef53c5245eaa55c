"""Holds a layout's bindings against the tensors of a file before data is read; one message says all that is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from plait.blueprint.fit import Shape, columns_of, fits, rows_in, rows_of, stored_shapes
from plait.blueprint.layout import AbsorbedKeys, Binding, Ignored
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.spec import Quantization
from plait.errors import UnsupportedError, WeightsError, fault
from plait.runtime.blocks import unpackable
from plait.runtime.fp8 import SCALE

__all__ = ["check_formats", "check_tensors"]

# How many tensors of each kind a message names.
_NAMED: Final = 5


def check_tensors(
    bindings: Sequence[Binding],
    ignored: Sequence[Ignored],
    shapes: Mapping[str, Shape],
    found: Mapping[str, StoredTensor],
    file: str | Path,
    declared: Quantization | None,
) -> None:
    """WeightsError: tensors are missing, misshaped or neither bound, nor ignored, nor the scales of another tensor.

    shapes    of the roles
    declared  the quantization the config states
    """
    names = {name for binding in bindings for name in binding.names}
    patterns = [re.compile(item.pattern) for item in ignored]

    def explained(name: str) -> bool:
        if name in names or (name.endswith(SCALE) and name.removesuffix(SCALE) in found):
            return True
        # transformers writes the tensors of no shared expert, which have no rows.
        if 0 in found[name].shape:
            return True
        return any(pattern.fullmatch(name) for pattern in patterns)

    faults = {
        "missing": [name for binding in bindings for name in binding.names if name not in found],
        "unexpected": [name for name in found if not explained(name)],
        "misshaped": [text for binding in bindings for text in _misfits(binding, shapes, found)],
    }
    parts = [f"{len(items)} {what} ({_some(items)})" for what, items in faults.items() if items]
    if not parts:
        return
    advice = "check that config and weights belong together"
    if declared is not None and declared.method != "fp8":
        advice += f"; weights quantized by {declared.method} cannot be read"
    what = f"tensors do not fit the model ({len(found)} in the file): " + ", ".join(parts)
    raise WeightsError(fault(what, file=file, advice=advice))


def _misfits(
    binding: Binding, shapes: Mapping[str, Shape], found: Mapping[str, StoredTensor]
) -> Iterator[str]:
    """What is wrong with the shapes of the binding's tensors, as far as they are there."""
    roles = [shapes[role] for role in binding.roles]
    expected = stored_shapes(binding, roles)
    if expected is not None:
        for name, shape in zip(binding.names, expected, strict=True):
            if name in found and not fits(binding, shape, found[name].shape):
                yield f"{name} in {found[name].file.name}: expected {shape}, found {found[name].shape}"
        return
    there = [found[name] for name in binding.names if name in found]
    if len(there) < len(binding.names):
        return
    counts = [rows_in(tensor.shape, columns_of(roles[0])) for tensor in there]
    wanted = sum(map(rows_of, roles))
    if None not in counts and sum(count for count in counts if count is not None) == wanted:
        return
    seen, what = (" and ".join(words) for words in ([str(t.shape) for t in there], [t.name for t in there]))
    yield f"{what} in {there[0].file.name}: expected {(wanted, columns_of(roles[0]))} together, found {seen}"


def check_formats(bindings: Sequence[Binding], found: Mapping[str, StoredTensor], file: str | Path) -> None:
    """UnsupportedError: a format that cannot be read, or tensors that are rows of one weight in several formats."""
    readable = unpackable()
    for binding in bindings:
        for name in binding.names:
            tensor = found[name]
            if tensor.format.name not in readable:
                what = f"tensor {name!r}: format"
                expected = "one of " + ", ".join(readable)
                raise UnsupportedError(fault(what, file=tensor.file, expected=expected, found=tensor.format.name))
        formats = {found[name].format.name for name in binding.names}
        if len(formats) > 1 and not isinstance(binding.transform, AbsorbedKeys):
            what = "tensors that are one weight, " + _some([repr(name) for name in binding.names])
            mixed = ", ".join(sorted(formats))
            raise UnsupportedError(fault(what, file=file, expected="one format", found=mixed))


def _some(items: list[str]) -> str:
    shown = ", ".join(items[:_NAMED])
    return shown if len(items) <= _NAMED else f"{shown} and {len(items) - _NAMED} more"

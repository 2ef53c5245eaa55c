"""What the weights' own headers say, held against the inventory through the family's layout.

No tensor data is read. Every tensor of the files is one of: bound to roles, a block scale of another tensor, ignored
for a reason the layout states, or no part of the graph; every role is found, missing or misshaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final, Literal

from plait.blueprint.families import family
from plait.blueprint.fit import columns_of, fits, rows_in, rows_of, stored_shapes
from plait.blueprint.layout import Binding, Ignored, Layout, resolved
from plait.blueprint.read.safetensors import read_checkpoint
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.source import Sketch, Source
from plait.blueprint.spec import Blueprint
from plait.blueprint.tensors import Tensor, inventory
from plait.errors import FileFormatError, fault

__all__ = ["Compared", "Headers", "compare", "headers_of"]

_SCALE: Final = "_scale_inv"
_TABLE: Final = "per_layer_embedding"
_UNUSED: Final = "unused_shared_kv"
_COPY: Final = "a copy of the embedding or the head"


@dataclass(frozen=True, slots=True)
class Headers:
    """The tensors of a model's files."""

    container: Literal["safetensors", "gguf"]
    tensors: Mapping[str, StoredTensor]

    @property
    def files(self) -> int:
        """How many files they lie in."""
        return len({tensor.file for tensor in self.tensors.values()})

    @property
    def elements(self) -> int:
        """Elements of all tensors, block scales left out."""
        scales = set(_scales(self.tensors))
        return sum(prod(tensor.shape) for name, tensor in self.tensors.items() if name not in scales)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def __str__(self) -> str:
        files = "1 file" if self.files == 1 else f"{self.files} files"
        return f"the headers of {files} ({self.container}, {len(self.tensors)} tensors)"


@dataclass(frozen=True, slots=True)
class Compared:
    """What files hold, by what it is to the graph. Counts are elements.

    in_file           everything but block scales
    scales            scales of weight blocks
    duplicates        copies of the embedding or the head
    mtp               multi-token-prediction layers, buffers of them included
    unused_shared_kv  keys' and values' weights of layers that read another layer's
    others            ignored tensors that are none of these
    lacking           buffers of the towers that the files leave out
    ignored           all ignored tensors by the reason the layout states
    used_bytes        bytes of what the graph uses, block scales of it included
    table_bytes       of these, the table of per-layer embeddings
    differences       one line each: missing, misshaped and unexplained tensors, missing parts
    """

    in_file: int
    scales: int
    duplicates: int
    mtp: int
    unused_shared_kv: int
    others: int
    lacking: int
    ignored: Mapping[str, int]
    used_bytes: int
    table_bytes: int
    differences: tuple[str, ...]


def headers_of(source: Source | Sketch) -> Headers | None:
    """The headers of a model's weights where it has some: beside its config, in its GGUF file, or on the hub.

    None: only a config was named, or no safetensors lie beside it. What breaks a format is raised as reading raises it.
    """
    if source.header is not None:
        return Headers("gguf", source.header.tensors) if source.header.tensors else None
    if source.hub is not None:
        found = source.hub.tensors()
        return None if found is None else Headers("safetensors", found)
    if source.kind != "directory":
        return None
    assert source.path is not None
    try:
        there = any(".safetensors" in entry.suffixes for entry in source.path.iterdir())
    except OSError as error:
        raise FileFormatError(fault(f"cannot be read ({error.strerror})", file=source.path)) from None
    return Headers("safetensors", read_checkpoint(source.path)) if there else None


def _scales(stored: Mapping[str, StoredTensor]) -> Iterable[str]:
    """Names of tensors that are the scales of another tensor's blocks (FP8 files of DeepSeek and those after them)."""
    return (name for name in stored if name.endswith(_SCALE) and name.removesuffix(_SCALE) in stored)


def _misfit(binding: Binding, roles: Mapping[str, Tensor], stored: Mapping[str, StoredTensor]) -> str | None:
    """What is wrong with the shapes of a binding's tensors, all of which are there."""
    shapes = [roles[role].shape for role in binding.roles]
    found = [stored[name].shape for name in binding.names]
    wanted = stored_shapes(binding, shapes)
    if wanted is not None:
        wrong = [i for i, (shape, seen) in enumerate(zip(wanted, found, strict=True)) if not fits(binding, shape, seen)]
        if not wrong:
            return None
        names = _some([repr(binding.names[i]) for i in wrong])
        expected, seen_ = (_some([str(items[i]) for i in wrong]) for items in (wanted, found))
        return f"tensor {names}: expected {expected}, found {seen_}"
    counts = [rows_in(shape, columns_of(shapes[0])) for shape in found]
    if None not in counts and sum(n for n in counts if n is not None) == sum(map(rows_of, shapes)):
        return None
    names = _some([repr(name) for name in binding.names])
    return f"tensor {names}: expected {_some(list(map(str, shapes)))}, found {_some(list(map(str, found)))}"


def _some(items: list[str]) -> str:
    """Some items of a list; more than four are counted."""
    return " + ".join(items if len(items) <= 4 else [*items[:3], f"{len(items) - 3} more"])


def compare(blueprint: Blueprint, headers: Headers, unused_kv: int) -> Compared:
    """Hold the files against the blueprint.

    unused_kv  elements that files may hold of layers that read another layer's keys and values
    """
    known = family(blueprint.family)
    layout = known.gguf_layout(blueprint) if headers.container == "gguf" else known.layout(blueprint)
    stored, roles = headers.tensors, {tensor.role: tensor for tensor in inventory(blueprint)}
    bindings = resolved(layout, stored)
    differences: list[str] = []
    of_graph: set[str] = set()
    bound: dict[str, bool] = {}
    for binding in bindings:
        ahead = all(roles[role].part == "mtp" for role in binding.roles)
        bound.update(dict.fromkeys(binding.names, ahead))
        missing = [name for name in binding.names if name not in stored]
        differences += [f"tensor {name!r} is missing" for name in missing]
        if not missing and (text := _misfit(binding, roles, stored)) is not None:
            differences.append(text)
        if not ahead:
            of_graph.update(binding.names)
    rest = _Rest(blueprint, layout)
    scales = set(_scales(stored))
    for name, tensor in stored.items():
        if bound.get(name):
            rest.mtp += prod(tensor.shape)
        elif name not in bound and name not in scales and not rest.take(tensor):
            text = f"{prod(tensor.shape)} elements, shape {tensor.shape}"
            differences.append(f"tensor {name!r} ({text}) is no part of the graph")
    here = set(of_graph)
    whole, bare = (_beside(roles.values(), bindings, buffers=buffers) for buffers in (True, False))
    expected = {**whole, _UNUSED: unused_kv}
    explained, lacking = _explained(rest.groups, expected), 0
    if not any(whole.keys() & parts for parts in map(set, explained.values())):
        # A file may leave out what the towers store beside their weights.
        explained = _explained(rest.groups, {**bare, _UNUSED: unused_kv})
        lacking = sum(whole.values()) - sum(bare.values())
    seen = {part for parts in explained.values() for part in parts}
    for part, count in whole.items():
        if count and part not in seen:
            differences.append(f"{part}: expected {count} elements beside the text model, found no tensors that fit")
    differences += _mtp_difference(roles.values(), rest.mtp)
    here.update(name for name, why in rest.reasons.items() if not whole.keys().isdisjoint(explained.get(why, ())))
    here.update(name for name in scales if name.removesuffix(_SCALE) in here)
    kept = [reason for reason in rest.groups if reason not in explained]
    table = [name for binding in bindings if _TABLE in binding.roles for name in binding.names if name in stored]
    return Compared(
        in_file=headers.elements,
        scales=sum(prod(stored[name].shape) for name in scales),
        duplicates=rest.duplicates,
        mtp=rest.mtp,
        unused_shared_kv=sum(rest.groups[why] for why, parts in explained.items() if parts == (_UNUSED,)),
        others=sum(rest.groups[reason] for reason in kept),
        lacking=lacking,
        ignored=MappingProxyType(rest.ignored),
        used_bytes=sum(tensor.nbytes for name, tensor in stored.items() if name in here),
        table_bytes=sum(stored[name].nbytes for name in table),
        differences=tuple(differences),
    )


class _Rest:
    """Tensors that no binding names, sorted as they come."""

    def __init__(self, blueprint: Blueprint, layout: Layout) -> None:
        self._copy = (blueprint.vocabulary, blueprint.hidden)
        self._patterns: list[tuple[re.Pattern[str], Ignored]] = [(re.compile(i.pattern), i) for i in layout.ignored]
        self.duplicates = self.mtp = 0
        self.groups: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.ignored: dict[str, int] = {}

    def take(self, tensor: StoredTensor) -> bool:
        """Whether the layout knows why the tensor is there."""
        item = next((item for pattern, item in self._patterns if pattern.fullmatch(tensor.name)), None)
        if item is None:
            return False
        count = prod(tensor.shape)
        reason = item.reason
        if tensor.shape == self._copy:
            self.duplicates += count
            reason = _COPY
        elif item.mtp:
            self.mtp += count
        else:
            self.groups[reason] = self.groups.get(reason, 0) + count
            self.reasons[tensor.name] = reason
        self.ignored[reason] = self.ignored.get(reason, 0) + count
        return True


def _beside(tensors: Iterable[Tensor], bindings: tuple[Binding, ...], *, buffers: bool) -> dict[str, int]:
    """Elements of the towers' tensors that no binding names, which a layout may leave to its ignored ones."""
    bound = {role for binding in bindings for role in binding.roles}
    found = {"vision": 0, "audio": 0, "embedders": 0}
    for tensor in tensors:
        if tensor.part in found and tensor.role not in bound and (buffers or not tensor.buffer):
            found[tensor.part] += tensor.elements
    return found


def _explained(groups: Mapping[str, int], expected: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Reason to the parts whose size its tensors have.

    A group of tensors has one reason. Where no single group fits a part, one group or all that are left may be all
    parts that are left; unused weights of shared keys and values may be absent.
    """
    found: dict[str, tuple[str, ...]] = {}
    parts = [part for part, count in expected.items() if count]
    for part in list(parts):
        reason = next((r for r, n in groups.items() if r not in found and n == expected[part]), None)
        if reason is not None:
            found[reason] = (part,)
            parts.remove(part)
    left = [reason for reason in groups if reason not in found]
    for together in (tuple(parts), tuple(part for part in parts if part != _UNUSED)):
        for some in (left, *([reason] for reason in left)):
            if together and sum(groups[reason] for reason in some) == sum(expected[part] for part in together):
                return found | dict.fromkeys(some, together)
    return found


def _mtp_difference(tensors: Iterable[Tensor], found: int) -> list[str]:
    expected = sum(tensor.elements for tensor in tensors if tensor.part == "mtp")
    if expected == found:
        return []
    return [f"multi-token prediction: expected {expected} elements, found {found}"]

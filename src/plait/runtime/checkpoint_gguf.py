"""Writing a GGUF file, and the proof before it that the file will say what the model is."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

from plait.blueprint.families import ARCHITECTURES, family
from plait.blueprint.read.gguf import GGUFHeader, Value
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.source import from_gguf
from plait.blueprint.spec import Attention, Blueprint, Layer
from plait.dtypes import Format
from plait.errors import UnsupportedError, UserError, fault

__all__ = ["architecture_metadata", "text_alone", "write_gguf"]

Entries = Mapping[str, tuple[Format, tuple[int, ...]]]

_LARGEST: Final = 2.0**128 - 2.0**104  # of float32


def text_alone(blueprint: Blueprint) -> Blueprint:
    """The text part of a model, which is what a GGUF file of it holds: no towers, no multi-token-prediction layers, no
    quantization of another container."""

    def without_images(layer: Layer) -> Layer:
        if isinstance(layer.mixer, Attention) and layer.mixer.bidirectional_images:
            return replace(layer, mixer=replace(layer.mixer, bidirectional_images=False))
        return layer

    layers = tuple(map(without_images, blueprint.layers))
    return replace(blueprint, towers=(), mtp=None, quantization=None, layers=layers)


def architecture_metadata(blueprint: Blueprint, entries: Entries) -> dict[str, object]:
    """All metadata but the tokenizer's, for a file with the tensors `entries`.

    UnsupportedError: no GGUF files of the family exist; or what would be read back is another model, as GGUF has no key
    for something this one has or its numbers do not hold a value.
    """
    names = [name for name, module in ARCHITECTURES.items() if module == blueprint.family]
    if not names:
        raise UnsupportedError(fault(f"family {blueprint.family!r}", expected="one that GGUF files exist of"))
    architecture = names[0]
    own = family(blueprint.family).gguf_metadata(blueprint)
    keys: dict[str, object] = {
        "general.architecture": architecture,
        "general.name": blueprint.name or architecture,
        **{f"{architecture}.{key}": value for key, value in own.items()},
    }
    if not all(form.dense for form, _ in entries.values()):
        keys["general.quantization_version"] = 2
    for key, value in keys.items():
        _representable(key, value)
    expected = text_alone(blueprint)
    try:
        read, _ = from_gguf(_header(keys, entries))
    except UserError as error:
        raise UnsupportedError(f"{architecture}: a GGUF file cannot express this model: {error}") from error
    lost = next(_differences("", expected, read), None)
    if lost is not None:
        what = f"{architecture}: a GGUF file of this architecture cannot express the model's {lost[0]}"
        advice = "write safetensors files"
        raise UnsupportedError(fault(what, expected=lost[1], found=lost[2], advice=advice))
    return keys


def _representable(key: str, value: object) -> None:
    """UnsupportedError: a number that the type it is written in does not hold."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not 0 <= item < 2**32:
            raise UnsupportedError(fault(f"GGUF key {key!r}", expected="an integer in [0, 2**32)", found=item))
        if isinstance(item, float) and _LARGEST < abs(item) < math.inf:
            raise UnsupportedError(fault(f"GGUF key {key!r}", expected="a number that float32 holds", found=item))


def write_gguf(
    path: Path, keys: Mapping[str, object], entries: Entries, data: Iterable[tuple[str, Iterable[Tensor]]]
) -> None:
    """One file; `data` gives the bytes of each tensor in pieces, uint8 [n], in the order of `entries`."""
    writer = GGUFWriter(path, str(keys["general.architecture"]))
    try:
        for key, value in keys.items():
            if key != "general.architecture":
                _add(writer, key, value)
        for name, (form, shape) in entries.items():
            rows = (*shape[:-1], form.nbytes(shape[-1]))
            assert form.gguf_id is not None
            kind = GGMLQuantizationType(form.gguf_id)
            writer.add_tensor_info(name, rows, np.dtype(np.uint8), prod(rows), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        file = writer.fout[0]
        writer.write_padding(file, file.tell())
        for (wanted, (form, shape)), (name, pieces) in zip(entries.items(), data, strict=True):
            if name != wanted:
                raise ValueError(f"data of {name} where {wanted} is due")
            start = file.tell()
            for piece in pieces:
                file.write(piece.numpy().data)
            written, due = file.tell() - start, form.nbytes(prod(shape))
            if written != due:
                raise ValueError(f"{written} bytes of {name}, {due} declared")
            writer.write_padding(file, due)
    finally:
        writer.close()


def _add(writer: Any, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: {type(value).__name__} is no metadata")


def _header(keys: Mapping[str, object], entries: Entries) -> GGUFHeader:
    """What reading the file's header would give."""
    path = Path(f"{keys['general.name']}.gguf")
    tensors = {
        name: StoredTensor(name, shape, form, path, 0, form.nbytes(prod(shape)))
        for name, (form, shape) in entries.items()
    }
    metadata = {key: _as_read(value) for key, value in keys.items()}
    kinds = {"general.architecture": "str"}
    return GGUFHeader(path, 3, MappingProxyType(metadata), kinds, tensors, 32, 0, (path,))


def _as_read(value: object) -> Value:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, float):
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
        return rounded
    assert isinstance(value, bool | int | str)
    return value


def _differences(path: str, expected: object, found: object) -> Iterator[tuple[str, object, object]]:
    """(field, expected, found) wherever two descriptions are unequal."""
    if expected == found:
        return
    if type(expected) is type(found) and is_dataclass(expected):
        for field in fields(expected):
            if field.compare:
                below = f"{path}.{field.name}" if path else field.name
                yield from _differences(below, getattr(expected, field.name), getattr(found, field.name))
    elif isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        for i, (a, b) in enumerate(zip(expected, found, strict=True)):
            yield from _differences(f"{path}[{i}]", a, b)
    else:
        yield path, expected, found

"""The header of a GGUF file: metadata and where each tensor lies; no tensor data is read.

Source: the GGUF specification (ggml/docs/gguf.md), versions 2 and 3, little-endian. The reader is bounded:
a count or a length is checked against the bytes left before anything is made of it, so a malformed file
costs an error and never the memory it claims to need.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, NoReturn, TypeAlias, Union

from plait.blueprint.read.stored import StoredTensor, Strings, file_size, wrong_start
from plait.dtypes import BY_GGUF_ID
from plait.errors import ConfigError, FileFormatError, fault

__all__ = ["GGUFHeader", "HeaderReader", "Value", "read_gguf"]

Value: TypeAlias = Union[int, float, bool, str, "Sequence[Value]"]

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
# Value type number: its name, and the letter that struct and array know it by.
_KINDS: Final = MappingProxyType(
    dict(enumerate(("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")))
)
_LETTERS: Final = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
_STR: Final = 8
_ARRAY: Final = 9
_INTEGERS: Final = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"})
_NUMBERS: Final = _INTEGERS | {"f32", "f64"}
# Bounds far above any real file, far below what would trouble a machine.
_HEADER_LIMIT: Final = 256 * 2**20
_NAME_LIMIT: Final = 65_535
_KEY_LIMIT: Final = 65_536
_TENSOR_LIMIT: Final = 131_072
_NESTED_LIMIT: Final = 65_536
_DEPTH_LIMIT: Final = 4
_DIMS_LIMIT: Final = 4
_ELEMENT_LIMIT: Final = 2**63 - 1
# Arrays up to this length (one value a layer, lists of tags) become plain tuples.
_SHORT: Final = 1024
_FIRST_READ: Final = 2**20
_PART_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<part>[0-9]{5})-of-(?P<parts>[0-9]{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class GGUFHeader:
    """What a GGUF file says before its data. Of a split model: all parts together, `path` being the first.

    metadata    key to value: scalars; short arrays as tuples; long ones as a read-only memoryview (numbers)
                or Strings
    kinds       key to the stored type: "u32", "f32", "bool", "str", ...; an array's is "u32[]", "array[]" nested
    tensors     name to place, in the order of the file
    alignment   bytes that tensor offsets are a multiple of
    file_bytes  of all `files` together
    """

    path: Path
    version: int
    metadata: Mapping[str, Value]
    kinds: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]
    alignment: int
    file_bytes: int
    files: tuple[Path, ...]

    def kind(self, key: str) -> str:
        """The stored type of `key`; ConfigError where it is missing."""
        return self.kinds[key] if key in self.kinds else self._missing(key, "a value")

    def integer(self, key: str) -> int:
        """An integer of any width; ConfigError where it is missing or of another kind, as for all getters."""
        value = self._get(key, "an integer", _INTEGERS)
        assert isinstance(value, int)
        return value

    def number(self, key: str) -> float:
        """An integer or a float, as float."""
        value = self._get(key, "a number", _NUMBERS)
        assert isinstance(value, (int, float))
        return float(value)

    def flag(self, key: str) -> bool:
        """A bool."""
        value = self._get(key, "a bool", frozenset({"bool"}))
        assert isinstance(value, bool)
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self._get(key, "a string", frozenset({"str"}))
        assert isinstance(value, str)
        return value

    def integers(self, key: str) -> Sequence[int]:
        """An array of integers (a single integer is not one: see `kind`)."""
        return self._get(key, "an array of integers", frozenset(k + "[]" for k in _INTEGERS))  # type: ignore[return-value]

    def numbers(self, key: str) -> Sequence[float]:
        """An array of integers or floats."""
        return self._get(key, "an array of numbers", frozenset(k + "[]" for k in _NUMBERS))  # type: ignore[return-value]

    def flags(self, key: str) -> Sequence[bool]:
        """An array of bools."""
        return self._get(key, "an array of bools", frozenset({"bool[]"}))  # type: ignore[return-value]

    def texts(self, key: str) -> Sequence[str]:
        """An array of strings."""
        return self._get(key, "an array of strings", frozenset({"str[]"}))  # type: ignore[return-value]

    def _get(self, key: str, wanted: str, kinds: frozenset[str]) -> Value:
        if key not in self.metadata:
            self._missing(key, wanted)
        if self.kinds[key] not in kinds:
            raise ConfigError(fault(f"key {key!r}", file=self.path, expected=wanted, found=self.kinds[key]))
        return self.metadata[key]

    def _missing(self, key: str, wanted: str) -> NoReturn:
        raise ConfigError(fault(f"key {key!r} is missing", file=self.path, expected=wanted))


def read_gguf(path: str | Path) -> GGUFHeader:
    """The header of a GGUF file; for one part of a split model, of all its parts.

    ModelNotFound: no such file. FileFormatError: anything in it that cannot be trusted, a missing part among them.
    """
    path = Path(path)
    header = _read_file(path)
    parts = _split(header, "split.count")
    return header if parts < 2 else _read_parts(header, parts)


def _split(header: GGUFHeader, key: str) -> int:
    if header.kinds.get(key, "u16") not in _INTEGERS:
        raise FileFormatError(fault(f"key {key!r}", file=header.path, expected="an integer", found=header.kinds[key]))
    value = header.metadata.get(key, 0)
    assert isinstance(value, int)
    return value


def _read_parts(given: GGUFHeader, parts: int) -> GGUFHeader:
    name = _PART_NAME.fullmatch(given.path.name)
    if name is None or int(name["parts"]) != parts or not 1 <= int(name["part"]) <= parts:
        wanted = f"a file name that ends in -00001-of-{parts:05d}.gguf (split.count is {parts})"
        raise FileFormatError(fault("one part of a split model", file=given.path, expected=wanted))
    paths = [given.path.with_name(f"{name['stem']}-{i + 1:05d}-of-{parts:05d}.gguf") for i in range(parts)]
    for i, path in enumerate(paths):
        if not path.is_file():
            what = f"part {i + 1} of {parts} is missing"
            raise FileFormatError(fault(what, file=path, advice="put all parts into one directory"))
    headers = [given if path == given.path else _read_file(path) for path in paths]
    metadata, kinds, tensors = dict(headers[0].metadata), dict(headers[0].kinds), dict[str, StoredTensor]()
    for i, header in enumerate(headers):
        for key, number in (("split.count", parts), ("split.no", i)):
            if key not in header.metadata or _split(header, key) != number:
                found = header.metadata.get(key, "no such key")
                raise FileFormatError(fault(f"key {key!r}", file=header.path, expected=number, found=found))
        for key, value in header.metadata.items():
            if key.startswith("split.") or key == "general.alignment":
                continue
            if key in metadata and (metadata[key] != value or kinds[key] != header.kinds[key]):
                raise FileFormatError(fault(f"key {key!r} differs from that of {paths[0].name}", file=header.path))
            metadata[key], kinds[key] = value, header.kinds[key]
        for name_, tensor in header.tensors.items():
            if name_ in tensors:
                what = f"tensor {name_!r} is also in {tensors[name_].file.name}"
                raise FileFormatError(fault(what, file=header.path))
            tensors[name_] = tensor
    total = _split(headers[0], "split.tensors.count")
    if "split.tensors.count" in metadata and total != len(tensors):
        what = "key 'split.tensors.count': tensors of all parts"
        raise FileFormatError(fault(what, file=paths[0], expected=total, found=len(tensors)))
    return GGUFHeader(
        path=paths[0],
        version=headers[0].version,
        metadata=MappingProxyType(metadata),
        kinds=MappingProxyType(kinds),
        tensors=MappingProxyType(tensors),
        alignment=headers[0].alignment,
        file_bytes=sum(h.file_bytes for h in headers),
        files=tuple(paths),
    )


def _read_file(path: Path) -> GGUFHeader:
    size = file_size(path)
    try:
        with path.open("rb") as stream:
            return HeaderReader(path, stream, size).header()
    except OSError as error:
        raise FileFormatError(fault(f"cannot be read ({error.strerror})", file=path)) from None


class HeaderReader:
    """Reads `header()` from a stream of `size` bytes, no more of it than needed. FileFormatError: breaks the format."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path, self.stream, self.size = path, stream, size
        self.data, self.at, self.nested = b"", 0, 0

    def fail(self, what: str, expected: object = None, found: object = None, advice: str | None = None) -> NoReturn:
        raise FileFormatError(fault(what, file=self.path, expected=expected, found=found, advice=advice))

    def need(self, end: int, what: str) -> None:
        """Have the file's bytes up to `end`."""
        if end > self.size:
            found = f"{self.size - self.at} bytes left at {self.at}"
            self.fail(f"the file ends within {what}", f"{end - self.at} bytes", found, "the file is damaged")
        if end > _HEADER_LIMIT:
            self.fail(f"the header is too large ({what})", f"at most {_HEADER_LIMIT} bytes", f"{end} bytes")
        if end > len(self.data):
            wanted = min(self.size, max(end, 2 * len(self.data), _FIRST_READ))
            self.data += self.stream.read(wanted - len(self.data))
            if len(self.data) != wanted:
                self.fail("the file shrank while it was read", f"{wanted} bytes", f"{len(self.data)} bytes")

    def take(self, count: int, what: str) -> bytes:
        start, end = self.at, self.at + count
        self.need(end, what)
        self.at = end
        return self.data[start:end]

    def u32(self, what: str) -> int:
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack(self.take(8, what))[0]
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64(f"the length of {what}")
        if limit is not None and length > limit:
            self.fail(f"the length of {what}", f"at most {limit} bytes", length)
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8", found=repr(raw[:40]))

    def counted(self, what: str, limit: int, each: int) -> int:
        """A count of things that take at least `each` bytes, checked before anything is made of it."""
        count = self.u64(f"the number of {what}")
        most = min(limit, (self.size - self.at) // each)
        if count > most:
            expected = f"at most {most} (in a file of {self.size} bytes)"
            self.fail(f"the number of {what}", expected, count, "the file is cut short or damaged")
        return count

    def header(self) -> GGUFHeader:
        head = self.stream.read(64)
        self.stream.seek(0)
        if head[:4] != b"GGUF":
            raise wrong_start(self.path, "GGUF", "b'GGUF'", head)
        self.at = 4
        version = self.u32("the version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            found = f"version {swapped}, big-endian" if swapped in (1, 2, 3) else f"version {version}"
            self.fail("GGUF version", "2 or 3, little-endian", found, "convert the model again")
        tensor_count = self.counted("tensors", _TENSOR_LIMIT, 24)
        key_count = self.counted("metadata keys", _KEY_LIMIT, 13)
        metadata, kinds = dict[str, Value](), dict[str, str]()
        for i in range(key_count):
            key = self.string(f"metadata key {i}", _NAME_LIMIT)
            if key in metadata:
                self.fail(f"key {key!r} appears twice")
            metadata[key], kinds[key] = self.value(key, self.u32(f"the type of key {key!r}"))
        alignment = self.alignment(metadata, kinds)
        return GGUFHeader(
            path=self.path,
            version=version,
            metadata=MappingProxyType(metadata),
            kinds=MappingProxyType(kinds),
            tensors=MappingProxyType(self.tensors(tensor_count, alignment)),
            alignment=alignment,
            file_bytes=self.size,
            files=(self.path,),
        )

    def alignment(self, metadata: dict[str, Value], kinds: dict[str, str]) -> int:
        value = metadata.get("general.alignment", 32)  # 32 is the specification's default
        if kinds.get("general.alignment", "u32") != "u32" or not isinstance(value, int) or value.bit_count() != 1:
            self.fail("key 'general.alignment'", "a power of two (u32)", f"{value!r} ({kinds['general.alignment']})")
        return value

    def value(self, key: str, kind: int, depth: int = 0) -> tuple[Value, str]:
        if kind == _STR:
            return self.string(f"key {key!r}"), "str"
        if kind == _ARRAY:
            return self.array(key, depth)
        raw = self.numbers(key, kind, 1)
        return struct.unpack("<" + _LETTERS[kind], raw)[0], _KINDS[kind]

    def numbers(self, key: str, kind: int, count: int | None) -> bytes:
        """The bytes of `count` numbers or bools; where it is None the count is the file's next word."""
        if kind not in _LETTERS:
            self.fail(f"key {key!r}: type of the value", "a type from 0 to 12", kind)
        each = struct.calcsize("<" + _LETTERS[kind])
        if count is None:
            count = self.counted(f"values of key {key!r}", _HEADER_LIMIT, each)
        raw = self.take(count * each, f"the value of key {key!r}")
        if _KINDS[kind] == "bool" and (wrong := raw.translate(None, b"\0\1")):
            self.fail(f"key {key!r}: a bool", "0 or 1", wrong[0])
        return raw

    def array(self, key: str, depth: int) -> tuple[Value, str]:
        what = f"the array of key {key!r}"
        if depth >= _DEPTH_LIMIT:
            self.fail(f"{what} is nested too deep", f"at most {_DEPTH_LIMIT} levels")
        kind = self.u32(f"the type of {what}")
        if kind == _STR:
            return self.strings(key, self.counted(f"strings of key {key!r}", _HEADER_LIMIT, 8)), "str[]"
        if kind == _ARRAY:
            count = self.counted(f"arrays of key {key!r}", _NESTED_LIMIT - self.nested, 12)
            self.nested += count
            return tuple(self.array(key, depth + 1)[0] for _ in range(count)), "array[]"
        raw = self.numbers(key, kind, None)
        letter, name = _LETTERS[kind], _KINDS[kind] + "[]"
        count = len(raw) // struct.calcsize("<" + letter)
        if count <= _SHORT or sys.byteorder == "big":
            return struct.unpack(f"<{count}{letter}", raw), name
        return memoryview(raw).cast(letter), name  # type: ignore[call-overload]

    def strings(self, key: str, count: int) -> Value:
        what = f"string of key {key!r}"
        if count <= _SHORT:
            return tuple(self.string(what) for _ in range(count))
        # The one hot loop of a header: a vocabulary is passed over, not decoded. Running out of the bytes
        # read so far shows as an error of unpack_from, so the loop itself needs no check.
        start = at = self.at
        done, unpack = 0, _U64.unpack_from
        while done < count:
            data = self.data
            try:
                for i in range(done, count):  # noqa: B007  (read where the loop breaks off)
                    at += 8 + unpack(data, at)[0]
                done = count
            except (struct.error, OverflowError):
                done = i
                self.need(at + 8, f"string {done} of key {key!r}")
        self.need(at, f"string {count - 1} of key {key!r}")
        self.at = at
        return Strings(self.path, key, count, self.data[start:at])

    def tensors(self, count: int, alignment: int) -> dict[str, StoredTensor]:
        found: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for i in range(count):
            name = self.string(f"the name of tensor {i}", _NAME_LIMIT)
            if name in found:
                self.fail(f"tensor {name!r} appears twice")
            what = f"the entry of tensor {name!r}"
            dims = self.u32(what)
            if dims > _DIMS_LIMIT:
                self.fail(f"tensor {name!r}: number of dimensions", f"at most {_DIMS_LIMIT}", dims)
            shape = tuple(self.u64(what) for _ in range(dims))[::-1]  # the file has the innermost first
            found[name] = shape, self.u32(what), self.u64(what)
        data = -(-self.at // alignment) * alignment
        tensors = {name: self.tensor(name, *entry, data, alignment) for name, entry in found.items()}
        self.check_places(tensors)
        return tensors

    def tensor(self, name: str, shape: tuple[int, ...], kind: int, at: int, data: int, alignment: int) -> StoredTensor:
        if (form := BY_GGUF_ID.get(kind)) is None:
            known = ", ".join(f"{i} ({f.name})" for i, f in sorted(BY_GGUF_ID.items()))
            self.fail(f"tensor {name!r}: type", f"one of {known}", kind)
        elements = 1
        for dim in shape:
            elements *= dim
        if max(shape, default=1) > _ELEMENT_LIMIT or elements > _ELEMENT_LIMIT:
            self.fail(f"tensor {name!r}: shape", f"at most {_ELEMENT_LIMIT} elements", shape)
        if (shape[-1] if shape else 1) % form.block:
            self.fail(f"tensor {name!r}: rows", f"a multiple of {form.block} elements ({form.name})", f"shape {shape}")
        if at % alignment:
            self.fail(f"tensor {name!r}: offset", f"a multiple of {alignment}", at)
        return StoredTensor(name, shape, form, self.path, data + at, form.nbytes(elements))

    def check_places(self, tensors: dict[str, StoredTensor]) -> None:
        ordered = sorted(tensors.values(), key=lambda t: (t.offset, t.end))
        for before, after in pairwise(ordered):
            if before.end > after.offset:
                what = f"tensor {after.name!r} overlaps tensor {before.name!r}"
                self.fail(what, f"an offset of at least {before.end}", after.offset)
        for tensor in ordered:
            if tensor.end > self.size:
                last = max(t.end for t in ordered)
                what = f"the data of tensor {tensor.name!r} lies outside the file"
                advice = "the file is cut short: download it again"
                self.fail(what, f"a file of at least {last} bytes", f"{self.size} bytes", advice)

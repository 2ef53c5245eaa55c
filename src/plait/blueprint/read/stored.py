"""Things as they lie in a file, not yet decoded: a tensor, a long array of strings; and what the readers share."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, overload

from plait.dtypes import Format
from plait.errors import FileFormatError, ModelNotFound, fault

__all__ = ["StoredTensor", "Strings", "file_size", "wrong_start"]

_U64: Final = struct.Struct("<Q")
_LFS: Final = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies and how its elements are stored; no data is held.

    shape   outermost first in every container: a linear weight is (out, in)
    offset  bytes from the start of `file`
    nbytes  bytes of the data, always those of `shape` in `format`
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    file: Path
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte of the file after the tensor."""
        return self.offset + self.nbytes


class Strings(Sequence[str]):
    """A long array of strings, decoded on access; FileFormatError for one that is not UTF-8.

    `data` holds `count` times a length (u64, little-endian) and that many bytes, which the reader has checked.
    """

    def __init__(self, file: Path, key: str, count: int, data: bytes) -> None:
        self._file, self._key, self._count, self._data = file, key, count, data

    @cached_property
    def _starts(self) -> array[int]:
        starts = array("Q", bytes(8 * self._count))
        at, data, unpack = 0, self._data, _U64.unpack_from
        for i in range(self._count):
            starts[i] = at
            at += 8 + unpack(data, at)[0]
        return starts

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._count)))
        i = range(self._count)[index]
        at = self._starts[i]
        try:
            return self._data[at + 8 : at + 8 + _U64.unpack_from(self._data, at)[0]].decode()
        except UnicodeDecodeError:
            raise self._fault(i) from None

    def __iter__(self) -> Iterator[str]:
        # Vocabularies are long, so nothing is called for a string but its decoding.
        at, data, unpack = 0, self._data, _U64.unpack_from
        for i in range(self._count):
            start = at + 8
            at = start + unpack(data, at)[0]
            try:
                text = data[start:at].decode()
            except UnicodeDecodeError:
                raise self._fault(i) from None
            yield text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Strings):
            return self._data == other._data
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(self._data)

    def __repr__(self) -> str:
        return f"Strings({self._key!r}, {self._count} strings)"

    def _fault(self, i: int) -> FileFormatError:
        return FileFormatError(fault(f"key {self._key!r}: string {i} is not UTF-8", file=self._file))


def file_size(path: Path) -> int:
    """Bytes of a regular file; ModelNotFound where nothing is, FileFormatError where it cannot be read as a file."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise ModelNotFound(fault("no such file", file=path, advice="check the path")) from None
    except (OSError, ValueError) as error:
        raise FileFormatError(fault(f"cannot be read ({_reason(error)})", file=path)) from None
    if not path.is_file():
        raise FileFormatError(fault("not a regular file", file=path))
    return size


def wrong_start(path: Path, kind: str, expected: str, head: bytes) -> FileFormatError:
    """The error for a file whose first bytes do not belong to a `kind` file."""
    if not head:
        return FileFormatError(fault(f"the file is empty, not a {kind} file", file=path, advice="download it again"))
    if head.startswith(_LFS[: len(head)]) and len(head) >= 8:
        advice = "it is a Git LFS pointer: fetch the file itself with `git lfs pull`"
    else:
        advice = "check that the path names the right file and that the download is complete"
    return FileFormatError(
        fault(f"not a {kind} file", file=path, expected=expected, found=f"{head[:8]!r} at its start", advice=advice)
    )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

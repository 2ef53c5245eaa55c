"""The headers of safetensors files, and the tensors of a checkpoint directory; no tensor data is read.

Source: the safetensors format (8 bytes of length, a JSON object, the data) and the Hugging Face layout of
sharded checkpoints (`model.safetensors.index.json` with a `weight_map`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

from plait.blueprint.read.stored import StoredTensor, file_size, wrong_start
from plait.dtypes import BY_SAFETENSORS
from plait.errors import FileFormatError, ModelNotFound, UnsupportedError, fault

__all__ = [
    "SafetensorsHeader",
    "check_places",
    "json_object",
    "read_checkpoint",
    "read_safetensors",
    "stored_tensor",
]

_HEADER_LIMIT: Final = 100_000_000  # the format's own bound
_ELEMENT_LIMIT: Final = 2**63 - 1
_ENTRY_KEYS: Final = frozenset({"dtype", "shape", "data_offsets"})
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_AGAIN: Final = "the file is cut short: download it again"
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHARD_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<part>[0-9]{5})-of-(?P<parts>[0-9]{5})\.safetensors", re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsHeader:
    """What one safetensors file says before its data.

    metadata  the strings under `__metadata__`
    tensors   name to place, in the order of the header
    """

    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]


def read_safetensors(path: str | Path) -> SafetensorsHeader:
    """The header of one file. ModelNotFound: no such file. FileFormatError: anything that breaks the format."""
    path = Path(path)
    size = file_size(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > _HEADER_LIMIT:
                expected = f"a header length of at most {_HEADER_LIMIT} bytes in the first 8 bytes"
                raise wrong_start(path, "safetensors", expected, head)
            if 8 + length > size:
                _fail(path, "the file ends within the header", f"at least {8 + length} bytes", f"{size} bytes", _AGAIN)
            raw = stream.read(length)
    except OSError as error:
        raise FileFormatError(fault(f"cannot be read ({error.strerror})", file=path)) from None
    if not raw.startswith(b"{"):
        raise wrong_start(path, "safetensors", "a JSON object after the first 8 bytes", head + raw[:56])
    entries = json_object(path, raw)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _fail(path, "key '__metadata__'", "an object of strings", _short(metadata))
    tensors = {name: stored_tensor(path, name, entry, 8 + length) for name, entry in entries.items()}
    check_places(path, tensors.values(), 8 + length, size)
    return SafetensorsHeader(path, MappingProxyType(metadata), MappingProxyType(tensors))


def read_checkpoint(directory: str | Path) -> Mapping[str, StoredTensor]:
    """All tensors of a checkpoint directory, by name.

    The files are those of `model.safetensors.index.json`; without one `model.safetensors`; without either every
    `*.safetensors`. ModelNotFound: no weights there. UnsupportedError: only pickle files. FileFormatError: a file
    that breaks the format, or files that contradict each other or the index.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ModelNotFound(fault("no such directory", file=directory, advice="check the path"))
    index, single = directory / _INDEX, directory / _SINGLE
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise FileFormatError(fault(f"cannot be read ({error.strerror})", file=directory)) from None
    if _INDEX in names:
        return _by_index(index, _SINGLE in names)
    if _SINGLE in names:
        return read_safetensors(single).tensors
    files = [name for name in names if name.endswith(".safetensors")]
    if not files:
        _no_weights(directory, names)
    _check_complete(directory, set(files))
    return _merged(read_safetensors(directory / name) for name in files)


def _fail(file: Path, what: str, expected: object = None, found: object = None, advice: str | None = None) -> NoReturn:
    raise FileFormatError(fault(what, file=file, expected=expected, found=found, advice=advice))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def json_object(path: Path, raw: bytes) -> dict[str, Any]:
    """The JSON object `raw` of a header or an index: UTF-8, no key twice, no NaN. FileFormatError names `path`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            seen = set[str]()
            key = next(k for k, _ in items if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            _fail(path, f"key {key!r} appears twice in the JSON")
        return found

    def constant(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON")

    try:
        value = json.loads(raw.decode(), object_pairs_hook=pairs, parse_constant=constant)
        if b"\\ud" in raw.lower():  # an escaped half of a surrogate pair is not text
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        _fail(path, "the JSON is not UTF-8")
    except (ValueError, RecursionError) as error:
        _fail(path, f"the JSON cannot be read ({error})")
    if not isinstance(value, dict):
        _fail(path, "the JSON", "an object", type(value).__name__)
    return value


def _counts(value: object) -> bool:
    # bool is an int to Python, not to JSON
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def stored_tensor(path: Path, name: str, entry: object, data: int) -> StoredTensor:
    """The place of tensor `name` by its entry in the header of `path`, whose data begin at byte `data`.

    FileFormatError: an entry that breaks the format, or a shape whose bytes are not those of its offsets.
    """
    what = f"tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        found = sorted(entry) if isinstance(entry, dict) else entry
        _fail(path, what, "an object with dtype, shape and data_offsets", _short(found))
    word, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(word, str) or word not in BY_SAFETENSORS:
        _fail(path, f"{what}: dtype", "one of " + ", ".join(BY_SAFETENSORS), _short(word))
    form = BY_SAFETENSORS[word]
    if not _counts(shape):
        _fail(path, f"{what}: shape", "a list of whole numbers", _short(shape))
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _fail(path, f"{what}: data_offsets", "[begin, end]", _short(offsets))
    elements = 1
    for dim in shape:
        elements *= dim
        if max(dim, elements) > _ELEMENT_LIMIT:
            _fail(path, f"{what}: shape", f"at most {_ELEMENT_LIMIT} elements", _short(shape))
    nbytes = offsets[1] - offsets[0]
    if form.nbytes(elements) != nbytes:
        expected = f"{form.nbytes(elements)} bytes for shape {_short(shape)} in {word}"
        _fail(path, f"{what}: data_offsets", expected, f"{nbytes} bytes")
    return StoredTensor(name, tuple(shape), form, path, data + offsets[0], nbytes)


def check_places(path: Path, tensors: Iterable[StoredTensor], data: int, size: int) -> None:
    """FileFormatError unless the tensors cover the bytes [data, size) of `path`, each byte once."""
    end, last = data, "the header"
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.end)):
        if tensor.offset != end:
            how = "overlaps" if tensor.offset < end else "leaves a gap after"
            expected, found = f"data_offsets from {end - data}", tensor.offset - data
            _fail(path, f"tensor {tensor.name!r} {how} {last}", expected, found)
        end, last = tensor.end, f"tensor {tensor.name!r}"
    if end > size:
        _fail(path, f"the file ends before the data of {last}", f"{end} bytes", f"{size} bytes", _AGAIN)
    if end < size:
        _fail(path, f"bytes that belong to no tensor after {last}", f"{end} bytes", f"{size} bytes")


def _no_weights(directory: Path, names: list[str]) -> NoReturn:
    for name in names:
        if name.endswith(_PICKLES):
            what = f"only pickle files ({name}), which are not read because loading one runs code from it"
            advice = "convert the checkpoint to safetensors"
            raise UnsupportedError(fault(what, file=directory, expected="*.safetensors", advice=advice))
    raise ModelNotFound(fault("no weights in the directory", file=directory, expected="*.safetensors"))


def _check_complete(directory: Path, files: set[str]) -> None:
    """No shard numbered `i-of-n` is missing beside its fellows."""
    for name in sorted(files):
        if (match := _SHARD_NAME.fullmatch(name)) is None:
            continue
        for part in range(1, int(match["parts"]) + 1):
            shard = f"{match['stem']}-{part:05d}-of-{match['parts']}.safetensors"
            if shard not in files:
                _fail(directory / shard, f"the shard is missing ({name} is there)", advice="download it")


def _merged(headers: Iterable[SafetensorsHeader]) -> Mapping[str, StoredTensor]:
    tensors = dict[str, StoredTensor]()
    for header in headers:
        for name, tensor in header.tensors.items():
            if name in tensors:
                _fail(header.path, f"tensor {name!r} is also in {tensors[name].file.name}")
            tensors[name] = tensor
    return MappingProxyType(tensors)


def _by_index(index: Path, single: bool) -> Mapping[str, StoredTensor]:
    places = _weight_map(index)
    files = sorted(set(places.values()))
    if single and _SINGLE not in files:
        _fail(index, f"{_SINGLE} lies beside an index that does not name it", advice="remove the one that is stale")
    for name in files:
        if not (index.parent / name).is_file():
            advice = f"{index.name} names it: download it"
            _fail(index.parent / name, "the shard is missing", advice=advice)
    tensors = _merged(read_safetensors(index.parent / name) for name in files)
    for name, file in places.items():
        if name not in tensors:
            _fail(index.parent / file, f"tensor {name!r} is not in the shard that {index.name} names for it")
        if tensors[name].file.name != file:
            _fail(index, f"tensor {name!r}", f"in {tensors[name].file.name}, where it is", f"{file} in weight_map")
    for name, tensor in tensors.items():
        if name not in places:
            _fail(tensor.file, f"tensor {name!r} is not in the weight_map of {index.name}")
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    if (size := file_size(index)) > _HEADER_LIMIT:
        _fail(index, "the index is too large", f"at most {_HEADER_LIMIT} bytes", f"{size} bytes")
    try:
        raw = index.read_bytes()
    except OSError as error:
        _fail(index, f"cannot be read ({error.strerror})")
    places = json_object(index, raw).get("weight_map")
    if not isinstance(places, dict) or not places:
        _fail(index, "key 'weight_map'", "an object of tensor names and file names", _short(places))
    for name, file in places.items():
        # A file beside the index, never a path that leads elsewhere.
        if not isinstance(file, str) or not re.fullmatch(r"[^/\\:\0]+\.safetensors", file, re.DOTALL):
            _fail(index, f"tensor {name!r} in weight_map", "the name of a .safetensors file beside it", _short(file))
    return places

"""Models of a hub, named `org/name`, `org/name@revision` or `org/name:file.gguf`: what describes them, never weights.

Read are the config.json; when tensors are asked for, the safetensors index and the header of each file by byte ranges;
of a GGUF file its header, by ranges that grow until it is complete. All requests after the first go to the commit that
the first was answered from, so that files of two revisions are never mixed. Nothing is kept on disk.

Source: the Hub's paths, `/{repo}/resolve/{revision}/{file}` and `/api/models/{repo}/revision/{revision}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, TypeVar, cast
from urllib.parse import quote

# The readers of local files hold the rules of both formats; the same rules judge what comes over the network.
from plait.blueprint.read.gguf import GGUFHeader, HeaderReader
from plait.blueprint.read.safetensors import check_places, json_object, stored_tensor
from plait.blueprint.read.stored import StoredTensor, wrong_start
from plait.blueprint.read.transport import Absent, Transport
from plait.errors import ConfigError, FileFormatError, ModelNotFound, fault

__all__ = ["HubId", "HubModel", "hub_id", "open_hub"]

R = TypeVar("R")

_CONFIG_LIMIT: Final = 16 * 2**20
_INDEX_LIMIT: Final = 64 * 2**20
_HEADER_LIMIT: Final = 64 * 2**20
_FIRST: Final = 2**16
_FILES_LIMIT: Final = 1024
_AT_ONCE: Final = 8
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_ID: Final = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})"
    r"(@(?P<revision>[A-Za-z0-9][\w./-]{0,199}))?(:(?P<file>[^:@\\\0]{1,300}\.gguf))?",
    re.ASCII,
)
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<part>[0-9]{5})-of-(?P<parts>[0-9]{5})\.(gguf|safetensors)", re.DOTALL)
_FILE: Final = re.compile(r"[^/\\:\0]+\.safetensors", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HubId:
    """A model of the hub: `org/name`, a branch, tag or commit, and one .gguf file of several."""

    repo: str
    revision: str = "main"
    file: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return self.repo + revision + ("" if self.file is None else f":{self.file}")


def hub_id(text: str) -> HubId | None:
    """The id that `text` spells, None where it is none."""
    match = _ID.fullmatch(text)
    if match is None or ".." in text or "--" in match["repo"]:
        return None
    return HubId(match["repo"], match["revision"] or "main", match["file"])


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model whose description was read.

    id      as it was named
    commit  the commit everything is read from; the revision's name where the server does not say
    config  the keys of config.json, None where the model is a GGUF file
    header  the GGUF header, its tensors' `file` being the file's name in the repository
    """

    id: HubId
    commit: str
    transport: Transport
    config: Mapping[str, object] | None = None
    header: GGUFHeader | None = None

    @property
    def name(self) -> str:
        """The model's name without its owner."""
        return self.id.repo.split("/")[1]

    @property
    def file(self) -> str:
        """What errors and evidence call the description."""
        return f"{self.id.repo}/config.json" if self.header is None else str(self.header.path)

    def tensors(self) -> Mapping[str, StoredTensor] | None:
        """Where each tensor lies, from the headers alone; None where the repository holds no safetensors.

        FileFormatError: files that break the format, or contradict each other or the index.
        """
        return self.header.tensors if self.header is not None else _safetensors(self)

    def data(self, tensor: StoredTensor, limit: int) -> bytes:
        """The bytes of one small tensor that belongs to the description, of at most `limit` bytes."""
        if tensor.nbytes > limit:
            what = f"tensor {tensor.name!r}"
            raise FileFormatError(fault(what, file=tensor.file, expected=f"at most {limit} bytes", found=tensor.nbytes))
        name = str(tensor.file).removeprefix(self.id.repo + "/")
        start, stop = tensor.offset, tensor.end
        return self.transport.range(_path(self.id.repo, self.commit, name), start, stop).body if tensor.nbytes else b""


def open_hub(found: HubId, transport: Transport) -> HubModel:
    """The description of a model of the hub.

    ModelNotFound: no such repository, revision or file; no model in it; several .gguf files; gated. ConfigError,
    FileFormatError: a description that cannot be read. PlaitError: the hub cannot be reached, or answers wrongly.
    """
    if found.file is not None:
        try:
            return _gguf(found, found.revision, found.file, transport)
        except Absent as missing:
            raise _absent(found, missing, found.file) from None
    try:
        answer = transport.whole(_path(found.repo, found.revision, "config.json"), limit=_CONFIG_LIMIT)
    except Absent as missing:
        if missing.code not in ("", "EntryNotFound"):
            raise _absent(found, missing, None) from None
        return _without_config(found, transport)
    config = _config(answer.body, f"{found.repo}/config.json")
    return HubModel(found, answer.commit or found.revision, transport, config=config)


def _path(repo: str, revision: str, file: str) -> str:
    return f"{quote(repo)}/resolve/{quote(revision, safe='')}/{quote(file)}"


def _absent(found: HubId, missing: Absent, file: str | None) -> ModelNotFound:
    if missing.code == "RevisionNotFound":
        return ModelNotFound(f"{found}: the model hub has no revision {found.revision!r} of {found.repo}")
    if file is not None and missing.code != "RepoNotFound":
        return ModelNotFound(f"{found}: the model hub has no file {file!r} in {found.repo}@{found.revision}")
    return ModelNotFound(
        f"{found}: no such file or directory, and no such model on the hub (a private one needs HF_TOKEN)"
    )


def _config(raw: bytes, file: str) -> dict[str, object]:
    """The object of a config.json; unlike a header it may hold Infinity, as Python writes it."""

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(items)
        if len(made) != len(items):
            raise ValueError("a key stands twice in one object")
        return made

    try:
        data = json.loads(raw.decode(), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise ConfigError(fault(f"is not valid JSON ({error})", file=file)) from None
    if not isinstance(data, dict):
        raise ConfigError(fault("wrong top level", file=file, expected="a JSON object", found=type(data).__name__))
    return data


def _listing(found: HubId, revision: str, transport: Transport) -> tuple[str, tuple[str, ...]]:
    """(commit, names of all files) of a repository."""
    path = f"api/models/{quote(found.repo)}/revision/{quote(revision, safe='')}"
    try:
        answer = transport.whole(path, limit=_INDEX_LIMIT)
    except Absent as missing:
        raise _absent(found, missing, None) from None
    file = Path(f"{transport.endpoint}/{path}")
    data = json_object(file, answer.body)
    commit, siblings = data.get("sha"), data.get("siblings")
    if not isinstance(siblings, list) or not all(
        isinstance(item, dict) and isinstance(item.get("rfilename"), str) for item in siblings
    ):
        raise FileFormatError(fault("key 'siblings'", file=file, expected="a list of files"))
    sure = isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40}", commit) is not None
    return str(commit) if sure else revision, tuple(item["rfilename"] for item in siblings)


def _without_config(found: HubId, transport: Transport) -> HubModel:
    """A repository without a config.json: its one GGUF file."""
    commit, names = _listing(found, found.revision, transport)
    files = [name for name in names if name.endswith(".gguf")]
    firsts = [name for name in files if (part := _PART.fullmatch(name)) is None or int(part["part"]) == 1]
    if len(firsts) != 1:
        if files:
            what = f"{found}: the repository holds {len(firsts)} models; name one of them as {found}:FILE, FILE being "
            raise ModelNotFound(what + (", ".join(sorted(firsts)) or "the first part of " + files[0]))
        raise ModelNotFound(f"{found}: the repository is not a model: it has no config.json and no .gguf file")
    try:
        return _gguf(found, commit, firsts[0], transport)
    except Absent as missing:
        raise _absent(found, missing, firsts[0]) from None


# -- GGUF ----------------------------------------------------------------------------------------------------------


class _Ranges:
    """A file of the hub as a stream that is read from its start on, by ranges as large as what is asked for."""

    def __init__(self, ask: Callable[[int, int], bytes], known: bytes) -> None:
        self._ask, self._known, self._at = ask, known, 0

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, count: int) -> bytes:
        stop = self._at + count
        if stop > len(self._known):
            self._known += self._ask(len(self._known), stop)
        piece = self._known[self._at : stop]
        self._at = stop
        return piece


def _gguf_header(found: HubId, revision: str, name: str, transport: Transport) -> tuple[GGUFHeader, str]:
    """(header of one file, commit). Absent: no such file."""
    path = _path(found.repo, revision, name)
    first = transport.range(path, 0, _FIRST)
    commit = first.commit or revision

    def ask(start: int, stop: int) -> bytes:
        answer = transport.range(_path(found.repo, commit, name), start, stop)
        if answer.size != first.size:
            raise FileFormatError(fault("the file changed while it was read", file=shown, advice="try again"))
        return answer.body

    shown = Path(f"{found.repo}/{name}")
    stream = cast("BinaryIO", _Ranges(ask, first.body))
    return HeaderReader(shown, stream, first.size).header(), commit


def _gguf(found: HubId, revision: str, name: str, transport: Transport) -> HubModel:
    header, commit = _gguf_header(found, revision, name, transport)
    parts = header.metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        header = _joined(found, commit, name, header, parts, transport)
    return HubModel(found, commit, transport, header=header)


def _joined(
    found: HubId, commit: str, name: str, given: GGUFHeader, parts: int, transport: Transport
) -> GGUFHeader:
    """The header of all parts of a split model; metadata are those of the first."""
    place = _PART.fullmatch(name)
    if place is None or int(place["parts"]) != parts or parts > _FILES_LIMIT:
        wanted = f"a file name that ends in -00001-of-{parts:05d}.gguf (split.count is {parts})"
        raise FileFormatError(fault("one part of a split model", file=given.path, expected=wanted))
    names = [f"{place['stem']}-{i + 1:05d}-of-{parts:05d}.gguf" for i in range(parts)]

    def read(other: str) -> GGUFHeader:
        try:
            return given if other == name else _gguf_header(found, commit, other, transport)[0]
        except Absent as missing:
            raise _absent(found, missing, other) from None

    headers = _together(read, names)
    tensors = dict[str, StoredTensor]()
    for i, header in enumerate(headers):
        for key, number in (("split.count", parts), ("split.no", i)):
            if header.metadata.get(key) != number:
                seen = header.metadata.get(key, "no such key")
                raise FileFormatError(fault(f"key {key!r}", file=header.path, expected=number, found=seen))
        _add(tensors, header.tensors, header.path)
    return replace(
        headers[0],
        tensors=MappingProxyType(tensors),
        file_bytes=sum(header.file_bytes for header in headers),
        files=tuple(header.path for header in headers),
    )


# -- safetensors ---------------------------------------------------------------------------------------------------


def _safetensors(model: HubModel) -> Mapping[str, StoredTensor] | None:
    repo, transport = model.id.repo, model.transport
    try:
        raw = transport.whole(_path(repo, model.commit, _INDEX), limit=_INDEX_LIMIT).body
    except Absent:
        return _unindexed(model)
    index = Path(f"{repo}/{_INDEX}")
    places = json_object(index, raw).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise FileFormatError(fault("key 'weight_map'", file=index, expected="an object of tensors and their files"))
    for name, file in places.items():
        if not isinstance(file, str) or not _FILE.fullmatch(file):
            expected = "the name of a .safetensors file beside it"
            what = f"tensor {name!r} in weight_map"
            raise FileFormatError(fault(what, file=index, expected=expected, found=repr(file)[:80]))
    tensors = _merged(model, sorted(set(places.values())))
    for name, file in places.items():
        if name not in tensors or tensors[name].file.name != file:
            raise FileFormatError(fault(f"tensor {name!r} is not in {file}, which {_INDEX} names for it", file=index))
    for name, tensor in tensors.items():
        if name not in places:
            raise FileFormatError(fault(f"tensor {name!r} is not in the weight_map of {_INDEX}", file=tensor.file))
    return tensors


def _unindexed(model: HubModel) -> Mapping[str, StoredTensor] | None:
    """Tensors of a repository without an index: of `model.safetensors`, else of every safetensors file at its top."""
    try:
        return MappingProxyType(_header_of(model, _SINGLE))
    except Absent:
        _, names = _listing(model.id, model.commit, model.transport)
    files = sorted(name for name in names if _FILE.fullmatch(name))
    return _merged(model, files) if files else None


def _merged(model: HubModel, files: list[str]) -> Mapping[str, StoredTensor]:
    if len(files) > _FILES_LIMIT:
        what = "the number of safetensors files"
        raise FileFormatError(fault(what, file=model.id.repo, expected=f"at most {_FILES_LIMIT}", found=len(files)))

    def read(file: str) -> Mapping[str, StoredTensor]:
        try:
            return _header_of(model, file)
        except Absent as missing:
            raise _absent(model.id, missing, file) from None

    tensors = dict[str, StoredTensor]()
    for file, found in zip(files, _together(read, files), strict=True):
        _add(tensors, found, Path(file))
    return MappingProxyType(tensors)


def _add(tensors: dict[str, StoredTensor], more: Mapping[str, StoredTensor], file: Path) -> None:
    for name, tensor in more.items():
        if name in tensors:
            raise FileFormatError(fault(f"tensor {name!r} is also in {tensors[name].file.name}", file=file))
        tensors[name] = tensor


def _header_of(model: HubModel, file: str) -> Mapping[str, StoredTensor]:
    """The tensors of one safetensors file. Absent: no such file."""
    path, shown = _path(model.id.repo, model.commit, file), Path(f"{model.id.repo}/{file}")
    first = model.transport.range(path, 0, _FIRST)
    raw, length = first.body, int.from_bytes(first.body[:8], "little")
    if len(raw) < 8 or length > min(_HEADER_LIMIT, first.size - 8):
        expected = f"a header length of at most {min(_HEADER_LIMIT, max(first.size - 8, 0))} bytes in its first 8"
        raise wrong_start(shown, "safetensors", expected, raw[:64])
    if 8 + length > len(raw):
        rest = model.transport.range(path, len(raw), 8 + length)
        if rest.size != first.size:
            raise FileFormatError(fault("the file changed while it was read", file=shown, advice="try again"))
        raw += rest.body
    raw = raw[8 : 8 + length]
    if not raw.startswith(b"{"):
        raise wrong_start(shown, "safetensors", "a JSON object after the first 8 bytes", first.body[:64])
    entries = json_object(shown, raw)
    entries.pop("__metadata__", None)
    tensors = {name: stored_tensor(shown, name, entry, 8 + length) for name, entry in entries.items()}
    check_places(shown, tensors.values(), 8 + length, first.size)
    return tensors


def _together(read: Callable[[str], R], names: Iterable[str]) -> list[R]:
    """`read` of every name, some at once; the first failure ends the rest."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(read, names))
    finally:
        pool.shutdown(cancel_futures=True)

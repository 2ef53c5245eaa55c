"""From what a user names to a blueprint.

MODEL is a directory with a config.json, a config.json itself, a .gguf file, a catalogue name, or an id of a model hub
(`org/name`, `org/name@revision`, `org/name:file.gguf`); the first that fits wins, so a path wins over a name.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from plait.blueprint.catalog import Entry, entries, entry, names
from plait.blueprint.check import check
from plait.blueprint.families import ARCHITECTURES, MODEL_TYPES, family
from plait.blueprint.outline import Outline
from plait.blueprint.read.config import ConfigReader, Coverage, read_json
from plait.blueprint.read.gguf import GGUFHeader, read_gguf
from plait.blueprint.spec import Blueprint, SpecialTokens
from plait.errors import ConfigError, ModelNotFound, PlaitError, UnsupportedError, UserError, fault

if TYPE_CHECKING:
    from plait.blueprint.read.hub import HubId, HubModel

__all__ = ["Kind", "Sketch", "Source", "describe", "from_config", "from_gguf", "open_entry", "open_model"]

Kind = Literal["catalogue", "directory", "config", "gguf", "hub"]

_GGUF_MAGIC: Final = b"GGUF"
_SUFFIXES: Final = (".gguf", ".json", ".safetensors")
_FACTORS: Final = "rope_freqs.weight"
_FACTORS_LIMIT: Final = 2**20
# GGUF keys of which any file may state one number for each layer.
_PER_LAYER: Final = (
    "attention.head_count",
    "attention.head_count_kv",
    "expert_feed_forward_length",
    "feed_forward_length",
)


@dataclass(frozen=True, slots=True)
class Source:
    """A model as named: where it came from and what was read.

    path     the directory, config.json or .gguf file; None for a catalogue entry and for the hub
    header   the GGUF header, where the model is a GGUF file
    entry    the catalogue entry, where the model was named
    hub      the model of the hub; its weights are not here
    """

    kind: Kind
    blueprint: Blueprint
    coverage: Coverage
    path: Path | None = None
    header: GGUFHeader | None = None
    entry: Entry | None = None
    hub: HubModel | None = None


@dataclass(frozen=True, slots=True)
class Sketch:
    """A model whose family this version does not know: what its keys tell, and all of them.

    reason   why there is no blueprint, as `open_model` says it
    """

    kind: Kind
    name: str
    outline: Outline
    coverage: Coverage
    keys: Mapping[str, object]
    reason: str
    path: Path | None = None
    header: GGUFHeader | None = None
    hub: HubModel | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """A description that was found and not yet understood: the keys of a config, or a GGUF header."""

    kind: Kind
    file: str
    name: str
    config: Mapping[str, object] | None = None
    header: GGUFHeader | None = None
    path: Path | None = None
    entry: Entry | None = None
    hub: HubModel | None = None

    def word(self) -> str | None:
        """The file's own word for the family."""
        described = self.config if self.header is None else self.header.metadata
        assert described is not None
        word = described.get("model_type" if self.header is None else "general.architecture")
        return word if isinstance(word, str) else None


def _unknown(file: str, key: str, known: tuple[str, ...], word: str) -> str:
    return fault(
        f"key {key!r}",
        file=file,
        expected="one of " + ", ".join(known),
        found=repr(word),
        advice="this version does not know the family; `plait inspect` shows what its keys tell",
    )


def from_config(data: Mapping[str, object], *, file: str, name: str = "") -> tuple[Blueprint, Coverage]:
    """Blueprint and coverage of the keys of a config.json; `file` is what errors and evidence call it."""
    reader = ConfigReader(data, file=file)
    model_type = reader.text("model_type", field="family")
    if model_type not in MODEL_TYPES:
        raise UnsupportedError(_unknown(file, "model_type", tuple(MODEL_TYPES), model_type))
    parsed = family(MODEL_TYPES[model_type]).parse(reader)
    blueprint = replace(parsed, name=name, evidence=MappingProxyType(dict(reader.evidence)))
    return check(blueprint, file), reader.coverage()


def _shortest(value: object) -> object:
    """A float32 of the metadata as the decimal it was written from: 9.99999997e-07 is 1e-06."""
    if not isinstance(value, float) or value != value or value in (float("inf"), float("-inf")):
        return value
    for digits in range(1, 10):
        candidate = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", candidate))[0] == value:
                return candidate
        except OverflowError:
            continue
    return value


def _alike(data: Mapping[str, object]) -> dict[str, object]:
    """The metadata with one number in place of a list that has it for each layer: both forms say the same."""

    def number(key: str, value: object) -> object:
        if key not in _PER_LAYER or not isinstance(value, tuple) or len(value) != data.get("block_count"):
            return value
        return value[0] if all(type(item) is int and item == value[0] for item in value) else value

    return {key: number(key, value) for key, value in data.items()}


def from_gguf(header: GGUFHeader) -> tuple[Blueprint, Coverage]:
    """Blueprint and coverage of a GGUF header."""
    file = str(header.path)
    architecture = header.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(_unknown(file, "general.architecture", tuple(ARCHITECTURES), architecture))
    prefix = architecture + "."
    data = {
        key.removeprefix(prefix): _shortest(value) for key, value in header.metadata.items() if key.startswith(prefix)
    }
    reader = ConfigReader(_alike(data), file=file, prefix=prefix)
    parsed = family(ARCHITECTURES[architecture]).parse_gguf(reader, header)
    name = header.metadata.get("general.name")
    embedding = header.tensors.get("token_embd.weight")
    blueprint = replace(
        parsed,
        name=name if isinstance(name, str) else header.path.stem,
        tokens=_gguf_tokens(header),
        stored_format=embedding.format.name if embedding is not None else parsed.stored_format,
        evidence=MappingProxyType(dict(reader.evidence)),
    )
    own = reader.coverage()
    others = tuple(key for key in header.metadata if not key.startswith(prefix))
    described = tuple(key for key in others if key.split(".")[0] in ("general", "tokenizer", "split", "quantize"))
    coverage = Coverage(
        ("general.architecture", *own.used),
        tuple(key for key in described if key != "general.architecture"),
        own.unknown + tuple(key for key in others if key not in described),
    )
    return check(blueprint, file), coverage


def _gguf_tokens(header: GGUFHeader) -> SpecialTokens:
    def token(key: str) -> int | None:
        value = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    eos = token("eos")
    return SpecialTokens(token("bos"), () if eos is None else (eos,), token("padding"))


def _is_gguf(path: Path) -> bool:
    if path.suffix == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == _GGUF_MAGIC


def _find_file(path: Path) -> _Found:
    try:
        gguf = _is_gguf(path)
    except OSError as error:
        raise ConfigError(fault(f"cannot be read ({error.strerror})", file=path)) from error
    if gguf:
        header = read_gguf(path)
        return _Found("gguf", str(header.path), header.path.stem, header=header, path=path)
    if path.suffix == ".safetensors":
        raise ModelNotFound(
            fault("weights alone do not describe a model", file=path, advice=f"name the directory {path.parent}")
        )
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    return _Found("config", str(path), name, config=read_json(path), path=path)


def _find_in_directory(path: Path) -> _Found:
    config = path / "config.json"
    if config.is_file():
        return _Found("directory", str(config), path.resolve().name, config=read_json(config), path=path)
    files = sorted(path.glob("*.gguf"))
    first_parts = [file for file in files if "-of-" not in file.stem or "-00001-of-" in file.stem]
    if len(first_parts) == 1:
        return _find_file(first_parts[0])
    if files:
        raise ModelNotFound(
            fault("holds several models", file=path, advice="name one of " + ", ".join(f.name for f in first_parts))
        )
    raise ModelNotFound(fault("no model in this directory", file=path, expected="config.json or a .gguf file"))


def _of_entry(found: Entry) -> _Found:
    return _Found("catalogue", f"catalogue:{found.name}", found.name, config=found.config, entry=found)


def _hint(name: str) -> str:
    """Names of the catalogue that are close to what was typed."""
    same = [item.name for item in entries() if item.hub.lower() == name.lower()] if "/" in name else []
    if same:
        return f"; the catalogue describes it: {same[0]}"
    last = name.lower().split("/")[-1]
    close = get_close_matches(last, [known.lower() for known in names()], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _find_on_hub(found: HubId) -> _Found:
    # The modules of HTTP take longer to load than all the rest of a command.
    from plait.blueprint.read.hub import open_hub
    from plait.blueprint.read.transport import Transport, offline

    forbidden = offline(os.environ)
    if forbidden is not None:
        what = f"{found}: no such file or directory, and the model hub is not asked, because {forbidden} is set"
        raise ModelNotFound(what + _hint(found.repo))
    try:
        model = open_hub(found, Transport.from_environment(os.environ))
    except ModelNotFound as error:
        raise ModelNotFound(f"{error}{_hint(found.repo)}") from error
    except UserError:
        raise
    except PlaitError as error:
        raise PlaitError(f"{found}: no such file or directory here, and {error}{_hint(found.repo)}") from error
    return _Found("hub", model.file, model.name, config=model.config, header=model.header, hub=model)


def _find(model: str | Path) -> _Found:
    path = Path(model)
    name = str(model)
    try:
        directory, file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # too long for a path, or not allowed in one
        raise ModelNotFound(f"{name[:80]!r}: no such file or directory") from None
    if directory:
        return _find_in_directory(path)
    if file:
        return _find_file(path)
    known = entry(name)
    if known is not None:
        return _of_entry(known)
    # `org/model.gguf` is a path that is not there; `org/model:file.gguf` is an id.
    if isinstance(model, str) and "/" in name and (path.suffix not in _SUFFIXES or ":" in name):
        from plait.blueprint.read.hub import hub_id

        found = hub_id(name)
        if found is not None:
            return _find_on_hub(found)
    if path.suffix in _SUFFIXES or len(path.parts) > 2 or name.startswith((".", "/", "~")):
        raise ModelNotFound(f"{name}: no such file or directory")
    raise ModelNotFound(
        f"{name}: no such file, directory or catalogue entry{_hint(name)} (`plait models` lists the catalogue)"
    )


@contextmanager
def _with_factors(header: GGUFHeader, hub: HubModel | None) -> Iterator[GGUFHeader]:
    """The header with stored rotary factors within reach: parsers read them, and on the hub they are not here."""
    factors = header.tensors.get(_FACTORS)
    if hub is None or factors is None:
        yield header
        return
    with TemporaryDirectory(prefix="plait-") as directory:
        file = Path(directory) / "factors"
        file.write_bytes(hub.data(factors, _FACTORS_LIMIT))
        here = replace(factors, file=file, offset=0)
        yield replace(header, tensors=MappingProxyType({**header.tensors, _FACTORS: here}))


def _understood(found: _Found) -> Source:
    if found.header is None:
        assert found.config is not None
        blueprint, coverage = from_config(found.config, file=found.file, name=found.name)
    else:
        with _with_factors(found.header, found.hub) as header:
            blueprint, coverage = from_gguf(header)
    return Source(
        found.kind,
        blueprint,
        coverage,
        path=found.path,
        header=found.header,
        entry=found.entry,
        hub=found.hub,
    )


def open_entry(found: Entry) -> Source:
    """The source of a catalogue entry."""
    return _understood(_of_entry(found))


def open_model(model: str | Path) -> Source:
    """Read what MODEL names. UnsupportedError: a family this version does not know (`describe` tells its keys).

    A hub id costs a request for the config.json, or some for a GGUF header; offline and network faults are errors.
    """
    return _understood(_find(model))


def describe(model: str | Path) -> Source | Sketch:
    """As `open_model`; a model of an unknown family gives a Sketch of what its keys tell."""
    found = _find(model)
    word = found.word()
    if word is None or word in (MODEL_TYPES if found.header is None else ARCHITECTURES):
        return _understood(found)
    from plait.blueprint.families.generic import outline_of_config, outline_of_gguf

    if found.header is None:
        assert found.config is not None
        keys = found.config
        outline, coverage = outline_of_config(keys, family=word, file=found.file)
    else:
        keys = found.header.metadata
        outline, coverage = outline_of_gguf(found.header, family=word)
    return Sketch(
        found.kind,
        found.name,
        outline,
        coverage,
        keys,
        _unknown(found.file, "model_type", tuple(MODEL_TYPES), word)
        if found.header is None
        else _unknown(found.file, "general.architecture", tuple(ARCHITECTURES), word),
        path=found.path,
        header=found.header,
        hub=found.hub,
    )

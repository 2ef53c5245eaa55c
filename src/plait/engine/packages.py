"""Weights that come as Python packages: the demo model and the small chat model of the catalogue."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from plait.blueprint.catalog import Entry, Package
from plait.errors import MissingExtra, PlaitError, WeightsError, fault

__all__ = ["cache_directory", "packaged_weights"]


def cache_directory() -> Path:
    """Where Plait keeps files it can make again: `$XDG_CACHE_HOME/plait`, else `~/.cache/plait`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "plait"


def packaged_weights(entry: Entry) -> Path:
    """The GGUF file of a catalogue entry, put together in the cache on first use.

    MissingExtra: the package is not installed. WeightsError: the entry has no weights in a package.
    """
    package = entry.package
    if package is None:
        raise WeightsError(
            f"{entry.name}: the catalogue describes this model and carries no weights; "
            f"name a directory or a .gguf file with the weights of {entry.hub}"
        )
    spec = find_spec(package.module)
    if spec is None or spec.origin is None:
        raise MissingExtra(package.name, package.install)
    if package.assemble is None:
        path = Path(spec.origin).parent / package.file
        if not path.is_file():
            raise WeightsError(fault(f"package {package.name!r} lacks its file", file=path))
        return path
    target = cache_directory() / package.file
    if not target.is_file():
        _assemble(package, target)
    return target


def _assemble(package: Package, target: Path) -> None:
    """Let the package write its file beside `target`, check it, and move it into place."""
    assert package.assemble is not None
    write: Callable[[Path], object] = getattr(import_module(package.module), package.assemble)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(target)
    except (OSError, ValueError) as error:
        raise PlaitError(
            fault(f"the weights of package {package.name!r} cannot be written ({error})", file=target)
        ) from error
    finally:
        part.unlink(missing_ok=True)

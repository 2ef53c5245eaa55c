"""Where a checkpoint's files go: shards, what stands in the way, and names that files get when all are complete."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from torch import Tensor

from plait.dtypes import Format
from plait.errors import PlaitError, UsageError, fault
from plait.runtime.safetensors_file import write_safetensors
from plait.units import binary_bytes

__all__ = ["CONFIG", "INDEX", "Stored", "check_room", "publish", "replaced", "split", "write_shards"]

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_OWN: Final = (CONFIG, "tokenizer.json", "tokenizer_config.json")


class Stored(Protocol):
    """One tensor of a file to be."""

    @property
    def name(self) -> str: ...
    @property
    def format(self) -> Format: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...


Some = TypeVar("Some", bound=Stored)


def split(items: Sequence[Some], shards: int) -> list[list[Some]]:
    """`shards` runs of tensors in their order, of about equal bytes, none empty."""
    total, before = sum(item.nbytes for item in items), 0
    runs: list[list[Some]] = [[]]
    for i, item in enumerate(items):
        left = shards - len(runs)  # files still to begin
        full = before * shards >= total * len(runs)
        if left and runs[-1] and (full or len(items) - i == left):
            runs.append([])
        runs[-1].append(item)
        before += item.nbytes
    return runs


def write_shards(
    place: Path, runs: Sequence[Sequence[Stored]], data: Iterator[tuple[str, Iterable[Tensor]]]
) -> None:
    """Safetensors files of `runs`, with an index where there are several; `data` as `write_safetensors` takes it."""
    count = len(runs)
    names = [_SINGLE] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    for name, run in zip(names, runs, strict=True):
        entries = {item.name: (item.format, item.shape) for item in run}
        write_safetensors(place / name, entries, (next(data) for _ in run))
    if count > 1:
        index = {
            "metadata": {"total_size": sum(item.nbytes for run in runs for item in run)},
            "weight_map": {item.name: name for name, run in zip(names, runs, strict=True) for item in run},
        }
        (place / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def replaced(directory: Path, gguf_name: str | None, force: bool, beside: Iterable[str] = ()) -> list[Path]:
    """Files that the new checkpoint replaces. UsageError: there are some, without `force`.

    gguf_name  of the one file of a GGUF checkpoint, None: safetensors files
    beside     names of further files that come with them
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(fault("the place for a checkpoint", file=directory, expected="a directory", found="a file"))
    if gguf_name is not None:
        found = [directory / gguf_name] if (directory / gguf_name).exists() else []
    else:
        names = dict.fromkeys((*_OWN, INDEX, *beside))
        found = [directory / name for name in names if (directory / name).exists()]
        found += sorted(directory.glob("*.safetensors"))
    if found and not force:
        first = ", ".join(path.name for path in found[:3])
        what = f"a checkpoint is there already ({first})"
        raise UsageError(fault(what, file=directory, advice="choose another place, or replace it with --force"))
    if any(not path.is_file() for path in found):
        path = next(path for path in found if not path.is_file())
        raise UsageError(fault("cannot be replaced", file=path, expected="a file", found="something else"))
    return found


def check_room(directory: Path, total: int, advice: str) -> None:
    """UsageError: `total` bytes do not fit on the disk of `directory`."""
    place = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if total > free:
        what, expected = "the checkpoint does not fit", f"{binary_bytes(total)} of free space"
        raise UsageError(fault(what, file=directory, expected=expected, found=binary_bytes(free), advice=advice))


def publish(directory: Path, write: Callable[[Path], None], in_the_way: list[Path]) -> tuple[Path, ...]:
    """Has `write` fill a directory beside, then gives its files their names: the config last, as it marks a model."""
    try:
        directory.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".plait-", suffix=".part", dir=directory.absolute().parent, ignore_cleanup_errors=True
        ) as beside:
            write(Path(beside))
            names = sorted((path.name for path in Path(beside).iterdir()), key=lambda name: (name == CONFIG, name))
            directory.mkdir(exist_ok=True)
            for path in in_the_way:
                if path.name not in names:
                    path.unlink()
            for name in names:
                os.replace(Path(beside) / name, directory / name)
    except OSError as error:
        raise PlaitError(fault(f"cannot be written ({error.strerror or error})", file=directory)) from error
    return tuple(directory / name for name in names)

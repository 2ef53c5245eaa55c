"""Slicing a checkpoint: a directory of safetensors files becomes one that holds fewer layers of smaller width.

Tensors are copied row by row as they are stored; no weight changes. See `blueprint.slice` for what may be chosen.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.families import family
from plait.blueprint.families.gemma_shared import unused_kv
from plait.blueprint.layout import Binding, resolved
from plait.blueprint.read.config import read_json
from plait.blueprint.read.safetensors import read_checkpoint
from plait.blueprint.slice import Choice, sliced, sliced_config
from plait.blueprint.source import Source, from_config
from plait.blueprint.spec import Blueprint
from plait.blueprint.tensors import inventory
from plait.dtypes import Format
from plait.errors import ConfigError, UnsupportedError, UsageError, fault
from plait.runtime.checkpoint import Written
from plait.runtime.checkpoint_files import CONFIG, INDEX, check_room, publish, replaced, split, write_shards
from plait.runtime.packed import Packed, open_all
from plait.runtime.weights import Weights, open_weights

__all__ = ["slice_checkpoint"]

# Bytes of a tensor that are in memory at a time, and of a file at most.
_PIECE: Final = 16 * 2**20
_FILE: Final = 5 * 10**9
# Files beside the weights that a checkpoint needs: tokenizer, chat template, settings.
_BESIDE: Final = (".json", ".model", ".txt", ".jinja")


@dataclass(frozen=True, slots=True)
class _Cut:
    """One tensor of the new files: rows and columns [start, stop) of a stored one, of which a vector is one row."""

    name: str
    packed: Packed
    shape: tuple[int, ...]
    rows: tuple[range, ...]
    columns: tuple[range, ...]

    @property
    def format(self) -> Format:
        return self.packed.format

    @property
    def nbytes(self) -> int:
        return self.format.nbytes(prod(self.shape))

    def pieces(self) -> Iterator[Tensor]:
        """The bytes of the new tensor, uint8 [n]."""
        columns = _columns(self.packed.shape)
        size = self.format.nbytes(1)
        stored = self.packed.data.contiguous().view(-1).view(torch.uint8).view(-1, columns * size)
        step = max(1, _PIECE // (columns * size))
        for rows in self.rows:
            for start in range(rows.start, rows.stop, step):
                piece = stored[start : min(start + step, rows.stop)]
                parts = [piece[:, part.start * size : part.stop * size] for part in self.columns]
                yield torch.cat(parts, 1).flatten()


def slice_checkpoint(
    source: Source,
    choice: Choice,
    out: Path,
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write the slice `choice` of a checkpoint directory to the directory `out`.

    Encoders and all other tensors are copied whole, tokenizer files too; config.json says what the slice is.

    force     replace a checkpoint that is there
    progress  called with (bytes done, bytes in all)

    Files get their names when all are complete. UsageError: a model that is no directory, a checkpoint in the way, too
    little room. UnsupportedError: weights that are not stored plainly. Besides, what reading the weights raises.
    """
    directory = source.path
    if source.kind != "directory" or directory is None:
        advice = "name the directory of its safetensors files"
        what = "a checkpoint to slice"
        raise UsageError(fault(what, file=source.blueprint.name, expected="a directory", advice=advice))
    if out.exists() and out.resolve() == directory.resolve():
        raise UsageError(fault("the slice would replace its model", file=out, advice="choose another place"))
    blueprint = sliced(source.blueprint, choice)
    config = sliced_config(read_json(directory / CONFIG), blueprint)
    if from_config(config, file=str(directory / CONFIG))[0] != blueprint:
        what = "the config cannot say what the slice is: keys stand in it twice, or in an unusual place"
        raise ConfigError(fault(what, file=directory / CONFIG))
    weights = open_weights(source)
    items = [*_text(source, blueprint, choice, weights), *_others(source, directory)]
    beside = _files_beside(directory)
    in_the_way = replaced(out, None, force, (path.name for path in beside))
    total = sum(item.nbytes for item in items)
    check_room(out, total, "use another disk")

    def write(place: Path) -> None:
        runs = split(items, min(len(items), -(-total // _FILE)))
        write_shards(place, runs, _data(items, total, progress))
        for path in beside:
            shutil.copyfile(path, place / path.name)
        (place / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    files = publish(out, write, in_the_way)
    return Written(
        path=out,
        files=files,
        parameters=sum(prod(item.shape) for item in items),
        nbytes=sum(file.stat().st_size for file in files),
        notes=(),
    )


def _data(
    items: list[_Cut], total: int, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[str, Iterator[Tensor]]]:
    done = 0

    def counted(item: _Cut) -> Iterator[Tensor]:
        nonlocal done
        for piece in item.pieces():
            yield piece
            done += piece.numel()
            if progress is not None:
                progress(done, total)

    for item in items:
        yield item.name, counted(item)


def _text(source: Source, blueprint: Blueprint, choice: Choice, weights: Weights) -> Iterator[_Cut]:
    """The text model's tensors: layers get their new numbers, parts of them go."""
    assert source.path is not None
    shapes = {tensor.role: tensor.shape for tensor in inventory(blueprint) if tensor.part == "text"}
    for binding in resolved(family(blueprint.family).layout(blueprint), read_checkpoint(source.path)):
        role, name = _plain(binding, blueprint)
        old = _old_role(role, choice)
        packed = weights.packed(old)
        if packed is None or not packed.format.dense:
            what = f"tensor {name!r} cannot be sliced"
            found = "a block format" if packed is not None else "values that are changed on reading"
            raise UnsupportedError(fault(what, file=source.path, expected="a weight stored plainly", found=found))
        rows, columns = _kept(role, choice, source.blueprint, packed.shape)
        yield _Cut(name, packed, shapes[role], rows, columns)


def _plain(binding: Binding, blueprint: Blueprint) -> tuple[str, str]:
    """Role and name of a tensor that is one role as it is."""
    if len(binding.roles) != 1 or len(binding.names) != 1 or binding.transform is not None:
        what = f"tensor {binding.names[0]!r} cannot be sliced"
        raise UnsupportedError(fault(what, file=blueprint.name, expected="a tensor for each weight"))
    return binding.roles[0], binding.names[0]


def _old_role(role: str, choice: Choice) -> str:
    """The role in the whole model of a role of the slice."""
    head, *rest = role.split(".")
    return ".".join((head, str(choice.layers[int(rest[0])]), *rest[1:])) if head == "layers" else role


def _kept(
    role: str, choice: Choice, whole: Blueprint, shape: tuple[int, ...]
) -> tuple[tuple[range, ...], tuple[range, ...]]:
    """Rows and columns of a weight of the whole model that stay."""
    columns = _columns(shape)
    rows = prod(shape) // columns
    kept_rows, kept_columns = (range(rows),), (range(columns),)
    table = whole.per_layer_embeddings
    if table is not None and role in ("per_layer_embedding", "per_layer_projection"):
        blocks = tuple(range(index * table.dim, (index + 1) * table.dim) for index in choice.layers)
        return (kept_rows, blocks) if role == "per_layer_embedding" else (blocks, kept_columns)
    layer, _, part = role.removeprefix("layers.").partition(".")
    if part in ("feed_forward.gate", "feed_forward.up"):
        kept_rows = (range(choice.widths[int(layer)]),)
    elif part in ("feed_forward.down", "feed_forward.gate_bias", "feed_forward.up_bias"):
        kept_columns = (range(choice.widths[int(layer)]),)
    return kept_rows, kept_columns


def _others(source: Source, directory: Path) -> Iterator[_Cut]:
    """Tensors that are not the text model's; keys and values no layer reads are left behind."""
    blueprint, found = source.blueprint, read_checkpoint(directory)
    bound = {name for binding in resolved(family(blueprint.family).layout(blueprint), found) for name in binding.names}
    unread = unused_kv(blueprint)
    rest = {
        name: stored
        for name, stored in found.items()
        if name not in bound and not any(re.fullmatch(ignored.pattern, name) for ignored in unread)
    }
    for name, packed in open_all(rest).items():
        columns = _columns(packed.shape)
        yield _Cut(name, packed, packed.shape, (range(prod(packed.shape) // columns),), (range(columns),))


def _files_beside(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.iterdir()
        if path.suffix in _BESIDE and path.is_file() and path.name not in (CONFIG, INDEX)
    )


def _columns(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 1

"""Random checkpoints: a model's text graph with random weights, as a directory of safetensors files or as a GGUF file.

For tests, benchmarks and reports, where the values do not matter but every shape, name and transform does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from plait.blueprint.families import family
from plait.blueprint.spec import Blueprint, Quantization
from plait.blueprint.tensors import Tensor as Wanted
from plait.blueprint.tensors import inventory
from plait.dtypes import BY_NAME, Format
from plait.errors import UsageError, fault
from plait.runtime.blocks import packable
from plait.runtime.checkpoint_files import CONFIG, check_room, publish, replaced, split, write_shards
from plait.runtime.checkpoint_gguf import architecture_metadata, write_gguf
from plait.runtime.checkpoint_items import Item, data_of, items_of
from plait.runtime.checkpoint_tokenizer import byte_tokenizer

__all__ = ["FP8_FORMAT", "HUB_FORMATS", "Written", "gguf_formats", "write_random"]

HUB_FORMATS: Final = ("f32", "bf16", "f16")
"""Formats a safetensors checkpoint of any model is written in."""

FP8_FORMAT: Final = "fp8"
"""Besides: matrices as the model's config says they are quantized, in FP8 with a scale a block, all else bf16."""

_QUANTIZATION: Final = "quantization_config"
_BESIDE_FP8: Final = "bf16"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    path        the directory, or the GGUF file
    parameters  elements of all weights
    nbytes      bytes of all files
    notes       what a reader would not expect: parts left out, formats that could not be used
    """

    path: Path
    files: tuple[Path, ...]
    parameters: int
    nbytes: int
    notes: tuple[str, ...]


def gguf_formats() -> tuple[str, ...]:
    """Formats the matrices of a GGUF checkpoint are written in."""
    return (*HUB_FORMATS, *(name for name in packable() if not BY_NAME[name].dense))


def write_random(
    blueprint: Blueprint,
    config: Mapping[str, object],
    out: Path,
    *,
    seed: int,
    gguf: bool,
    format: str = "f32",  # noqa: A002 - what users call it
    shards: int = 1,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write a checkpoint of `blueprint`, whose config has the keys `config`, with weights drawn from `seed`.

    Each role's values are a function of (seed, role) alone, rounded to `format` where that is dense: both containers
    hold the same weights. Tensors are made and written piece by piece, experts one by one; only what a container
    stores in another order (the fused projections of an attention layer) is in memory as a whole.

    out       directory that is made where it is not there; with `gguf` it may be the .gguf file itself
    format    of all tensors (safetensors), or of the matrices, vectors being f32 (GGUF)
              `FP8_FORMAT`: safetensors only, and only of a model whose config declares it
    shards    number of safetensors files
    force     replace a checkpoint that is there; other files of the directory stay in any case
    progress  called with (bytes done, bytes in all)

    Files get their names when all are complete. UsageError: an argument that cannot be used, a checkpoint in the way,
    too little room. UnsupportedError: a model that this version does not run, or that the container cannot express.
    PlaitError: writing failed. What is refused is refused before anything is written.
    """
    quantization = _quantization(blueprint, format, gguf)
    form = BY_NAME[_BESIDE_FP8 if quantization is not None else format]
    plain = replace(blueprint, quantization=quantization)  # files of quantized weights may have another layout
    known = family(blueprint.family)
    wanted = {tensor.role: tensor for tensor in inventory(blueprint) if tensor.part == "text"}
    layout = known.gguf_layout(plain) if gguf else known.layout(plain)
    items = items_of(layout, wanted, form, gguf=gguf, quantization=quantization)
    if shards < 1 or shards > len(items) or (gguf and shards > 1):
        most = "1 with --gguf" if gguf else f"1 to {len(items)}, the number of tensors"
        raise UsageError(fault("number of shards", expected=most, found=shards))
    entries = {item.name: (item.format, item.shape) for item in items}
    metadata = architecture_metadata(blueprint, entries) if gguf else {}
    notes = [*_left_out(blueprint), *_kept_wide(items, wanted, form)]
    if blueprint.quantization is not None and quantization is None:
        method = blueprint.quantization.method
        notes.append(f"the weights are not quantized: the config's {_QUANTIZATION} ({method}) is dropped")
    tokenizer = byte_tokenizer(blueprint)
    if isinstance(tokenizer, str):
        notes.append(tokenizer)
    elif gguf:
        metadata |= tokenizer.gguf_metadata(blueprint.vocabulary)
    one_file = gguf and out.suffix == ".gguf"
    directory = out.parent if one_file else out
    gguf_name = out.name if one_file else _file_name(blueprint)
    in_the_way = replaced(directory, gguf_name if gguf else None, force)
    total = sum(item.nbytes for item in items)
    check_room(directory, total, "use --scale tiny, a smaller --format or another disk")
    data = data_of(blueprint, wanted, items, seed, form, progress)

    def write(place: Path) -> None:
        if gguf:
            write_gguf(place / gguf_name, metadata, entries, data)
            return
        write_shards(place, split(items, shards), data)
        text = json.dumps(_config(config, form.name, quantization), indent=2, ensure_ascii=False)
        (place / CONFIG).write_text(text + "\n", encoding="utf-8")
        if not isinstance(tokenizer, str):
            tokenizer.write(place)

    files = publish(directory, write, in_the_way)
    return Written(
        path=directory / gguf_name if gguf else directory,
        files=files,
        parameters=sum(tensor.elements for tensor in wanted.values() if not tensor.buffer),
        nbytes=sum(file.stat().st_size for file in files),
        notes=tuple(notes),
    )


def _left_out(blueprint: Blueprint) -> Iterator[str]:
    for tower in blueprint.towers:
        yield f"only the text part is written: no {tower.kind} tower"
    if blueprint.mtp is not None:
        yield f"{len(blueprint.mtp.layers)} multi-token-prediction layers are not written"


def _quantization(blueprint: Blueprint, word: str, gguf: bool) -> Quantization | None:
    """How matrices are quantized: as the model declares it for `FP8_FORMAT`, else not. UsageError: no such format."""
    declared = blueprint.quantization
    if declared is not None and (declared.method != "fp8" or len(declared.block) != 2):
        declared = None
    allowed = gguf_formats() if gguf else (*HUB_FORMATS, *((FP8_FORMAT,) if declared is not None else ()))
    if word not in allowed:
        where = "a GGUF file" if gguf else "safetensors files (block formats need --gguf)"
        if word == FP8_FORMAT and not gguf:
            where += f" of {blueprint.name or blueprint.family}, whose config declares no FP8 blocks"
        raise UsageError(fault(f"format of {where}", expected="one of " + ", ".join(allowed), found=repr(word)))
    return declared if word == FP8_FORMAT else None


def _kept_wide(items: list[Item], wanted: Mapping[str, Wanted], form: Format) -> Iterator[str]:
    matrices = [
        item
        for item in items
        if item.scaled is None and not any(wanted[role].vector for role in item.binding.roles)
    ]
    wide = sum(item.format != form for item in matrices)
    if wide and wide == len(matrices):
        what = f"format {form.name}: rows of the model's matrices"
        advice = "choose a format of smaller blocks"
        raise UsageError(fault(what, expected=f"a multiple of {form.block} in at least one", advice=advice))
    if wide:
        yield f"{wide} of {len(matrices)} matrices are f32, as their rows do not fill blocks of {form.block}"


def _config(config: Mapping[str, object], form: str, quantization: Quantization | None) -> dict[str, object]:
    """The config with the type the weights are stored in, under the spelling it uses."""
    word = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[form]
    spellings = ("dtype", "torch_dtype")

    def said(section: Mapping[str, object]) -> dict[str, object]:
        return {**section, **{key: word for key in spellings if key in section}}

    kept = {key: value for key, value in config.items() if key != _QUANTIZATION or quantization is not None}
    made = {key: said(value) if isinstance(value, Mapping) else value for key, value in said(kept).items()}
    return made if any(key in made for key in spellings) else {**made, "dtype": word}


def _file_name(blueprint: Blueprint) -> str:
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in blueprint.name).strip(".")
    return f"{name or blueprint.family}.gguf"

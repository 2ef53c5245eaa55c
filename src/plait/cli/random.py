"""`plait random`: a checkpoint of random weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from plait.blueprint.shrink import tiny
from plait.blueprint.source import Source, from_config, open_model
from plait.cli.common import config_keys, json_option, print_json, printable, requires
from plait.errors import UsageError, fault
from plait.units import binary_bytes, count

__all__ = ["bytes_progress", "command"]


def _keys(model: str, source: Source) -> Mapping[str, object]:
    """The keys of the config that MODEL names."""
    keys = config_keys(source)
    if keys is None:
        advice = "name a catalogue entry, a directory with a config.json, a config.json or a hub id"
        raise UsageError(fault("a GGUF file has no config to write a checkpoint of", file=model, advice=advice))
    return keys


@contextmanager
def bytes_progress(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr where that is a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


@click.command("random")
@click.argument("config")
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory to write; with --gguf also a .gguf file.",
)
@click.option("--gguf", is_flag=True, help="Write a GGUF file instead of safetensors files.")
@click.option(
    "--scale",
    type=click.Choice(["tiny", "full"]),
    default="full",
    show_default=True,
    help="tiny: the same pattern with small sizes and few layers.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The weights are a function of it.")
@click.option(
    "--format",
    "form",
    metavar="F",
    help="f32, bf16 or f16; with --gguf also q8_0, q4_0, q4_k, ...; fp8 where the config declares FP8 blocks.  "
    "Default: f32 if tiny, else the published one.",
)
@click.option("--shards", type=click.IntRange(min=1), default=1, show_default=True, help="Number of safetensors files.")
@click.option("--force", is_flag=True, help="Replace a checkpoint that is there.")
@json_option
def command(
    config: str,
    out: Path,
    gguf: bool,
    scale: str,
    seed: int,
    form: str | None,
    shards: int,
    force: bool,
    as_json: bool,
) -> None:
    """Write a random checkpoint of CONFIG: a catalogue name, a directory with a config.json, a config.json or a hub id.

    For tests, benchmarks and reports. The weights depend on the seed and on their role alone, so a directory and a
    GGUF file of one seed hold the same model. The text model is written: encoders and multi-token-prediction layers
    are left out, and the output says so. A small byte-level tokenizer is written with it.
    """
    source = open_model(config)
    keys, blueprint = _keys(config, source), source.blueprint
    with requires("run"):
        from plait.runtime.checkpoint import HUB_FORMATS, write_random
    if scale == "tiny":
        keys = tiny(keys)
        blueprint, _ = from_config(keys, file=f"tiny {config}", name=f"{blueprint.name}-tiny")
    if form is None:
        form = blueprint.stored_format if scale == "full" and blueprint.stored_format in HUB_FORMATS else "f32"
    with bytes_progress(f"writing {printable(str(out))}") as progress:
        written = write_random(
            blueprint, keys, out, seed=seed, gguf=gguf, format=form, shards=shards, force=force, progress=progress
        )
    if as_json:
        print_json(
            {
                "path": str(written.path),
                "files": [str(file) for file in written.files],
                "format": form,
                "seed": seed,
                "parameters": written.parameters,
                "bytes": written.nbytes,
                "notes": list(written.notes),
            }
        )
        return
    size = f"{count(written.parameters)} parameters ({written.parameters:,}), {binary_bytes(written.nbytes)}"
    click.echo(f"wrote {printable(str(written.path))}: {size}, {form}, seed {seed}")
    for file in written.files:
        if file != written.path:
            click.echo(f"  {printable(file.name)}  {binary_bytes(file.stat().st_size)}")
    for note in written.notes:
        click.echo(f"  note: {printable(note)}")

"""`plait slice`: a smaller model out of one with nested widths."""

from __future__ import annotations

import json
from pathlib import Path

import click

from plait.blueprint.slice import PUBLISHED, choose
from plait.blueprint.source import open_model
from plait.cli.common import json_option, print_json, printable, requires
from plait.cli.random import bytes_progress
from plait.errors import UsageError, fault
from plait.units import binary_bytes, count

__all__ = ["command"]


def _layers(text: str | None) -> tuple[int, ...]:
    """Layer numbers of a list like `3,20-24`, both ends of a range included."""
    found: list[int] = []
    for part in (text or "").split(",") if text is not None else ():
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdecimal() and len(end) < 6 for end in ends) or int(ends[0]) > int(ends[1]):
            raise UsageError(fault("--drop", expected="layers like 20-24 or 3,7", found=repr(text)))
        found.extend(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(found)


def _widths(text: str | None) -> int | tuple[int, ...] | None:
    """A width, a list of them with commas, or a JSON file that holds either."""
    if text is None:
        return None
    try:
        given = json.loads(Path(text).read_text(encoding="utf-8") if text.endswith(".json") else f"[{text}]")
    except (OSError, ValueError, RecursionError) as error:
        expected = "a width, widths with commas between them, or a JSON file of widths"
        raise UsageError(fault("--width", expected=expected, found=f"{text!r} ({type(error).__name__})")) from None
    widths = given if isinstance(given, list) else [given]
    if not widths or not all(type(width) is int for width in widths):
        raise UsageError(fault("--width", expected="whole numbers", found=repr(text)))
    return widths[0] if len(widths) == 1 else tuple(widths)


@click.command("slice")
@click.argument("model")
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory to write.",
)
@click.option("--to", type=click.Choice(list(PUBLISHED)), help="A published slice.")
@click.option("--drop", metavar="LAYERS", help="Layers to leave out: 20-24 or 3,7.")
@click.option(
    "--width",
    metavar="N",
    help="Feed-forward width of every layer that stays; or one for each, with commas, or a .json file that holds them.",
)
@click.option("--force", is_flag=True, help="Replace a checkpoint that is there.")
@json_option
def command(
    model: str, out: Path, to: str | None, drop: str | None, width: str | None, force: bool, as_json: bool
) -> None:
    """Write a slice of MODEL, the directory of a model trained with nested widths (MatFormer: Gemma 3n).

    A slice has fewer layers, or narrower feed-forward parts, and runs without further training: E2B is one of E4B.
    """
    if (to is None) == (drop is None and width is None):
        raise UsageError(fault("what to slice", expected="--to, or --drop and --width, one of the two"))
    dropped, widths = (_layers(drop), _widths(width)) if to is None else PUBLISHED[to]
    source = open_model(model)
    choice = choose(source.blueprint, dropped, widths)
    with requires("run"):
        from plait.runtime.slice import slice_checkpoint
    with bytes_progress(f"writing {printable(str(out))}") as progress:
        written = slice_checkpoint(source, choice, out, force=force, progress=progress)
    if as_json:
        print_json(
            {
                "path": str(written.path),
                "files": [str(file) for file in written.files],
                "layers": list(choice.layers),
                "widths": list(choice.widths),
                "parameters": written.parameters,
                "bytes": written.nbytes,
            }
        )
        return
    size = f"{count(written.parameters)} parameters ({written.parameters:,}), {binary_bytes(written.nbytes)}"
    before = len(source.blueprint.layers)
    click.echo(f"wrote {printable(str(written.path))}: {len(choice.layers)} of {before} layers, {size}")
    for file in written.files:
        click.echo(f"  {printable(file.name)}  {binary_bytes(file.stat().st_size)}")

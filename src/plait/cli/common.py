"""What commands share: MODEL, `--json`, numbers on the command line, tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from plait.blueprint.pattern import layer_kind, pattern
from plait.blueprint.read.config import read_json
from plait.blueprint.source import Source
from plait.errors import MissingExtra, UsageError
from plait.units import parse_bytes, parse_count

__all__ = [
    "BYTES",
    "TOKENS",
    "config_keys",
    "json_option",
    "layer_kind",
    "model_argument",
    "pattern",
    "print_json",
    "print_table",
    "printable",
    "requires",
    "source_facts",
    "threads_option",
    "use_threads",
]

Command = TypeVar("Command", bound=Callable[..., Any])


class _Number(click.ParamType[int]):
    """A number with a unit, read by `parse`."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return self._parse(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)
        except OverflowError:
            self.fail(f"{self.name} {value!r} is too large", param, ctx)


TOKENS = _Number("tokens", parse_count)
BYTES = _Number("size", parse_bytes)


def model_argument(function: Command) -> Command:
    """The positional MODEL."""
    return click.argument("model")(function)


def json_option(function: Command) -> Command:
    """`--json`: print one JSON object instead of tables."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def threads_option(function: Command) -> Command:
    """`--threads N`, for commands that compute; goes to `use_threads`."""
    return click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help="Threads that compute.  Default: OMP_NUM_THREADS, else one for each physical core this process may use.",
    )(function)


def use_threads(count: int | None) -> None:
    """Have `count` threads, None: the default. To be called before anything imports torch."""
    if count is not None:
        from plait.runtime.threads import use_threads as use

        use(count)


@contextmanager
def requires(extra: str) -> Iterator[None]:
    """Imports of an optional part: a package that is missing becomes MissingExtra, which says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        # A module of Plait that is missing is a fault of Plait, not of the installation.
        if error.name is None or error.name.split(".")[0] == "plait":
            raise
        raise MissingExtra(error.name.split(".")[0], f"'plait[{extra}]'") from error


def printable(text: str) -> str:
    """Text of a file as one line that cannot steer a terminal: what is not printable is written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def print_json(data: Mapping[str, object] | Sequence[object]) -> None:
    """One JSON value on stdout."""
    click.echo(json.dumps(data, indent=2))


def print_table(
    rows: Sequence[Sequence[str]], *, title: str | None = None, header: Sequence[str] = (), right: Sequence[int] = ()
) -> None:
    """A table on stdout; `right` are columns of numbers.

    On a terminal long cells are folded to its width. In a pipe it is plain text, every row one line of any length.
    """
    cells = [tuple(map(printable, row)) for row in rows]
    if sys.stdout.isatty():
        _print_on_terminal(cells, title, header, right)
        return
    lines = [tuple(header), *cells] if header else cells
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if title is not None:
        click.echo(title)
    for line in lines:
        padded = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        click.echo("  ".join(padded).rstrip())


def _print_on_terminal(
    cells: Sequence[Sequence[str]], title: str | None, header: Sequence[str], right: Sequence[int]
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=None,
        show_header=bool(header),
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for i in range(len(header) or len(cells[0])):
        table.add_column(
            header[i] if header else "", justify="right" if i in right else "left", overflow="fold", header_style="bold"
        )
    for row in cells:
        table.add_row(*row)
    # Names of files and keys are text, never markup.
    Console(markup=False, emoji=False, highlight=False).print(table)


def source_facts(model: str, source: Source) -> dict[str, object]:
    """Where a model came from, for JSON."""
    return {
        "model": model,
        "name": source.blueprint.name,
        "kind": source.kind,
        "path": None if source.path is None else str(source.path),
    }


def config_keys(source: Source) -> Mapping[str, object] | None:
    """The keys of the config that MODEL names, None where it names a GGUF file."""
    if source.entry is not None:
        return source.entry.config
    if source.hub is not None:
        return source.hub.config
    if source.path is None or source.header is not None:
        return None
    return read_json(source.path / "config.json" if source.kind == "directory" else source.path)

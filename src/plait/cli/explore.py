"""`plait explore`: one page over the catalogue and any models given."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from plait.cli.common import json_option, print_json, printable
from plait.units import binary_bytes

__all__ = ["command"]


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr where that is a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("counting and drawing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@click.command("explore")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "-o",
    "--output",
    "out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the page there as index.html, for any static host.  Default: the user's cache, and open it.",
)
@click.option(
    "--open/--no-open", "opens", default=None, help="Open the page in the browser or not.  Default: without -o."
)
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65535),
    metavar="N",
    help="Serve the page on 127.0.0.1 at this port until interrupted; 0: a free one.",
)
@json_option
def command(models: tuple[str, ...], out: Path | None, opens: bool | None, port: int | None, as_json: bool) -> None:
    """Explore the catalogue, and each MODEL beside it, in the browser.

    One page that needs no network: filter and sort, pick models, and set context, batch, formats, bandwidth and FLOP/s;
    memory, FLOPs and speed bounds follow at once, with charts and diagrams. Its figures are those of `plait memory` and
    `plait flops`. The address of a view can be passed on. A page that is there is replaced; another index.html is not.
    """
    from plait.explore.site import cache_directory, explore, place, write

    path = place(cache_directory(os.environ) if out is None else out)
    with _progress() as progress:
        text, count = explore(models, progress)
    nbytes = write(text, path)
    if as_json:
        print_json({"path": str(path), "models": count, "bytes": nbytes})
    else:
        click.echo(f"wrote {printable(str(path))}: {count} models, {binary_bytes(nbytes)}")
    shown = out is None if opens is None else opens
    if port is not None:
        _serve(path, port, shown)
    elif shown and not webbrowser.open(path.resolve().as_uri()):
        click.echo("no browser could be opened; open the file in one, or use --port", err=True)


def _serve(path: Path, port: int, shown: bool) -> None:
    from plait.explore.serve import server_of

    with server_of(path, port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        click.echo(f"serving {address} until interrupted", err=True)
        if shown:
            webbrowser.open(address)
        server.serve_forever()

"""`plait bench`: how fast a model runs on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from plait.cli.common import (
    BYTES,
    json_option,
    model_argument,
    print_json,
    print_table,
    printable,
    requires,
    threads_option,
    use_threads,
)
from plait.units import binary_bytes, parse_count

if TYPE_CHECKING:
    from plait.engine.bench import Bench, Speed

__all__ = ["command", "facts"]


@click.command("bench")
@model_argument
@click.option("--prompt", default="512", show_default=True, metavar="N", help="Tokens of a prefill; 0: none.")
@click.option("--decode", default="32", show_default=True, metavar="N", help="Decode steps of a pass; 0: none.")
@click.option(
    "--context", "contexts", default="0", show_default=True, metavar="N,N,...", help="Tokens before each of them."
)
@click.option("--batch", default="1", show_default=True, metavar="N", help="Sequences that decode together.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Passes of each.")
@threads_option
@click.option("--dtype", metavar="TYPE", help="As that of `generate`.")
@click.option("--kv-dtype", metavar="TYPE", help="As that of `generate`.")
@click.option("--memory", "area", type=BYTES, metavar="SIZE", help="Bytes read to measure the memory.  Default: 1 GiB.")
@json_option
def command(
    model: str,
    prompt: str,
    decode: str,
    contexts: str,
    batch: str,
    repeat: int,
    threads: int | None,
    dtype: str | None,
    kv_dtype: str | None,
    area: int | None,
    as_json: bool,
) -> None:
    """Measure how fast MODEL runs here: tokens per second of prefill and of decode, at each context.

    Beside decode stands what memory would allow: the bytes a step must read, at the bandwidth that is measured between
    the passes. Contexts are filled with a state that was not computed. Nothing else should run meanwhile.

    JSON: `threads`, `bandwidth`, `weight_bytes`, `forms`, and `speeds` (phase, context, batch, tokens, seconds,
    tokens_per_second, bytes_per_step, bound, of_bound, flops_per_second).
    """
    with requires("run"):
        use_threads(threads)
        from plait.engine.bench import Work, bench
        from plait.engine.load import opened
        from plait.runtime.measure import READ_BYTES
    work = Work(
        prompt=_count(prompt),
        decode=_count(decode),
        contexts=tuple(dict.fromkeys(_count(part) for part in contexts.split(","))),
        batch=_count(batch),
        repeat=repeat,
        memory=READ_BYTES if area is None else area,
    )
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    found = opened(model, kv_dtype=kv_dtype, cache=0, **options)
    work.check(found.source.blueprint.max_context)
    made = bench(found.engine(), found.source, work, _progress if sys.stderr.isatty() else None)
    if as_json:
        print_json({"model": model, "name": found.source.blueprint.name, **facts(made)})
    else:
        _print(made, found.source.blueprint.name)


def _count(text: str) -> int:
    """A number of tokens that may be 0."""
    if text.strip() == "0":
        return 0
    return parse_count(text)


def _progress(text: str) -> None:
    print(f"\r\033[K{text}", end="\r", file=sys.stderr, flush=True)


def _share(speed: Speed) -> float | None:
    return None if speed.bound is None else speed.tokens_per_second / speed.bound


def facts(made: Bench) -> dict[str, object]:
    """What was measured as JSON; the names are stable."""
    return {
        "threads": made.threads,
        "bandwidth": made.bandwidth,
        "bandwidth_least": made.bandwidth_spread[0],
        "bandwidth_most": made.bandwidth_spread[1],
        "weight_bytes": made.weight_bytes,
        "forms": dict(made.forms),
        "speeds": [
            {
                "phase": speed.phase,
                "context": speed.context,
                "batch": speed.batch,
                "tokens": speed.tokens,
                "seconds": list(speed.seconds),
                "tokens_per_second": speed.tokens_per_second,
                "bytes_per_step": speed.bytes_per_step,
                "bound": speed.bound,
                "of_bound": _share(speed),
                "flops_per_second": speed.flops_per_second,
            }
            for speed in made.speeds
        ],
    }


def _print(made: Bench, name: str) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    rows = []
    for speed in made.speeds:
        share = _share(speed)
        low, high = speed.spread
        rows.append(
            (
                speed.phase,
                f"{speed.context:,}",
                f"{speed.tokens:,}" if speed.phase == "prefill" else f"{speed.batch} x {speed.tokens // speed.batch}",
                f"{speed.tokens_per_second:,.1f}",
                f"{low:,.1f} to {high:,.1f}",
                f"{speed.flops_per_second / 1e9:,.1f}",
                "" if speed.bytes_per_step is None else binary_bytes(speed.bytes_per_step),
                "" if speed.bound is None else f"{speed.bound:,.1f}",
                "" if share is None else f"{share:.0%}",
            )
        )
    header = ("", "context", "tokens", "tokens/s", "spread", "GFLOP/s", "bytes a step", "memory allows", "of that")
    threads = "1 thread" if made.threads == 1 else f"{made.threads} threads"
    print_table(rows, title=f"{printable(name)}, {threads}", header=header, right=tuple(range(1, 9)))
    low, high = (rate / 1e9 for rate in made.bandwidth_spread)
    click.echo(f"memory: {made.bandwidth / 1e9:,.1f} GB/s read ({low:,.1f} to {high:,.1f}) between the passes")
    forms = ", ".join(f"{count} {form}" for form, count in made.forms.items())
    click.echo(f"weights: {binary_bytes(made.weight_bytes)} prepared; products: {forms}")

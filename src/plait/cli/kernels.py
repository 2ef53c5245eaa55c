"""`plait inspect MODEL --kernels`: the form every operation of a model runs in on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from plait.blueprint.check import not_run
from plait.blueprint.source import Source
from plait.cli.common import print_json, print_table, printable, requires, source_facts
from plait.errors import UnsupportedError

if TYPE_CHECKING:
    from plait.engine.forms import KernelReport

__all__ = ["show"]


def show(model: str, source: Source, *, as_json: bool) -> None:
    """Print the report. UnsupportedError: this version cannot run the model.

    JSON: `built`, `level`, `levels`, `threads`, `products` (use, stored, weights, form), `steps` (step, count, program,
    kernels, runs_in).
    """
    missing = not_run(source.blueprint)
    if missing:
        raise UnsupportedError(f"{source.blueprint.name}: this version cannot run {', '.join(missing)}")
    with requires("run"):
        from plait.engine.forms import kernel_report
        from plait.engine.load import default_numbers
    report = kernel_report(source, default_numbers())
    if as_json:
        steps = [{**asdict(step), "runs_in": step.runs_in} for step in report.steps]
        facts: dict[str, object] = {
            "built": report.built,
            "level": report.level,
            "levels": list(report.levels),
            "threads": report.threads,
            "products": [asdict(product) for product in report.products],
            "steps": steps,
        }
        print_json({**source_facts(model, source), **facts})
        return
    _print(source.blueprint.name, report)


def _print(name: str, report: KernelReport) -> None:
    there = ", ".join(report.levels) or "none"
    if not report.built:
        level = "installed without native kernels, torch computes"
    elif report.level is None:
        level = f"switched off, torch computes; this machine runs {there}"
    else:
        level = f"{report.level}; this machine runs {there}"
    threads = "1 thread" if report.threads == 1 else f"{report.threads} threads"
    click.echo(f"{printable(name)}: kernels {level}; {threads}")
    click.echo()
    products = [(p.use.replace("_", "-"), p.stored, str(p.weights), p.form) for p in report.products]
    print_table(products, header=("products", "stored as", "weights", "form"), right=(2,))
    click.echo()
    print_table([(step.step, step.runs_in) for step in report.steps], header=("steps", "run in"))

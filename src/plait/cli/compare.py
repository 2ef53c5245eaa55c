"""`plait compare A B ...`: what differs between models, with figures, charts and diagrams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import click

from plait.account.speed import Rates, parse_bandwidth, parse_flop_rate
from plait.blueprint.source import Sketch, describe
from plait.cli.common import json_option, print_json, print_table, printable
from plait.cli.sketch import place_of
from plait.compare.facts import facts
from plait.compare.report import MOST, Comparison, Settings, Subject, compare, subject_of
from plait.compare.sections import (
    Figures,
    absent,
    aligned_lines,
    assumptions,
    differing,
    evidence_text,
    further,
    layer_line,
    memory_figures,
    notes,
    parameter_figures,
    same,
    speed_figures,
    ways_lines,
    ways_summary,
)
from plait.errors import PlaitError, UnsupportedError, UsageError, fault
from plait.units import parse_count

__all__ = ["command"]

Format = Literal["md", "html", "json"]
_SUFFIXES: Final[tuple[tuple[str, Format], ...]] = (
    (".md", "md"),
    (".html", "html"),
    (".htm", "html"),
    (".json", "json"),
)


class _Contexts(click.ParamType[tuple[int, ...]]):
    """Numbers of tokens with commas between them."""

    name = "contexts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers; a usage error where one is none or is 0."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(parse_count(part) for part in str(value).split(","))
        except (UsageError, OverflowError) as error:
            self.fail(str(error), param, ctx)
        if 0 in found:
            self.fail("a context has at least 1 token", param, ctx)
        return found


def _format(asked: str | None, as_json: bool, output: Path | None) -> Format | None:
    """The form that is asked for by name or by the file's suffix; None: tables for a terminal."""
    named = next((form for _, form in _SUFFIXES if form == asked), None)
    if as_json:
        if named not in (None, "json"):
            raise UsageError(f"--json and --format {named} ask for two forms; give one")
        named = "json"
    if output is None or str(output) == "-":
        return named
    by_suffix = dict(_SUFFIXES).get(output.suffix.lower())
    if named is not None and by_suffix not in (None, named):
        raise UsageError(f"{output} asks for {by_suffix} and --format for {named}; give one")
    if named is None and by_suffix is None:
        known = ", ".join(suffix for suffix, _ in _SUFFIXES)
        what = "the suffix says no form"
        raise UsageError(
            fault(what, file=output, expected=known, found=output.suffix or "none", advice="or give --format")
        )
    return named or by_suffix


def _document(comparison: Comparison, form: Format) -> str:
    if form == "json":
        return json.dumps(facts(comparison), indent=2) + "\n"
    if form == "md":
        from plait.compare.render_md import markdown

        return markdown(comparison)
    from plait.compare.render_html import page

    return page(comparison)


def _write(text: str, path: Path) -> None:
    """All of the file or nothing."""
    if not path.parent.is_dir():
        raise UsageError(fault("no place for a file", file=path.parent, expected="a directory", found="none"))
    if path.exists() and not path.is_file():
        raise UsageError(fault("cannot be replaced", file=path, expected="a file", found="something else"))
    try:
        with TemporaryDirectory(prefix=".compare-", dir=path.absolute().parent) as beside:
            part = Path(beside) / "document"
            part.write_text(text, encoding="utf-8")
            part.replace(path)
    except OSError as error:
        raise PlaitError(fault(f"cannot be written ({error.strerror or error})", file=path)) from error


def _print_figures(found: Figures, labels: Sequence[str]) -> None:
    click.echo()
    print_table(
        [(name, *cells) for name, cells in found.rows],
        title=found.title,
        header=("", *map(printable, labels)),
        right=range(1, len(labels) + 1),
    )


def _print_differences(comparison: Comparison, header: Sequence[str]) -> None:
    shown = [row for _, rows in differing(comparison) for row in rows]
    if shown:
        print_table([(row.label, *(cell.text for cell in row.cells)) for row in shown], title="Differs", header=header)
    else:
        click.echo("Nothing differs." if comparison.equal else "Nothing differs but the fields below.")
    click.echo()
    alike = "; ".join(f"{row.label}: {row.cells[0].text}" for row in same(comparison))
    if alike:
        click.echo(f"The same in all: {printable(alike)}.")
    missing = absent(comparison)
    if missing:
        click.echo(f"In none of them: {', '.join(missing)}.")
    rest = further(comparison)
    if rest:
        click.echo()
        cells = [(row.label, *(cell.text for cell in row.cells)) for row in rest]
        print_table(cells, title="Further fields that differ", header=header)


def _print(comparison: Comparison, evidence: bool) -> None:
    labels = comparison.labels
    header = ("", *map(printable, labels))
    for i, item in enumerate(comparison.subjects):
        click.echo(printable(f"{item.label} ({item.place}): {layer_line(comparison, i)}"))
    click.echo()
    _print_differences(comparison, header)
    for title, lines in aligned_lines(comparison):
        click.echo(f"\nLayer by layer, {printable(title)}:")
        for line in lines:
            click.echo(f"  {printable(line)}")
    click.echo("\nKeys and values saved, against the same model with full multi-head attention:")
    for i, label in enumerate(labels):
        click.echo(f"  {printable(label)}: {ways_summary(comparison, i)}")
        for words, stored, read in ways_lines(comparison, i):
            click.echo(f"    {stored} storing, {read} reading: {words}")
    for figures in (parameter_figures(comparison), memory_figures(comparison), speed_figures(comparison)):
        _print_figures(figures, labels)
    if evidence:
        click.echo()
        rows = [
            (row.label, printable(label), text)
            for row in comparison.rows
            for label, cell in zip(labels, row.cells, strict=True)
            for text in evidence_text(cell.evidence)
        ]
        print_table(rows, title="Evidence", header=("", "model", "key or rule"))
    click.echo()
    for note in notes(comparison):
        click.echo(f"Note: {printable(note)}")
    click.echo("\nThe bound takes for granted:")
    for sentence in assumptions():
        click.echo(f"  - {sentence}")


@click.command("compare")
@click.argument("models", nargs=-1, required=True, metavar="MODEL MODEL...")
@click.option("--format", "form", type=click.Choice(["md", "html", "json"]), help="Write a document, not tables.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to FILE, .md, .html or .json, and replace what is there; - is stdout.",
)
@click.option("--context", "contexts", type=_Contexts(), metavar="N,N,...", help="Contexts to count at: 8k,128k,1m.")
@click.option(
    "--kv-dtype",
    default="bf16",
    show_default=True,
    metavar="F",
    help="Format of keys and values: bf16, f16, f32, f64, or q8.",
)
@click.option("--weights-dtype", metavar="F", help="Format of the weights: bf16, q8_0, ...  Default: as published.")
@click.option("--bandwidth", metavar="R", help="Bytes per second of the memory.  Default: 100GB/s, without --flops.")
@click.option("--flops", "rate", metavar="R", help="FLOPs per second, e.g. 400GFLOP/s.")
@click.option("--evidence", is_flag=True, help="In the tables: also list the key or rule behind each fact.")
@json_option
def command(
    models: tuple[str, ...],
    form: str | None,
    output: Path | None,
    contexts: tuple[int, ...] | None,
    kv_dtype: str,
    weights_dtype: str | None,
    bandwidth: str | None,
    rate: str | None,
    evidence: bool,
    as_json: bool,
) -> None:
    """Compare 2 to 8 models: what differs, first; how each saves keys and values; parameters, memory, speed.

    Models of one family are also compared layer by layer. html is one file with diagrams and charts that needs no
    network; md has tables alone.

    JSON: `equal`; `models` (label, family, layers, parameters, weights_bytes, points at each context, ways of saving
    with their factors); `rows` (key, group, label, differs, and a cell for each model: text, fields, evidence);
    `alignments` (equal pairs of layers, groups with their differences, layers without a counterpart); and what was
    assumed.
    """
    if not 2 <= len(models) <= MOST:
        raise UsageError(f"2 to {MOST} models are compared, not {len(models)}")
    chosen = _format(form, as_json, output)
    if evidence and chosen is not None:
        raise UsageError("--evidence is for the tables; md, html and json always hold it")
    rates = Rates(
        None if bandwidth is None else parse_bandwidth(bandwidth), None if rate is None else parse_flop_rate(rate)
    )
    subjects: list[Subject] = []
    for model in models:
        source = describe(model)
        if isinstance(source, Sketch):
            what = f"the family {source.outline.family!r} is not known, so there is nothing to compare"
            raise UnsupportedError(
                fault(what, file=place_of(source), advice="`plait inspect` shows what its keys tell")
            )
        subjects.append(subject_of(source, place=place_of(source), weights_format=weights_dtype))
    comparison = compare(subjects, Settings(contexts, kv_dtype, weights_dtype, rates))
    if chosen is None:
        _print(comparison, evidence)
    elif output is None or str(output) == "-":
        if chosen == "json":
            print_json(facts(comparison))
        else:
            click.echo(_document(comparison, chosen), nl=False)
    else:
        _write(_document(comparison, chosen), output)
        click.echo(f"wrote {printable(str(output))}")

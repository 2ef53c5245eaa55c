"""A comparison as Markdown: tables in GitHub's form, no pictures and no HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from plait.compare.report import Comparison
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
from plait.compare.table import Row
from plait.compare.words import plain

__all__ = ["markdown"]

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>|~#&])")


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = False) -> Iterator[str]:
    rule = "---:" if right else "---"
    yield "| " + " | ".join(map(_escaped, header)) + " |"
    yield "| --- |" + f" {rule} |" * (len(header) - 1)
    for row in rows:
        yield "| " + " | ".join(map(_escaped, row)) + " |"
    yield ""


def _figures(found: Figures, labels: Sequence[str]) -> Iterator[str]:
    yield f"## {_escaped(found.title)}"
    yield ""
    yield from _table(("", *labels), [(name, *cells) for name, cells in found.rows], right=True)


def _rows(rows: Sequence[Row], labels: Sequence[str]) -> Iterator[str]:
    yield from _table(("", *labels), [(row.label, *(cell.text for cell in row.cells)) for row in rows])


def _evidence(rows: Sequence[Row], labels: Sequence[str]) -> Iterator[str]:
    yield "## Where it comes from"
    yield ""
    cells = [(row.label, *("; ".join(evidence_text(cell.evidence)) for cell in row.cells)) for row in rows]
    yield from _table(("", *labels), cells)


def _lines(comparison: Comparison) -> Iterator[str]:
    labels = comparison.labels
    yield f"# {_escaped(comparison.title)}"
    yield ""
    for i, item in enumerate(comparison.subjects):
        yield f"- **{_escaped(item.label)}** ({_escaped(item.place)}): {_escaped(layer_line(comparison, i))}"
    yield ""
    yield "## What differs"
    yield ""
    shown = [row for _, rows in differing(comparison) for row in rows]
    if shown:
        yield from _rows(shown, labels)
    else:
        yield "Nothing: the models are equal." if comparison.equal else "Nothing but the fields below."
        yield ""
    if alike := same(comparison):
        yield "The same in all: " + "; ".join(f"{_escaped(r.label)}: {_escaped(r.cells[0].text)}" for r in alike) + "."
        yield ""
    if missing := absent(comparison):
        yield f"In none of them: {_escaped(', '.join(missing))}."
        yield ""
    if rest := further(comparison):
        yield "### Further fields that differ"
        yield ""
        yield from _rows(rest, labels)
    for title, lines in aligned_lines(comparison):
        yield f"## Layer by layer: {_escaped(title)}"
        yield ""
        yield from (f"- {_escaped(line)}" for line in lines)
        yield ""
    yield "## How keys and values are saved"
    yield ""
    for i, label in enumerate(labels):
        yield f"**{_escaped(label)}**: {_escaped(ways_summary(comparison, i))}"
        yield ""
        if found := ways_lines(comparison, i):
            yield from _table(("", "storing", "reading"), found, right=True)
    for figures in (parameter_figures(comparison), memory_figures(comparison), speed_figures(comparison)):
        yield from _figures(figures, labels)
    yield from (f"- {_escaped(note)}" for note in notes(comparison))
    yield ""
    yield "The bound on speed takes for granted:"
    yield ""
    yield from (f"- {_escaped(sentence)}" for sentence in assumptions())
    yield ""
    yield from _evidence([*shown, *rest, *alike], labels)


def markdown(comparison: Comparison) -> str:
    """The whole comparison as one Markdown document, ending in a newline."""
    return "\n".join(_lines(comparison)).rstrip("\n") + "\n"

"""A comparison as one HTML file: style and pictures inside, no scripts, nothing fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from plait import __version__
from plait.compare.figures import memory_chart, speed_chart
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
    ways_summary,
)
from plait.compare.style import style_sheet
from plait.compare.table import FAMILY, Cell, Row
from plait.compare.words import ABSENT, NONE, factor
from plait.draw.charts import tokens_text
from plait.draw.svg import escape
from plait.draw.theme import ThemeName
from plait.units import binary_bytes, count

__all__ = ["page"]

_WIDE: Final = (940, 420)
_NARROW: Final = (360, 340)
_FIRST: Final = 190
_COLUMN: Final = 170
_THEMES: Final[tuple[ThemeName, ...]] = ("light", "dark")
_KEYS: Final = 2
_EMPTY: Final = (ABSENT, NONE, "no")
_CONTENTS: Final = (
    ("differs", "What differs"),
    ("layers", "Layer by layer"),
    ("saving", "Saving keys and values"),
    ("parameters", "Parameters"),
    ("memory", "Memory"),
    ("speed", "Speed"),
    ("diagrams", "Diagrams"),
    ("evidence", "Evidence"),
)


def _least(labels: Sequence[str]) -> str:
    """The width below which a table scrolls."""
    return f' style="--least:{_FIRST + _COLUMN * len(labels)}px"'


def _inline(svg: str) -> str:
    """A picture as an element of the page, which knows the namespace."""
    return svg.strip().replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)


def _colour(index: int) -> str:
    return f' style="--c:var(--s{index})"'


def _keys(cell: Cell) -> str:
    """The first keys a cell comes from; the section on evidence has all, and what follows from the family's code."""
    found = evidence_text([item for item in cell.evidence if item[0] != FAMILY])
    if not found:
        told = bool(cell.evidence) and cell.text not in _EMPTY
        return '<span class="ev">the family\'s code</span>' if told else ""
    more = f" and {len(found) - _KEYS} more" if len(found) > _KEYS else ""
    return f'<span class="ev">{_breakable(", ".join(found[:_KEYS]))}{more}</span>'


def _all_keys(cell: Cell) -> str:
    return _breakable("; ".join(evidence_text(cell.evidence))) or ABSENT


def _breakable(text: str) -> str:
    """Keys that a line may break inside, at their own joints."""
    return escape(text).replace("_", "_<wbr>").replace(".", ".<wbr>")


def _cell(cell: Cell, label: str, index: int) -> str:
    kind = ' class="none"' if cell.text in _EMPTY else ""
    words = f"<span{kind}>{escape(cell.text)}</span>"
    return f'<td data-label="{escape(label)}"{_colour(index)}>{words}{_keys(cell)}</td>'


def _head(labels: Sequence[str], first: str = "") -> str:
    columns = "".join(f'<th scope="col" class="m"{_colour(i)}>{escape(label)}</th>' for i, label in enumerate(labels))
    return f'<thead><tr><th scope="col">{first or "<span hidden>dimension</span>"}</th>{columns}</tr></thead>'


def _row(row: Row, labels: Sequence[str]) -> str:
    cells = "".join(_cell(cell, label, i) for i, (cell, label) in enumerate(zip(row.cells, labels, strict=True)))
    return f'<tr data-row="{escape(row.key)}"><th scope="row">{escape(row.label)}</th>{cells}</tr>'


def _rows(groups: Sequence[tuple[str, Sequence[Row]]], labels: Sequence[str]) -> Iterator[str]:
    yield f'<div class="scroll" tabindex="0"><table class="stack"{_least(labels)}>{_head(labels)}'
    for group, rows in groups:
        yield f'<tbody class="g"><tr><th colspan="{len(labels) + 1}" scope="colgroup">{escape(group)}</th></tr>'
        yield from (_row(row, labels) for row in rows)
        yield "</tbody>"
    yield "</table></div>"


def _figures(found: Figures, labels: Sequence[str]) -> Iterator[str]:
    yield f'<div class="scroll" tabindex="0"><table class="num stack"{_least(labels)}>{_head(labels)}<tbody>'
    for name, cells in found.rows:
        columns = "".join(
            f'<td data-label="{escape(label)}"{_colour(i)}>{escape(cell)}</td>'
            for i, (cell, label) in enumerate(zip(cells, labels, strict=True))
        )
        yield f'<tr><th scope="row">{escape(name)}</th>{columns}</tr>'
    yield "</tbody></table></div>"


def _section(key: str, title: str, body: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield f'<section id="{key}"><h2>{escape(title)}</h2>'
    yield from body
    yield "</section>"


def _cards(comparison: Comparison) -> Iterator[str]:
    yield '<div class="cards">'
    for i, item in enumerate(comparison.subjects):
        found = comparison.ways[i]
        facts = (
            ("layers", layer_line(comparison, i)),
            ("parameters", count(item.account.used)),
            ("active per token", count(item.account.active)),
            ("context", f"{item.blueprint.max_context:,}"),
            (f"state at {tokens_text(found.context)}", binary_bytes(found.state_bytes)),
            ("saving over full heads", factor(found.stored)),
        )
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
        yield (
            f'<article class="card"{_colour(i)}><h3>{escape(item.label)}</h3>'
            f'<p class="sub">{escape(item.blueprint.family)} · {escape(item.place)}</p><dl>{rows}</dl></article>'
        )
    yield "</div>"


def _differences(comparison: Comparison) -> Iterator[str]:
    groups = differing(comparison)
    if groups:
        yield from _rows(groups, comparison.labels)
    else:
        yield f"<p>{'Nothing: the models are equal.' if comparison.equal else 'Nothing but the fields below.'}</p>"
    if rest := further(comparison):
        fields = f"{len(rest)} further field{'' if len(rest) == 1 else 's'} that differ{'s' if len(rest) == 1 else ''}"
        yield f"<details><summary>{fields}</summary>"
        yield from _rows((("By name", rest),), comparison.labels)
        yield "</details>"
    if alike := same(comparison):
        yield f"<details><summary>The same in all: {len(alike)}</summary><ul>"
        yield from (f"<li>{escape(row.label)}: {escape(row.cells[0].text)}{_keys(row.cells[0])}</li>" for row in alike)
        yield "</ul></details>"
    if missing := absent(comparison):
        yield f'<p class="note">In none of them: {escape(", ".join(missing))}.</p>'


def _aligned(comparison: Comparison) -> Iterator[str]:
    for title, lines in aligned_lines(comparison):
        yield f"<h3>{escape(title)}</h3><ul>"
        yield from (f"<li>{escape(line)}</li>" for line in lines)
        yield "</ul>"


def _saving(comparison: Comparison) -> Iterator[str]:
    yield '<div class="ways">'
    for i, (label, found) in enumerate(zip(comparison.labels, comparison.ways, strict=True)):
        share = found.state_bytes / found.full_bytes
        yield f"<section{_colour(i)}><h3>{escape(label)}</h3><p>{escape(ways_summary(comparison, i))}</p>"
        yield (
            f'<div class="bar" role="img" aria-label="{share:.2%} of full multi-head attention">'
            f'<i style="width:{100 * min(share, 1):.3f}%"></i></div>'
        )
        if found.savings:
            yield '<table class="num way"><thead><tr><th scope="col">way</th><th scope="col">storing</th>'
            yield '<th scope="col">reading</th></tr></thead><tbody>'
            for item in found.savings:
                cells = f"<td>{factor(item.stored)}</td><td>{factor(item.read)}</td>"
                yield f"<tr><td>{escape(item.words)}</td>{cells}</tr>"
            yield "</tbody></table>"
        yield "</section>"
    yield "</div>"


def _chart(draw: Callable[..., str], comparison: Comparison) -> Iterator[str]:
    yield "<figure>"
    for width, size in (("wide", _WIDE), ("narrow", _NARROW)):
        for theme in _THEMES:
            yield f'<div class="{width} only-{theme}">{_inline(draw(comparison, theme=theme, size=size))}</div>'
    yield "</figure>"


def _diagrams(comparison: Comparison) -> Iterator[str]:
    from plait.draw.diagram import scene_svg
    from plait.draw.layout import scene_of

    yield '<p class="note">All drawn by the same rules, bottom to top. More pictures than fit are reached sideways.</p>'
    yield '<div class="diagrams" tabindex="0">'
    for label, item in zip(comparison.labels, comparison.subjects, strict=True):
        # The picture has the model's name; a column may be called otherwise.
        yield "<figure>" if label == item.blueprint.name else f"<figure><figcaption>{escape(label)}</figcaption>"
        scene = scene_of(item.blueprint, account=item.account)
        for theme in _THEMES:
            yield f'<div class="only-{theme}">{_inline(scene_svg(scene, theme=theme))}</div>'
        yield "</figure>"
    yield "</div>"


def _evidence(comparison: Comparison) -> Iterator[str]:
    yield '<p class="note">Every key or rule behind each cell. A default is the family\'s, where the key is absent.</p>'
    yield "<details><summary>All rows</summary>"
    labels = comparison.labels
    yield f'<div class="scroll" tabindex="0"><table class="stack"{_least(labels)}>{_head(labels)}<tbody>'
    for row in comparison.rows:
        cells = "".join(
            f'<td data-label="{escape(label)}"{_colour(i)}>{_all_keys(cell)}</td>'
            for i, (cell, label) in enumerate(zip(row.cells, labels, strict=True))
        )
        yield f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>'
    yield "</tbody></table></div></details>"


def _memory(comparison: Comparison) -> Iterator[str]:
    yield from _chart(memory_chart, comparison)
    yield from _figures(memory_figures(comparison), comparison.labels)


def _speed(comparison: Comparison) -> Iterator[str]:
    yield f"<p>{escape(speed_figures(comparison).title)}.</p>"
    yield from _chart(speed_chart, comparison)
    yield from _figures(speed_figures(comparison), comparison.labels)
    yield "<details><summary>What the bound takes for granted</summary><ul>"
    yield from (f"<li>{escape(sentence)}</li>" for sentence in assumptions())
    yield "</ul></details>"


def _body(comparison: Comparison) -> Iterator[str]:
    bodies = {
        "differs": _differences(comparison),
        "layers": _aligned(comparison),
        "saving": _saving(comparison),
        "parameters": _figures(parameter_figures(comparison), comparison.labels),
        "memory": _memory(comparison),
        "speed": _speed(comparison),
        "diagrams": _diagrams(comparison),
        "evidence": _evidence(comparison),
    }
    shown = [(key, title) for key, title in _CONTENTS if key != "layers" or comparison.alignments]
    yield f"<h1>{escape(comparison.title)}</h1>"
    yield f'<p class="sub">Compared by Plait {escape(__version__)} from the files the models are published with.</p>'
    links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, title in shown)
    yield f'<nav aria-label="Sections">{links}</nav>'
    yield from _cards(comparison)
    for key, title in shown:
        yield from _section(key, title, bodies[key])
    yield "<footer>"
    yield from (f'<p class="note">{escape(note)}</p>' for note in notes(comparison))
    yield "</footer>"


def page(comparison: Comparison) -> str:
    """The whole comparison as one HTML document: light and dark, for desks, phones and paper."""
    body = "\n".join(_body(comparison))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(comparison.title)}</title>\n<style>\n{style_sheet()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )

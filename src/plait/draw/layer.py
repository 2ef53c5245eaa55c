"""Inside one layer: every step from the stream below to the stream above, drawn bottom to top.

Rules, the same for every model: one grid of 8 px and one width of lanes; a tinted box holds weight matrices, a plain
one does not, a round one is a norm, a dashed one keeps something between tokens, a striped one comes from outside
the layer; residuals run up the rail on the left. Each tensor of the layer's inventory stands on exactly one box, in an
element with its role as `data-role`; boxes carry `data-cell` and `data-block`, panels `data-layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.blueprint.spec import Blueprint, Layer
from plait.draw.canvas import baseline
from plait.draw.fold import ranges
from plait.draw.layer_ink import Pen, legend, panel_marks
from plait.draw.layer_layout import GRID, Panel, layout
from plait.draw.layer_steps import layer_steps, model_of
from plait.draw.svg import Anchor, Element, document, group, render, text
from plait.draw.text import BODY, HEADING, SMALL, TITLE, Style, shorten, wrap
from plait.draw.theme import ThemeName, mixer_role, theme_of
from plait.draw.words import Lang, lang_of
from plait.errors import UsageError, fault
from plait.units import count

__all__ = ["kinds", "layer_svg", "layers_svg"]

_MARGIN: Final = 4 * GRID
_BETWEEN: Final = 8 * GRID
_LEAST: Final = 60 * GRID
# How wide panels side by side may get; more of them go into a further row.
_MOST: Final = 352 * GRID
# Above and below a panel: where the stream comes from and goes to.
_STREAM: Final = 3 * GRID


def layer_svg(blueprint: Blueprint, index: int, *, theme: ThemeName = "light", lang: Lang = "en") -> str:
    """An SVG of the inside of layer `index` (from 0); UsageError where the model has no such layer."""
    pen = Pen(theme_of(theme), lang_of(lang))
    layers = len(blueprint.layers)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < layers:
        raise UsageError(fault("layer", expected=f"a whole number from 0 to {layers - 1}", found=index))
    title = pen.say("layer_title", name=_name(blueprint), index=index)
    return _picture(pen, blueprint, title, ((index,),), named=False)


def layers_svg(blueprint: Blueprint, *, theme: ThemeName = "light", lang: Lang = "en") -> str:
    """An SVG with the inside of each kind of layer side by side, in rows where there are many.

    Layers are of one kind where they are equal.
    """
    pen = Pen(theme_of(theme), lang_of(lang))
    title = pen.say("layers_title", name=_name(blueprint))
    return _picture(pen, blueprint, title, kinds(blueprint), named=True)


def kinds(blueprint: Blueprint) -> tuple[tuple[int, ...], ...]:
    """Numbers of equal layers, in the order of their first ones."""
    found: dict[Layer, list[int]] = {}
    for index, layer in enumerate(blueprint.layers):
        found.setdefault(layer, []).append(index)
    return tuple(map(tuple, found.values()))


def _name(blueprint: Blueprint) -> str:
    return blueprint.name or blueprint.family


@dataclass(frozen=True, slots=True)
class _Column:
    """A panel with the lines over it and what is said of the stream above and below it."""

    panel: Panel
    layers: tuple[int, ...]
    heading: tuple[str, ...]
    facts: tuple[str, ...]
    above: str
    below: str

    @property
    def width(self) -> float:
        return max(self.panel.width, _LEAST)

    @property
    def head(self) -> float:
        return len(self.heading) * HEADING.line + len(self.facts) * BODY.line


def _column(pen: Pen, blueprint: Blueprint, panel: Panel, layers: tuple[int, ...], named: bool) -> _Column:
    steps, total = panel.steps, len(blueprint.layers)
    room = max(panel.width, _LEAST)
    facts = [pen.say("layer_parameters", count=count(steps.parameters))]
    if steps.active != steps.parameters:
        facts.append(pen.say("layer_active", count=count(steps.active)))
    heading: tuple[str, ...] = ()
    if named:
        numbers = ", ".join(ranges(layers)).replace("-", "–")
        heading = wrap(pen.say("panel_layer" if len(layers) == 1 else "panel_layers", layers=numbers), HEADING, room)
        facts.insert(0, pen.say("panel_count", count=len(layers), total=total))
    else:
        facts.insert(0, pen.say("of_layers", total=total))
    if steps.streams is None:
        below = pen.say("stream_in", hidden=f"{blueprint.hidden:,}")
    else:
        below = pen.say("streams_in", streams=steps.streams, hidden=f"{blueprint.hidden:,}")
    last = (layers[0] == total - 1, layers[-1] == total - 1)
    above = pen.say("stream_last" if all(last) else "stream_onwards" if any(last) else "stream_next")
    return _Column(panel, layers, heading, wrap(" · ".join(facts), BODY, room), above, below)


def _description(pen: Pen, columns: tuple[_Column, ...]) -> str:
    """All titles of boxes in the order things happen."""
    stop, comma = ("。", "、") if pen.lang == "zh" else (". ", ", ")
    parts = []
    for column in columns:
        words = [*column.heading, *column.facts]
        for block in column.panel.steps.blocks:
            order = sorted(block.cells, key=lambda cell: cell.row)
            name = f"{block.name}: " if block.name else ""
            words.append(name + comma.join(cell.title for cell in order))
        parts.append(stop.join(words))
    return pen.say("description", steps=stop.join(parts))


def _line(x: float, y: float, content: str, style: Style, colour: str, anchor: Anchor = "start") -> Element:
    """A line of text with its top at y."""
    return text(x, y + baseline(style), content, style, colour, anchor=anchor)


def _room(columns: Sequence[_Column]) -> float:
    """The width of columns side by side."""
    return sum(column.width for column in columns) + _BETWEEN * (len(columns) - 1)


def _rows(columns: Sequence[_Column]) -> list[Sequence[_Column]]:
    """The columns in as few rows as `_MOST` px allow, of equal length where that fits too."""
    rows: list[list[_Column]] = [[]]
    for column in columns:
        if rows[-1] and _room([*rows[-1], column]) > _MOST:
            rows.append([])
        rows[-1].append(column)
    length = -(-len(columns) // len(rows))
    even = [columns[i : i + length] for i in range(0, len(columns), length)]
    return even if all(len(row) == 1 or _room(row) <= _MOST for row in even) else list(rows)


def _row_marks(pen: Pen, columns: Sequence[_Column], top: float) -> tuple[list[Element], float]:
    """What stands in one row, and where it ends: headings at its top, panels on one line at its foot."""
    ink, muted = pen.theme.ink, pen.theme.muted
    head = max(column.head for column in columns) + GRID
    foot = top + head + 2 * _STREAM + max(column.panel.height for column in columns)
    marks: list[Element] = []
    x: float = _MARGIN
    for column in columns:
        y = top
        for heading in column.heading:
            marks.append(_line(x, y, heading, HEADING, ink))
            y += HEADING.line
        for fact in column.facts:
            marks.append(_line(x, y, fact, BODY, muted))
            y += BODY.line
        panel = column.panel
        left, high = x + (column.width - panel.width) / 2, foot - _STREAM - panel.height
        centre = left + panel.trunk
        marks.append(_line(centre, foot - _STREAM + GRID / 2, column.below, SMALL, muted, "middle"))
        marks.append(_line(centre, high - SMALL.line - GRID / 2, column.above, SMALL, muted, "middle"))
        place = f"translate({left:g} {high:g})"
        marks.append(group(*panel_marks(pen, panel), transform=place, data_layers=",".join(ranges(column.layers))))
        x += column.width + _BETWEEN
    return marks, foot


def _picture(pen: Pen, blueprint: Blueprint, title: str, groups: tuple[tuple[int, ...], ...], *, named: bool) -> str:
    model = model_of(blueprint)
    columns = tuple(
        _column(pen, blueprint, layout(layer_steps(model, layers[0], pen.lang)), layers, named) for layers in groups
    )
    rows = _rows(columns)
    room = max(map(_room, rows))
    marks = [_line(_MARGIN, _MARGIN, shorten(title, TITLE, room), TITLE, pen.theme.ink)]
    foot = float(_MARGIN + TITLE.line + GRID)
    for place, row in enumerate(rows):
        more, foot = _row_marks(pen, row, foot + (_BETWEEN if place else 0))
        marks += more
    swatches, height = legend(pen, mixer_role(blueprint.layers[groups[0][0]].mixer), _MARGIN, foot + GRID, room)
    marks += swatches
    return render(
        document(
            room + 2 * _MARGIN,
            foot + GRID + height + _MARGIN,
            *marks,
            theme=pen.theme,
            title=title,
            description=_description(pen, columns),
            lang=pen.lang,
        )
    )

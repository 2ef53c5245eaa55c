"""A placed layer as SVG: colours, lines and text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from plait.draw.canvas import baseline
from plait.draw.layer_graph import Look
from plait.draw.layer_layout import GRID, STACK, Frame, Panel, Piece, PlacedBox, Wire
from plait.draw.layer_words import say
from plait.draw.svg import Element, arrow, element, group, path, rect, text
from plait.draw.text import LABEL, SMALL, width
from plait.draw.theme import Role, Theme
from plait.draw.words import Lang
from plait.units import count

__all__ = ["Pen", "legend", "panel_marks"]

_ROUND: Final = 6
_NORM_ROUND: Final = 14
_DASH: Final = "5 3"
_SWATCH: Final = 3 * GRID
_DOT: Final = 3
_STRIPE: Final = 4
# How far the boxes of a stack lie behind the front one, the last first.
_BEHIND: Final = (STACK, STACK / 2)


@dataclass(frozen=True, slots=True)
class Pen:
    """What every piece of a picture is drawn with."""

    theme: Theme
    lang: Lang

    def say(self, key: str, /, **values: object) -> str:
        """A text in the language of the picture."""
        return say(key, self.lang, **values)

    def accent(self, hue: Role | None) -> str:
        """Colour of lines of a block."""
        return self.theme.line if hue is None else self.theme.hues[hue].accent

    def fill(self, hue: Role | None) -> str:
        """Colour of areas of a block."""
        return self.theme.panel if hue is None else self.theme.hues[hue].fill


def _area(
    pen: Pen, look: Look, keeps: bool, hue: Role | None, place: tuple[float, float, float, float]
) -> Iterator[Element]:
    """The area of a box, its rectangle first: `place` is x, y, width, height."""
    theme = pen.theme
    if look == "source":
        x, y, _, down = place
        yield rect(*place, fill=theme.panel, stroke=theme.frame)
        yield rect(x, y, _STRIPE, down, fill=theme.line)
        return
    fill = pen.fill(hue) if look == "matrix" else theme.paper
    marked = look == "matrix" or keeps
    yield rect(
        *place,
        rx=_NORM_ROUND if look == "norm" else _ROUND,
        fill=fill,
        stroke=pen.accent(hue) if marked else theme.line,
        stroke_width=2 if keeps else 1.5 if marked else 1,
        stroke_dasharray=_DASH if keeps else None,
    )


def _row(x: float, y: float, pieces: Sequence[Piece], theme: Theme) -> Element:
    spans = [
        element("tspan", piece.text, fill=theme.ink if piece.tensor else theme.muted, data_role=piece.role)
        for piece in pieces
    ]
    return element("text", *spans, x=x, y=y, font_size=SMALL.size, text_anchor="middle")


def _box(pen: Pen, box: PlacedBox) -> Element:
    if not box.titles:
        return _plus(pen, box)
    shift = STACK if box.cell.stack else 0
    marks: list[Element] = []
    if box.cell.stack:
        places = [(box.x + off, box.y + STACK - off, box.width - STACK, box.height - STACK) for off in _BEHIND]
        marks.append(group(*(mark for place in places for mark in _area(pen, box.cell.look, False, box.hue, place))))
    front = (box.x, box.y + shift, box.width - shift, box.height - shift)
    marks += _area(pen, box.cell.look, box.cell.keeps, box.hue, front)
    middle = box.x + (box.width - shift) / 2
    inner = len(box.titles) * LABEL.line + len(box.rows) * SMALL.line
    y = box.y + shift + (box.height - shift - inner) / 2
    for title in box.titles:
        marks.append(text(middle, y + baseline(LABEL), title, LABEL, pen.theme.ink, anchor="middle"))
        y += LABEL.line
    for row in box.rows:
        marks.append(_row(middle, y + baseline(SMALL), row, pen.theme))
        y += SMALL.line
    return group(*marks, data_cell=box.cell.key, data_block=box.block)


def _plus(pen: Pen, box: PlacedBox) -> Element:
    x, y, r = box.x + box.width / 2, box.y + box.height / 2, box.width / 2
    theme = pen.theme
    arm = r / 2
    return group(
        element("circle", cx=x, cy=y, r=r, fill=theme.paper, stroke=theme.line, stroke_width=1.5),
        path([(x - arm, y), (x + arm, y)], stroke=theme.ink, stroke_width=1.5),
        path([(x, y - arm), (x, y + arm)], stroke=theme.ink, stroke_width=1.5),
        data_cell=box.cell.key,
        data_block=box.block,
    )


def _frame(pen: Pen, frame: Frame) -> Element:
    theme = pen.theme
    line = frame.y + (4 * GRID - LABEL.line) / 2 + baseline(LABEL)
    parameters = pen.say("layer_parameters", count=count(frame.parameters))
    edge = 2 * GRID
    return group(
        rect(
            frame.x,
            frame.y,
            frame.width,
            frame.height,
            rx=2 * _ROUND,
            fill="none",
            stroke=pen.accent(frame.hue),
            stroke_width=1,
        ),
        text(frame.x + edge, line, frame.name, LABEL, theme.ink),
        text(frame.x + frame.width - edge, line, parameters, SMALL, theme.muted, anchor="end"),
        data_block=frame.key,
    )


def _wire(pen: Pen, wire: Wire) -> Element:
    return arrow(wire.points, stroke=pen.theme.line, width=2 if wire.rail else 1.5)


def panel_marks(pen: Pen, panel: Panel) -> Iterator[Element]:
    """Frames, then lines, then boxes."""
    for frame in panel.frames:
        yield _frame(pen, frame)
    for wire in panel.wires:
        yield _wire(pen, wire)
    for x, y in panel.forks:
        yield element("circle", cx=x, cy=y, r=_DOT, fill=pen.theme.line)
    for box in panel.boxes:
        yield _box(pen, box)


def legend(pen: Pen, hue: Role | None, x: float, y: float, room: float) -> tuple[tuple[Element, ...], float]:
    """What the looks of boxes mean, in lines of at most `room`, and the height they take."""
    looks: tuple[tuple[str, Look, bool], ...] = (
        ("legend_matrix", "matrix", False),
        ("legend_step", "step", False),
        ("legend_norm", "norm", False),
        ("legend_keeps", "step", True),
        ("legend_source", "source", False),
    )
    marks: list[Element] = []
    at, top, line = x, y, 3 * GRID
    for key, look, keeps in looks:
        label = pen.say(key)
        taken = _SWATCH + GRID + width(label, SMALL) + 2 * GRID
        if at > x and at + taken > x + room:
            at, top = x, top + line
        marks += _area(pen, look, keeps, hue, (at, top, _SWATCH, 2 * GRID))
        base = top + (2 * GRID - SMALL.line) / 2 + baseline(SMALL)
        marks.append(text(at + _SWATCH + GRID, base, label, SMALL, pen.theme.muted))
        at += taken
    return tuple(marks), top + line - y

"""Line charts with two logarithmic axes: static SVG, lines labelled where they end, every point with its exact values.

Each line has its own hue, marker and, beyond the limit of its series, dots: a hue never speaks alone. A point carries
`data-x` and `data-y`, the values as they were given, and a title that says them; a line carries `data-series`. At most
eight lines, as many as the theme has hues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import floor, log
from typing import Final

from plait.draw.svg import Element, document, element, group, path, render, text
from plait.draw.text import BODY, HEADING, LABEL, SMALL, Style, shorten, width, wrap
from plait.draw.theme import Theme, theme_of
from plait.errors import UsageError

__all__ = ["Axis", "Series", "byte_ticks", "line_chart", "rate_ticks", "token_ticks", "tokens_text"]

_WIDE: Final = 560
"""Charts at least this wide are drawn in the larger steps of the type scale."""
_TICKS: Final = 6
_GAP: Final = 10
_MARK: Final = 3.5
_DOTS: Final = "1.5 4"


@dataclass(frozen=True, slots=True)
class Series:
    """One line.

    points  (x, y), both above 0, x ascending
    limit   the line is dotted beyond this x; None: nowhere
    """

    label: str
    points: tuple[tuple[float, float], ...]
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis measures, and how its values are written.

    ticks  the values to mark between two values
    text   a value in words
    """

    title: str
    ticks: Callable[[float, float], tuple[float, ...]]
    text: Callable[[float], str]


def _powers_of_two(low: float, high: float) -> tuple[float, ...]:
    first, last = floor(log(low, 2) + 1e-9), floor(log(high, 2) + 1e-9)
    for step in (1, 2, 5, 10, 20):
        found = [float(2**n) for n in range(first, last + 1) if n % step == 0 and low <= 2**n <= high]
        if len(found) <= _TICKS:
            return tuple(found) or (low,)
    return tuple(found[:: len(found) // _TICKS + 1])


def byte_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of two between two numbers of bytes, evenly spaced: 1 MiB, 32 MiB, 1 GiB."""
    return _powers_of_two(low, high)


def token_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of two between two numbers of tokens, evenly spaced."""
    return _powers_of_two(low, high)


def rate_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten between two numbers, with their doubles and fivefolds where few powers lie between."""
    first, last = floor(log(low, 10)) - 1, floor(log(high, 10)) + 1
    for digits in ((1, 2, 5), (1,)):
        found = tuple(value for n in range(first, last + 1) for d in digits if low <= (value := d * 10.0**n) <= high)
        if len(found) <= _TICKS:
            return found or (low,)
    return found[:: len(found) // _TICKS + 1]


def tokens_text(value: float) -> str:
    """A number of tokens as the command line reads it: 512, 32k, 1m."""
    n = int(value)
    for unit, letter in ((2**20, "m"), (2**10, "k")):
        if n >= unit and n % unit == 0:
            return f"{n // unit}{letter}"
    return f"{n:,}"


def _spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near to the wanted ones as a gap between them allows, inside [low, high] while they fit there."""
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    places = [0.0] * len(wanted)
    next_free = low
    for i in order:
        places[i] = max(wanted[i], next_free)
        next_free = places[i] + gap
    last_free = high
    for i in reversed(order):
        places[i] = min(places[i], last_free)
        last_free = places[i] - gap
    return places


def _marker(
    shape: int, x: float, y: float, colour: str, fill: str, note: str, data: tuple[float, float] | None = None
) -> Element:
    r = _MARK
    values = {} if data is None else {"data_x": str(data[0]), "data_y": str(data[1])}
    title = element("title", note)
    match shape % 4:
        case 0:
            return element("circle", title, cx=x, cy=y, r=r, fill=fill, stroke=colour, stroke_width=1.5, **values)
        case 1:
            corners = [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
        case 2:
            corners = [(x, y - r - 1), (x + r + 0.5, y + r - 0.5), (x - r - 0.5, y + r - 0.5)]
        case _:
            corners = [(x, y - r - 1), (x + r + 1, y), (x, y + r + 1), (x - r - 1, y)]
    outline = path([*corners, corners[0]], fill=fill, stroke=colour, stroke_width=1.5, **values)
    return Element(outline.name, outline.attributes, (title,))


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plot area in px, and the values at its edges."""

    left: float
    top: float
    right: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = log(x / self.x[0]) / log(self.x[1] / self.x[0])
        up = log(y / self.y[0]) / log(self.y[1] / self.y[0])
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)


def _range(values: Iterable[float], room: float) -> tuple[float, float]:
    """Smallest and largest value, `room` of their ratio on either side; equal ones get a factor of two."""
    found = list(values)
    low, high = min(found), max(found)
    if low == high:
        return low / 2, high * 2
    more = (high / low) ** room
    return low / more, high * more


def _grid(frame: _Frame, x: Axis, y: Axis, theme: Theme, style: Style) -> Element:
    parts: list[Element] = []
    for value in y.ticks(*frame.y):
        _, at = frame.at(frame.x[0], value)
        parts.append(path([(frame.left, at), (frame.right, at)], stroke=theme.frame, stroke_width=0.5))
        parts.append(text(frame.left - 8, at + style.size * 0.35, y.text(value), style, theme.muted, anchor="end"))
    right = 0.0
    for value in x.ticks(*frame.x):
        at, _ = frame.at(value, frame.y[0])
        parts.append(path([(at, frame.bottom), (at, frame.bottom + 4)], stroke=theme.line))
        half = width(x.text(value), style) / 2
        if at - half > right:
            below = frame.bottom + 8 + style.size
            parts.append(text(at, below, x.text(value), style, theme.muted, anchor="middle"))
            right = at + half + 4
    parts.append(path([(frame.left, frame.bottom), (frame.right, frame.bottom)], stroke=theme.line))
    return group(*parts, aria_hidden="true")


def _line(frame: _Frame, item: Series, shape: int, colour: str, theme: Theme, x: Axis, y: Axis) -> Element:
    places = [frame.at(*point) for point in item.points]
    inside = sum(item.limit is None or point[0] <= item.limit for point in item.points)
    parts = []
    if inside > 1:
        parts.append(path(places[:inside], stroke=colour, stroke_width=2, stroke_linejoin="round"))
    if inside < len(places):
        beyond = places[max(0, inside - 1) :]
        if len(beyond) > 1:
            dots = {"stroke_dasharray": _DOTS, "stroke_linecap": "round"}
            parts.append(path(beyond, stroke=colour, stroke_width=2, **dots))
    for i, ((px, py), at) in enumerate(zip(item.points, places, strict=True)):
        note = f"{item.label}: {y.text(py)} at {x.text(px)}"
        if i >= inside:
            note += ", beyond the model's own limit"
        parts.append(_marker(shape, *at, colour, colour if i < inside else theme.paper, note, (px, py)))
    return group(*parts, data_series=item.label)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x: Axis,
    y: Axis,
    theme: str = "light",
    size: tuple[int, int] = (760, 400),
    note: str = "",
    lang: str = "en",
) -> str:
    """A chart of 1 to 8 series as SVG, `size` px; `note` is a line of small text below it.

    UsageError: no series, more than there are hues, a series without points, or a value that no logarithm has.
    """
    colours = theme_of(theme)
    if not 1 <= len(series) <= len(colours.series):
        raise UsageError(f"a chart has 1 to {len(colours.series)} lines, not {len(series)}")
    for item in series:
        if not item.points or any(px <= 0 or py <= 0 for px, py in item.points):
            raise UsageError(f"series {item.label!r}: a logarithmic axis needs points with values above 0")
    wide = size[0] >= _WIDE
    small, label_style, heading = (BODY, LABEL, HEADING) if wide else (SMALL, SMALL, LABEL)
    across, high = size
    y_range = _range((py for item in series for _, py in item.points), 0.04)
    x_range = _range((px for item in series for px, _ in item.points), 0.0)
    left = 16 + max(width(y.text(value), small) for value in y.ticks(*y_range))
    room = min(max(width(item.label, label_style) for item in series), across * (0.3 if wide else 0.34)) + 24
    # The last mark's text reaches beyond the axis by half of itself.
    room = max(room, max(width(x.text(value), small) for value in x.ticks(*x_range)) / 2 - 8)
    titles = wrap(title, heading, across - 24)
    notes = wrap(note, SMALL, across - 24) if note else ()
    top = 12 + heading.line * len(titles) + small.line + 8
    bottom = high - 12 - SMALL.line * len(notes) - small.line * 2 - 8
    frame = _Frame(left, top, across - room - 8, bottom, x_range, y_range)
    parts = [text(12, 8 + heading.line * (i + 0.7), line, heading, colours.ink) for i, line in enumerate(titles)]
    parts.append(text(12, top - 14, y.title, small, colours.muted))
    parts.append(_grid(frame, x, y, colours, small))
    middle = (frame.left + frame.right) / 2
    parts.append(text(middle, bottom + small.line * 2 + 6, x.title, small, colours.muted, anchor="middle"))
    for i, line in enumerate(notes):
        parts.append(text(12, high - 8 - SMALL.line * (len(notes) - 1 - i), line, SMALL, colours.muted))
    ends = [frame.at(*item.points[-1]) for item in series]
    places = _spread([end[1] for end in ends], label_style.line, frame.top, frame.bottom)
    for i, item in enumerate(series):
        parts.append(_line(frame, item, i, colours.series[i], colours, x, y))
    for i, (item, end, place) in enumerate(zip(series, ends, places, strict=True)):
        start = frame.right + _GAP + 6
        link = [(end[0] + 6, end[1]), (start - 2, place)]
        parts.append(path(link, stroke=colours.series[i], stroke_width=1))
        word = shorten(item.label, label_style, across - start - 14)
        parts.append(_marker(i, start + 3, place, colours.series[i], colours.series[i], item.label))
        parts.append(text(start + 11, place + label_style.size * 0.35, word, label_style, colours.ink))
    lines = "; ".join(_said(item, x, y) for item in series)
    described = f"{y.title} against {x.title}, both logarithmic. {lines}."
    return render(document(across, high, *parts, theme=colours, title=title, description=described, lang=lang))


def _said(item: Series, x: Axis, y: Axis) -> str:
    (x0, y0), (x1, y1) = item.points[0], item.points[-1]
    return f"{item.label}: {y.text(y0)} at {x.text(x0)}, {y.text(y1)} at {x.text(x1)}"

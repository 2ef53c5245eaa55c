"""A small writer of SVG: elements as frozen data, bytes that depend on nothing else.

Colours and sizes are written as attributes, never as a style sheet, and nothing has an id: so pictures of both themes
can stand in one page. A title and a description come first in the picture; browsers take them for its accessible name
and description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from plait.draw.text import FAMILY, Style
from plait.draw.theme import Theme

__all__ = [
    "Anchor",
    "Element",
    "arrow",
    "document",
    "element",
    "escape",
    "group",
    "number",
    "path",
    "plain",
    "rect",
    "render",
    "text",
]

Anchor = Literal["start", "middle", "end"]
Value = str | int | float
_NAMESPACE: Final = "http://www.w3.org/2000/svg"
_HEAD: Final = 4.0
# What XML 1.0 does not allow, and the controls of direction that reach beyond the name they stand in.
_ILLEGAL: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Element:
    """An element; a child that is a string is text, escaped when it is written."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Element | str, ...] = ()


def number(value: Value) -> str:
    """A number with at most two decimals and no trailing zeros; strings as they are."""
    if isinstance(value, str):
        return value
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def plain(value: str) -> str:
    """The text with U+FFFD for what XML cannot hold, and for marks that would turn the text after it round."""
    return _ILLEGAL.sub("\ufffd", value)


def escape(value: str) -> str:
    """Text for content and attributes."""
    return plain(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def element(tag: str, *children: Element | str, **attributes: Value | None) -> Element:
    """An element; `_` in a name of an attribute stands for `-`, None leaves it out."""
    named = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    return Element(tag, tuple((key, number(value)) for key, value in named), children)


def group(*children: Element | str, **attributes: Value | None) -> Element:
    """`<g>`."""
    return element("g", *children, **attributes)


def rect(x: float, y: float, width: float, height: float, **attributes: Value | None) -> Element:
    """`<rect>` with its corner at (x, y)."""
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def path(points: Iterable[tuple[float, float]], **attributes: Value | None) -> Element:
    """A line through points, not filled unless told."""
    d = "".join(f"{'L' if i else 'M'}{number(x)} {number(y)}" for i, (x, y) in enumerate(points))
    return element("path", d=d, **{"fill": "none", **attributes})


def arrow(
    points: Iterable[tuple[float, float]], *, stroke: str, width: float = 1.5, dash: str | None = None
) -> Element:
    """A line through points with a head at its end; the tip is the last point."""
    line = list(points)
    (x0, y0), (x1, y1) = line[-2:]
    length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
    if length == 0:
        raise ValueError("an arrow needs two different points at its end")
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    back = (x1 - dx * 1.6 * _HEAD, y1 - dy * 1.6 * _HEAD)
    line[-1] = back
    left, right = ((back[0] - s * dy * _HEAD, back[1] + s * dx * _HEAD) for s in (1, -1))
    shaft = path(line, stroke=stroke, stroke_width=width, stroke_dasharray=dash)
    return group(shaft, path([(x1, y1), left, right], fill=stroke))


def text(
    x: float,
    y: float,
    content: str,
    style: Style,
    colour: str,
    *,
    anchor: Anchor = "start",
    **attributes: Value | None,
) -> Element:
    """One line of real text, its baseline at y."""
    return element(
        "text",
        content,
        x=x,
        y=y,
        font_size=style.size,
        font_weight=700 if style.bold else None,
        fill=colour,
        text_anchor=None if anchor == "start" else anchor,
        **attributes,
    )


def document(
    width: float, height: float, *children: Element, theme: Theme, title: str, description: str, lang: str = "en"
) -> Element:
    """A whole picture on the theme's paper."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        rect(0, 0, width, height, fill=theme.paper),
        *children,
        xmlns=_NAMESPACE,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        role="img",
        lang=lang,
        font_family=FAMILY,
    )


def _write(node: Element | str) -> Iterator[str]:
    if isinstance(node, str):
        yield escape(node)
        return
    yield f"<{node.name}"
    for key, value in node.attributes:
        yield f' {key}="{escape(value)}"'
    if not node.children:
        yield "/>"
        return
    yield ">"
    for child in node.children:
        yield from _write(child)
    yield f"</{node.name}>"


def render(root: Element) -> str:
    """The text of a picture, ending in a newline."""
    return "".join(_write(root)) + "\n"

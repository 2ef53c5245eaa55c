"""What a picture is put together on: boxes are added, moved into place by their height, and frozen into a scene."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from plait.draw.scene import Box, BoxKind, Link, LinkKind, Point, Text
from plait.draw.text import BODY, LABEL, SMALL, Style
from plait.draw.theme import Role

__all__ = ["GRID", "Canvas", "Line", "baseline", "fact", "label", "plain", "stack"]

# All places and sizes of boxes are multiples of it, apart from what lines of text take.
GRID: Final = 8
Line = tuple[str, Style, bool]


def baseline(style: Style) -> float:
    """How far below the top of its line a text's baseline lies."""
    return round((style.line + style.size * 0.72) / 2, 1)


def stack(lines: Sequence[Line]) -> float:
    """Height of lines one under another."""
    return sum(style.line for _, style, _ in lines)


class Canvas:
    """Boxes and links in the order they are added; a box is added after the box it lies in."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.links: list[Link] = []

    def box(
        self,
        kind: BoxKind,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        parent: int | None = None,
        texts: Sequence[Text] = (),
        role: Role | None = None,
        layers: Sequence[int] = (),
        times: int = 1,
        sign: str = "",
    ) -> int:
        """Adds a box; its number."""
        number = len(self.boxes)
        made = Box(number, kind, x, y, width, height, parent, tuple(texts), role, tuple(layers), times, sign)
        self.boxes.append(made)
        return number

    def resize(self, number: int, height: float) -> None:
        """Gives a box its height, once what lies in it is placed."""
        self.boxes[number] = replace(self.boxes[number], height=height)

    def write(self, number: int, *texts: Text) -> None:
        """Adds texts to a box."""
        found = self.boxes[number]
        self.boxes[number] = replace(found, texts=(*found.texts, *texts))

    def lines(self, number: int, lines: Sequence[Line], *, x: float, y: float) -> None:
        """Writes lines one under another into a box, the first one's top at y."""
        for content, style, muted in lines:
            self.write(number, Text(x, y + baseline(style), content, style, muted))
            y += style.line

    def link(self, kind: LinkKind, source: int, target: int, *points: Point) -> None:
        """Adds a line between two boxes."""
        self.links.append(Link(kind, source, target, points))


def label(text: str) -> Line:
    """A line that names a box."""
    return text, LABEL, False


def fact(text: str) -> Line:
    """A line of facts."""
    return text, SMALL, True


def plain(text: str) -> Line:
    """A line of running text."""
    return text, BODY, False

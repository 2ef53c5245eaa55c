"""A picture as data: boxes in boxes, texts in boxes, links between boxes. All lengths in px, y downwards.

kind of a box   `layer` one drawn layer, `mixer` and `feed_forward` its parts, `frame` a repeat, `embedding`, `table` of
                per-layer embeddings, `tower`, `streams` (AltUp), `norm`, `head`, `mtp` layers beside the trunk and
                `mtp_layer` in it, `panel` of facts, `note` text without a border, `legend`
kind of a link  `flow` the stream, `kv` keys and values read, `choice` of keys used, `tied` one matrix,
                `per_layer` embeddings, `tower` vectors of images or sound, `mtp`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from plait.draw.svg import Anchor
from plait.draw.text import Style, width
from plait.draw.theme import Role

__all__ = ["Box", "BoxKind", "Link", "LinkKind", "Scene", "Text"]

BoxKind = Literal[
    "layer",
    "mixer",
    "feed_forward",
    "frame",
    "embedding",
    "table",
    "tower",
    "streams",
    "norm",
    "head",
    "mtp",
    "mtp_layer",
    "panel",
    "note",
    "legend",
]
LinkKind = Literal["flow", "kv", "choice", "tied", "per_layer", "tower", "mtp"]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Text:
    """One line; (x, y) is where its baseline begins, or ends with anchor `end`."""

    x: float
    y: float
    content: str
    style: Style
    muted: bool = False
    anchor: Anchor = "start"

    @property
    def left(self) -> float:
        """Left end by our own measure."""
        taken = width(self.content, self.style)
        return self.x - {"start": 0.0, "middle": taken / 2, "end": taken}[self.anchor]

    @property
    def right(self) -> float:
        """Right end by our own measure."""
        return self.left + width(self.content, self.style)


@dataclass(frozen=True, slots=True)
class Box:
    """A box and what is written in it.

    number  its place in `Scene.boxes`; `parent`: that of the box it lies in, None: the page
    role    its hue; None: none
    layers  zero-based numbers of the layers a `layer` stands for
    times   how often a `frame` repeats what is in it
    sign    what a `legend` explains: a role, `repeat`, or a kind of link
    """

    number: int
    kind: BoxKind
    x: float
    y: float
    width: float
    height: float
    parent: int | None = None
    texts: tuple[Text, ...] = ()
    role: Role | None = None
    layers: tuple[int, ...] = ()
    times: int = 1
    sign: str = ""

    @property
    def right(self) -> float:
        """x of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """y of the lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Link:
    """A line from a box to another, through `points`."""

    kind: LinkKind
    source: int
    target: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole picture; a box stands after the box it lies in."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    links: tuple[Link, ...]
    title: str
    description: str

    def of(self, *kinds: BoxKind) -> Iterator[Box]:
        """The boxes of some kinds."""
        return (box for box in self.boxes if box.kind in kinds)

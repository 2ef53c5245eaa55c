"""The trunk: embedding, folded layers, final norm and head, one over another in a column of fixed width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from plait.blueprint.spec import Blueprint, Layer
from plait.draw.canvas import GRID, Canvas, Line, fact, label, stack
from plait.draw.distinct import distinctions
from plait.draw.facts import altup_facts, feed_forward_facts, figure, mixer_facts, norm_facts, packed
from plait.draw.fold import Leaf, Node, Repeat, leaves, ranges
from plait.draw.scene import BoxKind, Text
from plait.draw.text import LABEL, SMALL, shorten, width
from plait.draw.theme import feed_forward_role, mixer_role
from plait.draw.words import Lang, word

__all__ = ["CARD", "FRAME_SIDE", "GAP", "NUMBERS", "Trunk", "card", "column", "depth", "number_lines"]

CARD: Final = 40 * GRID
GAP: Final = 3 * GRID
# Inside of a card: its parts, and the text in them.
PAD: Final = GRID
TEXT: Final = 2 * GRID
PART: Final = CARD - 2 * PAD
ROOM: Final = PART - TEXT - GRID
LINES_PAD: Final = 6.0
PART_GAP: Final = GRID
# Frames: sides, below, and above where the count stands.
FRAME_SIDE: Final = 2 * GRID
FRAME_TOP: Final = 3 * GRID
FRAME_BOTTOM: Final = 2 * GRID
# Layer numbers beside the column: how wide, how many lines.
NUMBERS: Final = 14 * GRID
_NUMBER_LINES: Final = 6
_MOST_NUMBERS: Final = 64


@dataclass(slots=True)
class Trunk:
    """What was placed: numbers of boxes. `cards` lie in drawing order with the leaf each stands for."""

    embedding: int
    head: int
    norm: int
    cards: list[tuple[int, Leaf]] = field(default_factory=list)
    flow: list[int] = field(default_factory=list)
    top: float = 0.0
    bottom: float = 0.0


def depth(nodes: Sequence[Node]) -> int:
    """How many frames lie around the innermost box."""
    return max((1 + depth(node.parts) if isinstance(node, Repeat) else 0 for node in nodes), default=0)


def _part_lines(title: str, facts: Sequence[str]) -> list[Line]:
    return [label(title), *map(fact, packed(facts, SMALL, ROOM))]


def card(
    canvas: Canvas, kind: BoxKind, layer: Layer, facts: Sequence[str], x: float, y: float, lang: Lang, **place: object
) -> int:
    """A layer's card with its corner at (x, y): feed-forward over mixer. `facts`: those of the mixer."""
    upper = _part_lines(word(feed_forward_role(layer.feed_forward), lang), feed_forward_facts(layer, lang))
    lower = _part_lines(word(mixer_role(layer.mixer), lang), facts)
    heights = [stack(lines) + 2 * LINES_PAD for lines in (upper, lower)]
    height = sum(heights) + PART_GAP + 2 * PAD
    parent, layers = place.get("parent"), place.get("layers", ())
    assert parent is None or isinstance(parent, int)
    assert isinstance(layers, tuple)
    number = canvas.box(kind, x, y, CARD, height, parent=parent, role=mixer_role(layer.mixer), layers=layers)
    top = y + PAD
    inside = canvas.box(
        "feed_forward", x + PAD, top, PART, heights[0], parent=number, role=feed_forward_role(layer.feed_forward)
    )
    canvas.lines(inside, upper, x=x + PAD + TEXT, y=top + LINES_PAD)
    top += heights[0] + PART_GAP
    inside = canvas.box("mixer", x + PAD, top, PART, heights[1], parent=number, role=mixer_role(layer.mixer))
    canvas.lines(inside, lower, x=x + PAD + TEXT, y=top + LINES_PAD)
    return number


def _block(canvas: Canvas, kind: BoxKind, title: str, facts: Sequence[str], x: float, y: float) -> int:
    """A box of the column that is no layer: a name, and facts under it."""
    lines = [label(title), *map(fact, packed(facts, SMALL, CARD - 2 * TEXT))]
    number = canvas.box(kind, x, y, CARD, stack(lines) + 2 * PAD)
    canvas.lines(number, lines, x=x + TEXT, y=y + PAD)
    return number


def number_lines(indexes: Sequence[int], lang: Lang) -> list[str]:
    """The numbers of layers in a few short lines; what does not fit is left out in the middle."""
    found = list(ranges(indexes))
    key = "layer_one" if len(indexes) == 1 else "layer_many"

    def lines(parts: Sequence[str]) -> list[str]:
        pieces = [part + "," for part in parts[:-1]] + [parts[-1]]
        made = [word(key, lang, i=pieces[0])]
        for piece in pieces[1:]:
            joined = f"{made[-1]} {piece}"
            if width(joined, SMALL) <= NUMBERS:
                made[-1] = joined
            else:
                made.append(piece)
        return made

    # More than _MOST_NUMBERS never fit, so that long lists are not tried one by one.
    kept = min(len(found), _MOST_NUMBERS)
    shown = found if kept == len(found) else [*found[: kept - 1], "…", found[-1]]
    whole = lines([part.replace("-", "–") for part in shown])
    while len(whole) > _NUMBER_LINES and kept > 2:
        kept -= 1
        shown = [*found[: kept - 1], "…", found[-1]]
        whole = lines([part.replace("-", "–") for part in shown])
    return [shorten(line, SMALL, NUMBERS) for line in whole]


def _shown(blueprint: Blueprint, leaf: Leaf, lang: Lang) -> tuple[str, ...]:
    """All that a leaf's card says, apart from its numbers."""
    roles = mixer_role(leaf.layer.mixer), feed_forward_role(leaf.layer.feed_forward)
    return *roles, *mixer_facts(blueprint, leaf, lang), "", *feed_forward_facts(leaf.layer, lang)


class _Column:
    """Places boxes from the top down."""

    def __init__(
        self,
        canvas: Canvas,
        blueprint: Blueprint,
        lang: Lang,
        x: float,
        numbers_x: float,
        apart: Mapping[Leaf, tuple[str, ...]],
    ) -> None:
        self.canvas = canvas
        self.blueprint = blueprint
        self.lang = lang
        self.x = x
        self.numbers_x = numbers_x
        self.apart = apart
        self.cards: list[tuple[int, Leaf]] = []
        self.flow: list[int] = []

    def block(self, kind: BoxKind, title: str, facts: Sequence[str], y: float) -> tuple[int, float]:
        """A box that is no layer; its number and lower edge."""
        number = _block(self.canvas, kind, title, facts, self.x, y)
        self.flow.append(number)
        return number, self.canvas.boxes[number].bottom

    def note(self, text: str, y: float) -> tuple[int, float]:
        """A line in the middle of the column without a border."""
        middle = self.x + CARD / 2
        line = Text(middle, y + 12, text, SMALL, muted=True, anchor="middle")
        number = self.canvas.box("note", self.x, y, CARD, 2 * GRID, texts=[line])
        self.flow.append(number)
        return number, y + 2 * GRID

    def nodes(self, nodes: Sequence[Node], y: float, parent: int | None) -> float:
        """Nodes, the highest first; the lower edge."""
        for place, node in enumerate(reversed(nodes)):
            y = self.node(node, y + GAP if place else y, parent)
        return y

    def node(self, node: Node, y: float, parent: int | None) -> float:
        """One leaf or frame at y; its lower edge."""
        if isinstance(node, Leaf):
            return self.leaf(node, y, parent)
        side = FRAME_SIDE * (1 + depth(node.parts))
        place = len(self.canvas.boxes)
        number = self.canvas.box("frame", self.x - side, y, CARD + 2 * side, 0, parent=parent, times=node.times)
        times = word("times", self.lang, n=figure(node.times))
        self.canvas.write(number, Text(self.x - side + 2 * GRID, y + 17, times, LABEL))
        bottom = self.nodes(node.parts, y + FRAME_TOP, number) + FRAME_BOTTOM
        self.canvas.resize(place, bottom - y)
        return bottom

    def leaf(self, leaf: Leaf, y: float, parent: int | None) -> float:
        """One card with the numbers of its layers beside it."""
        facts = (*mixer_facts(self.blueprint, leaf, self.lang), *self.apart[leaf])
        number = card(self.canvas, "layer", leaf.layer, facts, self.x, y, self.lang, parent=parent, layers=leaf.indexes)
        lines = number_lines(leaf.indexes, self.lang)
        beside = self.canvas.box("note", self.numbers_x, y, NUMBERS, max(1, len(lines)) * SMALL.line)
        self.canvas.lines(beside, [(line, SMALL, True) for line in lines], x=self.numbers_x, y=y)
        self.cards.append((number, leaf))
        self.flow.append(number)
        return self.canvas.boxes[number].bottom


def column(
    canvas: Canvas, blueprint: Blueprint, nodes: Sequence[Node], lang: Lang, *, x: float, y: float, numbers_x: float
) -> Trunk:
    """The whole trunk with its top at y and the left edge of its cards at x."""
    shown = {leaf: _shown(blueprint, leaf, lang) for leaf in leaves(nodes)}
    place = _Column(canvas, blueprint, lang, x, numbers_x, distinctions(shown))
    matrix = word("matrix", lang, rows=figure(blueprint.vocabulary), columns=figure(blueprint.hidden))
    _, bottom = place.note(word("logits", lang), y)
    head_facts = [word("head_tied", lang) if blueprint.head.tied else matrix]
    if blueprint.head.softcap is not None:
        head_facts.append(word("softcap", lang, x=figure(blueprint.head.softcap)))
    head, bottom = place.block("head", word("head", lang), head_facts, bottom + GAP)
    norm, bottom = place.block(
        "norm", word("final_norm", lang), list(norm_facts(blueprint.final_norm, lang)), bottom + GAP
    )
    altup = blueprint.altup
    if altup is not None:
        _, bottom = place.block("streams", word("streams_out", lang, n=altup.streams), (), bottom + GAP)
    bottom = place.nodes(nodes, bottom + GAP, None)
    if altup is not None:
        title = word("streams_in", lang, n=altup.streams)
        _, bottom = place.block("streams", title, altup_facts(altup, lang), bottom + GAP)
    facts = [matrix]
    if blueprint.embedding.scale != 1.0:
        facts.append(word("times_scale", lang, x=figure(blueprint.embedding.scale)))
    embedding, bottom = place.block("embedding", word("embedding", lang), facts, bottom + GAP)
    _, bottom = place.note(word("tokens", lang), bottom + GAP)
    middle = x + CARD / 2
    for above, below in pairwise(place.flow):
        start, end = canvas.boxes[below].y, canvas.boxes[above].bottom
        canvas.link("flow", below, above, (middle, start), (middle, end))
    return Trunk(embedding, head, norm, place.cards, place.flow, y, bottom)

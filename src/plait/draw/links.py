"""Links beside the column: keys and values that are read again, one matrix in two places, embeddings and towers.

Links of keys and values run in lanes left of the column, shorter ones nearer to it; what enters from the right has a
rail of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.blueprint.spec import Attention, Blueprint
from plait.draw.canvas import GRID, Canvas
from plait.draw.fold import Leaf, Node, leaves, source_of
from plait.draw.scene import Box, LinkKind
from plait.draw.trunk import Trunk

__all__ = ["LANE", "Lanes", "draw_links", "lanes_of"]

LANE: Final = 1.5 * GRID


@dataclass(frozen=True, slots=True)
class Bus:
    """Leaves (by their place, lowest first) that read what leaf `source` keeps, and the lane their line runs in."""

    source: int
    readers: tuple[int, ...]
    kind: LinkKind
    lane: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """All buses, and how many lanes they take."""

    buses: tuple[Bus, ...]
    count: int


def _leaf_of(found: Sequence[Leaf]) -> dict[int, int]:
    return {index: place for place, leaf in enumerate(found) for index in leaf.indexes}


def lanes_of(blueprint: Blueprint, nodes: Sequence[Node]) -> Lanes:
    """Which leaves read which, in as few lanes as do not overlap."""
    found = list(leaves(nodes))
    places = _leaf_of(found)
    readers: dict[tuple[int, LinkKind], set[int]] = {}
    for index, layer in enumerate(blueprint.layers):
        source = source_of(layer)
        if source is not None:
            kind: LinkKind = "kv" if isinstance(layer.mixer, Attention) else "choice"
            readers.setdefault((places[source], kind), set()).add(places[index])
    spans = sorted(
        (max(source, *to) - min(source, *to), source, kind, tuple(sorted(to))) for (source, kind), to in readers.items()
    )
    taken: list[list[tuple[int, int]]] = []
    buses = []
    for _, source, kind, to in spans:
        low, high = min(source, *to), max(source, *to)
        lane = next(
            (i for i, held in enumerate(taken) if all(high < a or b < low for a, b in held)),
            len(taken),
        )
        if lane == len(taken):
            taken.append([])
        taken[lane].append((low, high))
        buses.append(Bus(source, to, kind, lane))
    return Lanes(tuple(buses), len(taken))


def _middle(box: Box) -> float:
    return box.y + box.height / 2


def _part(canvas: Canvas, number: int, kind: str) -> Box:
    """A part of a card."""
    return next(box for box in canvas.boxes[number + 1 : number + 3] if box.kind == kind)


def _reuse(canvas: Canvas, trunk: Trunk, lanes: Lanes, left: float) -> None:
    """Lines of keys and values, or of chosen keys, from the layer that has them to those that use them."""
    cards = [number for number, _ in reversed(trunk.cards)]
    for bus in lanes.buses:
        x = left - LANE * (bus.lane + 1)
        source = _part(canvas, cards[bus.source], "mixer")
        for reader in bus.readers:
            target = _part(canvas, cards[reader], "mixer")
            one, other = canvas.boxes[cards[bus.source]], canvas.boxes[cards[reader]]
            start, end = _middle(source), _middle(target)
            canvas.link(bus.kind, one.number, other.number, (one.x, start), (x, start), (x, end), (other.x, end))


def _tied(canvas: Canvas, trunk: Trunk, lanes: Lanes, left: float) -> None:
    head, embedding = canvas.boxes[trunk.head], canvas.boxes[trunk.embedding]
    x = left - LANE * (lanes.count + 1)
    start, end = _middle(embedding), _middle(head)
    canvas.link("tied", embedding.number, head.number, (embedding.x, start), (x, start), (x, end), (head.x, end))


def _table(canvas: Canvas, trunk: Trunk, blueprint: Blueprint, table: int, rail: float) -> None:
    """Per-layer embeddings: one rail along the layers that take them."""
    box, embedding = canvas.boxes[table], canvas.boxes[trunk.embedding]
    start, turn, x = _middle(box), embedding.y - 1.5 * GRID, rail + GRID
    for number, leaf in trunk.cards:
        if leaf.layer.per_layer_input:
            layer, part = canvas.boxes[number], _part(canvas, number, "feed_forward")
            end = _middle(part)
            canvas.link(
                "per_layer",
                table,
                number,
                (box.x, start),
                (box.x - 3 * GRID, start),
                (box.x - 3 * GRID, turn),
                (x, turn),
                (x, end),
                (layer.right, end),
            )


def draw_links(
    canvas: Canvas,
    blueprint: Blueprint,
    trunk: Trunk,
    lanes: Lanes,
    left: float,
    rail: float,
    aside: float,
    *,
    table: int | None,
    towers: Sequence[int],
    mtp: int | None,
) -> None:
    """All links but the flow. left: where the frames begin; rail: where they end; aside: the column at the right."""
    _reuse(canvas, trunk, lanes, left)
    if blueprint.head.tied:
        _tied(canvas, trunk, lanes, left)
    if table is not None:
        _table(canvas, trunk, blueprint, table, rail)
    embedding = canvas.boxes[trunk.embedding]
    end = _middle(embedding)
    for number in towers:
        box = canvas.boxes[number]
        start = min(max(end, box.y + GRID), box.bottom - GRID)
        x = aside - GRID
        bend = () if start == end else ((x, start), (x, end))
        canvas.link("tower", number, trunk.embedding, (box.x, start), *bend, (embedding.right, end))
    if mtp is not None and trunk.cards:
        card, box = canvas.boxes[trunk.cards[0][0]], canvas.boxes[mtp]
        start, end, x = card.bottom - 2 * GRID, box.y + 2 * GRID, aside - 2 * GRID
        bend = () if start == end else ((x, start), (x, end))
        canvas.link("mtp", card.number, mtp, (card.right, start), *bend, (box.x, end))

"""A whole model as a scene: title and legend on top, the trunk at the left, what belongs to it at the right.

Every model is laid out on one grid with the same widths, whatever its size, so that pictures can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.account.parameters import ParameterAccount, parameters
from plait.blueprint.spec import Blueprint
from plait.draw.canvas import GRID, Canvas, baseline
from plait.draw.facts import table_facts
from plait.draw.fold import Leaf, Node, Repeat, fold, ranges
from plait.draw.links import LANE, Lanes, draw_links, lanes_of
from plait.draw.panel import ASIDE, entries, facts_panel, legend, mtp_frame, panel_rows, table_box
from plait.draw.scene import Scene, Text
from plait.draw.text import BODY, TITLE, shorten
from plait.draw.theme import feed_forward_role, mixer_role
from plait.draw.trunk import CARD, FRAME_SIDE, GAP, NUMBERS, column, depth
from plait.draw.words import Lang, word

__all__ = ["scene_of"]

MARGIN: Final = 4 * GRID
# Frames and lanes of links that every picture has room for; a model with more gets a wider one.
_DEPTH: Final = 2
_LANES: Final = 3
_RAIL: Final = 3 * GRID


@dataclass(frozen=True, slots=True)
class _Places:
    """Where columns begin."""

    lanes: float
    card: float
    rail: float
    numbers: float
    aside: float
    width: float


def _places(levels: int, lanes: int) -> _Places:
    sides = FRAME_SIDE * max(levels, _DEPTH)
    left = MARGIN + LANE * (max(lanes, _LANES) + 1)
    card = left + sides
    rail = card + CARD + sides
    numbers = rail + _RAIL
    aside = numbers + NUMBERS + 4 * GRID
    return _Places(left, card, rail, numbers, aside, aside + ASIDE + MARGIN)


def _spoken(nodes: Sequence[Node], lang: Lang) -> str:
    parts = []
    for node in nodes:
        if isinstance(node, Repeat):
            parts.append(word("spoken_repeat", lang, n=node.times, parts=_spoken(node.parts, lang)))
        else:
            parts.append(_spoken_leaf(node, lang))
    return "; ".join(parts)


def _spoken_leaf(leaf: Leaf, lang: Lang) -> str:
    key = "layer_one" if len(leaf.indexes) == 1 else "layer_many"
    return word(
        "spoken_leaf",
        lang,
        where=word(key, lang, i=", ".join(ranges(leaf.indexes))),
        mixer=word(mixer_role(leaf.layer.mixer), lang),
        feed_forward=word(feed_forward_role(leaf.layer.feed_forward), lang),
    )


def _header(canvas: Canvas, blueprint: Blueprint, nodes: Sequence[Node], width: float, lang: Lang) -> float:
    """Title, subtitle and legend; the lower edge."""
    room = width - 2 * MARGIN
    name = blueprint.name or blueprint.family
    subtitle = word("subtitle", lang, family=blueprint.family, n=len(blueprint.layers))
    top = float(MARGIN)
    number = canvas.box("note", MARGIN, top, room, TITLE.line + BODY.line)
    canvas.write(number, Text(MARGIN, top + baseline(TITLE), shorten(name, TITLE, room), TITLE))
    line = Text(MARGIN, top + TITLE.line + baseline(BODY), shorten(subtitle, BODY, room), BODY, muted=True)
    canvas.write(number, line)
    top += TITLE.line + BODY.line + 2 * GRID
    return legend(canvas, blueprint, nodes, MARGIN, top, room, lang)


def scene_of(blueprint: Blueprint, *, lang: Lang = "en", account: ParameterAccount | None = None) -> Scene:
    """The picture of a model as data. `account`: the parameters where files were counted, None: by the blueprint."""
    nodes = fold(blueprint.layers)
    rows = tuple(panel_rows(blueprint, account if account is not None else parameters(blueprint), lang))
    lanes: Lanes = lanes_of(blueprint, nodes)
    at = _places(depth(nodes), lanes.count)
    table = table_facts(blueprint, lang)

    def above(canvas: Canvas, y: float) -> tuple[float, int | None]:
        """Panel and prediction layers from y down; the lower edge and the frame's number."""
        bottom = canvas.boxes[facts_panel(canvas, rows, at.aside, y)].bottom
        if blueprint.mtp is None:
            return bottom, None
        frame = mtp_frame(canvas, blueprint, blueprint.mtp, at.aside, bottom + GAP, lang)
        return canvas.boxes[frame].bottom, frame

    def below(canvas: Canvas, y: float) -> tuple[float, int | None, list[int]]:
        """Table of per-layer embeddings and towers from y down."""
        drawn = None
        if table:
            drawn = table_box(canvas, table, at.aside, y, lang)
            y = canvas.boxes[drawn].bottom + (GRID if blueprint.towers else 0)
        towers, bottom = entries(canvas, blueprint.towers, at.aside, y, lang)
        return bottom, drawn, towers

    # Everything is measured on sheets that are thrown away, then placed: the entries end where the embedding ends.
    measured = Canvas()
    trial = column(measured, blueprint, nodes, lang, x=at.card, y=0, numbers_x=at.numbers)
    column_height = measured.boxes[trial.embedding].bottom
    aside_height = above(Canvas(), 0)[0]
    entries_height = below(Canvas(), 0)[0]
    if entries_height:
        aside_height += GAP + entries_height

    canvas = Canvas()
    top = _header(canvas, blueprint, nodes, at.width, lang) + GAP
    trunk_top = top + max(0.0, aside_height - column_height)
    trunk = column(canvas, blueprint, nodes, lang, x=at.card, y=trunk_top, numbers_x=at.numbers)
    floor = canvas.boxes[trunk.embedding].bottom
    aside_bottom, frame = above(canvas, top)
    _, drawn, towers = below(canvas, floor - entries_height)
    draw_links(canvas, blueprint, trunk, lanes, at.lanes, at.rail, at.aside, table=drawn, towers=towers, mtp=frame)
    name = blueprint.name or blueprint.family
    return Scene(
        width=at.width,
        height=max(trunk.bottom, aside_bottom) + MARGIN,
        boxes=tuple(canvas.boxes),
        links=tuple(canvas.links),
        title=word("spoken_title", lang, name=name),
        description=word("spoken", lang, family=blueprint.family, layers=_spoken(nodes, lang)),
    )

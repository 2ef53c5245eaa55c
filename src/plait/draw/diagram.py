"""A scene as SVG."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Final

from plait.account.parameters import ParameterAccount
from plait.blueprint.spec import Blueprint
from plait.draw import svg
from plait.draw.fold import ranges
from plait.draw.layout import scene_of
from plait.draw.scene import Box, Link, LinkKind, Scene
from plait.draw.svg import Element, number
from plait.draw.theme import Role, Theme, ThemeName, theme_of
from plait.draw.words import Lang, lang_of

__all__ = ["diagram_svg", "scene_svg"]

DASH: Final = "5 4"
DOTS: Final = "2 3"
ROUND: Final = 6
_STRIPE: Final = 4
_HEAD: Final = 8.0


def _hue(box: Box, theme: Theme, role: Role) -> list[Element]:
    """A filled area with a border and a stripe of its hue."""
    hue = theme.hues[role]
    return [
        svg.rect(box.x, box.y, box.width, box.height, rx=ROUND, fill=hue.fill, stroke=hue.accent),
        svg.rect(box.x + 5, box.y + 6, _STRIPE, box.height - 12, rx=2, fill=hue.accent),
    ]


def _sign(box: Box, theme: Theme) -> list[Element]:
    """What a line of the legend explains, 16 px wide."""
    middle = box.y + box.height / 2
    if box.role is not None:
        hue = theme.hues[box.role]
        return [
            svg.rect(box.x + 0.5, box.y + 2, 15, 12, rx=3, fill=hue.fill, stroke=hue.accent),
            svg.rect(box.x + 3, box.y + 4, 3, 8, rx=1.5, fill=hue.accent),
        ]
    if box.sign == "repeat":
        return [svg.rect(box.x + 0.5, box.y + 2, 15, 12, rx=3, fill="none", stroke=theme.frame, stroke_dasharray="3 2")]
    if box.sign == "tied":
        return [_tie([(box.x + 2, middle), (box.x + 14, middle)], theme)]
    dash = DOTS if box.sign == "choice" else None
    return [svg.arrow([(box.x, middle), (box.x + 16, middle)], stroke=theme.line, dash=dash)]


def _tie(points: list[tuple[float, float]], theme: Theme) -> Element:
    """A line without direction: a dot at both ends."""
    dots = [svg.element("circle", cx=x, cy=y, r=2.5, fill=theme.line) for x, y in (points[0], points[-1])]
    return svg.group(svg.path(points, stroke=theme.line, stroke_dasharray=DASH), *dots)


def _shape(box: Box, theme: Theme) -> list[Element]:
    place = (box.x, box.y, box.width, box.height)
    match box.kind:
        case "note":
            return []
        case "legend":
            return _sign(box, theme)
        case "mixer" | "feed_forward":
            assert box.role is not None
            return _hue(box, theme, box.role)
        case "frame" | "mtp":
            return [
                svg.rect(
                    *place, rx=2 * ROUND, fill="none", stroke=theme.frame, stroke_width=1.25, stroke_dasharray=DASH
                )
            ]
        case "panel":
            return [svg.rect(*place, rx=ROUND, fill=theme.panel)]
        case _:
            return [svg.rect(*place, rx=ROUND + 2, fill=theme.panel, stroke=theme.line)]


def _box(box: Box, theme: Theme) -> Element:
    """One box with its texts; layers say which they are."""
    texts = [
        svg.text(t.x, t.y, t.content, t.style, theme.muted if t.muted else theme.ink, anchor=t.anchor)
        for t in box.texts
    ]
    if box.kind != "layer":
        times = box.times if box.kind == "frame" else None
        return svg.group(*_shape(box, theme), *texts, data_box=box.kind, data_times=times)
    return svg.group(
        *_shape(box, theme),
        *texts,
        data_box=box.kind,
        data_kind=box.role,
        data_layers=",".join(ranges(box.layers)),
    )


def _link(link: Link, theme: Theme, drawn: Drawn) -> Element:
    points = list(link.points)
    if link.kind == "tied":
        return svg.group(_tie(points, theme), data_link=link.kind)
    dash = {"choice": DOTS, "mtp": DASH}.get(link.kind)
    width = 1.5 if link.kind == "flow" else 1.25
    (x0, y0), (x1, y1) = points[-2:]
    length = abs(x1 - x0) + abs(y1 - y0)
    # The head's own piece is drawn with it; of what leads to it, only what no link of the kind has drawn yet.
    near = (x1 - (x1 - x0) / length * min(length, _HEAD), y1 - (y1 - y0) / length * min(length, _HEAD))
    lines = [*points[:-1], near]
    pieces = [piece for a, b in pairwise(lines) for piece in drawn.fresh(link.kind, a, b)]
    d = "".join(f"M{number(a)} {number(b)}L{number(c)} {number(e)}" for a, b, c, e in pieces)
    shaft = [svg.element("path", d=d, fill="none", stroke=theme.line, stroke_width=width, stroke_dasharray=dash)]
    return svg.group(
        *(shaft if pieces else []),
        svg.arrow([near, (x1, y1)], stroke=theme.line, width=width),
        data_link=link.kind,
    )


class Drawn:
    """Which stretches of which lines are drawn: links that share a way are not drawn over one another."""

    def __init__(self) -> None:
        self._held: dict[tuple[LinkKind, bool, float], list[tuple[float, float]]] = {}

    def fresh(
        self, kind: LinkKind, start: tuple[float, float], end: tuple[float, float]
    ) -> list[tuple[float, float, float, float]]:
        """The parts of a line along one axis that are not drawn yet, which then count as drawn."""
        upright = start[0] == end[0]
        place = start[0] if upright else start[1]
        low, high = sorted((start[1], end[1]) if upright else (start[0], end[0]))
        held = self._held.setdefault((kind, upright, place), [])
        # Stretches held lie apart and in order: those that meet the line are next to one another, and become one.
        first = bisect_left(held, low, key=lambda stretch: stretch[1])
        last = bisect_right(held, high, key=lambda stretch: stretch[0])
        met = held[first:last]
        edges = [low, *(edge for stretch in met for edge in stretch), high]
        parts = [(c, d) for c, d in zip(edges[::2], edges[1::2], strict=True) if c < d]
        held[first:last] = [(min(low, met[0][0]), max(high, met[-1][1]))] if met else [(low, high)]
        return [(place, c, place, d) if upright else (c, place, d, place) for c, d in parts]


def scene_svg(scene: Scene, *, theme: ThemeName = "light", lang: Lang = "en") -> str:
    """The text of an SVG file; links lie over frames and under nothing, since they never run through boxes."""
    colours = theme_of(theme)
    drawn = [_box(box, colours) for box in scene.boxes]
    known = Drawn()
    lines = [_link(link, colours, known) for link in scene.links]
    root = svg.document(
        scene.width,
        scene.height,
        *drawn,
        *lines,
        theme=colours,
        title=scene.title,
        description=scene.description,
        lang="zh-Hans" if lang == "zh" else lang,
    )
    return svg.render(root)


def diagram_svg(
    blueprint: Blueprint, *, theme: ThemeName = "light", lang: Lang = "en", account: ParameterAccount | None = None
) -> str:
    """The whole model as an SVG file, bottom to top in the direction of the forward pass.

    account  the parameters where files were counted; None: counted by the blueprint
    UsageError for a theme or language that is not known.
    """
    theme_of(theme)
    return scene_svg(scene_of(blueprint, lang=lang_of(lang), account=account), theme=theme, lang=lang)

"""What must hold of every picture of the inside of a layer."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

from plait.blueprint.spec import Blueprint
from plait.blueprint.tensors import inventory
from plait.draw.layer_layout import HEADER, Panel, PlacedBox, Wire
from plait.draw.text import LABEL, SMALL, width

NAMESPACE = "{http://www.w3.org/2000/svg}"


def roles_of(svg: str) -> Counter[str]:
    """How often each tensor stands in a picture."""
    found = Counter(node.get("data-role", "") for node in ElementTree.fromstring(svg).iter())
    del found[""]
    return found


def roles_in(blueprint: Blueprint, index: int) -> Counter[str]:
    """Each tensor of a layer once."""
    return Counter(t.role for t in inventory(blueprint) if t.role.startswith(f"layers.{index}."))


def words_of(svg: str) -> str:
    """All text of a picture, a space after each line, no-break spaces as spaces."""
    root = ElementTree.fromstring(svg)
    lines = ("".join(node.itertext()) for node in root.iter(f"{NAMESPACE}text"))
    return re.sub(r"\s+", " ", " ".join(lines))


Area = tuple[float, float, float, float]


def _area(box: PlacedBox) -> Area:
    return box.x, box.y, box.x + box.width, box.y + box.height


def _meet(a: Area, b: Area, gap: float = 0.0) -> bool:
    """Whether two areas come nearer than `gap`."""
    return a[0] < b[2] + gap and b[0] < a[2] + gap and a[1] < b[3] + gap and b[1] < a[3] + gap


def _stretches(wire: Wire) -> list[Area]:
    made = []
    for (x0, y0), (x1, y1) in pairwise(wire.points):
        assert x0 == x1 or y0 == y1, "lines are upright or level"
        made.append((min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)))
    return made


def _on_edge(point: tuple[float, float], area: Area) -> bool:
    x, y = point
    level = area[0] <= x <= area[2] and (y in (area[1], area[3]) or min(abs(y - area[1]), abs(y - area[3])) < 1e-6)
    upright = area[1] <= y <= area[3] and min(abs(x - area[0]), abs(x - area[2])) < 1e-6
    return level or upright


def check_panel(panel: Panel) -> None:
    """Nothing overlaps, nothing leaves its place, every line ends on a box and runs through none."""
    whole = (0.0, 0.0, panel.width, panel.height)
    areas = [_area(box) for box in panel.boxes]
    for i, area in enumerate(areas):
        assert whole[0] <= area[0] < area[2] <= whole[2]
        assert whole[1] <= area[1] < area[3] <= whole[3]
        for other in areas[:i]:
            assert not _meet(area, other, gap=8), "boxes keep apart"
        _check_texts(panel.boxes[i])
    frames = {frame.key: (frame.x, frame.y, frame.x + frame.width, frame.y + frame.height) for frame in panel.frames}
    assert len(frames) == len(panel.frames)
    for key, frame in frames.items():
        for box, area in zip(panel.boxes, areas, strict=True):
            inside = box.block == key and box.cell.look != "add"
            if inside:
                assert frame[0] < area[0] and area[2] < frame[2] and frame[1] + HEADER <= area[1] and area[3] < frame[3]
            else:
                assert not _meet(frame, area)
        assert not any(_meet(frame, other) for name, other in frames.items() if name != key)
    _check_wires(panel, areas)
    _check_headers(panel)


def _check_texts(box: PlacedBox) -> None:
    room = box.width - (20 if box.cell.stack else 12)
    assert all(width(title, LABEL) <= room for title in box.titles)
    assert all(width("".join(piece.text for piece in row), SMALL) <= room for row in box.rows)
    assert len(box.titles) * LABEL.line + len(box.rows) * SMALL.line <= box.height


def _check_wires(panel: Panel, areas: list[Area]) -> None:
    for wire in panel.wires:
        if wire.target is not None:
            assert _on_edge(wire.points[-1], areas[wire.target]), "an arrow ends on its box"
        if wire.source is not None:
            starts = _on_edge(wire.points[0], areas[wire.source]) or wire.points[0] in panel.forks
            assert starts, "a line begins on its box or where the stream parts"
        assert all(0 <= x <= panel.width and 0 <= y <= panel.height for x, y in wire.points)
        for stretch in _stretches(wire):
            for area in areas:
                inner = (area[0] + 0.5, area[1] + 0.5, area[2] - 0.5, area[3] - 0.5)
                assert not _meet(stretch, inner), "no line runs through a box"
        if wire.rail:
            upright = next(stretch for stretch in _stretches(wire) if stretch[0] == stretch[2])
            frames = [(f.x, f.y, f.x + f.width, f.y + f.height) for f in panel.frames]
            assert not any(_meet(upright, frame, gap=4) for frame in frames), "rails run beside all frames"
    reached = {wire.target for wire in panel.wires}
    left = {wire.source for wire in panel.wires}
    for i, box in enumerate(panel.boxes):
        assert i in reached or box.cell.look == "source", "something comes into every box but sources"
        assert i in left, "every box gives to another"


def _check_headers(panel: Panel) -> None:
    """The name at the left and the count at the right of a frame, no line through either."""
    for frame in panel.frames:
        name, room = width(frame.name, LABEL), frame.width - 32
        count = width("999.9M parameters", SMALL)
        assert name + count + 16 <= room
        top = (frame.y + 4, frame.y + HEADER - 4)
        texts: list[Area] = [
            (frame.x + 16, top[0], frame.x + 16 + name, top[1]),
            (frame.x + frame.width - 16 - count, top[0], frame.x + frame.width - 16, top[1]),
        ]
        for wire in panel.wires:
            assert not any(_meet(stretch, text) for stretch in _stretches(wire) for text in texts)

"""From steps to places: one grid of lanes for every layer of every model.

Coordinates are px from the top left of a panel. Rows of a block stand one over another, links are vertical lines in
the gaps between them, residuals run up rails beside all blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from plait.draw.layer_graph import Block, Cell, Line
from plait.draw.layer_steps import LayerSteps
from plait.draw.text import LABEL, SMALL, fits, wrap
from plait.draw.theme import Role

__all__ = ["GRID", "HEADER", "STACK", "Frame", "Panel", "Piece", "PlacedBox", "Point", "Wire", "layout"]

GRID: Final = 8
LANE: Final = 21 * GRID
GAP: Final = 2 * GRID
# A box on the trunk that neither forks nor joins lanes.
TRUNK: Final = 33 * GRID
ROW_GAP: Final = 3 * GRID
FRAME_SIDE: Final = 2 * GRID
FRAME_BELOW: Final = 3 * GRID
HEADER: Final = 4 * GRID
RAIL: Final = 3 * GRID
FORK: Final = 2 * GRID
STACK: Final = GRID
ADD: Final = 3 * GRID
_INSET: Final = GRID
_SEPARATOR: Final = " · "

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a line of text; `tensor`: it states a tensor, `role` only where it is the tensor's first piece."""

    text: str
    tensor: bool
    role: str | None = None


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A cell with its place; titles and rows are lines of text from the top. A stack's front leaves `STACK` free."""

    block: str
    cell: Cell
    hue: Role | None
    x: float
    y: float
    width: float
    height: float
    titles: tuple[str, ...]
    rows: tuple[tuple[Piece, ...], ...]

    @property
    def room(self) -> float:
        """Width texts may take."""
        return _room(self.cell, self.width)


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame of a block with its header."""

    key: str
    name: str
    hue: Role | None
    parameters: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Wire:
    """A line through points, its end an arrow. Ends lie on boxes; None: the edge of the panel or the stream."""

    points: tuple[Point, ...]
    source: int | None
    target: int | None
    rail: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One layer, placed. Wires name boxes by their number; `forks` are where the stream parts."""

    steps: LayerSteps
    width: float
    height: float
    trunk: float
    boxes: tuple[PlacedBox, ...]
    frames: tuple[Frame, ...]
    wires: tuple[Wire, ...]
    forks: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class _Joint:
    """A link before it has a place: from a cell (None: what comes into the block) to a cell, at x."""

    source: int | None
    target: int
    x: float


def _room(cell: Cell, width: float) -> float:
    return width - 2 * _INSET - (STACK if cell.stack else 0)


def _centre(first: int, stop: int) -> float:
    """Middle of lanes, from the left edge of lane 0."""
    return (first * (LANE + GAP) + stop * (LANE + GAP) - GAP) / 2


def _span(lanes: int) -> float:
    return lanes * (LANE + GAP) - GAP


def _joints(block: Block) -> tuple[_Joint, ...]:
    """Links of a block, from the last cell below in each lane."""
    order = sorted(range(len(block.cells)), key=lambda i: block.cells[i].row)
    below: list[int | None] = [None] * block.lanes
    made: list[_Joint] = []
    for index in order:
        cell = block.cells[index]
        first, stop = cell.lanes
        if cell.fed:
            made += _into(block, index, below)
        below[first:stop] = [index] * (stop - first)
    return tuple(made)


def _into(block: Block, index: int, below: Sequence[int | None]) -> Iterable[_Joint]:
    """Links into a cell: one from each cell that ends below it, or one for each of the streams that stay apart."""
    cell = block.cells[index]
    lanes = range(*cell.lanes)
    for source in dict.fromkeys(below[lane] for lane in lanes):
        shared = {lane for lane in lanes if below[lane] == source}
        streams = () if source is None else block.cells[source].across or cell.across
        for first, stop in streams or (cell.lanes,):
            inside = sorted(shared.intersection(range(first, stop)))
            if inside:
                yield _Joint(source, index, _centre(inside[0], inside[-1] + 1))


def _width(block: Block, index: int, joints: Sequence[_Joint]) -> float:
    """Lanes that fork or join are covered whole; a box with everything in its middle has the trunk's width."""
    cell = block.cells[index]
    span = _span(cell.lanes[1] - cell.lanes[0])
    if cell.look == "add" and cell.title == "+":
        return ADD
    middle = _centre(*cell.lanes)
    straight = all(joint.x == middle for joint in joints if index in (joint.source, joint.target))
    return min(span, TRUNK) if straight and not cell.stack else span


def _rows(lines: Iterable[Line], room: float) -> tuple[tuple[Piece, ...], ...]:
    """Lines one after another, as many to a row as fit."""
    rows: list[list[Piece]] = []
    open_row = ""
    for line in lines:
        joined = f"{open_row}{_SEPARATOR}{line.text}"
        tensor = line.role is not None
        if open_row and fits(joined, SMALL, room):
            rows[-1] += [Piece(_SEPARATOR, False), Piece(line.text, tensor, line.role)]
            open_row = joined
            continue
        parts = wrap(line.text, SMALL, room)
        rows += [[Piece(part, tensor, None if i else line.role)] for i, part in enumerate(parts)]
        open_row = parts[0] if len(parts) == 1 else ""
    return tuple(map(tuple, rows))


@dataclass(frozen=True, slots=True)
class _Sized:
    width: float
    height: float
    titles: tuple[str, ...]
    rows: tuple[tuple[Piece, ...], ...]


def _sized(cell: Cell, width: float) -> _Sized:
    if cell.look == "add" and cell.title == "+":
        return _Sized(width, ADD, (), ())
    room = _room(cell, width)
    titles, rows = wrap(cell.title, LABEL, room), _rows(cell.lines, room)
    height = len(titles) * LABEL.line + len(rows) * SMALL.line + 2 * _INSET + (STACK if cell.stack else 0)
    return _Sized(width, height, titles, rows)


class _Builder:
    """Places blocks from the bottom; places count upwards until `panel` turns them.

    up   the height reached
    out  where the stream leaves the last box
    """

    def __init__(self, steps: LayerSteps) -> None:
        self.steps = steps
        content = max(_span(block.lanes) + 2 * FRAME_SIDE for block in steps.blocks)
        streams = RAIL if steps.streams is not None else 0
        self.left = RAIL + GRID
        self.width = self.left + content + (streams + GRID if streams else 0)
        self.trunk = self.left + content / 2
        self.content = content
        self.up: float = 0.0
        self.out: float = 0.0
        self.last: int | None = None
        self.boxes: list[PlacedBox] = []
        self.frames: list[Frame] = []
        self.wires: list[Wire] = []
        self.forks: list[Point] = []

    def block(self, block: Block) -> None:
        joints = _joints(block)
        wide = self.width if block.wide else None
        sizes = [_sized(cell, wide or _width(block, i, joints)) for i, cell in enumerate(block.cells)]
        sizes = _levelled(block, sizes)
        left = self.trunk - _span(block.lanes) / 2
        start = self.up
        fork = start + FORK
        rows = max(cell.row for cell in block.cells) + 1
        framed = bool(block.name)
        level = start + (FORK + GRID + FRAME_BELOW if framed else ROW_GAP + GRID)
        bottom = level - FRAME_BELOW
        base = len(self.boxes)
        placed: dict[int, PlacedBox] = {}
        for row in range(rows):
            members = [i for i, cell in enumerate(block.cells) if cell.row == row]
            height = max(sizes[i].height for i in members)
            if framed and block.cells[members[0]].look == "add":
                self._frame(block, bottom, level - ROW_GAP + HEADER)
                level += HEADER + GRID
            for i in members:
                cell, size = block.cells[i], sizes[i]
                x = left + _centre(*cell.lanes) - size.width / 2
                if block.wide:
                    x = 0.0
                y = level + (height - size.height) / 2
                placed[i] = PlacedBox(block.key, cell, block.hue, x, y, size.width, size.height, size.titles, size.rows)
            level += height + ROW_GAP
        if framed and not any(cell.look == "add" for cell in block.cells):
            level += HEADER - ROW_GAP
            self._frame(block, bottom, level)
            self.up = level
        else:
            self.up = level - ROW_GAP
        self.boxes += [placed[i] for i in range(len(block.cells))]
        for joint in joints:
            self._wire(joint, base, left, bottom + GRID)
        if block.residual:
            self._rail(base + _joining(block), fork)
        self.last = base + _last(block)
        self.out = self.boxes[self.last].y + self.boxes[self.last].height

    def _frame(self, block: Block, bottom: float, top: float) -> None:
        width = _span(block.lanes) + 2 * FRAME_SIDE
        x = self.trunk - width / 2
        self.frames.append(Frame(block.key, block.name, block.hue, block.parameters, x, bottom, width, top - bottom))

    def _wire(self, joint: _Joint, base: int, left: float, bus: float) -> None:
        target = base + joint.target
        x = left + joint.x
        if self.boxes[target].cell.key in ("predict", "correct"):
            x = self.trunk
        end = self.boxes[target].y
        if joint.source is None:
            points = [(self.trunk, self.out), (self.trunk, end)]
            if x != self.trunk:
                points[1:] = [(self.trunk, bus), (x, bus), (x, end)]
            self.wires.append(Wire(tuple(points), self.last, target))
        else:
            source = base + joint.source
            begin = self.boxes[source].y + self.boxes[source].height
            self.wires.append(Wire(((x, begin), (x, end)), source, target))

    def _rail(self, target: int, fork: float) -> None:
        """The residual: from the trunk to the left rail, up, and into the side of the box that adds it."""
        box = self.boxes[target]
        rail, middle = GRID / 2, box.y + box.height / 2
        self.forks.append((self.trunk, fork))
        self.wires.append(
            Wire(((self.trunk, fork), (rail, fork), (rail, middle), (box.x, middle)), self.last, target, rail=True)
        )

    def streams(self) -> None:
        """The other streams of alternating updates: from prediction to correction along the right rail."""
        keys = [box.cell.key for box in self.boxes]
        if "predict" not in keys:
            return
        low, high = keys.index("predict"), keys.index("correct")
        x = self.width - GRID / 2 - GRID
        begin, end = self.boxes[low].y + self.boxes[low].height, self.boxes[high].y
        self.wires.append(Wire(((x, begin), (x, end)), low, high, rail=True))

    def panel(self) -> Panel:
        """Everything with y counted from the top; a stub of the stream leaves at the top."""
        stub = ROW_GAP + GRID
        self.wires.append(Wire(((self.trunk, self.out), (self.trunk, self.up + stub)), self.last, None))
        height = self.up + stub

        def turned(points: Iterable[Point]) -> tuple[Point, ...]:
            return tuple((x, height - y) for x, y in points)

        boxes = tuple(replace(box, y=height - box.y - box.height) for box in self.boxes)
        frames = tuple(replace(frame, y=height - frame.y - frame.height) for frame in self.frames)
        wires = tuple(replace(wire, points=turned(wire.points)) for wire in self.wires)
        return Panel(self.steps, self.width, height, self.trunk, boxes, frames, wires, turned(self.forks))


def _levelled(block: Block, sizes: Sequence[_Sized]) -> list[_Sized]:
    """Boxes of one look and width in one row get one height."""
    keys = [(cell.row, cell.look, size.width) for cell, size in zip(block.cells, sizes, strict=True)]
    tallest: dict[tuple[int, str, float], float] = {}
    for key, size in zip(keys, sizes, strict=True):
        tallest[key] = max(size.height, tallest.get(key, 0.0))
    return [replace(size, height=tallest[key]) for key, size in zip(keys, sizes, strict=True)]


def _joining(block: Block) -> int:
    """The cell the residual goes into."""
    return next(i for i, cell in enumerate(block.cells) if cell.look in ("add", "merge"))


def _last(block: Block) -> int:
    """The cell the stream leaves from."""
    return max(range(len(block.cells)), key=lambda i: block.cells[i].row)


def layout(steps: LayerSteps) -> Panel:
    """The layer with every box, frame and line in its place."""
    builder = _Builder(steps)
    for block in steps.blocks:
        builder.block(block)
    builder.streams()
    return builder.panel()

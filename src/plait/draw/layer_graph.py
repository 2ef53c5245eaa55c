"""The steps of one layer as data: cells on a grid of lanes, blocks of cells bottom to top.

A lane is a column in which something flows upwards (queries, keys, values, a gate). A cell covers the lanes it reads
and stands in the first row above all that lies in them. So every link of the picture is a straight line inside one
lane, and no link can meet a box it does not belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from plait.blueprint.spec import Norm
from plait.blueprint.tensors import Tensor
from plait.draw.layer_words import say
from plait.draw.theme import Role
from plait.draw.words import WORDS, Lang, word

__all__ = ["Block", "Cell", "Grid", "Line", "Look", "number", "shape"]

Look = Literal["matrix", "norm", "step", "source", "add", "merge"]


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of text of a cell: a tensor with its role, or a fact."""

    text: str
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One box.

    lanes   first and stop, half-open
    row     counted from the bottom of the block
    look    `matrix` holds matrices; `norm`; `step` has no matrices; `source` comes from outside the layer;
            `add` joins the residual; `merge` joins it as one of several, inside the frame
    across  lanes of the streams that stay apart in it, first and stop each; empty: all that comes in joins
    fed     whether anything comes in from below
    keeps   it keeps something between tokens
    stack   drawn as a stack of boxes
    """

    key: str
    lanes: tuple[int, int]
    row: int
    title: str
    lines: tuple[Line, ...] = ()
    look: Look = "step"
    across: tuple[tuple[int, int], ...] = ()
    fed: bool = True
    keeps: bool = False
    stack: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Cells that stand together; blocks follow each other bottom to top along the stream.

    name        what the frame is called; empty: no frame
    parameters  elements of the tensors in it, buffers left out
    lanes       how many there are
    residual    the stream also goes around the block, to its last cell
    wide        its one cell covers the whole layer, with the rails beside it (alternating updates)
    """

    key: str
    name: str
    hue: Role | None
    parameters: int
    lanes: int
    cells: tuple[Cell, ...]
    residual: bool = False
    wide: bool = False


def number(value: float) -> str:
    """A number of the blueprint: whole ones with thousands set apart, others to five digits, `1e-6`."""
    if abs(value) < 10**15 and float(value).is_integer():
        return f"{int(value):,}"
    text = f"{value:.5g}"
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else text


def shape(sizes: Iterable[int]) -> str:
    """`[out × in]`, held together by no-break spaces."""
    return "[" + "\u00a0×\u00a0".join(str(n) for n in sizes) + "]"


class Grid:
    """Collects the cells of one block and takes the tensors they show out of those of the layer."""

    def __init__(self, prefix: str, tensors: Mapping[str, Tensor], lang: Lang) -> None:
        """`tensors`: of the whole layer by role; `prefix`: what their roles start with."""
        self.lang: Lang = lang
        self.taken: list[Tensor] = []
        self._prefix = prefix
        self._tensors = tensors
        self._cells: list[Cell] = []
        self._next: dict[int, int] = {}

    def say(self, key: str, /, **values: object) -> str:
        """A text in the language of the picture."""
        return say(key, self.lang, **values)

    def kind(self, role: Role) -> str:
        """What the kind of a mixer or a feed-forward is called."""
        return word(role, self.lang)

    def activation(self, name: str) -> str:
        """An activation as people write it; one there is no word for stands as the model names it."""
        return word(f"act_{name}", self.lang) if f"act_{name}" in WORDS else name

    def fact(self, key: str, /, **values: object) -> Line:
        """A text as a line of a cell."""
        return Line(self.say(key, **values))

    def tensors(self, **roles: str) -> tuple[Line, ...]:
        """Lines of those of the tensors that the layer has; label `_` stands for no label."""
        lines = []
        for label, role in roles.items():
            tensor = self._tensors.get(f"{self._prefix}.{role}")
            if tensor is not None:
                self.taken.append(tensor)
                name = "" if label == "_" else self.say(f"tensor_{label}") + "\u00a0"
                lines.append(Line(name + shape(tensor.shape), tensor.role))
        return tuple(lines)

    def put(
        self,
        key: str,
        first: int,
        stop: int,
        title: str,
        *lines: Line,
        look: Look = "step",
        across: tuple[int, ...] = (),
        fed: bool = True,
        keeps: bool = False,
        stack: bool = False,
        row: int = 0,
    ) -> int:
        """Add a cell in the first free row of its lanes, `row` at the lowest, and give that row.

        across  first lanes of the streams that stay apart in it
        """
        row = max([row, *(self._next.get(lane, 0) for lane in range(first, stop))])
        for lane in range(first, stop):
            self._next[lane] = row + 1
        streams = tuple(pairwise((*across, stop)))
        self._cells.append(Cell(key, (first, stop), row, title, lines, look, streams, fed, keeps, stack))
        return row

    def norm(self, key: str, first: int, stop: int, norm: Norm, role: str, *facts: Line, row: int = 0) -> None:
        """A norm whose weight and bias have the roles `role` and `role_bias`; x is what comes in."""
        title = self.say("rms_norm" if norm.kind == "rms" else "layer_norm")
        self.put(key, first, stop, title, *self.norm_lines(norm, role), *facts, look="norm", row=row)

    def norm_lines(self, norm: Norm, role: str) -> tuple[Line, ...]:
        """Tensors, formula and eps of a norm."""
        tensors = self.tensors(w=role, b=f"{role}_bias")
        return (*tensors, Line(self._formula(norm)), Line(f"eps\u00a0{number(norm.eps)}"))

    def _formula(self, norm: Norm) -> str:
        core = "x\u00a0/\u00a0rms(x)" if norm.kind == "rms" else "(x\u00a0−\u00a0mean)\u00a0/\u00a0std"
        if norm.weight:
            weight = f"({number(norm.offset)}\u00a0+\u00a0w)" if norm.offset else "w"
            core += f"\u00a0×\u00a0{weight}"
        return core + ("\u00a0+\u00a0b" if norm.bias else "")

    def add(self, lanes: int, title: str = "+") -> None:
        """The cell that adds the residual to what came out of the block."""
        self.put("add", 0, lanes, title, look="add")

    def block(
        self, key: str, name: str, hue: Role | None, lanes: int, *, residual: bool = False, wide: bool = False
    ) -> Block:
        """What was collected."""
        parameters = sum(tensor.elements for tensor in self.taken if not tensor.buffer)
        return Block(key, name, hue, parameters, lanes, tuple(self._cells), residual, wide)

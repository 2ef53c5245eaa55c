"""Steps become operations of native programs, where they can.

A `Lowering` goes through a plan once. Each step is asked to add its operations (`Step.lower`); one that says no stays
in Python, and the operations before and after it are programs of their own. Registers are places in buffers, matrices
of one row for each token; a register that a Python step wrote is read as the tensor it is. Buffers lie in slots of a
scratch area, and a slot serves one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.runtime.ops.linear import Linear, Prepares
from plait.runtime.ops.rope import RopeTable
from plait.runtime.slabs import SlabPool
from plait.runtime.steps.call import Step

if TYPE_CHECKING:
    from plait.runtime._native import Prepared, Program

__all__ = ["Buffer", "Lowering", "NativePart", "Output", "Place"]

# Registers of a program's own, which no Python step sees, begin with this.
_HIDDEN: Final = "_"


@dataclass(frozen=True, slots=True)
class Place:
    """Columns [column, column + width) of a buffer, or of a tensor of the call where `buffer` is negative.

    width  None: a tensor whose width is not known before the call
    heads  Python sees [rows, heads, width / heads], None: [rows, width]
    """

    buffer: int
    column: int
    width: int | None
    heads: int | None = None

    @property
    def at(self) -> tuple[int, int]:
        """As the native part takes it."""
        return self.buffer, self.column

    def part(self, start: int, width: int, heads: int | None = None) -> Place:
        """Columns of this place, from its column `start` on."""
        return Place(self.buffer, self.column + start, width, heads)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A matrix [rows, width] that begins where its slot does."""

    slot: int
    width: int


@dataclass(frozen=True, slots=True)
class Output:
    """A register that a program leaves for the steps after it."""

    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class NativePart:
    """Steps in a row as one program.

    inputs   registers it takes as tensors, in the order of the program's tensors
    outputs  registers it binds
    layers   of each operation that stores rows the layer, by its place in the program
    """

    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    layers: dict[int, int]


class Lowering:
    """What steps are given to add their operations to.

    make     begins a program
    pool     of the sessions' slabs and values
    buffers  of all programs
    slots    elements a row of each, those of its widest buffer
    tables   rotations, in the order the programs count them in
    parts    the plan: programs, and steps that stay in Python
    """

    def __init__(self, make: Callable[[], Program], pool: SlabPool, hidden: int) -> None:
        self._make = make
        self.pool = pool
        self.buffers: list[Buffer] = []
        self.slots: list[int] = []
        self.tables: list[RopeTable] = []
        self.parts: list[NativePart | Step] = []
        self._hidden = hidden
        self._free: list[int] = []
        self._places: dict[str, Place] = {}
        self._begin()

    def _begin(self) -> None:
        """An empty program: it knows no register yet."""
        self.program = self._make()
        self._inputs: list[str] = []
        self._bound: dict[str, Place] = {}
        self._turned: dict[int, tuple[Place, Place]] = {}
        self._layers: dict[int, int] = {}

    def take(self, steps: Sequence[Step]) -> None:
        """All steps of a plan, in order."""
        for step in steps:
            # Whatever can be called is a step.
            if not (isinstance(step, Step) and step.lower(self)):
                self._end()
                self.parts.append(step)
        self._end()

    def _end(self) -> None:
        if self.program.operations:
            shown = tuple(Output(name, p) for name, p in self._bound.items() if not name.startswith(_HIDDEN))
            self.parts.append(NativePart(self.program, tuple(self._inputs), shown, self._layers))
        self._begin()

    def read(self, name: str) -> Place:
        """Where a register stands."""
        found = self._bound.get(name)
        if found is None:
            if name not in self._inputs:
                self._inputs.append(name)
            found = Place(-1 - self._inputs.index(name), 0, self.width_of(name))
        return found

    def width_of(self, name: str) -> int | None:
        """The width of a register, None where it is not known before the call."""
        found = self._bound.get(name)
        if found is not None:
            return found.width
        return self._hidden if name == "h" else None

    def known(self, name: str) -> Place | None:
        """Where a register stands if this program wrote it, None: a tensor of the call."""
        return self._bound.get(name)

    def write(self, name: str, width: int, heads: int | None = None) -> Place:
        """A new place for a register. Never one that an operation may still read by a name."""
        buffer = Buffer(self._slot(width), width)
        if buffer not in self.buffers:
            self.buffers.append(buffer)
        return self.bind(name, Place(self.buffers.index(buffer), 0, width, heads))

    def _slot(self, width: int) -> int:
        """A free slot for rows of `width`: the smallest that is wide enough, else the widest, which grows."""
        if not self._free:
            self.slots.append(width)
            return len(self.slots) - 1
        enough = [slot for slot in self._free if self.slots[slot] >= width]
        best = min(enough, key=self.slots.__getitem__) if enough else max(self._free, key=self.slots.__getitem__)
        self._free.remove(best)
        self.slots[best] = max(self.slots[best], width)
        return best

    def bind(self, name: str, place: Place) -> Place:
        """A register stands at a place of another one."""
        self.drop(name)
        self._places[name] = self._bound[name] = place
        return place

    def drop(self, *names: str) -> None:
        """Nobody reads what these registers hold; they are written again before anybody asks."""
        for name in names:
            held = self._places.pop(name, None)
            self._bound.pop(name, None)
            if held is not None and all(place.buffer != held.buffer for place in self._places.values()):
                self._free.append(self.buffers[held.buffer].slot)

    def prepared(self, linear: Linear, activation: str | None = None) -> Prepared | None:
        """A product as programs call it, None: this form stays in Python. `activation`: of a gated product."""
        return linear.prepared(activation) if isinstance(linear, Prepares) else None

    def turns(self, rope: Rope, table: RopeTable) -> tuple[Place, Place]:
        """Cosines and sines [rows, pairs] of the call's tokens, fetched once for a program."""
        number = next((i for i, known in enumerate(self.tables) if known is table), None)
        if number is None:
            number = len(self.tables)
            self.tables.append(table)
        found = self._turned.get(number)
        if found is None:
            made = [self.write(f"{_HIDDEN}{which}{number}", rope.pairs) for which in ("cosine", "sine")]
            found = self._turned[number] = made[0], made[1]
            self.program.turns(found[0].at, found[1].at, number, rope.pairs)
        return found

    def turn(
        self,
        x: Place,
        apart: int,
        y: Place,
        rope: Rope,
        table: RopeTable,
        heads: int,
        dim: int,
        weight: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        """y [rows, heads, dim] = heads of x, `apart` columns from each other, turned.

        weight  [heads, dim] of a norm before that, None: there is none
        """
        cosine, sine = self.turns(rope, table)
        adjacent = rope.pairing == "adjacent"
        self.program.heads(
            x.at,
            apart,
            y.at,
            cosine.at,
            sine.at,
            self.address(weight),
            eps,
            rope.pairs,
            rope.start,
            rope.distance,
            adjacent,
            heads,
            dim,
        )

    def value_at(self, value_class: int, layer: int) -> int:
        """Bytes from the beginning of a class's value to a layer's."""
        return self.pool.values[value_class].places[layer][0][0] * self.pool.value_dtype.itemsize

    def stores(self, layer: int) -> None:
        """The operation that is added next stores rows of a layer."""
        self._layers[self.program.operations] = layer

    def address(self, vector: Tensor | None) -> int:
        """Where a float32 vector lies, 0 where there is none. The step keeps it.

        ValueError: elements of another type, or not side by side.
        """
        if vector is None:
            return 0
        if vector.dtype != torch.float32 or not vector.is_contiguous():
            raise ValueError(f"a native program reads float32 vectors, this is {vector.dtype} {vector.stride()}")
        return vector.data_ptr()

"""One ragged call, and what a step of the plan is.

Steps read and write named registers of one call: `h` the residual stream, `x` the input of a part, `qk` `v` `g` its
projections (queries and keys side by side), `y` its output. The tokens of all sessions of a call lie end to end; only
the steps of mixers know sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.runtime.ops.attention_native import SlabTable
from plait.runtime.ops.rope import RopeTable
from plait.runtime.session import Span

if TYPE_CHECKING:
    from plait.runtime.lower import Lowering

__all__ = ["Call", "EndLayer", "Step"]


@dataclass(slots=True)
class Call:
    """One ragged call: spans end to end, the registers.

    trace  where each layer's output is recorded, None: nowhere
    held   cosines and sines that native programs of the call read
    """

    spans: tuple[Span, ...]
    tokens: Tensor
    trace: list[Tensor] | None = None
    registers: dict[str, Tensor] = field(default_factory=dict)
    rotations: dict[Rope, tuple[Tensor, Tensor]] = field(default_factory=dict)
    held: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    tables: dict[int, SlabTable] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Tokens of the call."""
        return self.tokens.shape[0]

    @property
    def last(self) -> int:
        """The highest position."""
        return max(span.session.position + len(span.tokens) for span in self.spans) - 1

    @property
    def positions(self) -> Tensor:
        """Absolute positions of all rows [rows]."""
        starts = [(span.session.position, len(span.tokens)) for span in self.spans]
        return torch.tensor([at for start, count in starts for at in range(start, start + count)]).to(self.tokens)

    def rotation(self, rope: Rope, table: RopeTable) -> tuple[Tensor, Tensor]:
        """cos and sin of this call's rows, made once for all layers of a kind."""
        found = self.rotations.get(rope)
        if found is None:
            found = self.rotations[rope] = table(self.positions, self.last)
        return found

    def table(self, slab_class: int) -> SlabTable:
        """Where the sessions' slabs of a class lie, made once for all layers."""
        found = self.tables.get(slab_class)
        if found is None:
            runs = [(span, span.session.runs[slab_class]) for span in self.spans]
            found = self.tables[slab_class] = SlabTable.of(
                (len(span.tokens), span.session.position, run.first, [slab.address for slab in run.slabs])
                for span, run in runs
            )
        return found


class Step:
    """One step of the plan."""

    def __call__(self, call: Call) -> None:
        raise AssertionError("steps define what they do")

    def lower(self, plan: Lowering) -> bool:
        """Add the operations that do the same to a native program. False, and nothing is added: it stays in Python."""
        return False


@dataclass(frozen=True, slots=True)
class EndLayer(Step):
    """A layer ends: its output is recorded where the call has a trace.

    source  `h` [n, hidden], or `streams` [streams, n, hidden] where a layer has several
    """

    source: str

    def __call__(self, call: Call) -> None:
        if call.trace is not None:
            call.trace.append(call.registers[self.source].clone())

    def lower(self, plan: Lowering) -> bool:
        """A call with a trace runs in Python."""
        return True

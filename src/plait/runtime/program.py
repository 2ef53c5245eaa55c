"""A step plan with its native programs: what runs in Python and what in one native call, over one scratch area."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from plait.runtime.kernels import native, takes
from plait.runtime.lower import Buffer, Lowering, NativePart, Output
from plait.runtime.rooms import on_large_pages
from plait.runtime.slabs import SlabPool
from plait.runtime.steps.call import Call, Step
from plait.runtime.steps.rows import refusal

if TYPE_CHECKING:
    from plait.runtime._native import Native, Ragged

__all__ = ["Plan", "plan_for"]

# Buffers begin at whole vectors.
_LANES: Final = 16
# Scratch is made for calls of at least so many rows.
_LEAST_ROWS: Final = 32
# Registers the head reads.
_LAST: Final = ("h", "streams")


def plan_for(steps: Sequence[Step], pool: SlabPool, compute: torch.dtype, hidden: int) -> Plan | None:
    """The plan with programs, None: the kernels do not serve this machine, device or type."""
    kernels = native()
    if kernels is None or pool.device.type != "cpu" or compute != torch.float32:
        return None
    return Plan(steps, kernels, pool, hidden)


class Plan:
    """Steps, those that can lowered into programs. Calls may come from several threads: each has scratch of its own."""

    def __init__(self, steps: Sequence[Step], kernels: Native, pool: SlabPool, hidden: int) -> None:
        lowering = Lowering(kernels.program, pool, hidden)
        lowering.take(steps)
        # The programs hold addresses in the steps' tensors.
        self.steps = steps
        self.parts = tuple(_for_the_end(lowering.parts))
        self._pool = pool
        self._slots = tuple(lowering.slots)
        self._buffers = tuple(lowering.buffers)
        self._tables = tuple(lowering.tables)
        self._scratch: list[Tensor] = []

    def scratch_elements(self, rows: int) -> int:
        """Of the buffers of a call."""
        return sum(_whole(rows * width) for width in self._slots)

    def __call__(self, call: Call) -> Scratch:
        """Run the steps. Registers may lie in the scratch: who has read them gives it back."""
        rows = call.rows
        scratch = Scratch(self, self._take(rows), rows, self._slots, self._buffers)
        ragged = self._ragged(call)
        for part in self.parts:
            if isinstance(part, NativePart):
                scratch.run(part, call, ragged)
            else:
                part(call)
        return scratch

    @property
    def dtype(self) -> torch.dtype:
        """Of the sessions' slabs."""
        return self._pool.dtype

    def give_back(self, area: Tensor) -> None:
        """Nobody reads the registers in this scratch any more."""
        self._scratch.append(area)

    def _take(self, rows: int) -> Tensor:
        """Scratch for a call: what the last one left, where it is large enough."""
        needed = self.scratch_elements(rows)
        try:
            found = self._scratch.pop()
        except IndexError:
            found = None
        if found is not None and found.numel() >= needed:
            return found
        return on_large_pages(torch.empty(max(needed, self.scratch_elements(_LEAST_ROWS))))

    def _ragged(self, call: Call) -> Ragged:
        """What programs know of the call's sessions."""
        from plait.runtime._native import Ragged

        made = Ragged()
        for span in call.spans:
            made.add_part(span.session.position, len(span.tokens))
        for index in range(len(self._pool.classes)):
            runs = [span.session.runs[index] for span in call.spans]
            made.add_slabs([(run.first, [slab.address for slab in run.slabs]) for run in runs])
        for index in range(len(self._pool.values)):
            changes = [span.session.values[index] for span in call.spans]
            made.add_values([change.addresses for change in changes])
        # The call holds the tables: another thread may replace them meanwhile.
        call.held = [table.reach(call.last) for table in self._tables]
        for cosine, sine in call.held:
            made.add_turns(cosine.data_ptr(), sine.data_ptr())
        return made


class Scratch:
    """The buffers of one call."""

    __slots__ = ("_area", "_buffers", "_own", "_plan", "_rows", "_starts")

    def __init__(
        self, plan: Plan, area: Tensor, rows: int, slots: tuple[int, ...], buffers: tuple[Buffer, ...]
    ) -> None:
        self._plan = plan
        self._area = area
        self._rows = rows
        self._buffers = buffers
        self._starts = list(accumulate((_whole(rows * width) for width in slots), initial=0))
        at = area.data_ptr()
        self._own = [(at + 4 * self._starts[buffer.slot], buffer.width) for buffer in buffers]

    def give_back(self) -> None:
        """Nobody reads the call's registers any more: the next call may have the scratch."""
        self._plan.give_back(self._area)

    def run(self, part: NativePart, call: Call, ragged: Ragged) -> None:
        """One program. PlaitError: keys or values are beyond what the slabs' type holds."""
        tensors = [_flat(call.registers[name]) for name in part.inputs]
        places = [(tensor.data_ptr(), tensor.stride(0)) for tensor in tensors]
        failed = part.program.run(ragged, self._rows, self._own, places)
        if failed >= 0:
            raise refusal(part.layers[failed], self._plan.dtype)
        for output in part.outputs:
            call.registers[output.name] = self._view(output)

    def _view(self, output: Output) -> Tensor:
        """A register as Python's steps see it."""
        place = output.place
        buffer, width = self._buffers[place.buffer], place.width
        stride, at = buffer.width, self._starts[buffer.slot] + place.column
        assert width is not None
        if place.heads is None:
            return self._area.as_strided((self._rows, width), (stride, 1), at)
        dim = width // place.heads
        return self._area.as_strided((self._rows, place.heads, dim), (stride, dim, 1), at)


def _for_the_end(parts: list[NativePart | Step]) -> list[NativePart | Step]:
    """After the last part nobody reads but the head: of what a program leaves, the stream alone is shown."""
    if not parts or not isinstance(parts[-1], NativePart):
        return parts
    last = parts[-1]
    shown = tuple(output for output in last.outputs if output.name in _LAST)
    return [*parts[:-1], replace(last, outputs=shown)]


def _flat(register: Tensor) -> Tensor:
    """A register as programs read it: [rows, width], itself where it is that already."""
    flat = register if register.dim() == 2 else register.flatten(1)
    return flat if takes(flat) else flat.to(torch.float32).contiguous()


def _whole(elements: int) -> int:
    return -(-elements // _LANES) * _LANES

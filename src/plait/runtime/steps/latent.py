"""The step of latent attention: latents and rotated keys are stored, and attended to as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from plait.blueprint.spec import Rope
from plait.runtime.ops.latent import PerHead
from plait.runtime.ops.rope import RopeTable, rotate
from plait.runtime.steps.call import Call, Step
from plait.runtime.steps.rows import Held, attend, store_rows

__all__ = ["AttendLatent"]


@dataclass(frozen=True, slots=True)
class AttendLatent(Step):
    """y = latent attention, absorbed, over the session's rows and the call's own, which are stored first.

    Reads `q` [n, heads, nope_dim + rope_dim], `l` [n, kv_rank] (normalised) and `r` [n, rope_dim]. Latents and keys are
    rounded to the slabs' type before any query reads them. PlaitError: they do not fit into it.

    held        the rows that are stored and read
    scale       factor on the queries
    fold        [n, heads, nope_dim] -> [n, heads, kv_rank]: queries that meet the latents
    unfold      [n, heads, kv_rank] -> [n, heads, v_dim]: values of mixed latents
    chosen      register of the keys an indexer has chosen, None: all keys are attended to
    last        no later layer uses the choice
    one_by_one  see `ops.attention`
    """

    held: Held
    nope_dim: int
    rope: Rope
    table: RopeTable
    scale: float
    fold: PerHead
    unfold: PerHead
    chosen: str | None
    last: bool
    one_by_one: bool

    def __call__(self, call: Call) -> None:
        q = call.registers["q"]
        rotation = call.rotation(self.rope, self.table)
        rotated = rotate(q[..., self.nope_dim :].contiguous(), self.rope, *rotation)
        rows = (call.registers["l"][:, None], rotate(call.registers["r"][:, None], self.rope, *rotation))
        queries = (self.fold(q[..., : self.nope_dim]), rotated)
        mixed = torch.empty_like(queries[0])
        chosen = None if self.chosen is None else call.registers[self.chosen]
        store_rows(call, self.held, rows)
        attend(
            call,
            self.held,
            queries,
            mixed,
            keys=(0, 1),
            values=0,
            scale=self.scale,
            window=None,
            cap=None,
            chosen=chosen,
            one_by_one=self.one_by_one,
        )
        if self.chosen is not None and self.last:
            del call.registers[self.chosen]
        call.registers["y"] = self.unfold(mixed).flatten(1)

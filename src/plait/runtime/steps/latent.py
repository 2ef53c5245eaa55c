"""The step of latent attention: latents and rotated keys are stored, and attended to as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.runtime.ops.attention import attention
from plait.runtime.ops.latent import PerHead
from plait.runtime.ops.rope import RopeTable, rotate
from plait.runtime.session import Span
from plait.runtime.steps.attend import store_rows
from plait.runtime.steps.call import Call, Step

__all__ = ["AttendLatent"]


@dataclass(frozen=True, slots=True)
class AttendLatent(Step):
    """y = latent attention, absorbed, over the session's rows and the call's own, which are stored first.

    Reads `q` [n, heads, nope_dim + rope_dim], `l` [n, kv_rank] (normalised) and `r` [n, rope_dim]. Latents and keys are
    rounded to the slabs' type before any query reads them. PlaitError: they do not fit into float16.

    layer       whose rows are stored and read
    slab_class  where they lie
    scale       factor on the queries
    fold        [n, heads, nope_dim] -> [n, heads, kv_rank]: queries that meet the latents
    unfold      [n, heads, kv_rank] -> [n, heads, v_dim]: values of mixed latents
    chosen      register of the keys an indexer has chosen, None: all keys are attended to
    last        no later layer uses the choice
    one_by_one  see `ops.attention`
    """

    layer: int
    slab_class: int
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
        row = 0
        for span in call.spans:
            own = slice(row, row + len(span.tokens))
            run = span.session.runs[self.slab_class]
            store_rows(run, self.layer, span.session.position, (rows[0][own], rows[1][own]))
            self._one(span, (queries[0][own], queries[1][own]), None if chosen is None else chosen[own], mixed[own])
            row = own.stop
        if self.chosen is not None and self.last:
            del call.registers[self.chosen]
        call.registers["y"] = self.unfold(mixed).flatten(1)

    def _one(self, span: Span, queries: tuple[Tensor, Tensor], chosen: Tensor | None, out: Tensor) -> None:
        """Mixed latents of one session's new tokens, written to `out` [n, heads, kv_rank]."""
        views = [slab.views[self.layer] for slab in span.session.runs[self.slab_class].slabs]
        attention(
            queries,
            [(latents, keys, latents) for latents, keys in views],
            start=span.session.position,
            first_block=0,
            scale=self.scale,
            window=None,
            cap=None,
            chosen=chosen,
            out=out,
            one_by_one=self.one_by_one,
        )

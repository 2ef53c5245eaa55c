"""The step of latent attention: latents and rotated keys are stored, and attended to as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from plait.blueprint.spec import Rope
from plait.runtime.lower import Place
from plait.runtime.ops.attention_native import STORES
from plait.runtime.ops.heads import ready_heads
from plait.runtime.ops.latent import PerHead
from plait.runtime.ops.rope import RopeTable
from plait.runtime.steps.call import Call, Step
from plait.runtime.steps.rows import Held, attend, store_rows

if TYPE_CHECKING:
    from plait.runtime._native import Prepared
    from plait.runtime.lower import Lowering

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
        rotated = ready_heads(q[..., self.nope_dim :].contiguous(), None, 0.0, self.rope, *rotation)
        keys = ready_heads(call.registers["r"][:, None], None, 0.0, self.rope, *rotation)
        rows = (call.registers["l"][:, None], keys)
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

    def lower(self, plan: Lowering) -> bool:
        store = STORES.get(plan.pool.dtype)
        fold, unfold = (self._prepared(plan, each) for each in (self.fold, self.unfold))
        if self.chosen is not None or store is None or fold is None or unfold is None:
            return False
        latents, keys = self.held.places
        heads, rank, rope_dim, itemsize = len(fold), latents.dim, keys.dim, plan.pool.dtype.itemsize
        width = self.nope_dim + rope_dim
        q, latent, key = (plan.read(name) for name in ("q", "l", "r"))
        folded, rotated = plan.write("_folded", heads * rank), plan.write("_rotated", heads * rope_dim)
        own, mixed = plan.write("_own", rope_dim), plan.write("_mixed", heads * rank)
        plan.program.products(q.at, width, folded.at, fold)
        turned = Place(q.buffer, q.column + self.nope_dim, None)
        plan.turn(turned, width, rotated, self.rope, self.table, heads, rope_dim)
        plan.turn(key, rope_dim, own, self.rope, self.table, 1, rope_dim)
        plan.stores(self.held.layer)
        latents_at, keys_at = latents.start * itemsize, keys.start * itemsize
        plan.program.attend(
            [(latent.at, rank, latents_at), (own.at, rope_dim, keys_at)],
            [(folded.at, rank, latents_at), (rotated.at, rope_dim, keys_at)],
            mixed.at,
            self.held.slab_class,
            latents_at,
            heads,
            1,
            rank,
            0,
            self.scale,
            0.0,
            0,
            store,
            self.held.exact,
        )
        out = plan.write("y", heads * unfold[0].out)
        plan.program.products(mixed.at, rank, out.at, unfold)
        plan.drop("_folded", "_rotated", "_own", "_mixed")
        return True

    @staticmethod
    def _prepared(plan: Lowering, each: PerHead) -> list[Prepared] | None:
        made = [plan.prepared(product) for product in each.products]
        ready = [product for product in made if product is not None]
        return ready if len(ready) == len(made) else None

"""The step of attention where keys are values: one vector and the rotated dims of the key are stored of each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.runtime.ops.keys_are_values import Folding
from plait.runtime.ops.rope import RopeTable, rotate
from plait.runtime.steps.attend import HeadNorms
from plait.runtime.steps.call import Call, Step
from plait.runtime.steps.rows import Held, attend, store_rows

__all__ = ["AttendValues"]


@dataclass(frozen=True, slots=True)
class AttendValues(Step):
    """y = attention over the session's rows and the call's own, which are stored first.

    Reads `qk` [n, heads + kv_heads, dim], queries first; what stands for the keys makes the values. Both parts of a row
    are rounded to the slabs' type before any query reads them. PlaitError: they do not fit into it.

    held        the rows that are read: this layer's, which then stores them, or an earlier one's
    stores      the rows are this layer's
    norms       of the queries, with the scale of the scores, and the bare one of the values
    folding     of the layer whose rows are read
    v_scale     factor on the mixed values
    sinks, window, cap, one_by_one  see `ops.attention`
    """

    held: Held
    stores: bool
    heads: int
    rope: Rope | None
    table: RopeTable | None
    norms: HeadNorms
    folding: Folding
    v_scale: float
    sinks: Tensor | None
    window: int | None
    cap: float | None
    one_by_one: bool

    def __call__(self, call: Call) -> None:
        qk = self.norms(call.registers["qk"], self.heads)
        q, v = qk[:, : self.heads], qk[:, self.heads :]
        stored: tuple[Tensor, ...] = (v,)
        if self.rope is not None and self.table is not None:
            rotation = call.rotation(self.rope, self.table)
            q = rotate(q, self.rope, *rotation)
            if self.stores and self.folding.rope is not None:
                stored = (v, self.folding.rotated_keys(v, *rotation))
        queries = self.folding.queries(q)
        out = torch.empty_like(q)
        if self.stores:
            store_rows(call, self.held, stored)
        attend(
            call,
            self.held,
            queries,
            out,
            keys=self.folding.keys,
            values=0,
            scale=1.0,
            window=self.window,
            cap=self.cap,
            sinks=self.sinks,
            one_by_one=self.one_by_one,
        )
        y = out.flatten(1)
        call.registers["y"] = y if self.v_scale == 1.0 else y * self.v_scale

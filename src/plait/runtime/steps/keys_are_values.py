"""The step of attention where keys are values: one vector and the rotated dims of the key are stored of each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.blueprint.state import SLAB
from plait.runtime.ops.attention import attention
from plait.runtime.ops.keys_are_values import Folding
from plait.runtime.ops.rope import RopeTable, rotate
from plait.runtime.session import Span
from plait.runtime.steps.attend import HeadNorms, store_rows
from plait.runtime.steps.call import Call, Step

__all__ = ["AttendValues"]


@dataclass(frozen=True, slots=True)
class AttendValues(Step):
    """y = attention over the session's rows and the call's own, which are stored first.

    Reads `qk` [n, heads + kv_heads, dim], queries first; what stands for the keys makes the values. Both parts of a row
    are rounded to the slabs' type before any query reads them. PlaitError: they do not fit into float16.

    layer       whose rows are read: this layer's, which then stores them, or an earlier one's
    stores      the rows are this layer's
    slab_class  where they lie
    norms       of the queries, with the scale of the scores, and the bare one of the values
    folding     of the layer whose rows are read
    v_scale     factor on the mixed values
    sinks, window, cap, one_by_one  see `ops.attention`
    """

    layer: int
    stores: bool
    slab_class: int
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
        row = 0
        for span in call.spans:
            rows = slice(row, row + len(span.tokens))
            if self.stores:
                run = span.session.runs[self.slab_class]
                store_rows(run, self.layer, span.session.position, tuple(part[rows] for part in stored))
            self._one(span, tuple(part[rows] for part in queries), out[rows])
            row = rows.stop
        y = out.flatten(1)
        call.registers["y"] = y if self.v_scale == 1.0 else y * self.v_scale

    def _one(self, span: Span, queries: tuple[Tensor, ...], out: Tensor) -> None:
        """Mixed values of one session's new tokens, written to `out` [n, heads, dim]."""
        run = span.session.runs[self.slab_class]
        start = span.session.position
        low = run.first if self.window is None else max(run.first, max(0, start - self.window + 1) // SLAB)
        attention(
            queries,
            [self.folding.blocks(slab.views[self.layer]) for slab in run.slabs[low - run.first :]],
            start=start,
            first_block=low,
            scale=1.0,
            window=self.window,
            cap=self.cap,
            sinks=self.sinks,
            out=out,
            one_by_one=self.one_by_one,
        )

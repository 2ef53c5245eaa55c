"""The step of an indexer: its keys are stored, and the keys that each token attends to are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.blueprint.state import SLAB
from plait.runtime.ops.indexer import choose
from plait.runtime.ops.rope import RopeTable, rotate
from plait.runtime.session import Span
from plait.runtime.steps.call import Call, Step
from plait.runtime.steps.rows import Held, blocks_of, store_rows

__all__ = ["Choose"]


@dataclass(frozen=True, slots=True)
class Choose(Step):
    """target = the keys chosen for each row of the call: bool [rows, positions], of all sequences side by side.

    Reads `iq` [n, heads, dim], `ik` [n, dim] (normalised) and `iw` [n, heads]. Keys are rounded to the slabs' type
    before any query meets them. Positions are those of the longest sequence, in whole slabs.

    held        the keys
    factor      on the weights of the heads: the scalings of scores and heads in one
    one_by_one  see `ops.indexer`
    """

    held: Held
    target: str
    top_k: int
    rope: Rope
    table: RopeTable
    factor: float
    one_by_one: bool

    def __call__(self, call: Call) -> None:
        rotation = call.rotation(self.rope, self.table)
        q = rotate(call.registers["iq"], self.rope, *rotation)
        k = rotate(call.registers["ik"][:, None], self.rope, *rotation)
        w = call.registers["iw"] * self.factor
        width = -(-(call.last + 1) // SLAB) * SLAB
        chosen = torch.zeros(q.shape[0], width, dtype=torch.bool, device=q.device)
        store_rows(call, self.held, (k,))
        row = 0
        for span in call.spans:
            rows = slice(row, row + len(span.tokens))
            self._one(span, q[rows], w[rows], chosen[rows])
            row = rows.stop
        call.registers[self.target] = chosen

    def _one(self, span: Span, q: Tensor, w: Tensor, out: Tensor) -> None:
        """The choice of one session's new tokens, written to `out`."""
        blocks = [keys for (keys,) in blocks_of(span, self.held, 0, q.dtype)]
        start = span.session.position
        choose(q, w, blocks, start=start, top_k=self.top_k, out=out, one_by_one=self.one_by_one)

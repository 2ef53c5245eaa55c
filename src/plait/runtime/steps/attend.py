"""The steps of softmax attention: rows are stored, scored and mixed; heads are gated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.runtime.lower import Place
from plait.runtime.ops.activation import NATIVE_ACTIVATIONS
from plait.runtime.ops.attention_native import STORES
from plait.runtime.ops.heads import ready_heads
from plait.runtime.ops.joins import gate_heads
from plait.runtime.ops.norm import rms_norm
from plait.runtime.ops.rope import RopeTable
from plait.runtime.steps.call import Call, Step
from plait.runtime.steps.rows import Held, attend, store_rows

if TYPE_CHECKING:
    from plait.runtime.lower import Lowering

__all__ = ["Attend", "GateHeads", "HeadNorms"]


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms of queries and keys.

    weight  [heads + kv_heads, dim], or [heads, dim] where the keys are another layer's; those of queries hold the scale
    over    each head by itself, or all heads of the queries (of the keys) at once
    """

    weight: Tensor
    eps: float
    over: Literal["head", "all"]

    def __call__(self, qk: Tensor, heads: int) -> Tensor:
        """qk [n, heads + kv_heads, dim], queries first, with both parts normalised."""
        if self.over == "head":
            return rms_norm(qk, self.weight, self.eps)
        parts = zip(qk.tensor_split((heads,), 1), self.weight.tensor_split((heads,)), strict=True)
        return torch.cat([rms_norm(x.flatten(1), w.flatten(), self.eps).view_as(x) for x, w in parts if w.numel()], 1)


@dataclass(frozen=True, slots=True)
class Attend(Step):
    """y = attention of the queries over the session's rows and the call's own, which are stored first.

    K and V are rounded to the slabs' type before any query reads them, within the call too. PlaitError: they do not fit
    into it.

    held        the rows that are read: this layer's, which then stores them, or an earlier one's
    stores      the rows are this layer's
    heads       query heads; in `qk` [n, heads + kv_heads, dim] they come first
    scale       factor on the queries where there is no norm
    v_eps       of the weightless norm of the values, None: they have none
    v_scale     factor on the values, before they are stored
    sinks       [heads]: scores that take part in the softmax and add no value
    one_by_one  see `ops.attention`
    """

    held: Held
    stores: bool
    heads: int
    rope: Rope | None
    table: RopeTable | None
    norms: HeadNorms | None
    scale: float
    v_eps: float | None
    v_scale: float
    sinks: Tensor | None
    window: int | None
    cap: float | None
    one_by_one: bool

    def __call__(self, call: Call) -> None:
        qk = call.registers["qk"]
        norms = self.norms
        if norms is not None and (norms.over == "all" or self.rope is None):
            qk, norms = norms(qk, self.heads), None
        if self.rope is not None and self.table is not None:
            weight, eps = (None, 0.0) if norms is None else (norms.weight, norms.eps)
            qk = ready_heads(qk, weight, eps, self.rope, *call.rotation(self.rope, self.table))
        q, k = qk[:, : self.heads], qk[:, self.heads :]
        if self.stores:
            store_rows(call, self.held, (k, self._values(call)))
        out = torch.empty(q.shape[0], self.heads, self.held.places[1].dim, dtype=q.dtype, device=q.device)
        attend(
            call,
            self.held,
            (q,),
            out,
            keys=(0,),
            values=1,
            scale=self.scale,
            window=self.window,
            cap=self.cap,
            sinks=self.sinks,
            one_by_one=self.one_by_one,
        )
        call.registers["y"] = out.flatten(1)

    def lower(self, plan: Lowering) -> bool:
        store = STORES.get(plan.pool.dtype)
        keys, values = self.held.places
        if store is None:
            return False
        dim, v_dim, itemsize = keys.dim, values.dim, plan.pool.dtype.itemsize
        queries, own = self._ready(plan, dim, keys.heads)
        v = self._lowered_values(plan, keys.heads, v_dim) if self.stores else own
        out = plan.write("y", self.heads * v_dim)
        if self.stores:
            plan.stores(self.held.layer)
        keys_at, values_at = keys.start * itemsize, values.start * itemsize
        plan.program.attend(
            [(own.at, dim, keys_at), (v.at, v_dim, values_at)] if self.stores else [],
            [(queries.at, dim, keys_at)],
            out.at,
            self.held.slab_class,
            values_at,
            self.heads,
            keys.heads,
            v_dim,
            0 if self.window is None else self.window,
            self.scale,
            0.0 if self.cap is None else self.cap,
            plan.address(self.sinks),
            store,
            self.held.exact,
        )
        plan.drop("_heads", "_heads0", "_heads1", "_values")
        return True

    def _ready(self, plan: Lowering, dim: int, kv_heads: int) -> tuple[Place, Place]:
        """Queries, and keys where they are this layer's, normalised and turned."""
        qk, heads = plan.read("qk"), self.heads + (kv_heads if self.stores else 0)
        parts = [(qk, 0, self.heads), (qk, self.heads, heads)] if self.stores else [(qk, 0, heads)]
        norms = self.norms
        if norms is not None and norms.over == "all":
            made = [plan.write(f"_heads{i}", (stop - start) * dim) for i, (_, start, stop) in enumerate(parts)]
            for place, (_, start, stop) in zip(made, parts, strict=True):
                source = qk.part(start * dim, (stop - start) * dim)
                weight = plan.address(norms.weight[start:stop])
                plan.program.norm(source.at, place.at, weight, norms.eps, 1, (stop - start) * dim)
            for place, (_, start, stop) in zip(made, parts, strict=True):
                self._turn(plan, place, place, None, stop - start, dim)
            return made[0], made[-1]
        if self.rope is None and norms is None:
            ready = qk
        else:
            ready = plan.write("_heads", heads * dim)
            if self.rope is None and norms is not None:
                plan.program.norm(qk.at, ready.at, plan.address(norms.weight), norms.eps, heads, dim)
            else:
                self._turn(plan, qk, ready, norms, heads, dim)
        return ready.part(0, self.heads * dim), ready.part(self.heads * dim if self.stores else 0, kv_heads * dim)

    def _turn(self, plan: Lowering, x: Place, y: Place, norms: HeadNorms | None, heads: int, dim: int) -> None:
        """y = heads of x, normalised where there are norms, and turned."""
        if self.rope is None or self.table is None:
            return
        weight, eps = (None, 0.0) if norms is None else (norms.weight, norms.eps)
        plan.turn(x, dim, y, self.rope, self.table, heads, dim, weight, eps)

    def _lowered_values(self, plan: Lowering, kv_heads: int, v_dim: int) -> Place:
        v, width = plan.read("v"), kv_heads * v_dim
        if self.v_eps is None and self.v_scale == 1.0:
            return v
        made = plan.write("_values", width)
        if self.v_eps is not None:
            plan.program.norm(v.at, made.at, 0, self.v_eps, kv_heads, v_dim)
        else:
            plan.program.copy(v.at, made.at, width)
        if self.v_scale != 1.0:
            plan.program.scale(made.at, self.v_scale, width)
        return made

    def _values(self, call: Call) -> Tensor:
        v = call.registers["v"]
        if self.v_eps is not None:
            v = rms_norm(v, None, self.v_eps)
        return v if self.v_scale == 1.0 else v * self.v_scale


@dataclass(frozen=True, slots=True)
class GateHeads(Step):
    """y = y * activation(g), g one number per head or one per element."""

    activation: str
    heads: int

    def __call__(self, call: Call) -> None:
        y = call.registers["y"]
        heads = y.view(y.shape[0], self.heads, -1)
        call.registers["y"] = gate_heads(heads, call.registers["g"], self.activation, None)

    def lower(self, plan: Lowering) -> bool:
        width, gates = plan.width_of("y"), plan.width_of("g")
        if width is None or gates not in (width, self.heads) or self.activation not in NATIVE_ACTIVATIONS:
            return False
        y, g = plan.read("y"), plan.read("g")
        number = NATIVE_ACTIVATIONS[self.activation]
        out = plan.write("y", width)
        plan.program.gate(
            y.at, g.at, out.at, number, gates == self.heads, False, 0, 0.0, self.heads, width // self.heads
        )
        return True

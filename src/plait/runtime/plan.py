"""The step plan: a blueprint and its weights as a flat list of steps, built once.

Steps read and write named registers of one call: `h` the residual stream, `x` the input of a part, `qk` `v` `g` its
projections (queries and keys side by side), `y` its output. The tokens of all sessions of a call lie end to end; only
`Attend` knows sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.blueprint.state import SLAB
from plait.errors import PlaitError, fault
from plait.runtime.ops.activation import activate, softcap
from plait.runtime.ops.attention import attention
from plait.runtime.ops.linear import Linear
from plait.runtime.ops.norm import rms_norm
from plait.runtime.ops.rope import RopeTable, rotate
from plait.runtime.packed import Packed
from plait.runtime.session import Span

__all__ = ["AddTo", "Attend", "Call", "Embed", "Feed", "GateHeads", "Logits", "Normalise", "Project", "Step"]


@dataclass(slots=True)
class Call:
    """One ragged call: spans end to end, absolute positions of all rows, the registers."""

    spans: tuple[Span, ...]
    tokens: Tensor
    positions: Tensor
    last: int
    registers: dict[str, Tensor] = field(default_factory=dict)
    rotations: dict[Rope, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def rotation(self, rope: Rope, table: RopeTable) -> tuple[Tensor, Tensor]:
        """cos and sin of this call's rows, made once for all layers of a kind."""
        found = self.rotations.get(rope)
        if found is None:
            found = self.rotations[rope] = table(self.positions, self.last)
        return found


class Step:
    """One step of the plan."""

    def __call__(self, call: Call) -> None:
        raise AssertionError("steps define what they do")


@dataclass(frozen=True, slots=True)
class Embed(Step):
    """h = rows of the embedding * scale."""

    weight: Packed
    scale: float
    stored: torch.dtype
    compute: torch.dtype

    def __call__(self, call: Call) -> None:
        rows = self.weight.rows(call.tokens, self.stored).to(self.compute)
        call.registers["h"] = rows * self.scale if self.scale != 1.0 else rows


@dataclass(frozen=True, slots=True)
class Normalise(Step):
    """target = norm(source)."""

    source: str
    target: str
    weight: Tensor | None
    eps: float

    def __call__(self, call: Call) -> None:
        call.registers[self.target] = rms_norm(call.registers[self.source], self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Project(Step):
    """Products of `source` with one fused weight; its columns go to `targets` as [n, heads, dim] or [n, width].

    targets  (register, columns, heads or None)
    """

    source: str
    linear: Linear
    bias: Tensor | None
    targets: tuple[tuple[str, int, int | None], ...]

    def __call__(self, call: Call) -> None:
        y = self.linear(call.registers[self.source])
        if self.bias is not None:
            y += self.bias
        if len(self.targets) == 1 and self.targets[0][2] is None:
            call.registers[self.targets[0][0]] = y
            return
        start = 0
        for name, width, heads in self.targets:
            part = y[:, start : start + width]
            call.registers[name] = part if heads is None else part.reshape(part.shape[0], heads, width // heads)
            start += width


@dataclass(frozen=True, slots=True)
class Attend(Step):
    """y = attention of the queries over the session's rows and the call's own, which are stored first.

    K and V are rounded to the slabs' type before any query reads them, within the call too. PlaitError: they do not fit
    into float16.

    heads       query heads; in `qk` [n, heads + kv_heads, dim] they come first
    norm        weights [heads + kv_heads, dim] of the norms of queries and keys; those of queries hold the scale
    scale       factor on the queries where there is no norm
    one_by_one  see `ops.attention`
    """

    layer: int
    slab_class: int
    heads: int
    rope: Rope | None
    table: RopeTable | None
    norm: Tensor | None
    norm_eps: float
    scale: float
    window: int | None
    cap: float | None
    one_by_one: bool

    def __call__(self, call: Call) -> None:
        qk, v = call.registers["qk"], call.registers["v"]
        if self.norm is not None:
            qk = rms_norm(qk, self.norm, self.norm_eps)
        if self.rope is not None and self.table is not None:
            qk = rotate(qk, self.rope, *call.rotation(self.rope, self.table))
        q, k = qk[:, : self.heads], qk[:, self.heads :]
        out = torch.empty(q.shape[0], self.heads, v.shape[-1], dtype=q.dtype, device=q.device)
        row = 0
        for span in call.spans:
            n = len(span.tokens)
            self._one(span, q[row : row + n], k[row : row + n], v[row : row + n], out[row : row + n])
            row += n
        call.registers["y"] = out.flatten(1)

    def _one(self, span: Span, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        run = span.session.runs[self.slab_class]
        start = span.session.position
        n = q.shape[0]
        done = 0
        while done < n:
            at = start + done
            count = min(n - done, SLAB - at % SLAB)
            keys, values = run.slabs[at // SLAB - run.first].views[self.layer]
            rows = slice(at % SLAB, at % SLAB + count)
            for stored, part in ((keys, k), (values, v)):
                stored[:, rows] = part[done : done + count].transpose(0, 1)
                # An infinite row would reach the earlier rows of its block too: 0 * infinity is not 0.
                if stored.dtype == torch.float16 and not torch.isfinite(stored[:, rows]).all():
                    what = f"layer {self.layer}: keys or values are beyond what float16 holds"
                    raise PlaitError(fault(what, advice="store them as bfloat16 or float32 (kv_dtype)"))
            done += count
        low = run.first if self.window is None else max(run.first, max(0, start - self.window + 1) // SLAB)
        attention(
            q,
            [slab.views[self.layer] for slab in run.slabs[low - run.first :]],
            start=start,
            first_block=low,
            scale=self.scale,
            window=self.window,
            cap=self.cap,
            out=out,
            one_by_one=self.one_by_one,
        )


@dataclass(frozen=True, slots=True)
class GateHeads(Step):
    """y = y * activation(g), g one number per head or one per element."""

    activation: str
    heads: int
    per_head: bool

    def __call__(self, call: Call) -> None:
        y, g = call.registers["y"], activate(self.activation, call.registers["g"])
        if self.per_head:
            call.registers["y"] = (y.view(y.shape[0], self.heads, -1) * g[..., None]).flatten(1)
        else:
            call.registers["y"] = y * g


@dataclass(frozen=True, slots=True)
class Feed(Step):
    """y = down(activation(gate) * up), gate and up the two halves of `x`'s projection."""

    width: int
    activation: str
    fused: Linear
    fused_bias: Tensor | None
    down: Linear
    down_bias: Tensor | None

    def __call__(self, call: Call) -> None:
        both = self.fused(call.registers["x"])
        if self.fused_bias is not None:
            both += self.fused_bias
        inner = activate(self.activation, both[:, : self.width])
        inner *= both[:, self.width :]
        y = self.down(inner)
        call.registers["y"] = y if self.down_bias is None else y + self.down_bias


@dataclass(frozen=True, slots=True)
class AddTo(Step):
    """h = h + source."""

    source: str

    def __call__(self, call: Call) -> None:
        call.registers["h"] += call.registers[self.source]


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of chosen rows: head(norm(h)), with the model's softcap."""

    weight: Tensor | None
    eps: float
    linear: Linear
    cap: float | None

    def __call__(self, h: Tensor) -> Tensor:
        y = self.linear(rms_norm(h, self.weight, self.eps))
        return y if self.cap is None else softcap(y, self.cap)

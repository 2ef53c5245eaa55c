"""Steps on the residual stream: embedding, norms, projections, additions, and the logits at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from plait.runtime.ops.activation import softcap
from plait.runtime.ops.linear import Linear
from plait.runtime.ops.norm import layer_norm, rms_norm
from plait.runtime.packed import Packed
from plait.runtime.steps.call import Call, Step
from plait.runtime.steps.streams import Merge

__all__ = ["AddTo", "Embed", "Logits", "Normalise", "Project"]


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
    """target = norm(source) + bias."""

    source: str
    target: str
    weight: Tensor | None
    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: Tensor | None = None

    def __call__(self, call: Call) -> None:
        norm = rms_norm if self.kind == "rms" else layer_norm
        y = norm(call.registers[self.source], self.weight, self.eps)
        call.registers[self.target] = y if self.bias is None else y + self.bias


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
class AddTo(Step):
    """h = h + source."""

    source: str

    def __call__(self, call: Call) -> None:
        call.registers["h"] += call.registers[self.source]


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of chosen rows: head(norm(h)), with the model's softcap.

    merge  makes h of several streams, None: there is one
    """

    weight: Tensor | None
    eps: float
    linear: Linear
    cap: float | None
    merge: Merge | None = None

    def __call__(self, h: Tensor) -> Tensor:
        """h [n, hidden], or [streams, n, hidden] with `merge` -> [n, vocabulary]."""
        if self.merge is not None:
            h = self.merge(h)
        y = self.linear(rms_norm(h, self.weight, self.eps))
        return y if self.cap is None else softcap(y, self.cap)

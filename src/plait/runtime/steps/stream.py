"""Steps on the residual stream: embedding, norms, projections and additions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from plait.runtime.ops.joins import join
from plait.runtime.ops.linear import Linear
from plait.runtime.ops.norm import layer_norm, rms_norm
from plait.runtime.packed import Packed
from plait.runtime.steps.call import Call, Step

if TYPE_CHECKING:
    from plait.runtime.lower import Lowering

__all__ = ["AddTo", "Embed", "Normalise", "Project"]


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

    def lower(self, plan: Lowering) -> bool:
        width = plan.width_of(self.source) if self.weight is None else self.weight.shape[-1]
        if self.kind != "rms" or width is None:
            return False
        source = plan.read(self.source)
        target = plan.write(self.target, width)
        plan.program.norm(source.at, target.at, plan.address(self.weight), self.eps, 1, width)
        if self.bias is not None:
            plan.program.add_vector(target.at, plan.address(self.bias), width)
        return True


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

    def lower(self, plan: Lowering) -> bool:
        product = plan.prepared(self.linear)
        if product is None:
            return False
        source = plan.read(self.source)
        names = [name for name, _, _ in self.targets if name != self.source]
        plan.drop("_product", *names)
        made = plan.write("_product", product.out)
        plan.program.product(source.at, made.at, product)
        if self.bias is not None:
            plan.program.add_vector(made.at, plan.address(self.bias), product.out)
        start = 0
        for name, width, heads in self.targets:
            width = product.out if width == 0 else width
            plan.bind(name, made.part(start, width, heads))
            start += width
        return True


@dataclass(frozen=True, slots=True)
class AddTo(Step):
    """h = h + source."""

    source: str

    def __call__(self, call: Call) -> None:
        join(call.registers["h"], call.registers[self.source], None, None)

    def lower(self, plan: Lowering) -> bool:
        width = plan.width_of("h")
        if width is None:
            return False
        plan.program.add(plan.read("h").at, plan.read(self.source).at, width)
        return True

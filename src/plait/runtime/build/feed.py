"""Steps of a gated feed-forward part."""

from __future__ import annotations

from plait.blueprint.spec import Gated
from plait.runtime.build.builder import Builder
from plait.runtime.ops.sparse import quantile
from plait.runtime.steps.feed import Feed

__all__ = ["add_gated"]


def add_gated(build: Builder, role: str, part: Gated) -> None:
    """y = down(activation(gate(x)) * up(x)), weights under `role`."""
    names = [f"{role}.gate", f"{role}.up"]
    build.add(
        Feed(
            part.width,
            part.activation,
            build.linear(names),
            build.biases([f"{name}_bias" for name in names]),
            build.linear([f"{role}.down"]),
            build.biases([f"{role}.down_bias"]),
            quantile(part.sparsity) if part.sparsity is not None else None,
        )
    )

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
    bias = build.biases([f"{name}_bias" for name in names])
    down_bias = build.biases([f"{role}.down_bias"])
    plain = bias is None and down_bias is None and part.sparsity is None
    together = build.gated(names, part.width, part.activation) if plain else None
    build.add(
        Feed(
            part.width,
            part.activation,
            build.linear(names) if together is None else together,
            bias,
            build.linear([f"{role}.down"]),
            down_bias,
            in_turn=together is not None,
            deviations=quantile(part.sparsity) if part.sparsity is not None else None,
        )
    )

"""What the two readers of Gemma 4, config.json and GGUF, build alike: layers, norms, rotation, fused experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from plait.blueprint.layout import Binding, GroupedRows, Layout
from plait.blueprint.spec import Attention, Blueprint, Both, Gated, Layer, Mixture, Norm, QKNorm, Rope

__all__ = ["EXPERTS", "GATE_UP", "grouped_experts", "layers_of", "norms", "proportional_rope"]

EXPERTS: Final = "feed_forward.experts."
GATE_UP: Final = (f"{EXPERTS}gate", f"{EXPERTS}up")


def norms(eps: float) -> tuple[QKNorm, Norm]:
    """The norm of queries and keys, and the one without a weight of values and router inputs."""
    return QKNorm(Norm(eps)), Norm(eps, weight=False)


def proportional_rope(theta: float, pairs: int, head_dim: int) -> Rope:
    """The first `pairs` of the head's pairs (i, i + head_dim / 2), at the frequencies of a head rotated whole."""
    return Rope(theta, pairs, head_dim, distance=head_dim // 2)


def layers_of(
    mixers: Sequence[Attention],
    dense: Sequence[Gated],
    mixture: Mixture | None,
    eps: float,
    *,
    per_layer_input: bool,
    scalar: bool = True,
) -> tuple[Layer, ...]:
    """Layers with sandwich norms around a mixer and a dense part each; `mixture` stands beside every dense part."""
    norm = Norm(eps)
    return tuple(
        Layer(
            mixer=mixer,
            feed_forward=gated if mixture is None else Both(gated, mixture, norm, norm, norm),
            mixer_norm=norm,
            mixer_post_norm=norm,
            feed_forward_norm=norm,
            feed_forward_post_norm=norm,
            per_layer_input=per_layer_input,
            scalar=scalar,
        )
        for mixer, gated in zip(mixers, dense, strict=True)
    )


def grouped_experts(layout: Layout, blueprint: Blueprint) -> Layout:
    """The layout whose fused tensors hold the gate rows, then the up rows, of one expert after the other."""

    def grouped(binding: Binding) -> Binding:
        if len(binding.roles) < 2 or not binding.roles[0].endswith(GATE_UP[0]):
            return binding
        part = blueprint.layers[int(binding.roles[0].split(".")[1])].feed_forward
        assert isinstance(part, Both)
        rows = part.mixture.experts * part.mixture.width
        return replace(binding, transform=GroupedRows(part.mixture.experts, (rows, rows)))

    return replace(layout, bindings=tuple(map(grouped, layout.bindings)))

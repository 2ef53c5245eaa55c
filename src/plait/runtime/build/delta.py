"""Steps of a Gated DeltaNet."""

from __future__ import annotations

from plait.blueprint.spec import GatedDeltaNet
from plait.runtime.build.builder import Builder
from plait.runtime.ops.gated_delta import DeltaShape
from plait.runtime.steps.delta import Convolve, DeltaRule, NormGate
from plait.runtime.steps.stream import Project

__all__ = ["add_delta"]


def add_delta(build: Builder, index: int, mixer: GatedDeltaNet) -> None:
    """y = Gated DeltaNet(x) of layer `index`, its output projection included."""
    role = f"layers.{index}.delta"
    inner = mixer.value_heads * mixer.value_dim
    targets = {
        "query_key_value": ("qkv", mixer.conv_channels, None),
        "gate": ("g", inner, None),
        "beta": ("beta", mixer.value_heads, None),
        "decay": ("decay", mixer.value_heads, None),
    }
    build.add(Project("x", build.linear([f"{role}.{name}" for name in targets]), None, tuple(targets.values())))
    taps = build.vector(f"{role}.convolution").T.contiguous()
    build.add(Convolve(index, build.pool.value_of("convolution"), taps))
    build.add(
        DeltaRule(
            layer=index,
            value_class=build.pool.value_of("recurrent"),
            shape=DeltaShape(mixer.key_heads, mixer.value_heads, mixer.key_dim, mixer.value_dim, mixer.l2_eps),
            rate=build.vector(f"{role}.decay_log").exp(),
            bias=build.vector(f"{role}.time_step_bias"),
        )
    )
    norm = mixer.output_norm
    build.add(NormGate(build.norm(f"{role}.output_norm", norm), norm.eps, mixer.activation))
    build.add(Project("y", build.linear([f"{role}.output"]), None, (("y", 0, None),)))

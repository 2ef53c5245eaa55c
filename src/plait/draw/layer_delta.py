"""The steps of a Gated DeltaNet (https://arxiv.org/abs/2412.06464)."""

from __future__ import annotations

from typing import Final

from plait.blueprint.spec import GatedDeltaNet
from plait.draw.layer_graph import Grid, Line, number

__all__ = ["DELTA_LANES", "delta"]

_QUERY: Final = 0
_KEY: Final = 1
_VALUE: Final = 2
_DECAY: Final = 3
_BETA: Final = 4
_GATE: Final = 5
DELTA_LANES: Final = 6


def delta(grid: Grid, mixer: GatedDeltaNet) -> None:
    """From the normed stream to the output projection."""
    keys = f"{mixer.key_heads}\u00a0×\u00a0{mixer.key_dim}"
    values = f"{mixer.value_heads}\u00a0×\u00a0{mixer.value_dim}"
    weights = grid.tensors(_="delta.query_key_value")
    parts = [Line(f"q\u00a0{keys}"), Line(f"k\u00a0{keys}"), Line(f"v\u00a0{values}")]
    title = grid.say("query_key_value")
    grid.put("query_key_value", _QUERY, _DECAY, title, *weights, *parts, look="matrix")
    for key, lane in (("decay", _DECAY), ("beta", _BETA)):
        weights, each = grid.tensors(_=f"delta.{key}"), grid.fact(f"{key}_each")
        grid.put(key, lane, lane + 1, grid.say(f"{key}_projection"), *weights, each, look="matrix")
    gate = grid.tensors(_="delta.gate")
    what = grid.fact("gate_per_element")
    grid.put("gate", _GATE, _GATE + 1, grid.say("gate_projection"), *gate, what, look="matrix")
    _convolution(grid, mixer)
    lines = grid.tensors(decay_log="delta.decay_log", time_step="delta.time_step_bias")
    formula = Line("g\u00a0=\u00a0−exp(A) ×\u00a0softplus(a\u00a0+\u00a0dt)")
    grid.put("decay_law", _DECAY, _BETA, grid.say("decay"), *lines, formula)
    grid.put("beta_law", _BETA, _GATE, grid.say("beta"), Line("β\u00a0=\u00a0sigmoid(b)"))
    unit = [
        Line(f"x\u00a0/\u00a0sqrt(sum\u00a0x²\u00a0+\u00a0{number(mixer.l2_eps)})"),
        grid.fact("query_scale", scale=number(mixer.key_dim**-0.5)),
        grid.fact("norm_over_head"),
    ]
    grid.put("unit", _QUERY, _VALUE, grid.say("unit_length"), *unit, across=(_QUERY, _KEY))
    _rule(grid, mixer)
    over = grid.fact("norm_over_head")
    grid.norm("output_norm", _QUERY, _GATE, mixer.output_norm, "delta.output_norm", over)
    times = grid.fact("gate_times", activation=grid.activation(mixer.activation))
    grid.put("gated", _QUERY, _GATE + 1, grid.say("output_gate"), times, grid.fact("gate_per_element"))
    weights = grid.tensors(_="delta.output")
    heads = grid.fact("heads_from", heads=number(mixer.value_heads), dim=number(mixer.value_dim))
    grid.put("output", 0, DELTA_LANES, grid.say("output_projection"), *weights, heads, look="matrix")


def _convolution(grid: Grid, mixer: GatedDeltaNet) -> None:
    lines = [
        *grid.tensors(_="delta.convolution"),
        grid.fact("taps", taps=number(mixer.conv_kernel)),
        grid.fact("then_silu"),
        grid.fact("tail", rows=number(mixer.conv_kernel - 1), channels=number(mixer.conv_channels)),
    ]
    title = grid.say("convolution")
    grid.put("convolution", _QUERY, _DECAY, title, *lines, look="matrix", keeps=True, across=(_QUERY, _KEY, _VALUE))


def _rule(grid: Grid, mixer: GatedDeltaNet) -> None:
    state = f"{mixer.value_heads}\u00a0×\u00a0{mixer.key_dim}\u00a0×\u00a0{mixer.value_dim}"
    lines = [
        Line("S\u00a0=\u00a0exp(g)\u00a0×\u00a0S"),
        Line("S\u00a0=\u00a0S\u00a0+\u00a0k\u00a0×\u00a0β\u00a0(v\u00a0−\u00a0k\u00a0S)"),
        Line("y\u00a0=\u00a0q\u00a0S"),
        grid.fact("state", state=state),
    ]
    if mixer.value_heads != mixer.key_heads:
        lines.append(grid.fact("shared_key_heads", heads=number(mixer.value_heads // mixer.key_heads)))
    grid.put("rule", _QUERY, _GATE, grid.say("delta_rule"), *lines, keeps=True)

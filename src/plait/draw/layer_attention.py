"""The steps of softmax attention, with keys and values of its own or of another layer."""

from __future__ import annotations

from typing import Final

from plait.blueprint.spec import Attention, Norm
from plait.blueprint.state import LayerLaw, Rows, WindowRows
from plait.draw.layer_graph import Grid, Line, number
from plait.draw.layer_rope import product, rope_lines, rope_title

__all__ = ["attention", "attention_lanes", "kept_lines"]

_QUERY: Final = 0
_KEY: Final = 1
_VALUE: Final = 2
_GATE: Final = 3


def attention_lanes(mixer: Attention) -> int:
    """Queries, keys, values, and the gate where there is one."""
    return _GATE if mixer.gate is None else _GATE + 1


def kept_lines(grid: Grid, law: LayerLaw) -> tuple[Line, ...]:
    """What a law of rows keeps of each token, and of which tokens."""
    assert isinstance(law.law, (Rows, WindowRows))
    parts = tuple(
        Line(f"{grid.say(f'part_{part.name}')}\u00a0{part.heads}\u00a0×\u00a0{part.dim}") for part in law.law.parts
    )
    total = sum(part.elements for part in law.law.parts)
    if isinstance(law.law, WindowRows):
        where = grid.fact("kept_window", window=number(law.law.window))
    else:
        where = grid.fact("kept_all")
    return (*parts, grid.fact("kept_numbers", total=number(total)), where)


def attention(grid: Grid, mixer: Attention, laws: tuple[LayerLaw, ...]) -> None:
    """From the normed stream to the output projection."""
    _projections(grid, mixer)
    _head_norms(grid, mixer)
    if mixer.rope is not None:
        own = mixer.kv_source is None
        lines = rope_lines(grid, mixer.rope, mixer.qk_dim)
        across = (_QUERY, _KEY) if own else ()
        grid.put("rope", _QUERY, _KEY + own, rope_title(grid, mixer.rope), *lines, across=across)
    if mixer.kv_source is None:
        (law,) = laws
        lines = kept_lines(grid, law)
        grid.put("kept", _KEY, _VALUE + 1, grid.say("kept"), *lines, across=(_KEY, _VALUE), keeps=True)
    _scores(grid, mixer)
    facts = [] if mixer.value_scale == 1.0 else [grid.fact("value_scale", scale=number(mixer.value_scale))]
    grid.put("sum", _QUERY, _VALUE + 1, grid.say("weighted_sum"), grid.fact("weights_values"), *facts)
    if mixer.gate is not None:
        facts = [grid.fact("gate_times", activation=grid.activation(mixer.gate.activation))]
        grid.put("gated", _QUERY, _GATE + 1, grid.say("output_gate"), *facts, grid.fact(f"gate_per_{mixer.gate.per}"))
    lanes = attention_lanes(mixer)
    weights = grid.tensors(_="attention.output", bias="attention.output_bias")
    heads = grid.fact("heads_from", heads=number(mixer.heads), dim=number(mixer.v_dim))
    grid.put("output", 0, lanes, grid.say("output_projection"), *weights, heads, look="matrix")


def _projections(grid: Grid, mixer: Attention) -> None:
    heads = grid.fact("heads_of", heads=number(mixer.heads), dim=number(mixer.qk_dim))
    weights = grid.tensors(_="attention.query", bias="attention.query_bias")
    grid.put("query", _QUERY, _KEY, grid.say("query_projection"), *weights, heads, look="matrix")
    if mixer.kv_source is not None:
        lines = [
            grid.fact("reused_of", layer=mixer.kv_source),
            Line(f"{grid.say('part_key')}\u00a0{mixer.kv_heads}\u00a0×\u00a0{mixer.qk_dim}"),
            Line(f"{grid.say('part_value')}\u00a0{mixer.kv_heads}\u00a0×\u00a0{mixer.v_dim}"),
            grid.fact("reused_nothing_kept"),
        ]
        if mixer.keys_are_values:
            lines.append(grid.fact("keys_are_values"))
        title = grid.say("reused")
        grid.put("reused", _KEY, _VALUE + 1, title, *lines, look="source", across=(_KEY, _VALUE), fed=False)
    elif mixer.keys_are_values:
        weights = grid.tensors(_="attention.key", bias="attention.key_bias")
        heads = grid.fact("kv_heads_of", heads=number(mixer.kv_heads), dim=number(mixer.qk_dim))
        shared = grid.fact("keys_are_values")
        grid.put("key", _KEY, _VALUE + 1, grid.say("key_value_projection"), *weights, heads, shared, look="matrix")
    else:
        for key, lane, dim in (("key", _KEY, mixer.qk_dim), ("value", _VALUE, mixer.v_dim)):
            weights = grid.tensors(_=f"attention.{key}", bias=f"attention.{key}_bias")
            heads = grid.fact("kv_heads_of", heads=number(mixer.kv_heads), dim=number(dim))
            grid.put(key, lane, lane + 1, grid.say(f"{key}_projection"), *weights, heads, look="matrix")
    if mixer.gate is not None:
        weights = grid.tensors(_="attention.gate", bias="attention.gate_bias")
        what = grid.fact(f"gate_per_{mixer.gate.per}")
        grid.put("gate", _GATE, _GATE + 1, grid.say("gate_projection"), *weights, what, look="matrix")


def _head_norms(grid: Grid, mixer: Attention) -> None:
    own = mixer.kv_source is None
    if mixer.qk_norm is not None:
        norm, over = mixer.qk_norm.norm, grid.fact(f"norm_over_{mixer.qk_norm.over}")
        grid.norm("query_norm", _QUERY, _KEY, norm, "attention.query_norm", over)
        if own:
            grid.norm("key_norm", _KEY, _VALUE, norm, "attention.key_norm", over)
    if own and mixer.v_norm is not None:
        # No role stands for a weight of this norm: none of them has one.
        bare = Norm(mixer.v_norm.eps, weight=False, kind=mixer.v_norm.kind)
        grid.norm("value_norm", _VALUE, _VALUE + 1, bare, "attention.value_norm", grid.fact("norm_over_head"))


def _scores(grid: Grid, mixer: Attention) -> None:
    lines = [product(mixer.scale, mixer.rope)]
    if mixer.softcap is not None:
        cap = number(mixer.softcap)
        lines.append(grid.fact("softcap", cap=cap))
    if mixer.window is None:
        lines.append(grid.fact("sees_all"))
    else:
        lines.append(grid.fact("sees_window", window=number(mixer.window)))
    if mixer.heads != mixer.kv_heads:
        lines.append(grid.fact("shared_heads", heads=number(mixer.heads // mixer.kv_heads)))
    if mixer.rope is None:
        lines.append(grid.fact("no_rope"))
    if mixer.bidirectional_images:
        lines.append(grid.fact("images_both_ways"))
    grid.put("scores", _QUERY, _VALUE, grid.say("scores"), *lines)
    sinks = grid.tensors(sinks="attention.sinks")
    if sinks:
        sinks = (*sinks, grid.fact("sinks"))
    grid.put("softmax", _QUERY, _VALUE, grid.say("softmax"), grid.fact("softmax_keys"), *sinks)

"""Rotations in words."""

from __future__ import annotations

from plait.blueprint.spec import FactorScaling, LinearScaling, Llama3Scaling, Rope, YarnScaling
from plait.draw.layer_graph import Grid, Line, number

__all__ = ["product", "rope_lines", "rope_title"]


def rope_title(grid: Grid, rope: Rope) -> str:
    """`RoPE θ 10,000`."""
    return grid.say("rope", theta=number(rope.theta))


def _dims(grid: Grid, rope: Rope, dims: int) -> Line:
    if rope.rotated == dims:
        return grid.fact("rope_all", dims=number(dims))
    return grid.fact("rope_some", rotated=number(rope.rotated), dims=number(dims))


def _pairs(grid: Grid, rope: Rope) -> Line:
    """How many pairs there are and the dims of pair i, as `Rope` defines them."""
    start = f"{rope.start}\u00a0+\u00a0" if rope.start else ""
    if rope.pairing == "adjacent":
        dims = f"({start}2i,\u00a0{start}2i\u00a0+\u00a01)"
    else:
        dims = f"({start}i,\u00a0{start}i\u00a0+\u00a0{rope.distance})"
    return grid.fact("rope_pairs", pairs=number(rope.pairs), dims=dims)


def _scaling(grid: Grid, rope: Rope) -> tuple[Line, ...]:
    match rope.scaling:
        case None:
            return ()
        case LinearScaling(factor):
            return (grid.fact("rope_linear", factor=number(factor)),)
        case YarnScaling() as yarn:
            lines = [
                grid.fact("rope_yarn", factor=number(yarn.factor), context=number(yarn.original_context)),
                grid.fact("rope_yarn_betas", fast=number(yarn.beta_fast), slow=number(yarn.beta_slow)),
                grid.fact("rope_yarn_factor", factor=number(yarn.attention_factor)),
            ]
            if not yarn.truncate:
                lines.append(grid.fact("rope_yarn_whole"))
            return tuple(lines)
        case Llama3Scaling() as llama:
            return (
                grid.fact("rope_llama3", factor=number(llama.factor), context=number(llama.original_context)),
                grid.fact(
                    "rope_llama3_bands",
                    low=number(llama.low_frequency_factor),
                    high=number(llama.high_frequency_factor),
                ),
            )
        case FactorScaling(factors):
            low, high = (number(f(factors)) for f in (min, max)) if factors else ("1", "1")
            return (grid.fact("rope_factors", count=number(len(factors)), low=low, high=high),)


def rope_lines(grid: Grid, rope: Rope, dims: int) -> tuple[Line, ...]:
    """How many of a head's `dims` turn, which pairs, at what frequencies, scaled how, by which axes."""
    lines = [_dims(grid, rope, dims), _pairs(grid, rope)]
    lines.append(Line(f"θ^(−2i/{rope.divisor})"))
    lines += _scaling(grid, rope)
    if rope.axes is not None:
        axes = "\u00a0+\u00a0".join(str(n) for n in rope.axes)
        lines.append(grid.fact("rope_axes_interleaved" if rope.interleaved_axes else "rope_axes", axes=axes))
    return tuple(lines)


def product(scale: float, rope: Rope | None) -> Line:
    """What a score is: the product of query and key times the scale, and what YaRN multiplies that by."""
    text = f"q·k\u00a0×\u00a0{number(scale)}"
    if rope is not None and isinstance(rope.scaling, YarnScaling) and rope.scaling.softmax_scale != 1.0:
        text += f"\u00a0×\u00a0{number(rope.scaling.softmax_scale)}"
    return Line(text)

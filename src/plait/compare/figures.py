"""The charts of a comparison: memory of state and the bound on decode speed, against the context."""

from __future__ import annotations

from typing import Final

from plait.compare.report import Comparison
from plait.compare.words import amount, rates_text
from plait.draw.charts import Axis, Series, byte_ticks, line_chart, rate_ticks, token_ticks, tokens_text
from plait.units import binary_bytes

__all__ = ["memory_chart", "memory_series", "speed_chart", "speed_series"]

_TOKENS: Final = Axis("context, tokens", token_ticks, tokens_text)
_BYTES: Final = Axis("state of one sequence", byte_ticks, lambda value: binary_bytes(int(value)))
_RATE: Final = Axis("tokens per second, at most", rate_ticks, amount)
_BEYOND: Final = "Dotted, with hollow points: beyond the model's own limit."


def memory_series(comparison: Comparison) -> tuple[Series, ...]:
    """Bytes of all state at each context: `total_bytes` of `account.memory`."""
    return tuple(
        Series(
            item.label,
            tuple((point.context, point.memory.total_bytes) for point in points),
            item.blueprint.max_context,
        )
        for item, points in zip(comparison.subjects, comparison.curves, strict=True)
    )


def speed_series(comparison: Comparison) -> tuple[Series, ...]:
    """The bound on decode at each context: `tokens_per_second` of `account.speed`."""
    return tuple(
        Series(
            item.label,
            tuple((point.context, point.bounds.decode.tokens_per_second) for point in points),
            item.blueprint.max_context,
        )
        for item, points in zip(comparison.subjects, comparison.curves, strict=True)
    )


def _note(comparison: Comparison) -> str:
    last = comparison.curves[0][-1].context
    return _BEYOND if any(item.blueprint.max_context < last for item in comparison.subjects) else ""


def memory_chart(comparison: Comparison, *, theme: str = "light", size: tuple[int, int] = (760, 400)) -> str:
    """Memory of state against context, as SVG."""
    return line_chart(
        memory_series(comparison),
        title=f"Memory of keys, values and states in {comparison.kv_format}",
        x=_TOKENS,
        y=_BYTES,
        theme=theme,
        size=size,
        note=_note(comparison),
    )


def speed_chart(comparison: Comparison, *, theme: str = "light", size: tuple[int, int] = (760, 400)) -> str:
    """The bound on decode speed of one sequence against context, as SVG."""
    return line_chart(
        speed_series(comparison),
        title=f"Decode speed, at most, with {rates_text(comparison.rates)}",
        x=_TOKENS,
        y=_RATE,
        theme=theme,
        size=size,
        note=_note(comparison),
    )

"""The tables and sentences of a comparison as text, for every output that is read by people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from plait.account.speed import ASSUMPTIONS
from plait.blueprint.pattern import pattern
from plait.blueprint.spec import Evidence
from plait.compare.report import Comparison, Point
from plait.compare.table import FURTHER, Row
from plait.compare.words import amount, factor, rates_text
from plait.draw.charts import tokens_text
from plait.units import binary_bytes, count

__all__ = [
    "Figures",
    "absent",
    "aligned_lines",
    "assumptions",
    "differing",
    "evidence_text",
    "further",
    "layer_line",
    "memory_figures",
    "notes",
    "parameter_figures",
    "same",
    "speed_figures",
    "ways_lines",
    "ways_summary",
]

_BEYOND: Final = " *"


@dataclass(frozen=True, slots=True)
class Figures:
    """A table of figures: one row a line, one column a model."""

    title: str
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def differing(comparison: Comparison) -> tuple[tuple[str, tuple[Row, ...]], ...]:
    """Rows that differ, by group; the fields that no row writes out are left to `further`."""
    rows = [row for row in comparison.rows if row.differs and row.group != FURTHER]
    return tuple((group, tuple(found)) for group, found in groupby(rows, key=lambda row: row.group))


def further(comparison: Comparison) -> tuple[Row, ...]:
    """Fields that differ and that no other row writes out."""
    return tuple(row for row in comparison.rows if row.group == FURTHER)


def same(comparison: Comparison) -> tuple[Row, ...]:
    """Rows in which all models are alike and that say something."""
    return tuple(row for row in comparison.rows if not row.differs and not row.absent)


def absent(comparison: Comparison) -> tuple[str, ...]:
    """What none of the models has."""
    return tuple(row.label for row in comparison.rows if not row.differs and row.absent)


def evidence_text(items: Sequence[tuple[str, Evidence]]) -> tuple[str, ...]:
    """Where a cell comes from: keys, with `default` or `derived` where the key itself does not say it."""
    words = {"default": "{} (default)", "derived": "{} (derived)", "convention": "convention: {}", "key": "{}"}
    return tuple(dict.fromkeys(words[item.origin].format(item.key) for _, item in items))


def layer_line(comparison: Comparison, index: int) -> str:
    """The layers of a model as the catalogue lists them: `36 = 9 x (3 window + 1 full)`."""
    return pattern(comparison.subjects[index].blueprint)


def parameter_figures(comparison: Comparison) -> Figures:
    """In the file, used, active, their share, and the weights."""
    accounts = [item.account for item in comparison.subjects]
    weights = "as stored" if comparison.weights_format is None else f"in {comparison.weights_format}"
    return Figures(
        "Parameters",
        (
            ("in the file", tuple(f"{a.in_file:,} ({count(a.in_file)})" for a in accounts)),
            ("used by the graph", tuple(f"{a.used:,} ({count(a.used)})" for a in accounts)),
            ("active per token", tuple(f"{a.active:,} ({count(a.active)})" for a in accounts)),
            ("active of used", tuple(f"{a.active / a.used:.1%}" for a in accounts)),
            (f"weights, {weights}", tuple(binary_bytes(s.weights.total_bytes) for s in comparison.subjects)),
        ),
    )


def _at_contexts(comparison: Comparison, title: str, cell: Callable[[Point], str]) -> Figures:
    limits = [item.blueprint.max_context for item in comparison.subjects]
    rows = []
    for i, context in enumerate(comparison.contexts):
        cells = (
            cell(points[i]) + (_BEYOND if context > limit else "")
            for points, limit in zip(comparison.points, limits, strict=True)
        )
        rows.append((f"{tokens_text(context)} tokens", tuple(cells)))
    return Figures(title, tuple(rows))


def memory_figures(comparison: Comparison) -> Figures:
    """State of one sequence at each context, and what one more token adds."""
    return _at_contexts(
        comparison,
        f"Memory of keys, values and states, one sequence, in {comparison.kv_format}",
        lambda p: f"{binary_bytes(p.memory.total_bytes)}, {binary_bytes(p.memory.per_token_bytes)} a token",
    )


def speed_figures(comparison: Comparison) -> Figures:
    """The bound on decode at each context."""
    assumed = "assumed " if comparison.assumed else ""
    both = None not in (comparison.rates.bandwidth, comparison.rates.flops)
    return _at_contexts(
        comparison,
        f"Decode of one sequence, tokens per second at most, with {assumed}{rates_text(comparison.rates)}",
        lambda p: amount(p.bounds.decode.tokens_per_second) + (f" ({p.bounds.decode.binds})" if both else ""),
    )


def ways_summary(comparison: Comparison, index: int) -> str:
    """How much less a model keeps than with full multi-head attention, one sentence."""
    found = comparison.ways[index]
    if not found.savings:
        return (
            f"Full multi-head attention in every layer: {binary_bytes(found.state_bytes)} "
            f"at {tokens_text(found.context)} tokens."
        )
    return (
        f"{binary_bytes(found.state_bytes)} at {tokens_text(found.context)} tokens. Full multi-head attention would "
        f"keep {binary_bytes(found.full_bytes)}, {factor(found.stored)} as much; {found.full_layers} of {found.layers} "
        "layers reach every token."
    )


def ways_lines(comparison: Comparison, index: int) -> tuple[tuple[str, str, str], ...]:
    """(words, factor of storing, factor of reading) of each way of a model, in the order in which they are applied."""
    return tuple((item.words, factor(item.stored), factor(item.read)) for item in comparison.ways[index].savings)


def aligned_lines(comparison: Comparison) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(title, lines) for each further model of the first one's family."""
    for item in comparison.alignments:
        first, second = comparison.labels[item.first], comparison.labels[item.second]
        yield f"{first} -> {second}", tuple(item.layers.lines(first, second))


def notes(comparison: Comparison) -> tuple[str, ...]:
    """What has to be known to read the figures, one sentence each."""
    found = []
    if any(item.blueprint.max_context < comparison.contexts[-1] for item in comparison.subjects):
        found.append("*: beyond the model's own limit; counted all the same.")
    if comparison.assumed:
        found.append(f"No rate was given; {rates_text(comparison.rates)} is assumed.")
    for item in comparison.subjects:
        if item.account.differences:
            times = len(item.account.differences)
            found.append(
                f"{item.label}: the files differ from what the config lets expect, {times} times "
                "(`plait params` names them)."
            )
    found.append(
        "Factors are applied in the order in which they stand; their product is the whole. Storing counts bytes of "
        "state, reading the bytes of state a decode step reads."
    )
    return tuple(found)


def assumptions() -> tuple[str, ...]:
    """What the bound on speed takes for granted, one sentence each."""
    return ASSUMPTIONS

"""Everything `plait compare` says of several models, as one object that every output is written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from plait.account.flops import flops
from plait.account.memory import MemoryAccount, Weights, format_weights, memory, stored_weights
from plait.account.parameters import ParameterAccount, parameters, parameters_of
from plait.account.speed import Bounds, Rates, bounds, file_weights
from plait.blueprint.source import Source
from plait.blueprint.spec import Blueprint
from plait.compare.align import Alignment, align
from plait.compare.table import Row, table
from plait.compare.ways import Ways, ways
from plait.errors import UsageError

__all__ = [
    "BANDWIDTH",
    "MOST",
    "Aligned",
    "Comparison",
    "Point",
    "Settings",
    "Subject",
    "compare",
    "subject",
    "subject_of",
]

MOST: Final = 8
"""How many models are compared at most; a chart has as many hues."""
BANDWIDTH: Final = 100 * 10**9
"""Bytes per second that are assumed where no rate is given."""
_CONTEXTS: Final = tuple(2**n for n in (12, 15, 17, 18, 20))
_CURVE_START: Final = 2**10


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is compared.

    label    what its column is called; no two are called the same
    place    where it was read from, in words
    sizes    bytes of each role of the weights, for the bound
    """

    label: str
    place: str
    blueprint: Blueprint
    account: ParameterAccount
    weights: Weights
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the figures are counted with.

    contexts        tokens, ascending; None: chosen by the models' own limits
    weights_format  of the bytes of the weights; None: as published, or as a file stores them
    rates           of the machine; with neither rate, `BANDWIDTH` is assumed
    """

    contexts: tuple[int, ...] | None = None
    kv_format: str = "bf16"
    weights_format: str | None = None
    rates: Rates = field(default_factory=Rates)


@dataclass(frozen=True, slots=True)
class Point:
    """One model at one context, one sequence: `account.memory` and `account.speed` as they are."""

    context: int
    memory: MemoryAccount
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Aligned:
    """The layers of two models of one family, by their places among the models."""

    first: int
    second: int
    layers: Alignment


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several models, in the order in which they were named.

    rows        dimension table
    contexts    what the tables of memory and speed are made for
    points      for each model, at the contexts
    curves      for each model, at powers of two and at the contexts: what the charts draw
    ways        for each model, at `ways_context`
    alignments  each further model held against the first, where they are of one family
    assumed     no rate was given, `rates` holds the assumed bandwidth
    """

    subjects: tuple[Subject, ...]
    rows: tuple[Row, ...]
    contexts: tuple[int, ...]
    kv_format: str
    weights_format: str | None
    rates: Rates
    assumed: bool
    points: tuple[tuple[Point, ...], ...]
    curves: tuple[tuple[Point, ...], ...]
    ways_context: int
    ways: tuple[Ways, ...]
    alignments: tuple[Aligned, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(item.label for item in self.subjects)

    @property
    def equal(self) -> bool:
        """All blueprints are equal."""
        return all(item.blueprint == self.subjects[0].blueprint for item in self.subjects)

    @property
    def title(self) -> str:
        return " vs ".join(self.labels)


def subject(blueprint: Blueprint, *, weights_format: str | None = None, label: str | None = None) -> Subject:
    """A blueprint without files, counted as published or in `weights_format`."""
    sizes = format_weights(blueprint, weights_format)
    beside = memory(blueprint, 1, weights_format=weights_format)
    return Subject(
        label or blueprint.name or blueprint.family,
        "blueprint",
        blueprint,
        parameters(blueprint),
        Weights(beside.weights_bytes, beside.table_bytes),
        sizes,
    )


def subject_of(source: Source, *, place: str, weights_format: str | None = None) -> Subject:
    """What a user named, with the weights at hand counted from their headers (`parameters_of`).

    A PlaitError of the weights' files is raised as it is.
    """
    blueprint = source.blueprint
    account = parameters_of(source)
    if weights_format is not None:
        beside = memory(blueprint, 1, weights_format=weights_format)
        weights, sizes = Weights(beside.weights_bytes, beside.table_bytes), format_weights(blueprint, weights_format)
    else:
        stored = source.header is None and account.used_bytes is not None
        weights = Weights(account.used_bytes or 0, account.table_bytes) if stored else stored_weights(source)
        sizes = file_weights(source)
    return Subject(blueprint.name or blueprint.family, place, blueprint, account, weights, sizes)


def _labelled(subjects: Sequence[Subject]) -> tuple[Subject, ...]:
    """Columns that would be called the same are numbered."""
    taken = {item.label for item in subjects}
    times: dict[str, int] = {}
    made: list[Subject] = []
    for item in subjects:
        label = item.label
        if sum(other.label == label for other in subjects) > 1:
            while True:
                times[item.label] = times.get(item.label, 0) + 1
                label = f"{item.label} ({times[item.label]})"
                if label not in taken:
                    break
            taken.add(label)
        made.append(replace(item, label=label))
    return tuple(made)


def _contexts(subjects: Sequence[Subject], asked: tuple[int, ...] | None) -> tuple[int, ...]:
    if asked is not None:
        return tuple(sorted(set(asked)))
    longest = max(item.blueprint.max_context for item in subjects)
    return (*(n for n in _CONTEXTS if n < longest), longest)


def _ways_context(subjects: Sequence[Subject], asked: tuple[int, ...] | None) -> int:
    """The longest context that was asked for, else the longest that every model holds."""
    return max(asked) if asked is not None else min(item.blueprint.max_context for item in subjects)


def _point(item: Subject, context: int, settings: Settings, rates: Rates) -> Point:
    state = memory(item.blueprint, context, kv_format=settings.kv_format, weights=item.weights)
    work = flops(item.blueprint, context)
    bound = bounds(item.blueprint, work, rates, sizes=item.sizes, kv_format=settings.kv_format)
    return Point(context, state, bound)


def _samples(subjects: Sequence[Subject], contexts: Sequence[int]) -> tuple[int, ...]:
    longest = max(*contexts, *(item.blueprint.max_context for item in subjects))
    start = min(_CURVE_START, *contexts)
    powers = (2**n for n in range(longest.bit_length()))
    own = (item.blueprint.max_context for item in subjects)
    return tuple(sorted({start, longest, *contexts, *own, *(n for n in powers if start <= n <= longest)}))


def compare(subjects: Sequence[Subject], settings: Settings | None = None) -> Comparison:
    """Compare 2 to `MOST` models; their order is kept.

    UsageError: another number of models, a context below 1, a format that is not known; UnsupportedError: a format of
    keys and values that is not counted.
    """
    if not 2 <= len(subjects) <= MOST:
        raise UsageError(f"2 to {MOST} models are compared, not {len(subjects)}")
    settings = Settings() if settings is None else settings
    if settings.contexts is not None and not settings.contexts:
        raise UsageError("no context is given; give at least one")
    named = _labelled(subjects)
    contexts = _contexts(named, settings.contexts)
    assumed = settings.rates == Rates()
    rates = Rates(BANDWIDTH) if assumed else settings.rates
    made = [{n: _point(item, n, settings, rates) for n in _samples(named, contexts)} for item in named]
    at = _ways_context(named, settings.contexts)
    first = named[0].blueprint
    return Comparison(
        subjects=named,
        rows=table([item.blueprint for item in named]),
        contexts=contexts,
        kv_format=settings.kv_format,
        weights_format=settings.weights_format,
        rates=rates,
        assumed=assumed,
        points=tuple(tuple(points[n] for n in contexts) for points in made),
        curves=tuple(tuple(points.values()) for points in made),
        ways_context=at,
        ways=tuple(ways(item.blueprint, at, kv_format=settings.kv_format) for item in named),
        alignments=tuple(
            Aligned(0, i, align(first, item.blueprint))
            for i, item in enumerate(named)
            if i and item.blueprint.family == first.family
        ),
    )

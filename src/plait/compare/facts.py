"""A comparison as JSON values; the names are stable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Final

from plait.account.speed import ASSUMPTIONS, Bound
from plait.blueprint.pattern import pattern
from plait.blueprint.spec import Evidence
from plait.compare.align import Alignment
from plait.compare.leaves import Spread
from plait.compare.report import Comparison, Point, Subject
from plait.compare.table import Cell, Row
from plait.compare.ways import Ways

__all__ = ["FORMAT", "facts"]

FORMAT: Final = 1
"""The version of the form; it changes when a name changes its meaning or goes."""


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _spread(spread: Spread) -> object:
    """The value where all layers agree, else a list of {value, layers}."""
    if spread.uniform:
        return _plain(spread.values[0][0])
    return [{"value": _plain(value), "layers": list(at)} for value, at in spread.values]


def _evidence(items: Sequence[tuple[str, Evidence]]) -> list[dict[str, str]]:
    return [{"field": name, "origin": e.origin, "key": e.key, "value": e.value} for name, e in items]


def _cell(cell: Cell) -> dict[str, object]:
    fields = {name: _spread(value) for name, value in cell.fields.items()}
    return {"text": cell.text, "fields": fields, "evidence": _evidence(cell.evidence)}


def _row(row: Row) -> dict[str, object]:
    return {
        "key": row.key,
        "group": row.group,
        "label": row.label,
        "differs": row.differs,
        "cells": [_cell(cell) for cell in row.cells],
    }


def _bound(bound: Bound) -> dict[str, object]:
    return {
        "tokens_per_second": bound.tokens_per_second,
        "binds": bound.binds,
        "by_bandwidth": bound.by_bandwidth,
        "by_flops": bound.by_flops,
        "bytes": {**asdict(bound.traffic), "total_bytes": bound.traffic.total_bytes},
    }


def _point(point: Point) -> dict[str, object]:
    state = point.memory
    return {
        "context": point.context,
        "total_bytes": state.total_bytes,
        "reserved_bytes": state.reserved_bytes,
        "per_token_bytes": state.per_token_bytes,
        "categories": {
            name: {"need_bytes": item.need_bytes, "reserved_bytes": item.reserved_bytes}
            for name, item in state.categories.items()
        },
        "prefill": _bound(point.bounds.prefill),
        "decode": _bound(point.bounds.decode),
    }


def _ways(found: Ways) -> dict[str, object]:
    return {
        "context": found.context,
        "full_bytes": found.full_bytes,
        "state_bytes": found.state_bytes,
        "factor": float(found.stored),
        "full_layers": found.full_layers,
        "layers": found.layers,
        "savings": [
            {
                "way": item.way,
                "words": item.words,
                "stored": float(item.stored),
                "read": float(item.read),
                "saved_bytes": item.saved_bytes,
            }
            for item in found.savings
        ],
    }


def _model(item: Subject, points: Sequence[Point], found: Ways) -> dict[str, object]:
    account = item.account
    return {
        "label": item.label,
        "name": item.blueprint.name,
        "family": item.blueprint.family,
        "place": item.place,
        "layers": pattern(item.blueprint),
        "max_context": item.blueprint.max_context,
        "parameters": {
            "in_file": account.in_file,
            "used": account.used,
            "active": account.active,
            "active_share": account.active / account.used,
            "differences": list(account.differences),
        },
        "weights_bytes": item.weights.total_bytes,
        "per_layer_table_bytes": item.weights.table_bytes,
        "points": [_point(point) for point in points],
        "ways": _ways(found),
    }


def _alignment(first: int, second: int, found: Alignment) -> dict[str, object]:
    return {
        "first": first,
        "second": second,
        "equal": [list(pair) for pair in found.equal],
        "groups": [
            {
                "pairs": [list(pair) for pair in group.pairs],
                "differences": [
                    {"field": item.name, "first": _plain(item.first), "second": _plain(item.second)}
                    for item in group.differences
                ],
            }
            for group in found.groups
        ],
        "only_first": list(found.only_first),
        "only_second": list(found.only_second),
    }


def facts(comparison: Comparison) -> dict[str, object]:
    """The comparison as dicts, lists, strings, numbers, booleans and None.

    equal       all models are equal as blueprints
    models      in the order given: label, name, family, place, layers, max_context, parameters (in_file, used, active,
                active_share, differences), weights_bytes, per_layer_table_bytes, points (at each of `contexts`: bytes
                of state as in `memory`, bounds of prefill and decode as in `flops`), ways (context, full_bytes,
                state_bytes, factor, savings: way, words, stored, read, saved_bytes)
    rows        key, group, label, differs, cells in the order of the models: text, fields {name: value, or a list of
                {value, layers}}, evidence (field, origin, key, value)
    alignments  first and second (places in `models`), equal pairs of layers, groups (pairs, differences: field, first,
                second), only_first, only_second
    contexts, kv_dtype, weights_dtype (null: as published), bandwidth and flops (per second, or null),
    assumed_bandwidth (no rate was given), assumptions
    """
    models = zip(comparison.subjects, comparison.points, comparison.ways, strict=True)
    return {
        "format": FORMAT,
        "equal": comparison.equal,
        "models": [_model(*item) for item in models],
        "rows": [_row(row) for row in comparison.rows],
        "alignments": [_alignment(item.first, item.second, item.layers) for item in comparison.alignments],
        "contexts": list(comparison.contexts),
        "kv_dtype": comparison.kv_format,
        "weights_dtype": comparison.weights_format,
        "bandwidth": comparison.rates.bandwidth,
        "flops": comparison.rates.flops,
        "assumed_bandwidth": comparison.assumed,
        "assumptions": list(ASSUMPTIONS),
    }

"""The dimension table of several models: what differs, what is the same, and where each cell comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plait.blueprint.families import MODEL_TYPES, family
from plait.blueprint.spec import Blueprint, Evidence
from plait.compare.attention_rows import ATTENTION, LAYERS, POSITIONS
from plait.compare.dimension import Dimension
from plait.compare.leaves import Spread, leaves
from plait.compare.model_rows import FEED_FORWARD, MODEL, STREAM
from plait.compare.words import ABSENT, NONE, spread_text

__all__ = ["DIMENSIONS", "FAMILY", "FURTHER", "Cell", "Row", "table"]

DIMENSIONS: Final[tuple[Dimension, ...]] = (*LAYERS, *ATTENTION, *POSITIONS, *FEED_FORWARD, *STREAM, *MODEL)
FURTHER: Final = "Further fields"
"""The group of rows for fields that differ and that no other row writes out."""
FAMILY: Final = "reference"
"""The name of evidence that stands for the family's own code, where no key and no rule tells."""
_EMPTY: Final = (ABSENT, NONE, "no")


@dataclass(frozen=True, slots=True)
class Cell:
    """What a row says of one model.

    text      the words; `—`: the model has no such layers
    fields    the values behind the words, by name (`leaves`)
    evidence  (name, Evidence) of each; where the blueprint has none, the family's reference stands as a convention
    """

    text: str
    fields: Mapping[str, Spread]
    evidence: tuple[tuple[str, Evidence], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One dimension of all models, cells in the order of the models."""

    key: str
    group: str
    label: str
    cells: tuple[Cell, ...]

    @property
    def differs(self) -> bool:
        """Two models differ; that one has no such layers and another not the part is no difference."""
        return len({cell.text for cell in self.cells}) > 1 and not self.absent

    @property
    def absent(self) -> bool:
        """No model has what the row speaks of."""
        return all(cell.text in _EMPTY for cell in self.cells)


def _evidence(blueprint: Blueprint, names: Sequence[str]) -> tuple[tuple[str, Evidence], ...]:
    found: dict[str, Evidence] = {}
    for name in names:
        for field, item in blueprint.evidence.items():
            if field == name or (name.endswith(".*") and field.startswith(name[:-1])):
                found.setdefault(field, item)
    if found or not blueprint.evidence or blueprint.family not in MODEL_TYPES.values():
        return tuple(found.items())
    # What no key of the family can change follows from its code.
    return ((FAMILY, Evidence("convention", family(blueprint.family).REFERENCE, blueprint.family)),)


def _cell(item: Dimension, blueprint: Blueprint, fields: Mapping[str, Spread]) -> Cell:
    text = item.text(blueprint)
    values = {name: fields[name] for name in item.shows if name in fields}
    return Cell(text, values, () if text == ABSENT else _evidence(blueprint, item.evidence))


def _own_names(name: str) -> tuple[str, ...]:
    """What a blueprint's evidence may call the field `name`."""
    rest = name.partition(".")[2]
    return (name, rest, f"attention.{rest}", "norm.eps" if name.endswith("norm.eps") else name)


def _differing(found: Sequence[Mapping[str, Spread]]) -> Iterator[str]:
    """Names of fields that two models have with different values, in the order in which they stand in blueprints."""
    for name in dict.fromkeys(name for fields in found for name in fields):
        if len({fields[name] for fields in found if name in fields}) > 1:
            yield name


def _shown(name: str, row: Row, found: Sequence[Mapping[str, Spread]]) -> bool:
    """Whether the row tells all models apart that differ in the field."""
    words: dict[str, Spread] = {}
    there = [(cell.text, fields[name]) for cell, fields in zip(row.cells, found, strict=True) if name in fields]
    return all(words.setdefault(text, value) == value for text, value in there)


def _further(name: str, blueprints: Sequence[Blueprint], found: Sequence[Mapping[str, Spread]]) -> Row:
    texts = [spread_text(fields[name]) if name in fields else ABSENT for fields in found]
    if len({text for text, fields in zip(texts, found, strict=True) if name in fields}) == 1:
        # Long lists that differ behind the cut: numbered, as their length alone would not tell.
        kinds = list(dict.fromkeys(fields[name] for fields in found if name in fields))
        texts = [
            f"{text} (variant {kinds.index(fields[name]) + 1})" if name in fields else text
            for text, fields in zip(texts, found, strict=True)
        ]
    cells = (
        Cell(
            text,
            {name: fields[name]} if name in fields else {},
            _evidence(blueprint, _own_names(name)) if name in fields else (),
        )
        for text, blueprint, fields in zip(texts, blueprints, found, strict=True)
    )
    return Row(name, FURTHER, name, tuple(cells))


def table(blueprints: Sequence[Blueprint]) -> tuple[Row, ...]:
    """Every dimension of the models, then a row for each field that differs and that no dimension writes out.

    Models that are equal as blueprints give no row that differs; of two that are not, every field both have with
    different values is in a row that differs.
    """
    found = [leaves(blueprint) for blueprint in blueprints]
    rows: list[Row] = []
    for item in DIMENSIONS:
        cells = (_cell(item, blueprint, fields) for blueprint, fields in zip(blueprints, found, strict=True))
        rows.append(Row(item.key, item.group, item.label, tuple(cells)))
    shown_by = {name: row for item, row in zip(DIMENSIONS, rows, strict=True) for name in item.shows}
    for name in _differing(found):
        if name not in shown_by or not _shown(name, shown_by[name], found):
            rows.append(_further(name, blueprints, found))
    return tuple(rows)

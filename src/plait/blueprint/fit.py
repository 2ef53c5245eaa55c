"""Whether tensors of a file have the shapes a binding wants: the one rule that counting and loading follow.

Rows and columns count. Axes of length 1 are the container's own, and so is how rows are grouped into axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from plait.blueprint.layout import AbsorbedKeys, Binding, GroupedRows

__all__ = ["Shape", "columns_of", "fits", "rows_in", "rows_of", "stored_shapes"]

Shape = tuple[int, ...]


def columns_of(shape: Shape) -> int:
    """Columns of a role: its last axis; a vector is rows of one element."""
    return shape[-1] if len(shape) > 1 else 1


def rows_of(shape: Shape) -> int:
    """Rows of a role: what all axes but the last number."""
    return prod(shape[:-1]) if len(shape) > 1 else prod(shape)


def rows_in(shape: Shape, columns: int) -> int | None:
    """How many rows of `columns` elements a stored tensor has, None where its rows are others."""
    long = tuple(n for n in shape if n != 1)
    if columns == 1:
        return prod(shape) if len(long) < 2 or shape[-1] == 1 else None
    return prod(long[:-1]) if long and long[-1] == columns else None


def stored_shapes(binding: Binding, roles: Sequence[Shape]) -> tuple[Shape, ...] | None:
    """The shape each tensor of a binding is expected in, None where only their rows together are fixed.

    roles  shapes of the binding's roles. ValueError: roles of unlike columns are joined.
    """
    first, transform = roles[0], binding.transform
    if any(columns_of(shape) != columns_of(first) for shape in roles):
        raise ValueError(f"roles of unlike rows are joined: {binding.roles}")
    if isinstance(transform, AbsorbedKeys):
        rank = first[-1]
        return (transform.heads, rank, transform.key_dim), (transform.heads, transform.value_dim, rank)
    if len(binding.names) == 1:
        return (_joined(transform, roles) if binding.axes is None else binding.axes,)
    if len(roles) == 1 and len(first) == 3 and len(binding.names) == first[0]:
        return (first[1:],) * first[0]
    return None


def _joined(transform: object, roles: Sequence[Shape]) -> Shape:
    first = roles[0]
    if len(roles) == 1:
        return first
    rows = sum(map(rows_of, roles))
    if len(first) > 2 and isinstance(transform, GroupedRows):
        return transform.groups, rows // transform.groups, first[-1]
    return (rows, first[-1]) if len(first) > 1 else (rows,)


def fits(binding: Binding, expected: Shape, found: Shape) -> bool:
    """A tensor of shape `found` holds rows and columns of `expected`; where rows are turned, every axis must agree."""
    if isinstance(binding.transform, AbsorbedKeys):
        return [n for n in expected if n != 1] == [n for n in found if n != 1]
    return rows_in(found, columns_of(expected)) == rows_of(expected)

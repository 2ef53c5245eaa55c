"""What containers do to weights, and back: where the rows and columns of a role lie, and what its values become.

A weight is rows [rows, columns]; a row is what all axes but the last number, and a vector is rows of one element.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plait.blueprint.layout import (
    AbsorbedKeys,
    Chained,
    GroupedRows,
    MinusOne,
    NegatedExp,
    PermutedRows,
    Step,
    TiledHeads,
    Transform,
)

__all__ = ["absorb", "absorbed", "changes_values", "expand_absorbed", "steps_of", "stored_columns", "stored_rows"]
__all__ += ["stored_values", "values"]


def steps_of(transform: Transform | None) -> tuple[Step, ...]:
    """The steps of a transform, in the order in which they are undone."""
    if transform is None:
        return ()
    return transform.steps if isinstance(transform, Chained) else (transform,)


def absorbed(transform: Transform | None) -> AbsorbedKeys | None:
    """The transform, where it is that of an absorbed expansion, which no row of the file is a row of."""
    return transform if isinstance(transform, AbsorbedKeys) else None


def changes_values(transform: Transform | None) -> bool:
    """The container holds other numbers than the model, not only others' places."""
    return any(isinstance(step, MinusOne | NegatedExp) for step in steps_of(transform))


# -- places ----------------------------------------------------------------------------------------------------------


def stored_rows(transform: Transform | None, start: int, stop: int, total: int) -> range | Tensor:
    """Where rows [start, stop) of `total` lie in the container: a range, or int64 [stop - start]."""
    steps = [step for step in steps_of(transform) if _moves_rows(step)]
    if not steps or start == stop:
        return range(start, stop)
    at = torch.arange(start, stop)
    for step in reversed(steps):  # the step undone last was done first
        at = _moved(step, at, total)
    if bool((at[1:] - at[:-1] == 1).all()):
        return range(int(at[0]), int(at[-1]) + 1)
    return at


def stored_columns(transform: Transform | None, total: int) -> Tensor | None:
    """Where each of `total` columns lies in the container, int64 [total]; None: in its own place."""
    steps = [step for step in steps_of(transform) if isinstance(step, TiledHeads) and step.axis == "columns"]
    if not steps:
        return None
    at = torch.arange(total)
    for step in reversed(steps):
        at = _tiled(step, at, total)
    return at


def _moves_rows(step: Step) -> bool:
    return isinstance(step, PermutedRows | GroupedRows) or (isinstance(step, TiledHeads) and step.axis == "rows")


def _moved(step: Step, at: Tensor, total: int) -> Tensor:
    match step:
        case PermutedRows(heads=heads):
            rows = total // heads
            head, row = at // rows, at % rows
            return head * rows + row % (rows // 2) * 2 + row // (rows // 2)
        case GroupedRows():
            return _grouped(step, at)
        case TiledHeads():
            return _tiled(step, at, total)
        case _:
            raise ValueError(f"{step} moves no rows")


def _grouped(step: GroupedRows, at: Tensor) -> Tensor:
    shares = [rows // step.groups for rows in step.sections]
    made = torch.empty_like(at)
    begin = before = 0
    for rows, share in zip(step.sections, shares, strict=True):
        here = (at >= begin) & (at < begin + rows)
        row = at[here] - begin
        made[here] = row // share * sum(shares) + before + row % share
        begin += rows
        before += share
    return made


def _tiled(step: TiledHeads, at: Tensor, total: int) -> Tensor:
    rows = (total - step.start) // (step.key_heads * step.repeats)
    row = at - step.start
    head = row // rows
    moved = (head % step.repeats * step.key_heads + head // step.repeats) * rows + row % rows
    return torch.where(row < 0, at, moved + step.start)


# -- values ----------------------------------------------------------------------------------------------------------


def values(transform: Transform | None, stored: Tensor) -> Tensor:
    """The model's values of stored ones, float32 or float64, in their places.

    The logarithm is made in float64 and rounded to float32 for either type, so that it does not depend on the library.
    """
    for step in steps_of(transform):
        if isinstance(step, MinusOne):
            stored = stored - 1
        elif isinstance(step, NegatedExp):
            stored = stored.to(torch.float64).neg().log().to(torch.float32).to(stored.dtype)
    return stored


def stored_values(transform: Transform | None, model: Tensor) -> Tensor:
    """The values a container holds for those of a model, float32, in their places: the inverse of `values`."""
    for step in reversed(steps_of(transform)):
        if isinstance(step, MinusOne):
            model = model + 1
        elif isinstance(step, NegatedExp):
            model = model.to(torch.float64).exp().neg().to(torch.float32)
    return model


# -- expansions of a latent ------------------------------------------------------------------------------------------


def expand_absorbed(keys: Tensor, weights: Tensor) -> Tensor:
    """Keys [heads, rank, key_dim] and values [heads, value_dim, rank] as rows [heads * (key_dim + value_dim), rank]."""
    return torch.cat((keys.transpose(1, 2), weights), 1).reshape(-1, keys.shape[1])


def absorb(step: AbsorbedKeys, rows: Tensor) -> Sequence[Tensor]:
    """The inverse of `expand_absorbed`."""
    heads = rows.reshape(step.heads, step.key_dim + step.value_dim, -1)
    return heads[:, : step.key_dim].transpose(1, 2).contiguous(), heads[:, step.key_dim :].contiguous()

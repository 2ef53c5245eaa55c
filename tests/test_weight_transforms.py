"""What containers do to weights: rows and columns by the definition of each transform, and back again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.blueprint.layout import (
    AbsorbedKeys,
    Chained,
    GroupedRows,
    MinusOne,
    NegatedExp,
    PermutedRows,
    TiledHeads,
    Transform,
)
from plait.runtime.weight_transforms import (
    absorb,
    expand_absorbed,
    stored_columns,
    stored_rows,
    stored_values,
    values,
)

small = st.integers(1, 4)


def read(transform: Transform, stored: Tensor) -> Tensor:
    """A weight as the model has it, of what a container holds."""
    rows = torch.as_tensor(list(stored_rows(transform, 0, stored.shape[0], stored.shape[0])))
    columns = stored_columns(transform, stored.shape[1])
    moved = stored[rows] if columns is None else stored[rows][:, columns]
    return values(transform, moved)


def write(transform: Transform, model: Tensor) -> Tensor:
    """The inverse, by the places `read` takes."""
    stored = torch.empty_like(model)
    stored[torch.as_tensor(list(stored_rows(transform, 0, model.shape[0], model.shape[0])))] = model
    columns = stored_columns(transform, model.shape[1])
    if columns is not None:
        moved = torch.empty_like(stored)
        moved[:, columns] = stored
        stored = moved
    return stored_values(transform, stored)


def matrix(rows: int, columns: int) -> Tensor:
    return torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)


@settings(deadline=None)
@given(groups=small, shares=st.lists(small, min_size=1, max_size=4), columns=small)
def test_grouped_rows(groups: int, shares: list[int], columns: int) -> None:
    sections = tuple(groups * share for share in shares)
    model = matrix(sum(sections), columns)
    parts = model.split(sections)
    stored = torch.cat(
        [
            part.reshape(groups, share, columns)[group]
            for group in range(groups)
            for part, share in zip(parts, shares, strict=True)
        ]
    )
    assert torch.equal(read(GroupedRows(groups, sections), stored), model)
    assert torch.equal(write(GroupedRows(groups, sections), model), stored)


@settings(deadline=None)
@given(keys=small, repeats=small, rows=small, start=st.integers(0, 3), columns=small)
def test_tiled_heads(keys: int, repeats: int, rows: int, start: int, columns: int) -> None:
    model = matrix(start + keys * repeats * rows, columns)
    heads = model[start:].reshape(keys, repeats, rows, columns)
    stored = torch.cat((model[:start], heads.transpose(0, 1).reshape(-1, columns)))
    assert torch.equal(read(TiledHeads(keys, repeats, start), stored), model)
    assert torch.equal(write(TiledHeads(keys, repeats, start), model), stored)
    turned = TiledHeads(keys, repeats, start, axis="columns")
    assert torch.equal(read(turned, stored.T.contiguous()), model.T)
    assert torch.equal(write(turned, model.T.contiguous()), stored.T)


@settings(deadline=None)
@given(heads=small, pairs=small, columns=small)
def test_permuted_rows(heads: int, pairs: int, columns: int) -> None:
    model = matrix(heads * 2 * pairs, columns)
    stored = model.reshape(heads, 2, pairs, columns).transpose(1, 2).reshape(model.shape)
    assert torch.equal(read(PermutedRows(heads), stored), model)
    assert torch.equal(write(PermutedRows(heads), model), stored)


@settings(deadline=None)
@given(heads=small, key_dim=small, value_dim=small, rank=small)
def test_absorbed_keys(heads: int, key_dim: int, value_dim: int, rank: int) -> None:
    model = matrix(heads * (key_dim + value_dim), rank)
    keys, weights = absorb(AbsorbedKeys(heads, key_dim, value_dim), model)
    assert torch.equal(expand_absorbed(keys, weights), model)
    for head in range(heads):
        first = head * (key_dim + value_dim)
        assert torch.equal(keys[head].T, model[first : first + key_dim])
        assert torch.equal(weights[head], model[first + key_dim : first + key_dim + value_dim])


@settings(deadline=None)
@given(st.lists(st.floats(-60, -1, width=32), min_size=1, max_size=20))
def test_logarithms_come_back_bit_for_bit(logs: Sequence[float]) -> None:
    model = torch.tensor(logs)[:, None]
    stored = write(NegatedExp(), model)
    assert bool((stored < 0).all())
    assert torch.allclose(stored.double(), -model.double().exp(), rtol=2**-24, atol=0)
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(read(NegatedExp(), stored.to(dtype)), model.to(dtype))


@settings(deadline=None)
@given(keys=small, repeats=small, rows=small)
def test_steps_are_undone_in_their_order(keys: int, repeats: int, rows: int) -> None:
    """Two moves and a change of values, against one step after the other."""
    first, second = TiledHeads(keys, repeats), PermutedRows(keys * repeats)
    stored = matrix(keys * repeats * rows * 2, 2)
    expected = read(second, read(first, stored)) - 1
    chain = Chained((first, second, MinusOne()))
    assert torch.equal(read(chain, stored), expected)
    assert torch.equal(write(chain, expected), stored)


@settings(deadline=None)
@given(groups=small, share=small, data=st.data())
def test_some_rows_are_those_of_the_whole(groups: int, share: int, data: st.DataObject) -> None:
    transform, total = GroupedRows(groups, (groups * share, groups * share)), 2 * groups * share
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    whole = list(stored_rows(transform, 0, total, total))
    assert [int(i) for i in stored_rows(transform, start, stop, total)] == [int(i) for i in whole[start:stop]]
    # the rows of one group in one section lie together, so that an expert is a view of the file
    assert isinstance(stored_rows(transform, 0, share, total), range)

"""Attention by the kernels of `native/attention.hpp`: the same as `ops.attention`, of all sessions of a call at once.

Chunks of 8 slabs from absolute position 0, each with a maximum of its own, are joined in order: a row's bits depend on
its position and the keys it sees. Keeps the contract, whatever the number of threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from plait.blueprint.state import SLAB
from plait.runtime.kernels import takes

if TYPE_CHECKING:
    from plait.runtime._native import Native
    from plait.runtime.slabs import Place

__all__ = ["STORES", "SlabTable", "attention_native", "reads", "store_native", "stores"]

# The kernels' numbers of the types that keys and values are stored in; int8 stands for blocks of codes.
STORES: Final = MappingProxyType({torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3})


@dataclass(frozen=True, slots=True)
class SlabTable:
    """New tokens of a call's sessions and the addresses of their slabs of one class, as the kernels read them.

    spans      of each session its first row in the call, its tokens, their first position, the number of the session's
               first slab, and where in `addresses` that slab stands
    addresses  of all sessions' slabs, end to end
    """

    spans: array[int]
    addresses: array[int]
    count: int

    @staticmethod
    def of(sessions: Iterable[tuple[int, int, int, Sequence[int]]]) -> SlabTable:
        """Of each session (tokens, position, number of the first slab, addresses of its slabs).

        ValueError: the slabs end before the last token.
        """
        spans, addresses, row, count = array("q"), array("Q"), 0, 0
        for tokens, position, first, slabs in sessions:
            if position + tokens > (first + len(slabs)) * SLAB:
                raise ValueError(f"slabs from {first} on: {len(slabs)} are too few for position {position + tokens}")
            spans.extend((row, tokens, position, first, len(addresses)))
            addresses.extend(slabs)
            row += tokens
            count += 1
        return SlabTable(spans, addresses, count)

    @property
    def native(self) -> tuple[int, int, int]:
        """Address of the spans, their number, address of the addresses."""
        return self.spans.buffer_info()[0], self.count, self.addresses.buffer_info()[0]


def stores(rows: Tensor, dtype: torch.dtype) -> bool:
    """The kernels take rows [n, heads, dim] to slabs of a type."""
    return takes(rows) and rows.stride(1) == rows.shape[2] and dtype in STORES


def reads(queries: tuple[Tensor, ...], out: Tensor, dtype: torch.dtype) -> bool:
    """The kernels take these queries [n, heads, dim], and slabs of a type."""
    whole = out.dtype == torch.float32 and out.is_contiguous() and len(queries) <= 2
    return whole and all(stores(part, dtype) for part in queries)


def store_native(kernels: Native, rows: Tensor, place: Place, table: SlabTable, dtype: torch.dtype) -> bool:
    """Rows [n, heads, dim] of a call go to their place in slabs. False: they do not fit into the type."""
    at = place.start * dtype.itemsize
    _, heads, dim = rows.shape
    return kernels.store_rows(rows.data_ptr(), rows.stride(0), heads, dim, at, *table.native, STORES[dtype])


def attention_native(
    kernels: Native,
    queries: tuple[Tensor, ...],
    table: SlabTable,
    *,
    keys: tuple[Place, ...],
    values: Place,
    dtype: torch.dtype,
    exact: bool,
    scale: float,
    window: int | None,
    cap: float | None,
    sinks: Tensor | None,
    chosen: Tensor | None,
    out: Tensor,
) -> None:
    """Queries [rows, heads, dim] of a call's sessions over their slabs; see `ops.attention.attention`.

    exact   float32 throughout. Otherwise queries and weights may be rounded to bf16 where they meet rows of bf16: level
            `avx512bf16` does that, which is about twice as fast where rows of queries are many
    keys    where in a slab the keys of each part of the queries lie, and `values` the values
    chosen  [rows, positions of the longest session in whole slabs]
    """
    spans, count, addresses = table.native
    hidden = None if chosen is None else chosen.contiguous()
    kernels.attention(
        [(q.data_ptr(), q.stride(0), q.shape[2], p.start * dtype.itemsize) for q, p in zip(queries, keys, strict=True)],
        spans,
        count,
        addresses,
        values.start * dtype.itemsize,
        values.dim,
        0 if hidden is None else hidden.data_ptr(),
        0 if hidden is None else hidden.stride(0),
        0 if sinks is None else sinks.data_ptr(),
        out.data_ptr(),
        queries[0].shape[1],
        values.heads,
        0 if window is None else window,
        scale,
        0.0 if cap is None else cap,
        STORES[dtype],
        exact,
    )

"""What steps of attention do with rows: they store those of a call, and attend to what the sessions hold.

The kernels take all sessions of a call at once; torch takes one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.state import SLAB
from plait.errors import PlaitError, fault
from plait.runtime.kernels import native
from plait.runtime.ops.attention import attention
from plait.runtime.ops.attention_native import attention_native, reads, store_native, stores
from plait.runtime.ops.codes import as_stored, read_stored
from plait.runtime.session import Span
from plait.runtime.slabs import Place
from plait.runtime.steps.call import Call

__all__ = ["Held", "attend", "blocks_of", "refusal", "store_rows"]

_FORMATS: Final = MappingProxyType({torch.float16: "float16", torch.int8: "a block of 8 bits"})


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of one layer in the slabs of a class, `places` of its parts.

    exact  what meets them is not rounded to their type; else kernels may do that, see `ops.attention_native`
    """

    layer: int
    slab_class: int
    places: tuple[Place, ...]
    exact: bool


def refusal(layer: int, dtype: torch.dtype) -> PlaitError:
    """Rows of a layer do not fit into the slabs' type."""
    what = f"layer {layer}: keys or values are beyond what {_FORMATS.get(dtype, dtype)} holds"
    return PlaitError(fault(what, advice="store them as bfloat16 or float32 (kv_dtype)"))


def store_rows(call: Call, held: Held, rows: tuple[Tensor, ...]) -> None:
    """Write rows [n, heads, dim] of each part, of all spans of a call end to end, into the slabs that hold them.

    PlaitError: they do not fit into float16, or into blocks of codes.
    """
    kernels, dtype = native(), call.spans[0].session.runs[held.slab_class].dtype
    if kernels is not None and all(stores(part, dtype) for part in rows):
        table = call.table(held.slab_class)
        fits = [store_native(kernels, part, place, table, dtype) for part, place in zip(rows, held.places, strict=True)]
        if not all(fits):
            raise refusal(held.layer, dtype)
        return
    ready = [as_stored(part, dtype) for part in rows]
    row = 0
    for span in call.spans:
        for index, part in enumerate(ready):
            if part is None:
                raise refusal(held.layer, dtype)
            _store(span, held, index, part[row : row + len(span.tokens)])
        row += len(span.tokens)


def _store(span: Span, held: Held, index: int, rows: Tensor) -> None:
    """Rows [n, heads, width] of one part go to positions of one session."""
    run, start, done = span.session.runs[held.slab_class], span.session.position, 0
    while done < rows.shape[0]:
        at = start + done
        count = min(rows.shape[0] - done, SLAB - at % SLAB)
        stored = run.slabs[at // SLAB - run.first].views[held.layer][index]
        stored[:, at % SLAB : at % SLAB + count] = rows[done : done + count].transpose(0, 1)
        done += count


def blocks_of(span: Span, held: Held, low: int, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """The parts [heads, SLAB, dim] of a session's slabs from number `low` on; codes are read as `dtype`."""
    run = span.session.runs[held.slab_class]
    return [
        tuple(read_stored(view, p.dim, dtype) for view, p in zip(slab.views[held.layer], held.places, strict=True))
        for slab in run.slabs[low - run.first :]
    ]


def attend(
    call: Call,
    held: Held,
    queries: tuple[Tensor, ...],
    out: Tensor,
    *,
    keys: tuple[int, ...],
    values: int,
    scale: float,
    window: int | None,
    cap: float | None,
    sinks: Tensor | None = None,
    chosen: Tensor | None = None,
    one_by_one: bool,
) -> None:
    """Attention of all rows of a call over what its sessions hold, written to `out` [rows, heads, v_dim].

    queries  parts [rows, heads, dim]; keys  of each of them the part of the layer's rows that it meets
    values   the part that is mixed
    chosen   [rows, positions]: see `ops.attention`, as are the rest
    """
    kernels, dtype = native(), call.spans[0].session.runs[held.slab_class].dtype
    if kernels is not None and reads(queries, out, dtype):
        attention_native(
            kernels,
            queries,
            call.table(held.slab_class),
            keys=tuple(held.places[key] for key in keys),
            values=held.places[values],
            dtype=dtype,
            exact=held.exact,
            scale=scale,
            window=window,
            cap=cap,
            sinks=sinks,
            chosen=chosen,
            out=out,
        )
        return
    row = 0
    for span in call.spans:
        own, run, start = slice(row, row + len(span.tokens)), span.session.runs[held.slab_class], span.session.position
        low = run.first if window is None else max(run.first, max(0, start - window + 1) // SLAB)
        blocks = blocks_of(span, held, low, queries[0].dtype)
        attention(
            tuple(part[own] for part in queries),
            [(*(block[key] for key in keys), block[values]) for block in blocks],
            start=start,
            first_block=low,
            scale=scale,
            window=window,
            cap=cap,
            sinks=sinks,
            chosen=None if chosen is None else chosen[own],
            out=out[own],
            one_by_one=one_by_one,
        )
        row = own.stop

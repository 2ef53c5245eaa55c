"""Softmax attention of new queries over stored keys and values.

    attention_reference   one formula over all keys                          oracle; does not keep the contract
    attention             over blocks of 64 keys from absolute position 0    keeps it
    attention_native      the same by native kernels, of all sessions of a call    keeps it

Keys and values lie in blocks of `SLAB` tokens: block j holds rows [64 j, 64 j + 64), as [kv_heads, 64, dim]; rows not
yet written are zero. A query at position p sees keys [max(0, p - window + 1), p], or of them those chosen for it.
Queries and keys may come in parts, whose products are added: a score is one product over all parts end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import compress
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.state import SLAB
from plait.runtime.ops.activation import softcap
from plait.runtime.ops.exact import pointwise

__all__ = ["ROOM", "attention", "attention_reference", "keeps_bits"]

# Below this many rows the library takes other paths through a product; see `exact`.
_MIN_ROWS: Final = 16
# Scores of a tile at long contexts, in elements: tiles hold fewer positions, down to one, rather than more.
ROOM: Final = 2**25


def attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    start: int,
    first: int,
    scale: float,
    window: int | None,
    cap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """queries [n, heads, d] at positions start..; keys [m, kv_heads, d], values [m, kv_heads, dv] at positions first..

    sinks [heads] are scores that add no value. Returns [n, heads, dv].
    """
    n, heads, _ = queries.shape
    group = heads // keys.shape[1]
    k = keys.repeat_interleave(group, 1).transpose(0, 1)
    v = values.repeat_interleave(group, 1).transpose(0, 1)
    scores = queries.transpose(0, 1) @ k.transpose(1, 2) * scale
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    at = torch.arange(start, start + n)[:, None]
    key = torch.arange(first, first + keys.shape[0])[None]
    seen = key <= at
    if window is not None:
        seen = seen & (key > at - window)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, n, 1)), -1)
    return (scores.softmax(-1)[..., : keys.shape[0]] @ v).transpose(0, 1)


@cache
def _masks(device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys hidden from a query in its own block [SLAB, SLAB], and keys up to d [d + SLAB, SLAB] for d from -SLAB on."""
    lane = torch.arange(SLAB, device=device)
    return lane > lane[:, None], lane <= torch.arange(-SLAB, 2 * SLAB, device=device)[:, None]


def _hide(scores: Sequence[Tensor], first_block: int, start: int, n: int, window: int | None) -> None:
    """Mask, in scores [kv_heads, group, n, SLAB] of each block, the keys a query does not see.

    Only the last block holds keys that come later, only the first blocks hold keys that left the window.
    """
    later, left = _masks(scores[0].device)
    row = start % SLAB
    if row < SLAB - 1:
        scores[-1].masked_fill_(later[row : row + n], -torch.inf)
    if window is None:
        return
    # Of the block whose first key is `key`, the query at start + i no longer sees lanes up to start - window - key + i.
    key = first_block * SLAB
    for block in scores:
        reach = start - window - key
        if reach + n - 1 < 0:
            break
        block.masked_fill_(left[SLAB + reach : SLAB + reach + n], -torch.inf)
        key += SLAB


def _rows_of(sinks: Tensor, kv_heads: int, n: int, rows: int) -> Tensor:
    """The sinks [heads] of each row of a tile, [kv_heads, rows]; rows of no query have 0."""
    own = sinks.view(kv_heads, -1, 1).expand(-1, -1, n).reshape(kv_heads, -1)
    return torch.nn.functional.pad(own, (0, rows - own.shape[1]))


def _columns(blocks: Sequence[tuple[Tensor, ...]], dtype: torch.dtype) -> list[list[Tensor]]:
    """Of each entry of the blocks' tuples its tensors as `dtype`; an entry that stands twice is converted once."""
    columns = [list(column) for column in zip(*blocks, strict=True)]
    if columns[0][0].dtype == dtype:
        return columns
    made: list[list[Tensor]] = []
    for i, column in enumerate(columns):
        again = next((j for j in range(i) if columns[j][0] is column[0]), None)
        made.append(list(torch.stack(column).to(dtype).unbind()) if again is None else made[again])
    return made


def _tile(
    queries: tuple[Tensor, ...],
    blocks: Sequence[tuple[Tensor, ...]],
    first_block: int,
    start: int,
    window: int | None,
    cap: float | None,
    sinks: Tensor | None,
    hidden: Tensor | None,
) -> Tensor:
    """Queries [kv_heads, group, n, d] (scaled) of one block of positions over `blocks` -> [kv_heads, group, n, dv].

    hidden [blocks, n, SLAB]: where it is True the key is not seen; None: position and window decide.
    """
    kv_heads, group, n, _ = queries[0].shape
    real = group * n
    rows = max(real, _MIN_ROWS)
    dtype = queries[0].dtype
    qs = [q.reshape(kv_heads, real, -1) for q in queries]
    if rows != real:
        qs = [torch.nn.functional.pad(q, (0, 0, 0, rows - real)) for q in qs]
    *keys, values = _columns(blocks, dtype)
    scores = torch.empty(len(blocks), kv_heads, rows, SLAB, dtype=dtype, device=qs[0].device)
    for j, part in enumerate(scores.unbind()):
        torch.bmm(qs[0], keys[0][j].mT, out=part)
        for q, more in zip(qs[1:], keys[1:], strict=True):
            part.baddbmm_(q, more[j].mT)
    if cap is not None:
        scores = softcap(scores.view(-1, SLAB), cap).view_as(scores)
    seen = scores[:, :, :real].view(-1, kv_heads, group, n, SLAB).unbind()
    if hidden is None:
        _hide(seen, first_block, start, n, window)
    else:
        for block, mask in zip(seen, hidden.unbind(), strict=True):
            block.masked_fill_(mask, -torch.inf)
    most = scores.amax((0, 3), keepdim=True)
    sink = None if sinks is None else _rows_of(sinks, kv_heads, n, rows)
    if sink is not None:
        most = torch.maximum(most, sink[None, ..., None])
    scores -= most
    weights = pointwise(torch.exp, scores.view(-1, SLAB)).view_as(scores)
    # Block by block from the first on: adding the zeros of masked blocks changes no bits.
    total = weights.sum(-1).cumsum(0)[-1]
    if sink is not None:
        total += pointwise(torch.exp, sink - most[0, ..., 0])
    mixed = torch.zeros(kv_heads, rows, values[0].shape[-1], dtype=dtype, device=scores.device)
    for block, part in zip(values, weights.unbind(), strict=True):
        mixed.baddbmm_(part, block)
    mixed /= total[..., None]
    return mixed[:, :real].view(kv_heads, group, n, -1)


def attention(
    queries: tuple[Tensor, ...],
    blocks: Sequence[tuple[Tensor, ...]],
    *,
    start: int,
    first_block: int,
    scale: float,
    window: int | None,
    cap: float | None,
    out: Tensor,
    sinks: Tensor | None = None,
    chosen: Tensor | None = None,
    one_by_one: bool = False,
) -> None:
    """Attention of one sequence's new tokens.

    queries      parts [n, heads, d], at positions start .. start + n - 1
    blocks       (keys of each part ..., values) of blocks first_block .. , up to the one that holds the last query
    out          [n, heads, dv], written
    sinks        [heads]: scores that take part in the softmax and add no value
    chosen       [n, positions from 0 on]: each query sees only keys where it is True, none that comes later; then there
                 is no window and blocks begin at 0. A query that sees none gets NaN
    one_by_one   a call of the library never holds two positions: for machines where `keeps_bits` says no

    Queries are taken in tiles that end where key blocks end, or before; each tile reduces over its blocks in order.
    Blocks of which no query of a tile sees a key are passed over: they would add zeros.
    """
    n, heads, _ = queries[0].shape
    kv_heads = blocks[0][0].shape[0]
    scaled = queries if scale == 1.0 else tuple(part * scale for part in queries)
    done = 0
    while done < n:
        at = start + done
        low = 0 if window is None else max(0, at - window + 1) // SLAB
        used = blocks[low - first_block : at // SLAB + 1 - first_block]
        room = 1 if one_by_one else max(1, ROOM // (heads * SLAB * len(used)))
        count = min(n - done, SLAB - at % SLAB, room)
        rows = slice(done, done + count)
        tile = tuple(q[rows].view(count, kv_heads, heads // kv_heads, -1).permute(1, 2, 0, 3) for q in scaled)
        hidden = None
        if chosen is not None:
            seen = chosen[rows, : len(used) * SLAB].view(count, -1, SLAB).transpose(0, 1)
            some = seen.any((1, 2))
            used, hidden = list(compress(used, some.tolist())), ~seen[some]
            if not used:
                out[rows] = torch.nan
                done += count
                continue
        mixed = _tile(tile, used, low, at, window, cap, sinks, hidden)
        out[rows] = mixed.permute(2, 0, 1, 3).reshape(count, heads, -1)
        done += count


def keeps_bits(heads: int, kv_heads: int, dims: tuple[int, ...], v_dim: int) -> bool:
    """Rows come out alike in tiles of several sizes, on this machine and for heads of this shape; `dims` of parts."""
    generator = torch.Generator().manual_seed(0)
    queries = [torch.randn(SLAB, heads, dim, generator=generator) for dim in dims]
    blocks = [tuple(torch.randn(kv_heads, SLAB, dim, generator=generator) for dim in (*dims, v_dim)) for _ in range(2)]

    def run(first: int, stop: int) -> Tensor:
        out = torch.empty(stop - first, heads, v_dim)
        attention(
            tuple(part[first:stop] for part in queries),
            blocks,
            start=SLAB + first,
            first_block=0,
            scale=sum(dims) ** -0.5,
            window=None,
            cap=None,
            out=out,
        )
        return out

    whole = run(0, SLAB)
    return all(torch.equal(run(a, b), whole[a:b]) for a, b in ((0, 1), (5, 7), (9, 26), (63, 64), (30, 63)))

"""Choosing the keys a sparse layer attends to (DeepSeek sparse attention, https://arxiv.org/abs/2512.02556).

    score of a key = sum over heads of weight_h * relu(q_h . k)        one key per token, shared by the heads

    index_scores_reference, choose_reference   short forms, the oracles
    index_scores, choose                       keep the contract

A query takes the `top_k` best keys of those up to its own position, of equal ones the earliest; all of them where there
are no more than `top_k`. Keys lie in blocks of `SLAB` tokens as for attention, each [1, SLAB, dim].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.state import SLAB

__all__ = ["PRODUCTS", "choose", "choose_reference", "index_scores", "index_scores_reference", "keeps_bits"]

# Below this many rows the library takes other paths through a product; see `exact`.
_MIN_ROWS: Final = 16
# Products of queries and keys that are held at a time, in elements.
PRODUCTS: Final = 2**22


def index_scores_reference(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """queries [n, heads, dim], weights [n, heads], keys [m, dim] -> [n, m]."""
    return torch.einsum("nh,nhm->nm", weights, torch.relu(torch.einsum("nhd,md->nhm", queries, keys)))


def index_scores(queries: Tensor, weights: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """The same over blocks of keys: -> [n, blocks * SLAB]. Heads are summed in their order, one after the other."""
    n, heads, dim = queries.shape
    rows = max(heads * n, _MIN_ROWS)
    q = torch.nn.functional.pad(queries.transpose(0, 1).reshape(heads * n, dim), (0, 0, 0, rows - heads * n))[None]
    factors = weights.T[..., None]
    out = torch.empty(n, len(blocks), SLAB, dtype=queries.dtype, device=queries.device)
    step = max(1, PRODUCTS // (rows * SLAB))
    for first in range(0, len(blocks), step):
        group = blocks[first : first + step]
        met = torch.empty(len(group), 1, rows, SLAB, dtype=queries.dtype, device=queries.device)
        for block, part in zip(group, met.unbind(), strict=True):
            torch.bmm(q, block.to(queries.dtype).mT, out=part)
        by_head = met[:, 0, : heads * n].relu_().view(len(group), heads, n, SLAB).unbind(1)
        # A product, then a sum: one operation for both rounds otherwise where a vector ends.
        total = by_head[0] * factors[0]
        for one, factor in zip(by_head[1:], factors[1:], strict=True):
            total += one * factor
        out[:, first : first + step] = total.transpose(0, 1)
    return out.flatten(1)


def _seen(start: int, like: Tensor) -> Tensor:
    """Positions up to each query's own, of the shape [n, positions] of `like`."""
    n, width = like.shape
    return torch.arange(width, device=like.device) <= torch.arange(start, start + n, device=like.device)[:, None]


def choose_reference(scores: Tensor, start: int, top_k: int) -> Tensor:
    """scores [n, m] of keys 0 .. m - 1 for queries at positions start .. -> chosen [n, m]."""
    seen = _seen(start, scores)
    order = scores.masked_fill(~seen, -torch.inf).sort(stable=True, dim=-1, descending=True).indices
    return torch.zeros_like(seen).scatter_(-1, order[:, :top_k], True) & seen


def _best(scores: Tensor, start: int, top_k: int) -> Tensor:
    """As the reference without a sort: all above the least score that is taken, and the first that equal it.

    A query with more than `top_k` keys of which one has the score NaN chooses none: its attention gives NaN.
    """
    seen = _seen(start, scores)
    if scores.shape[1] <= top_k:
        return seen
    scores = scores.masked_fill(~seen, -torch.inf)
    least = scores.topk(top_k, -1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    room = top_k - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    # These queries take what they see whatever its scores, as in calls that make no scores for them.
    chosen[: max(top_k - start, 0)] = True
    return chosen & seen


def choose(
    queries: Tensor,
    weights: Tensor,
    blocks: Sequence[Tensor],
    *,
    start: int,
    top_k: int,
    out: Tensor,
    one_by_one: bool = False,
) -> None:
    """The keys of one sequence's new tokens.

    queries      [n, heads, dim], at positions start .. start + n - 1; weights [n, heads], which hold all scalings
    blocks       keys of blocks 0 .. , up to the one that holds the last query
    out          bool [n, at least blocks * SLAB], False; True is written where a query has chosen a key
    one_by_one   a call of the library never holds two positions: for machines where `keeps_bits` says no
    """
    n = queries.shape[0]
    done = 0
    while done < n:
        at = start + done
        count = 1 if one_by_one else min(n - done, SLAB - at % SLAB)
        rows = slice(done, done + count)
        used = blocks[: at // SLAB + 1]
        made = out[rows, : len(used) * SLAB]
        if at + count <= top_k:
            made.copy_(_seen(at, made))
        else:
            made.copy_(_best(index_scores(queries[rows], weights[rows], used), at, top_k))
        done += count


def keeps_bits(heads: int, dim: int) -> bool:
    """Scores come out alike in tiles of several sizes, on this machine and for an indexer of this shape."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(SLAB, heads, dim, generator=generator)
    weights = torch.randn(SLAB, heads, generator=generator)
    blocks = [torch.randn(1, SLAB, dim, generator=generator)]
    whole = index_scores(queries, weights, blocks)
    parts = (slice(0, 1), slice(5, 7), slice(9, 26), slice(63, 64), slice(30, 63))
    return all(torch.equal(index_scores(queries[rows], weights[rows], blocks), whole[rows]) for rows in parts)

"""Attention where keys are values (Gemma 4): V = norm(x), K = rotate(V * w), both from one vector V.

On dims that are not rotated K is V * w, so that a score is q_r . K_r + (q_p * w_p) . V_p, r the rotated dims and p the
plain ones: besides V only the rotated dims of K are stored, and w goes into the query. The reference is softmax
attention over K and V made whole, `ops.attention.attention_reference`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plait.blueprint.spec import Rope
from plait.runtime.ops.rope import rotate

__all__ = ["Folding"]


@dataclass(frozen=True, slots=True)
class Folding:
    """How queries and keys of a head are cut into a rotated and a plain part.

    rope     of the rotated dims, which lie end to end; None where none is
    rotated  which dims of a head they are, in the order in which they are stored
    weight   w at `rotated`
    fold     w at the plain dims, 0 at the rotated ones [dim]; None where all dims are rotated
    """

    rope: Rope | None
    rotated: Tensor
    weight: Tensor
    fold: Tensor | None

    @staticmethod
    def of(rope: Rope | None, weight: Tensor) -> Folding:
        """For heads whose keys have the norm weight w [dim] and turn as `rope` says."""
        rotated = _rotated(rope).to(weight.device)
        fold = weight.index_fill(0, rotated, 0.0) if rotated.numel() < weight.numel() else None
        together = None if rope is None else replace(rope, start=0, distance=rope.pairs)
        return Folding(together if rotated.numel() else None, rotated, weight[rotated], fold)

    def queries(self, q: Tensor) -> tuple[Tensor, ...]:
        """Queries [n, heads, dim], rotated, as parts that meet the rotated keys and the values. Keeps the contract."""
        parts = [q.index_select(-1, self.rotated)] if self.rope is not None else []
        if self.fold is not None:
            parts.append(q * self.fold)
        return tuple(parts)

    def rotated_keys(self, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated dims of the keys of values [n, kv_heads, dim]; cos, sin [n, pairs]. Keeps the contract."""
        assert self.rope is not None
        return rotate(v.index_select(-1, self.rotated) * self.weight, self.rope, cos, sin)

    @property
    def keys(self) -> tuple[int, ...]:
        """Of what a slab holds, values and rotated keys, which each part of `queries` meets."""
        return (*((1,) if self.rope is not None else ()), *((0,) if self.fold is not None else ()))


def _rotated(rope: Rope | None) -> Tensor:
    """The rotated dims of a head: firsts of all pairs, then seconds; as they lie where pairs are adjacent."""
    if rope is None:
        return torch.arange(0)
    if rope.pairing == "adjacent":
        return torch.arange(rope.start, rope.start + 2 * rope.pairs)
    first = torch.arange(rope.start, rope.start + rope.pairs)
    return torch.cat((first, first + rope.distance))

"""Latent attention (https://arxiv.org/abs/2405.04434): one latent and one rotated key per token serve all heads.

    latent_attention_reference   expanded: keys and values of every head made from the latents   oracle
    PerHead, ops.attention       absorbed: queries meet the latents themselves                   keeps the contract

A head's key is up_k l for a latent l, and q . up_k l = (up_k^T q) . l. So queries are folded through the key half of
the up-projection, the latents serve as the keys and as the values of all heads, and what is mixed of them is unfolded
through the value half. Nothing is ever expanded per token of the context.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plait.runtime.ops.linear import Linear

__all__ = ["PerHead", "latent_attention_reference"]


def latent_attention_reference(
    queries: Tensor,
    rotated: Tensor,
    latents: Tensor,
    rotated_keys: Tensor,
    key_up: Tensor,
    value_up: Tensor,
    *,
    start: int,
    scale: float,
    chosen: Tensor | None = None,
) -> Tensor:
    """Queries at positions start .. over m tokens from position 0 on -> [n, heads, v_dim].

    queries [n, heads, nope_dim], rotated [n, heads, rope_dim]; latents [m, kv_rank], rotated_keys [m, rope_dim];
    key_up [heads, nope_dim, kv_rank], value_up [heads, v_dim, kv_rank]. chosen [n, m]: keys that a query sees, none
    that comes later; None: all up to its own.
    """
    keys = torch.einsum("hdr,mr->hmd", key_up, latents)
    values = torch.einsum("hdr,mr->hmd", value_up, latents)
    scores = torch.einsum("nhd,hmd->hnm", queries, keys) + torch.einsum("nhd,md->hnm", rotated, rotated_keys)
    if chosen is None:
        at = torch.arange(start, start + queries.shape[0])[:, None]
        chosen = torch.arange(latents.shape[0])[None] <= at
    weights = (scores * scale).masked_fill(~chosen, -torch.inf).softmax(-1)
    return torch.einsum("hnm,hmd->nhd", weights, values)


class PerHead:
    """A product of its own for each head: x [n, heads, in] -> [n, heads, out]. Keeps the contract as `Linear` does."""

    __slots__ = ("products",)

    def __init__(self, products: tuple[Linear, ...]) -> None:
        self.products = products

    def __call__(self, x: Tensor) -> Tensor:
        heads = x.transpose(0, 1).contiguous()
        return torch.stack([product(one) for product, one in zip(self.products, heads, strict=True)], 1)

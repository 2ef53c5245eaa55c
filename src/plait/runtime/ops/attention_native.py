"""Attention by the kernels of `native/attention.hpp`: the same as `ops.attention.attention`, for what they read.

Chunks of 8 blocks from absolute position 0, each with a maximum of its own, are joined in order: a row's bits depend on
its position and the keys it sees. Keeps the contract, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from plait.runtime.kernels import takes

if TYPE_CHECKING:
    from plait.runtime._native import Native

__all__ = ["STORES", "attention_native", "reads"]

# The kernels' numbers of the types that keys and values are stored in.
STORES: Final = MappingProxyType({torch.float32: 0, torch.bfloat16: 1, torch.float16: 2})


def reads(queries: tuple[Tensor, ...], blocks: Sequence[tuple[Tensor, ...]], out: Tensor) -> bool:
    """The kernels take these: float32 queries in one part, whole blocks in a type they know."""
    keys, values = blocks[0][0], blocks[0][-1]
    return (
        len(queries) == 1
        and takes(queries[0])
        and queries[0].stride(1) == queries[0].shape[2]
        and out.dtype == torch.float32
        and out.is_contiguous()
        and keys.dtype in STORES
        and keys.dtype == values.dtype
        and keys.is_contiguous()
        and values.is_contiguous()
    )


def attention_native(
    kernels: Native,
    queries: Tensor,
    blocks: Sequence[tuple[Tensor, ...]],
    *,
    start: int,
    first_block: int,
    scale: float,
    window: int | None,
    cap: float | None,
    out: Tensor,
    sinks: Tensor | None,
) -> None:
    """See `ops.attention.attention`; queries [n, heads, d]."""
    n, heads, dim = queries.shape
    keys, values = blocks[0]
    kernels.attention(
        queries.data_ptr(),
        queries.stride(0),
        [block[0].data_ptr() for block in blocks],
        [block[1].data_ptr() for block in blocks],
        0 if sinks is None else sinks.data_ptr(),
        out.data_ptr(),
        n,
        heads,
        keys.shape[0],
        dim,
        values.shape[2],
        start,
        first_block,
        start + n if window is None else window,
        scale,
        0.0 if cap is None else cap,
        STORES[keys.dtype],
    )

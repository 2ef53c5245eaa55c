"""What a request takes in memory, known before any weight is read, and whether it stays under a cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch

from plait.account.memory import memory_of_laws
from plait.blueprint.spec import Attention, Blueprint, Indexer, LatentAttention
from plait.blueprint.state import SLAB, laws
from plait.dtypes import Format
from plait.errors import PlaitError
from plait.runtime.kernels import native
from plait.runtime.model import CALL_ROWS, Numbers
from plait.runtime.ops.attention import ROOM
from plait.runtime.ops.attention_native import STORES
from plait.runtime.ops.indexer import PRODUCTS
from plait.runtime.slabs import SlabPool
from plait.runtime.weight_plan import weight_plan
from plait.units import binary_bytes

__all__ = ["MemoryPlan", "memory_plan", "refuse_weights"]

_FORMATS: Final = MappingProxyType(
    {
        torch.float64: "f64",
        torch.float32: "f32",
        torch.bfloat16: "bf16",
        torch.float16: "f16",
        torch.int8: "q8",
    }
)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one sequence of `length` tokens beside the weights, and what a cap leaves.

    cap_bytes         what `weights_bytes`, all state and what is known of earlier prompts may take together
    weights_bytes     prepared weights, exactly; rows of embeddings stay in their file
    state_need_bytes  of the state at `length`, what the last token reads
    state_bytes       reserved for the state: a bound on what the sequence holds on its way to `length`
    store_bytes       left for what is known of earlier prompts, less one slab of each class, which is copied for it
    loading_bytes     the most that weights take while they are read
    scratch_bytes     about what a call takes for its own time, beside all of these

    The program itself, `scratch_bytes`, and what loading takes above the cap come on top of the cap. Pages of mapped
    files are not counted: the system takes them back where memory is short.
    """

    length: int
    cap_bytes: int
    weights_bytes: int
    state_need_bytes: int
    state_bytes: int
    store_bytes: int
    loading_bytes: int
    scratch_bytes: int


def refuse_weights(blueprint: Blueprint, needed: int, dtype: object, cap: int) -> None:
    """PlaitError: the weights alone are over the cap."""
    if needed > cap:
        raise PlaitError(
            f"{blueprint.name}: the weights need {binary_bytes(needed)} as {dtype}, "
            f"the memory cap is {binary_bytes(cap)}"
        )


def memory_plan(
    blueprint: Blueprint,
    numbers: Numbers,
    device: torch.device,
    *,
    length: int,
    cap: int,
    cache: int,
    formats: Mapping[str, Format] = MappingProxyType({}),
) -> MemoryPlan:
    """The plan for `length` tokens, prompt and answer together.

    formats  see `weight_plan`

    PlaitError: they do not fit under `cap`; with the numbers, and the most tokens that do.
    """
    weights = weight_plan(blueprint, numbers, device, formats)
    refuse_weights(blueprint, weights.prepared, numbers.words, cap)
    pool = SlabPool(blueprint, numbers.kv, device)
    state = pool.most(length, CALL_ROWS)
    needed = weights.prepared + state
    if needed > cap:
        raise PlaitError(
            f"{length} tokens need {binary_bytes(needed)} with the weights, the memory cap is {binary_bytes(cap)}: "
            f"weights {binary_bytes(weights.prepared)}, state {binary_bytes(state)}; "
            f"{_longest(pool, length, cap - weights.prepared)}"
        )
    account = memory_of_laws(
        laws(blueprint), length, max_context=blueprint.max_context, weights=0, kv_format=_FORMATS[numbers.kv]
    )
    return MemoryPlan(
        length=length,
        cap_bytes=cap,
        weights_bytes=weights.prepared,
        state_need_bytes=account.total_bytes,
        state_bytes=state,
        store_bytes=min(cache, pool.store_room(cap - needed)),
        loading_bytes=weights.loading,
        scratch_bytes=weights.rows + _scores(blueprint, numbers, device, length),
    )


def _longest(pool: SlabPool, length: int, room: int) -> str:
    """What does fit, in words; the state never shrinks as a sequence grows."""
    fits, too_long = 0, length
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if pool.most(middle, CALL_ROWS) <= room:
            fits = middle
        else:
            too_long = middle
    return f"at most {fits} tokens fit" if fits else "no sequence fits"


def _scores(blueprint: Blueprint, numbers: Numbers, device: torch.device, length: int) -> int:
    """About what one layer's attention takes: scores of a tile, keys and values in the compute type, choices of keys.

    The kernels of the CPU work on a few blocks at a time and read keys and values as they are stored; keys are chosen
    by torch.
    """
    kernels = native() is not None and device.type == "cpu" and numbers.compute == torch.float32
    kernels = kernels and numbers.kv in STORES
    rows = -(-length // SLAB) * SLAB
    most = chosen = choosing = 0
    for layer in blueprint.layers:
        mixer = layer.mixer
        if isinstance(mixer, LatentAttention):
            heads, width, reach = mixer.heads, mixer.kv_rank + mixer.rope_dim, rows
            if mixer.indexer is not None:
                # Which keys each token sees: held until the last layer that uses it.
                chosen = rows * CALL_ROWS
                choosing = max(choosing, _choosing(mixer.indexer, numbers, rows))
        elif isinstance(mixer, Attention):
            heads, width = mixer.heads, mixer.kv_heads * (mixer.qk_dim + mixer.v_dim)
            reach = rows if mixer.window is None else min(rows, mixer.window + 2 * SLAB)
        else:
            continue
        if kernels:
            continue
        # Scores, their weights, and what hides some of them.
        tile = 3 * heads * reach * min(SLAB, max(1, ROOM // (heads * reach)))
        most = max(most, tile + (reach * width if numbers.kv != numbers.compute else 0))
    return max(most, choosing) * numbers.compute.itemsize + chosen


def _choosing(indexer: Indexer, numbers: Numbers, rows: int) -> int:
    """Elements an indexer takes for the tile of a slab: products with some blocks, scores in order, keys it expands."""
    block = SLAB * indexer.heads * SLAB
    met = block * min(rows // SLAB, max(1, PRODUCTS // block))
    expanded = rows * indexer.dim if numbers.kv == torch.int8 else 0
    # A head's product, it times its weight, and their sum; scores, those that are seen, and counts of 64 bits.
    return met + 3 * met // indexer.heads + 4 * SLAB * rows + expanded

"""The account of a model as closed forms: data that gives every figure at any context, batch and format.

Nothing is counted here. The coefficients are read off the state laws, the bytes of the weights and the terms of the
FLOPs, which the commands count by too. A page that evaluates the forms needs to know the shape of five functions and
nothing of any family. With c the context, b the batch, n the tokens of a step, f a place in `KV` or `WEIGHTS`:

    state     {fixed: [[category, [bytes of f]]], growing: [[category, W | null, [bytes of f]]]}
              need = b * (fixed + growing * min(c, W)); reserved in whole slabs, of windows with the slack behind them
    reads     {rows: [[limit | null, [bytes of f]]], snapshots: [bytes of f]}
              a decode step reads b * (rows * min(c, limit) + snapshots), and writes b * snapshots
    weights   [total, table] of f: bytes of all used weights, and of these the table of per-layer embeddings
    fetched   {whole: bytes, tables: [[bytes, rows]], experts: [[bytes, all, active, tensors]]} of f
              a step reads whole + bytes * min(n, rows) // rows + tensors * round(bytes * touched(n) / all)
    flops     {products: {kind: FLOPs}, mixing: [[kind, limit | null, FLOPs a key, FLOPs a token]], layers: {kind: n}}

Integers from 2^53 on are written as strings, since JSON's readers take numbers for floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from plait.account.flops import flops, terms
from plait.account.memory import KV_FORMATS, part_bytes, stored_bytes
from plait.account.speed import WeightRead, rows_met, weight_reads
from plait.blueprint.spec import Blueprint
from plait.blueprint.state import LayerLaw, Part, Rows, Snapshot, WindowRows, laws, row_classes
from plait.blueprint.tensors import Tensor, inventory
from plait.dtypes import BY_NAME, FORMATS

__all__ = ["KV", "WEIGHTS", "fetched_form", "flops_form", "integer", "reads_form", "state_form", "weights_forms"]

Json = dict[str, object]

KV: Final = (*KV_FORMATS, "q8")
"""Formats of keys and values, in the order in which the forms list bytes."""

_FLOATS: Final = ("f32", "bf16", "f16", "f8_e4m3")
# Block formats of intermediate values, in which no file keeps weights.
_NO_WEIGHTS: Final = ("q8_1", "q8_k")
WEIGHTS: Final = tuple(
    item.name
    for item in sorted(FORMATS, key=lambda item: -item.block_bytes / item.block)
    if item.name in _FLOATS or (not item.dense and item.name not in _NO_WEIGHTS)
)
"""Formats of weights to choose from, the widest first."""

_EXACT: Final = 2**53
# A token reads one row of it, so the account names it apart.
_TABLE: Final = "per_layer_embedding"


def integer(n: int) -> int | str:
    """A number for JSON: readers that hold numbers as floats keep it exact."""
    return n if -_EXACT < n < _EXACT else str(n)


def _limit(n: int | None) -> int | str | None:
    return None if n is None else integer(n)


def _sizes(parts: tuple[Part, ...]) -> tuple[int, ...]:
    return tuple(sum(part_bytes(part, name) for part in parts) for name in KV)


def _sum(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _listed(sizes: tuple[int, ...]) -> list[int | str]:
    return [integer(n) for n in sizes]


_NONE: Final = tuple(0 for _ in KV)


def state_form(found: tuple[LayerLaw, ...]) -> Json:
    """Bytes of what these laws keep, as a function of the context."""
    fixed: dict[str, tuple[int, ...]] = {}
    for item in found:
        if isinstance(item.law, Snapshot):
            fixed[item.category] = _sum(fixed.get(item.category, _NONE), _sizes(item.law.parts))
    growing = []
    for members in row_classes(found):
        size = _NONE
        for item in members:
            if isinstance(item.law, Rows | WindowRows):
                size = _sum(size, _sizes(item.law.parts))
        law = members[0].law
        window = integer(law.window) if isinstance(law, WindowRows) else None
        growing.append([members[0].category, window, _listed(size)])
    return {"fixed": [[category, _listed(size)] for category, size in fixed.items()], "growing": growing}


def reads_form(blueprint: Blueprint) -> Json:
    """Bytes of state that a decode step reads, as a function of the context."""
    found = laws(blueprint)
    rows: dict[int | None, tuple[int, ...]] = {}
    for law, most in rows_met(blueprint, found):
        limits = [n for n in (most, law.window if isinstance(law, WindowRows) else None) if n is not None]
        limit = min(limits) if limits else None
        rows[limit] = _sum(rows.get(limit, _NONE), _sizes(law.parts))
    snapshots = _NONE
    for item in found:
        if isinstance(item.law, Snapshot):
            snapshots = _sum(snapshots, _sizes(item.law.parts))
    return {"rows": [[_limit(limit), _listed(size)] for limit, size in rows.items()], "snapshots": _listed(snapshots)}


def _fetched(reads: Iterable[tuple[WeightRead, int, int]]) -> Json:
    """(how a tensor is read, bytes of one, how many) as a form."""
    whole = 0
    tables: list[list[int | str]] = []
    experts: list[list[int | str]] = []
    for item, size, times in reads:
        if item.rows is not None:
            tables += [[integer(size), integer(item.rows)]] * times
        elif item.experts is not None:
            experts.append([integer(size), *map(integer, item.experts), times])
        else:
            whole += size * times
    return {"whole": integer(whole), "tables": tables, "experts": experts}


def fetched_form(blueprint: Blueprint, sizes: Mapping[str, int]) -> Json:
    """Bytes of weights that a step reads, as a function of its tokens; `sizes` are bytes of each role."""
    reads = Counter(weight_reads(blueprint, sizes))
    return _fetched((item, item.size, times) for item, times in reads.items())


def weights_forms(blueprint: Blueprint) -> tuple[Json, Json]:
    """({format: weights}, {format: fetched}) of every format to choose from.

    A format's bytes depend on a tensor's shape and not on its role, and a model has few shapes: each is asked once.
    """
    kinds: dict[tuple[object, ...], int] = {}
    samples: list[Tensor] = []
    of_role: dict[str, int] = {}
    used, table = Counter[int](), Counter[int]()
    for tensor in inventory(blueprint):
        kind = kinds.setdefault((tensor.shape, tensor.copies, tensor.vector), len(kinds))
        if kind == len(samples):
            samples.append(tensor)
        of_role[tensor.role] = kind
        if tensor.part != "mtp" and not tensor.buffer:
            used[kind] += 1
            table[kind] += tensor.role == _TABLE
    # With numbers of shapes in place of bytes the reads are those of every format.
    reads = Counter(weight_reads(blueprint, of_role))
    weights: Json = {}
    fetched: Json = {}
    for name in WEIGHTS:
        sizes = [stored_bytes(tensor, BY_NAME[name]) for tensor in samples]
        weights[name] = [integer(sum(sizes[kind] * n for kind, n in each.items())) for each in (used, table)]
        fetched[name] = _fetched((item, sizes[item.size], times) for item, times in reads.items())
    return weights, fetched


def flops_form(blueprint: Blueprint) -> Json:
    """FLOPs of both phases, as a function of context and batch."""
    made = terms(blueprint)
    mixing: dict[tuple[str, int | None], tuple[int, int]] = {}
    for item in made.mixing:
        key, token = mixing.get((item.kind, item.limit), (0, 0))
        mixing[item.kind, item.limit] = (key + item.per_key, token + item.per_token)
    return {
        "products": {kind: integer(n) for kind, n in made.products.items()},
        "mixing": [
            [kind, _limit(limit), integer(key), integer(token)] for (kind, limit), (key, token) in mixing.items()
        ],
        "layers": dict(flops(blueprint, 1).layers),
    }

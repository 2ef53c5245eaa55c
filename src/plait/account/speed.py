"""Bounds on tokens per second: what a machine's bandwidth and FLOP/s allow at most.

A step takes at least as long as its bytes need at the bandwidth, and at least as long as its FLOPs need at the
FLOP/s; the slower of the two binds. Bytes are those that must cross the memory bus once: weights and state, no
activations. `ASSUMPTIONS` says what is taken for granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal

from plait.account.flops import FlopsAccount
from plait.account.memory import format_weights, memory, part_bytes
from plait.blueprint.families import family
from plait.blueprint.source import Source
from plait.blueprint.spec import Attention, Blueprint, LatentAttention
from plait.blueprint.state import Alias, LayerLaw, Part, Rows, Snapshot, WindowRows, laws
from plait.blueprint.tensors import inventory
from plait.errors import UsageError, WeightsError, fault

__all__ = [
    "ASSUMPTIONS",
    "Bound",
    "Bounds",
    "Rates",
    "Traffic",
    "WeightRead",
    "bounds",
    "decode_traffic",
    "experts_touched",
    "file_weights",
    "format_weights",
    "parse_bandwidth",
    "parse_flop_rate",
    "prefill_traffic",
    "rows_met",
    "weight_reads",
]

ASSUMPTIONS: Final = (
    "every weight that takes part is read once per step, however many tokens the step has; of embedding tables only "
    "the rows of the tokens, of a tied one all (it is the head)",
    "tokens choose their experts evenly and independently: of E experts, k of them active, n tokens touch "
    "E (1 - (1 - k/E)^n); exact for one token",
    "a decode step reads the rows its token meets (windows min(context, W), sparse layers min(context, top_k) and "
    "every indexer key), reads the rows of shared keys and values once per layer, and reads and writes each recurrent "
    "state",
    "a prefill is one step: weights read once, the state it leaves written once",
    "activations, caches and overheads cost nothing; the machine reaches its full rates",
)
"""What the bounds take for granted, one sentence each; printed with them."""

_DECIMAL: Final = MappingProxyType({prefix: 1000**n for n, prefix in enumerate(("", "k", "m", "g", "t", "p", "e"))})
_BYTE_PREFIXES: Final = _DECIMAL | {f"{prefix}i": 1024**n for n, prefix in enumerate("kmgtpe", 1)}
_DIGITS: Final = r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*"
# A small b would be bits: a rate of bytes has a capital B.
_BYTE_RATE: Final = _DIGITS + r"(?:([A-Za-z]{0,2})B/s)?\s*"
_FLOP_RATE: Final = _DIGITS + r"(?:([a-zA-Z]?)(?i:flop/s|flops|flops/s))?\s*"


@dataclass(frozen=True, slots=True)
class Rates:
    """A machine: bytes per second and FLOPs per second; None: not given, does not bind."""

    bandwidth: int | None = None
    flops: int | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes one step moves. Expected where experts are shared by chance, exact otherwise."""

    weights_bytes: int
    state_read_bytes: int
    state_written_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.state_read_bytes + self.state_written_bytes


@dataclass(frozen=True, slots=True)
class WeightRead:
    """What a step reads of one tensor of `size` bytes: all of it, of a table rows, of experts those that are chosen.

    rows     of a table: how many it has; a token reads one
    experts  (all, active a token)
    """

    size: int
    rows: int | None = None
    experts: tuple[int, int] | None = None

    def bytes(self, tokens: int) -> int:
        """Bytes a step of `tokens` tokens reads; of experts as many as it touches on average."""
        if self.rows is not None:
            # A row for each token, and no more rows than there are.
            return self.size * min(tokens, self.rows) // self.rows
        if self.experts is not None:
            experts, active = self.experts
            return round(Fraction(experts_touched(experts, active, tokens)) * self.size / experts)
        return self.size


@dataclass(frozen=True, slots=True)
class Bound:
    """Tokens per second of all sequences together, at most; `binds` is the rate that sets it.

    by_bandwidth, by_flops  the bound of each rate alone, None where the rate is not given
    """

    tokens_per_second: float
    binds: Literal["bandwidth", "flops"]
    by_bandwidth: float | None
    by_flops: float | None
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the two phases."""

    prefill: Bound
    decode: Bound


def _rate(text: str, pattern: str, prefixes: Mapping[str, int], what: str, examples: str) -> int:
    match = re.fullmatch(pattern, text, re.ASCII)
    scale = prefixes.get((match[2] or "").lower()) if match is not None else None
    if match is None or scale is None:
        raise UsageError(f"{what} {text!r} is not understood; write it like {examples}")
    value = Fraction(match[1]) * scale
    if value.denominator != 1 or value < 1:
        raise UsageError(f"{what} {text!r} is not a whole number above 0")
    return value.numerator


def parse_bandwidth(text: str) -> int:
    """Bytes per second: `50GB/s`, `1.6TB/s`, `46.5GiB/s`, or plain bytes; UsageError for anything else."""
    return _rate(text, _BYTE_RATE, _BYTE_PREFIXES, "bandwidth", "50GB/s, 46.5GiB/s or 50000000000 (bytes per second)")


def parse_flop_rate(text: str) -> int:
    """FLOPs per second: `400GFLOP/s`, `1.2TFLOPS`, or a plain number; UsageError for anything else."""
    return _rate(text, _FLOP_RATE, _DECIMAL, "FLOP rate", "400GFLOP/s, 1.2TFLOPS or 400000000000")


def experts_touched(experts: int, active: int, tokens: int) -> float:
    """Experts that `tokens` tokens visit on average, each choosing `active` of `experts` evenly."""
    if tokens == 1:
        return float(active)
    return float(experts * (1 - (1 - active / experts) ** tokens))


def file_weights(source: Source) -> Mapping[str, int]:
    """Bytes of each role of what a user named: of a GGUF file with tensors as its header lists them.

    Roles stored together share their bytes by elements. WeightsError: the file lacks a tensor of the text model.
    """
    blueprint = source.blueprint
    if source.header is None or not source.header.tensors:
        return format_weights(blueprint)
    stored = source.header.tensors
    elements = {tensor.role: tensor.elements for tensor in inventory(blueprint)}
    found: dict[str, int] = {}
    for binding in family(blueprint.family).gguf_layout(blueprint).bindings:
        missing = [name for name in binding.names if name not in stored]
        if missing:
            advice = "give --weights-dtype to count by one format"
            raise WeightsError(fault(f"tensor {missing[0]!r} is missing", file=source.header.path, advice=advice))
        total = sum(stored[name].nbytes for name in binding.names)
        whole = sum(elements[role] for role in binding.roles)
        found |= {role: total * elements[role] // whole for role in binding.roles}
    return MappingProxyType(found)


def weight_reads(blueprint: Blueprint, sizes: Mapping[str, int]) -> Iterator[WeightRead]:
    """What a step reads of each tensor of the text model; `sizes` are bytes of each role."""
    for tensor in inventory(blueprint):
        if tensor.part != "text" or tensor.buffer:
            continue
        active, experts = tensor.per_token
        if tensor.use == "embedding" and not (tensor.role == "embedding" and blueprint.head.tied):
            yield WeightRead(sizes[tensor.role], rows=tensor.shape[0])
        elif active != experts:
            yield WeightRead(sizes[tensor.role], experts=(experts, active))
        else:
            yield WeightRead(sizes[tensor.role])


def _weights_read(blueprint: Blueprint, sizes: Mapping[str, int], tokens: int) -> int:
    """Bytes of weights a step of `tokens` tokens reads."""
    return sum(item.bytes(tokens) for item in weight_reads(blueprint, sizes))


def _bytes(parts: Iterable[Part], kv_format: str) -> int:
    return sum(part_bytes(part, kv_format) for part in parts)


def rows_met(blueprint: Blueprint, every: Iterable[LayerLaw]) -> Iterator[tuple[Rows | WindowRows, int | None]]:
    """The rows one token reads, law by law, and how many of them at most; None: all that the law lets it see."""
    sources: dict[int, Rows | WindowRows] = {}
    for item in every:
        mixer, law = blueprint.layers[item.layer].mixer, item.law
        if isinstance(law, Alias):
            # Shared keys and values are read again; a shared choice of keys reads no indexer keys.
            if not isinstance(mixer, Attention):
                continue
            law = sources[law.source]
        if isinstance(law, Snapshot):
            continue
        limit = None
        if isinstance(mixer, Attention):
            sources[item.layer] = law
            limit = mixer.window
        elif item.category == "rows" and isinstance(mixer, LatentAttention) and mixer.indexer is not None:
            limit = mixer.indexer.top_k
        yield law, limit


def _rows_read(blueprint: Blueprint, every: Iterable[LayerLaw], context: int, kv_format: str) -> int:
    """Bytes of rows one token reads in all layers."""
    total = 0
    for law, limit in rows_met(blueprint, every):
        rows = len(law.read(context))
        total += (rows if limit is None else min(rows, limit)) * _bytes(law.parts, kv_format)
    return total


def decode_traffic(
    blueprint: Blueprint, context: int, sizes: Mapping[str, int], *, batch: int = 1, kv_format: str = "bf16"
) -> Traffic:
    """Bytes of one decode step of `batch` sequences at `context` tokens, the new ones counted.

    sizes  bytes of each role, from `format_weights` or `file_weights`
    """
    memory(blueprint, context, batch=batch, kv_format=kv_format, weights=0)
    every = laws(blueprint)
    snapshots = sum(_bytes(item.law.parts, kv_format) for item in every if isinstance(item.law, Snapshot))
    rows = _rows_read(blueprint, every, context, kv_format)
    return Traffic(_weights_read(blueprint, sizes, batch), batch * (rows + snapshots), batch * snapshots)


def prefill_traffic(
    blueprint: Blueprint, context: int, sizes: Mapping[str, int], *, batch: int = 1, kv_format: str = "bf16"
) -> Traffic:
    """Bytes of a prefill of `batch` sequences of `context` tokens in one step."""
    state = memory(blueprint, context, batch=batch, kv_format=kv_format, weights=0)
    return Traffic(_weights_read(blueprint, sizes, batch * context), 0, state.total_bytes)


def _bound(tokens: int, work: int, traffic: Traffic, rates: Rates) -> Bound:
    by_bandwidth = None if rates.bandwidth is None else tokens * rates.bandwidth / traffic.total_bytes
    by_flops = None if rates.flops is None else tokens * rates.flops / work
    if by_bandwidth is not None and (by_flops is None or by_bandwidth <= by_flops):
        return Bound(by_bandwidth, "bandwidth", by_bandwidth, by_flops, traffic)
    assert by_flops is not None
    return Bound(by_flops, "flops", by_bandwidth, by_flops, traffic)


def bounds(
    blueprint: Blueprint,
    account: FlopsAccount,
    rates: Rates,
    *,
    sizes: Mapping[str, int] | None = None,
    kv_format: str = "bf16",
) -> Bounds:
    """The most tokens per second a machine of these rates gives, at the account's context and batch.

    sizes  bytes of each role, None: as published
    UsageError: neither rate is given. UnsupportedError: a key/value format that is not kept.
    """
    if rates.bandwidth is None and rates.flops is None:
        raise UsageError("a bound needs a bandwidth or a FLOP rate; give one")
    found = format_weights(blueprint) if sizes is None else sizes
    prefill = prefill_traffic(blueprint, account.context, found, batch=account.batch, kv_format=kv_format)
    decode = decode_traffic(blueprint, account.context, found, batch=account.batch, kv_format=kv_format)
    return Bounds(
        _bound(account.prefill.tokens, account.prefill.total, prefill, rates),
        _bound(account.decode.tokens, account.decode.total, decode, rates),
    )

"""`plait memory MODEL --context N`: bytes of state and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Final

import click

from plait.account.headers import headers_of
from plait.account.memory import (
    CATEGORIES,
    KV_FORMATS,
    Bytes,
    Largest,
    MemoryAccount,
    Weights,
    block_scales,
    largest_context,
    memory,
    stored_weights,
)
from plait.account.outline import outline_largest, outline_memory, outline_weights
from plait.account.parameters import account_of
from plait.blueprint.source import Sketch, Source, describe
from plait.blueprint.spec import Blueprint
from plait.blueprint.state import SLAB, SLACK
from plait.blueprint.tensors import inventory
from plait.cli.common import (
    BYTES,
    TOKENS,
    json_option,
    model_argument,
    print_json,
    print_table,
    printable,
    source_facts,
)
from plait.cli.sketch import hub_facts, sketch_facts
from plait.units import binary_bytes

__all__ = ["command", "facts"]

_LINES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rows": "rows",
        "windows": "windows",
        "indexer": "indexer keys",
        "recurrent": "recurrent states",
        "convolution": "convolution tails",
    }
)
_POLICY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "need": "rows the last token reads: all of them, or min(context, W) of a window of W tokens",
        "reserved": f"whole slabs of {SLAB} tokens, with {SLACK} rows behind each window that let tokens be taken back",
    }
)


def _bytes(item: Bytes) -> dict[str, int]:
    return {"need_bytes": item.need_bytes, "reserved_bytes": item.reserved_bytes}


def facts(account: MemoryAccount) -> dict[str, object]:
    """The account as JSON; the names are stable.

    `snapshots` holds what exists at one position only, split into `recurrent` and `convolution`. `layers` counts the
    layers of each kind of state, and those that store none because they share another layer's.
    """
    found = account.categories
    recurrent, convolution = found["recurrent"], found["convolution"]
    snapshots = Bytes(
        recurrent.need_bytes + convolution.need_bytes, recurrent.reserved_bytes + convolution.reserved_bytes
    )
    layers: dict[str, int] = {name: account.layers.states[name] for name in CATEGORIES}
    layers |= {"shared_kv": account.layers.shared_kv, "shared_choice": account.layers.shared_choice}
    return {
        "context": account.context,
        "batch": account.batch,
        "kv_dtype": account.kv_format,
        "layout": "kv" if account.kv_layout else "runtime",
        "max_context": account.max_context,
        "total_bytes": account.total_bytes,
        "reserved_bytes": account.reserved_bytes,
        "per_token_bytes": account.per_token_bytes,
        "weights_bytes": account.weights_bytes,
        "per_layer_table_bytes": account.table_bytes,
        "categories": {
            "rows": _bytes(found["rows"]),
            "windows": _bytes(found["windows"]),
            "indexer": _bytes(found["indexer"]),
            "snapshots": {
                **_bytes(snapshots),
                "recurrent": _bytes(recurrent),
                "convolution": _bytes(convolution),
            },
        },
        "layers": layers,
        "policy": dict(_POLICY),
    }


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options of one call."""

    context: int
    batch: int
    kv_dtype: str
    kv_layout: bool
    budget: int | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """The account, with what the model leaves open.

    weighed      the bytes of the weights are known
    max_context  None: no key states one
    """

    account: MemoryAccount
    fit: Largest | None
    max_context: int | None
    weighed: bool
    notes: tuple[str, ...]


def _undeclared(blueprint: Blueprint) -> bool:
    """The config declares a quantization whose blocks it does not describe."""
    declared = blueprint.quantization
    return declared is not None and not any(block_scales(tensor, declared) for tensor in inventory(blueprint))


def _weights(source: Source) -> tuple[Weights, list[str]]:
    """The weights, and what to say of them: beside a config in a directory or on the hub their headers are read."""
    headers = None if source.header is not None else headers_of(source)
    if headers is None:
        absent = "no weights are at hand: they are counted from the config, in"
        notes = [f"{absent} {source.blueprint.stored_format}"] if source.kind in ("directory", "hub") else []
        return stored_weights(source), notes if source.header is None else []
    counted = account_of(source, headers)
    assert counted.used_bytes is not None
    notes = [f"the weights are counted from {counted.counted_from}"]
    if counted.differences:
        times = len(counted.differences)
        notes.append(f"the files differ from what the config lets expect, {times} times (`plait params` names them)")
    return Weights(counted.used_bytes, counted.table_bytes), notes


def _of_source(source: Source, asked: _Asked) -> _Answer:
    blueprint = source.blueprint
    weights, about = _weights(source)
    account = memory(
        blueprint,
        asked.context,
        batch=asked.batch,
        kv_format=asked.kv_dtype,
        kv_layout=asked.kv_layout,
        weights=weights,
    )
    fit = None
    if asked.budget is not None:
        fit = largest_context(
            blueprint,
            asked.budget,
            batch=asked.batch,
            kv_format=asked.kv_dtype,
            kv_layout=asked.kv_layout,
            weights=weights,
        )
    notes = [*about, *_notes(account, blueprint.max_context)]
    if source.header is None and not about and _undeclared(blueprint):
        assert blueprint.quantization is not None
        method = blueprint.quantization.method
        notes.append(
            f"the config declares {printable(method)} and not how its blocks are stored; "
            f"the weights are counted in {blueprint.stored_format}"
        )
    return _Answer(account, fit, blueprint.max_context, weighed=True, notes=tuple(notes))


def _of_sketch(sketch: Sketch, asked: _Asked) -> _Answer:
    weights = outline_weights(sketch)
    account = outline_memory(sketch, asked.context, batch=asked.batch, kv_format=asked.kv_dtype, weights=weights)
    # K and V of every layer are counted in either layout.
    account = replace(account, kv_layout=asked.kv_layout)
    fit = None
    if asked.budget is not None:
        fit = outline_largest(sketch, asked.budget, weights=weights, batch=asked.batch, kv_format=asked.kv_dtype)
    notes = [
        f"the family {printable(sketch.outline.family)!r} is not known; keys and values alone are counted, "
        "from what the keys tell of each layer",
        *map(printable, sketch.outline.notes),
        *_notes(account, sketch.outline.max_context),
    ]
    return _Answer(account, fit, sketch.outline.max_context, weights is not None, tuple(notes))


def _notes(account: MemoryAccount, max_context: int | None) -> list[str]:
    notes = []
    if max_context is not None and account.context > max_context:
        notes.append(f"the model's own limit is {max_context:,} tokens; the figures are counted beyond it all the same")
    if account.kv_format not in KV_FORMATS:
        notes.append(
            f"{account.kv_format} takes 34 bytes for each 32 elements of a head's vector, its last block padded, as "
            "GGUF's q8_0 does"
        )
    if account.table_bytes:
        notes.append("a token reads one row of the table of per-layer embeddings, so the table can stay on disk")
    return notes


def _fit(found: Largest, account: MemoryAccount) -> str:
    budget = binary_bytes(found.budget)
    if found.limit == "weights":
        return f"The weights alone ({binary_bytes(account.weights_bytes)}) do not fit {budget}."
    if found.context is None:
        return f"The weights fit {budget}, the state of one token beside them does not."
    limit = ", the model's own limit" if found.limit == "max_context" else ""
    return f"The largest context whose need fits {budget} beside the weights: {found.context:,} tokens{limit}."


def _rows(answer: _Answer) -> list[tuple[str, ...]]:
    account = answer.account

    def row(name: str, need: int, reserved: int | None = None) -> tuple[str, ...]:
        held = ("", "") if reserved is None else (f"{reserved:,}", binary_bytes(reserved))
        return (name, f"{need:,}", binary_bytes(need), *held)

    def of(name: str, layers: int) -> str:
        return f"{name} of {layers:,} layer{'' if layers == 1 else 's'}"

    states = account.layers.states
    rows = [
        row(of(_LINES[name], states[name]), item.need_bytes, item.reserved_bytes)
        for name, item in account.categories.items()
        if states[name]
    ]
    if account.layers.shared_kv:
        rows.append(row(of("shared keys and values", account.layers.shared_kv), 0, 0))
    if account.layers.shared_choice:
        rows.append(row(of("shared choice of keys", account.layers.shared_choice), 0, 0))
    rows.append(row("all state", account.total_bytes, account.reserved_bytes))
    if answer.weighed:
        rows.append(row("weights", account.weights_bytes))
    if account.table_bytes:
        rows.append(row("  of these per-layer table", account.table_bytes))
        rows.append(row("  of these all the rest", account.weights_bytes - account.table_bytes))
    rows.append(row("growth per token", account.per_token_bytes))
    return rows


def _json(model: str, found: Source | Sketch, answer: _Answer) -> dict[str, object]:
    place = (
        {**source_facts(model, found), **hub_facts(found)} if isinstance(found, Source) else sketch_facts(model, found)
    )
    made: dict[str, object] = {
        **place,
        **facts(answer.account),
        "max_context": answer.max_context,
        "notes": list(answer.notes),
    }
    if not answer.weighed:
        made["weights_bytes"] = None
    if answer.fit is not None:
        made["fit"] = asdict(answer.fit)
    return made


@click.command("memory")
@model_argument
@click.option("--context", type=TOKENS, required=True, metavar="N", help="Tokens per sequence: 32768, 32k or 1m.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="How many sequences.")
@click.option(
    "--kv-dtype",
    default="bf16",
    show_default=True,
    metavar="F",
    help="Format of keys and values: bf16, f16, f32, f64, or q8, 34 bytes for each 32 elements.",
)
@click.option(
    "--layout",
    type=click.Choice(["runtime", "kv"]),
    default="runtime",
    show_default=True,
    help="runtime: what Plait stores; kv: K and V of every layer, as the textbook does.",
)
@click.option("--budget", type=BYTES, metavar="B", help="Also find the largest context whose need fits, e.g. 8GiB.")
@json_option
def command(
    model: str, context: int, batch: int, kv_dtype: str, layout: str, budget: int | None, as_json: bool
) -> None:
    """Count the memory of MODEL's state at a context, per category, beside its weights.

    need: what the last token reads; a window of W tokens needs min(context, W) rows. reserved: what Plait holds, whole
    slabs of 64 tokens and some rows behind each window. Growth: what one more token adds at this context. Recurrent
    states and convolution tails are float32, with --kv-dtype f64 float64. Of an unknown family keys and values are
    counted where its keys tell them for every layer. 1 GiB = 2^30 bytes.
    """
    found = describe(model)
    asked = _Asked(context, batch, kv_dtype, layout == "kv", budget)
    answer = _of_source(found, asked) if isinstance(found, Source) else _of_sketch(found, asked)
    if as_json:
        print_json(_json(model, found, answer))
        return
    name = found.blueprint.name if isinstance(found, Source) else found.name
    sequences = "" if batch == 1 else f", {batch:,} sequences"
    print_table(
        _rows(answer),
        title=f"Memory of {printable(name)} at {context:,} tokens{sequences}, KV in {kv_dtype}",
        header=("", "need, bytes", "", "reserved by Plait, bytes", ""),
        right=(1, 2, 3, 4),
    )
    for note in answer.notes:
        click.echo(f"Note: {note}.")
    if answer.fit is not None:
        click.echo(_fit(answer.fit, answer.account))

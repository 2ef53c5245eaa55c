"""`plait memory MODEL --context N`: bytes of state and weights."""

from __future__ import annotations

from dataclasses import asdict

import click

from plait.account.memory import Bytes, Largest, MemoryAccount, largest_context, memory, weights_of
from plait.blueprint.source import open_model
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
from plait.units import binary_bytes

__all__ = ["command", "facts"]


def _bytes(item: Bytes) -> dict[str, int]:
    return {"need_bytes": item.need_bytes, "reserved_bytes": item.reserved_bytes}


def facts(account: MemoryAccount) -> dict[str, object]:
    """The account as JSON; the names are stable.

    `snapshots` holds what exists at one position only, split into `recurrent` and `convolution`.
    """
    found = account.categories
    recurrent, convolution = found["recurrent"], found["convolution"]
    snapshots = Bytes(
        recurrent.need_bytes + convolution.need_bytes, recurrent.reserved_bytes + convolution.reserved_bytes
    )
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
    }


def _notes(account: MemoryAccount) -> list[str]:
    if account.context <= account.max_context:
        return []
    return [f"the model's own limit is {account.max_context:,} tokens; the figures are counted beyond it all the same"]


def _fit(found: Largest, account: MemoryAccount) -> str:
    budget = binary_bytes(found.budget)
    if found.limit == "weights":
        return f"The weights alone ({binary_bytes(account.weights_bytes)}) do not fit {budget}."
    if found.context is None:
        return f"The weights fit {budget}, the state of one token beside them does not."
    limit = ", the model's own limit" if found.limit == "max_context" else ""
    return f"The largest context that fits {budget} beside the weights: {found.context:,} tokens{limit}."


@click.command("memory")
@model_argument
@click.option("--context", type=TOKENS, required=True, metavar="N", help="Tokens per sequence: 32768, 32k or 1m.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="How many sequences.")
@click.option(
    "--kv-dtype", default="bf16", show_default=True, metavar="F", help="Format of keys and values: bf16, f16, f32."
)
@click.option(
    "--layout",
    type=click.Choice(["runtime", "kv"]),
    default="runtime",
    show_default=True,
    help="runtime: what Plait stores; kv: K and V of every layer, as the textbook does.",
)
@click.option("--budget", type=BYTES, metavar="B", help="Also find the largest context that fits, e.g. 8GiB.")
@json_option
def command(
    model: str, context: int, batch: int, kv_dtype: str, layout: str, budget: int | None, as_json: bool
) -> None:
    """Count the memory of MODEL's state at a context, per category, beside its weights.

    need: what the last token reads; a window of W tokens needs min(context, W) rows. reserved: what Plait holds, whole
    slabs of 64 tokens and some rows behind each window. Growth: what one more token adds at this context.
    1 GiB = 2^30 bytes.
    """
    source = open_model(model)
    weights = weights_of(source)
    kv_layout = layout == "kv"
    account = memory(
        source.blueprint, context, batch=batch, kv_format=kv_dtype, kv_layout=kv_layout, weights=weights
    )
    fit = None
    if budget is not None:
        fit = largest_context(
            source.blueprint, budget, batch=batch, kv_format=kv_dtype, kv_layout=kv_layout, weights=weights
        )
    notes = _notes(account)
    if as_json:
        made: dict[str, object] = {**source_facts(model, source), **facts(account), "notes": notes}
        if fit is not None:
            made["fit"] = asdict(fit)
        print_json(made)
        return

    def row(name: str, need: int, reserved: int | None) -> tuple[str, ...]:
        held = ("", "") if reserved is None else (f"{reserved:,}", binary_bytes(reserved))
        return (name, f"{need:,}", binary_bytes(need), *held)

    kinds = account.categories.items()
    rows = [row(name, item.need_bytes, item.reserved_bytes) for name, item in kinds if item.need_bytes]
    rows.append(row("all state", account.total_bytes, account.reserved_bytes))
    rows.append(row("weights", account.weights_bytes, None))
    rows.append(row("growth per token", account.per_token_bytes, None))
    sequences = "" if batch == 1 else f", {batch} sequences"
    print_table(
        rows,
        title=f"Memory of {printable(source.blueprint.name)} at {context:,} tokens{sequences}, KV in {kv_dtype}",
        header=("", "need, bytes", "", "reserved, bytes", ""),
        right=(1, 2, 3, 4),
    )
    for note in notes:
        click.echo(f"Note: {note}.")
    if fit is not None:
        click.echo(_fit(fit, account))

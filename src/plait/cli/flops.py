"""`plait flops MODEL --context N`: FLOPs by kind of layer, and bounds on tokens per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import click

from plait.account.flops import FlopsAccount, Phase, conventions, flops
from plait.account.speed import (
    ASSUMPTIONS,
    Bound,
    Bounds,
    Rates,
    bounds,
    file_weights,
    format_weights,
    parse_bandwidth,
    parse_flop_rate,
)
from plait.blueprint.source import open_model
from plait.cli.common import TOKENS, json_option, model_argument, print_json, print_table, printable, source_facts
from plait.errors import UsageError
from plait.units import binary_bytes

__all__ = ["bound_facts", "command", "facts"]


def _phase(phase: Phase) -> dict[str, object]:
    return {
        "tokens": phase.tokens,
        "total": phase.total,
        "per_token": phase.per_token,
        "by_kind": dict(phase.by_kind),
        "products": phase.products,
        "mixing": phase.mixing,
    }


def _bound(bound: Bound) -> dict[str, object]:
    return {
        "tokens_per_second": bound.tokens_per_second,
        "binds": bound.binds,
        "by_bandwidth": bound.by_bandwidth,
        "by_flops": bound.by_flops,
        "bytes": {**asdict(bound.traffic), "total_bytes": bound.traffic.total_bytes},
    }


def facts(account: FlopsAccount) -> dict[str, object]:
    """The account as JSON; the names are stable.

    context, batch, max_context
    layers       {kind: how many layers have such a part}
    prefill      tokens, total, total_all_logits, per_token (mean, a float), by_kind {kind: FLOPs of `total`},
                 products + mixing = total
    decode       the same without total_all_logits; one step of `batch` tokens, each the last of `context`
    conventions  what counts for the kinds of this model, one sentence each
    """
    return {
        "context": account.context,
        "batch": account.batch,
        "max_context": account.max_context,
        "layers": dict(account.layers),
        "prefill": {**_phase(account.prefill), "total_all_logits": account.prefill.total_all_logits},
        "decode": _phase(account.decode),
        "conventions": list(conventions(account.layers)),
    }


def bound_facts(found: Bounds, rates: Rates, weights: str | None, kv_format: str) -> dict[str, object]:
    """The bounds as JSON; the names are stable.

    bandwidth, flops           the rates given, per second, or null
    prefill, decode            tokens_per_second (of all sequences together), binds ("bandwidth" | "flops"),
                               by_bandwidth, by_flops (each alone, or null), bytes {weights_bytes, state_read_bytes,
                               state_written_bytes, total_bytes} of one step
    """
    return {
        "bandwidth": rates.bandwidth,
        "flops": rates.flops,
        "weights_dtype": weights,
        "kv_dtype": kv_format,
        "prefill": _bound(found.prefill),
        "decode": _bound(found.decode),
        "assumptions": list(ASSUMPTIONS),
    }


def _amount(n: float, unit: str) -> str:
    """`n` with a decimal prefix and four digits: 1.234 TFLOP."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if n < 999.95:
            return f"{n:.4g} {prefix}{unit}"
        n /= 1000
    return f"{n:,.4g} E{unit}"


def _speed(tokens: float) -> str:
    return f"{tokens:,.1f}" if tokens >= 10 else f"{tokens:.3g}"


def _notes(account: FlopsAccount) -> list[str]:
    if account.context <= account.max_context:
        return []
    return [f"the model's own limit is {account.max_context:,} tokens; the figures are counted beyond it all the same"]


def _print_account(account: FlopsAccount, name: str) -> None:
    prefill, decode = account.prefill, account.decode

    def row(label: str, layers: str, first: int, second: int) -> tuple[str, ...]:
        shares = (f"{first / prefill.total:.1%}", f"{second / decode.total:.1%}")
        return (label, layers, _amount(first, "FLOP"), shares[0], _amount(second, "FLOP"), shares[1])

    rows = [
        row(kind.replace("_", " "), str(account.layers[kind]), n, decode.by_kind.get(kind, 0))
        for kind, n in prefill.by_kind.items()
    ]
    rows.append(row("total", "", prefill.total, decode.total))
    mean, step = _amount(prefill.per_token, "FLOP"), _amount(decode.per_token, "FLOP")
    rows.append(("per token", "", mean, "", step, ""))
    sequences = "" if account.batch == 1 else f", {account.batch} sequences"
    print_table(
        rows,
        title=f"FLOPs of {printable(name)} at {account.context:,} tokens{sequences}",
        header=("", "layers", "prefill", "", "decode, one step", ""),
        right=(1, 2, 3, 4, 5),
    )
    click.echo(
        f"Exactly: prefill {prefill.total:,} (with the head for all tokens {prefill.total_all_logits:,}), "
        f"decode {decode.total:,}."
    )


def _print_bounds(found: Bounds, rates: Rates) -> None:
    given = []
    if rates.bandwidth is not None:
        given.append(_amount(rates.bandwidth, "B/s"))
    if rates.flops is not None:
        given.append(_amount(rates.flops, "FLOP/s"))

    def cell(value: float | None) -> str:
        return "" if value is None else _speed(value)

    def row(label: str, bound: Bound) -> tuple[str, ...]:
        rate, moved = cell(bound.tokens_per_second), binary_bytes(bound.traffic.total_bytes)
        return (label, rate, bound.binds, cell(bound.by_bandwidth), cell(bound.by_flops), moved)

    print_table(
        [row("prefill", found.prefill), row("decode", found.decode)],
        title=f"At most, tokens/s with {' and '.join(given)}",
        header=("", "bound", "set by", "by bandwidth", "by FLOP/s", "bytes per step"),
        right=(1, 3, 4, 5),
    )


def _print_sentences(title: str, sentences: tuple[str, ...]) -> None:
    click.echo(f"\n{title}:")
    for sentence in sentences:
        click.echo(f"  - {sentence}")


@click.command("flops")
@model_argument
@click.option("--context", type=TOKENS, required=True, metavar="N", help="Tokens per sequence: 32768, 32k or 1m.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="How many sequences.")
@click.option("--bandwidth", metavar="R", help="Bytes per second of the memory, e.g. 50GB/s: also bound tokens/s.")
@click.option("--flops", "rate", metavar="R", help="FLOPs per second, e.g. 400GFLOP/s: also bound tokens/s.")
@click.option(
    "--weights-dtype", metavar="F", help="Format of the weights, for the bound: bf16, q8_0, ...  Default: as published."
)
@click.option(
    "--kv-dtype", metavar="F", help="Format of keys and values, for the bound: bf16, f16, f32.  Default: bf16."
)
@json_option
def command(
    model: str,
    context: int,
    batch: int,
    bandwidth: str | None,
    rate: str | None,
    weights_dtype: str | None,
    kv_dtype: str | None,
    as_json: bool,
) -> None:
    """Count the FLOPs of MODEL, by kind of layer: a prefill of N tokens, and one decode step at context N.

    1 multiply-add = 2 FLOPs; causal and window layers count the keys each token meets, mixtures the experts that run.
    With --bandwidth or --flops also the most tokens per second that a machine of these rates can give. The output
    says what is counted and what is taken for granted.
    """
    rates = Rates(
        None if bandwidth is None else parse_bandwidth(bandwidth), None if rate is None else parse_flop_rate(rate)
    )
    bounded = bandwidth is not None or rate is not None
    if not bounded and (weights_dtype is not None or kv_dtype is not None):
        option = "--weights-dtype" if weights_dtype is not None else "--kv-dtype"
        raise UsageError(f"{option} changes the bound alone; give --bandwidth or --flops with it")
    source = open_model(model)
    account = flops(source.blueprint, context, batch=batch)
    found: Bounds | None = None
    kv_format = "bf16" if kv_dtype is None else kv_dtype
    if bounded:
        sizes: Mapping[str, int]
        sizes = file_weights(source) if weights_dtype is None else format_weights(source.blueprint, weights_dtype)
        found = bounds(source.blueprint, account, rates, sizes=sizes, kv_format=kv_format)
    notes = _notes(account)
    if as_json:
        bound = None if found is None else bound_facts(found, rates, weights_dtype, kv_format)
        print_json({**source_facts(model, source), **facts(account), "bound": bound, "notes": notes})
        return
    _print_account(account, source.blueprint.name)
    if found is not None:
        click.echo()
        _print_bounds(found, rates)
    for note in notes:
        click.echo(f"Note: {note}.")
    _print_sentences("Counted", conventions(account.layers))
    if found is not None:
        _print_sentences("The bound takes for granted", ASSUMPTIONS)

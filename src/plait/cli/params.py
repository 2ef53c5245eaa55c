"""`plait params MODEL`: how many parameters, and which."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from plait.account.parameters import ParameterAccount, parameters_of
from plait.blueprint.source import Sketch, describe
from plait.cli.common import json_option, model_argument, print_json, print_table, printable, source_facts
from plait.cli.sketch import hub_facts, print_params
from plait.units import count

__all__ = ["command", "facts"]

_SHOWN: Final = 40


def facts(account: ParameterAccount) -> dict[str, object]:
    """The account as JSON; the names are stable.

    `counted_from` says what was counted, `ignored` what the files hold beside the graph, by the reason why.
    """
    return {
        "in_file": account.in_file,
        "used": account.used,
        "active": account.active,
        "parts": dict(account.parts),
        "beyond": asdict(account.beyond),
        "roles": dict(account.roles),
        "counted_from": account.counted_from,
        "ignored": dict(account.ignored),
        "differences": list(account.differences),
    }


def _row(name: str, n: int, note: str = "") -> tuple[str, str, str, str]:
    return (name.replace("_", " "), f"{n:,}", count(n), note)


@click.command("params")
@model_argument
@json_option
def command(model: str, as_json: bool) -> None:
    """Count the parameters of MODEL: in the file, used by the graph, active per token; by part and by role.

    used: what the graph needs, tied weights once. active: used, less the experts a token is not routed to.
    Where weights are at hand, a directory, a .gguf file or a model of the hub, the tensors of their headers are counted
    and every difference from what the config lets expect is named; otherwise the config alone is counted.
    """
    source = describe(model)
    if isinstance(source, Sketch):
        print_params(model, source, as_json=as_json)
        return
    account = parameters_of(source)
    if as_json:
        print_json({**source_facts(model, source), **hub_facts(source), **facts(account)})
        return
    rows = [
        _row("in the file", account.in_file),
        _row("used by the graph", account.used),
        _row("active per token", account.active),
    ]
    print_table(rows, title=f"Parameters of {printable(source.blueprint.name)}", right=(1, 2))
    parts = dict(account.parts)
    beyond = asdict(account.beyond)
    click.echo()
    print_table([_row(k, n) for k, n in parts.items() if n and k != "mtp"], title="Used, by part", right=(1, 2))
    click.echo()
    print_table([_row(k, n) for k, n in account.roles.items() if n], title="Used, by role", right=(1, 2))
    if any(beyond.values()):
        click.echo()
        apart = {"fp8_scales": "apart from `in the file`"}
        print_table(
            [_row(k, n, apart.get(k, "")) for k, n in beyond.items() if n], title="In the file, not used", right=(1, 2)
        )
    click.echo()
    click.echo(f"Counted from {account.counted_from}.")
    if account.ignored:
        click.echo()
        print_table(
            [(f"{n:,}", reason) for reason, n in account.ignored.items()],
            title="Tensors of the file that the text graph does not read",
            right=(0,),
        )
    if account.differences:
        click.echo()
        click.echo(f"The file differs from what its config lets expect, {len(account.differences)} times:")
        for line in account.differences[:_SHOWN]:
            click.echo("  " + printable(line))
        if len(account.differences) > _SHOWN:
            click.echo(f"  and {len(account.differences) - _SHOWN} more (--json lists all)")

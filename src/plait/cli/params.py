"""`plait params MODEL`: how many parameters, and which."""

from __future__ import annotations

from dataclasses import asdict

import click

from plait.account.parameters import ParameterAccount, parameters_of
from plait.blueprint.source import open_model
from plait.cli.common import json_option, model_argument, print_json, print_table, printable, source_facts
from plait.units import count

__all__ = ["command", "facts"]


def facts(account: ParameterAccount) -> dict[str, object]:
    """The account as JSON; the names are stable."""
    return {
        "in_file": account.in_file,
        "used": account.used,
        "active": account.active,
        "parts": dict(account.parts),
        "beyond": asdict(account.beyond),
        "roles": dict(account.roles),
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
    Of a .gguf file the tensors of its header are counted and compared with what its metadata lets expect.
    """
    source = open_model(model)
    account = parameters_of(source)
    if as_json:
        print_json({**source_facts(model, source), **facts(account)})
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
    if account.differences:
        click.echo()
        click.echo("The file differs from what its metadata lets expect:")
        for line in account.differences:
            click.echo("  " + printable(line))

"""`plait models`: the catalogue."""

from __future__ import annotations

import click

from plait.account.parameters import ParameterAccount, parameters_of
from plait.blueprint.catalog import Entry, entries
from plait.blueprint.check import not_run
from plait.blueprint.families import MODEL_TYPES
from plait.blueprint.source import open_entry
from plait.blueprint.spec import Blueprint
from plait.cli.common import json_option, pattern, print_json, print_table
from plait.errors import UsageError
from plait.units import count

__all__ = ["command"]


def _abilities(entry: Entry, blueprint: Blueprint) -> tuple[str, ...]:
    """What Plait can do with an entry, in words."""
    found = ["explain"]
    if not not_run(blueprint):
        found.append("run (text)" if blueprint.towers else "run")
    if entry.package is not None:
        found.append(f"weights in the package {entry.package.name}")
    return tuple(found)


def _facts(entry: Entry, blueprint: Blueprint, account: ParameterAccount) -> dict[str, object]:
    return {
        "name": entry.name,
        "title": entry.title,
        "hub": entry.hub,
        "family": blueprint.family,
        "layers": pattern(blueprint),
        "in_file": account.in_file,
        "used": account.used,
        "active": account.active,
        "max_context": blueprint.max_context,
        "explain": True,
        "run": not not_run(blueprint),
        "package": None if entry.package is None else entry.package.name,
    }


@click.command("models")
@click.option("--family", metavar="F", help="Only models of this family, for example gemma3.")
@json_option
def command(family: str | None, as_json: bool) -> None:
    """List the catalogue: layers, parameters, context, and what Plait can do with each model.

    Every name listed can stand for MODEL in the other commands. The parameters are those the graph uses.
    """
    known = sorted(set(MODEL_TYPES.values()))
    if family is not None and family not in known:
        raise UsageError(f"family {family!r} is not known; choose one of {', '.join(known)}")
    found = [(entry, open_entry(entry)) for entry in entries()]
    found = [(entry, source) for entry, source in found if family in (None, source.blueprint.family)]
    accounts = [parameters_of(source) for _, source in found]
    if as_json:
        print_json([_facts(e, s.blueprint, a) for (e, s), a in zip(found, accounts, strict=True)])
        return
    print_table(
        [
            (
                entry.name,
                source.blueprint.family,
                pattern(source.blueprint),
                count(account.used),
                f"{source.blueprint.max_context:,}",
                ", ".join(_abilities(entry, source.blueprint)),
            )
            for (entry, source), account in zip(found, accounts, strict=True)
        ],
        header=("name", "family", "layers", "parameters", "context", "Plait can"),
        right=(3, 4),
    )

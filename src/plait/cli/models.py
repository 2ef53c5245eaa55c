"""`plait models`: the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

import click

from plait.account.parameters import ParameterAccount, parameters_of
from plait.blueprint.catalog import Entry, entries
from plait.blueprint.check import not_run
from plait.blueprint.families import MODEL_TYPES
from plait.blueprint.source import open_entry
from plait.blueprint.spec import Blueprint, LatentAttention
from plait.cli.common import TOKENS, json_option, layer_kind, pattern, print_json, print_table
from plait.errors import UsageError
from plait.units import count

__all__ = ["command"]

_MIXERS: Final = ("full", "window", "delta", "latent", "sparse")
_SCALES: Final[Mapping[str, int]] = MappingProxyType({"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12})


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
        "mixers": [kind for kind in _MIXERS if kind in _kinds(blueprint)],
        "in_file": account.in_file,
        "used": account.used,
        "active": account.active,
        "max_context": blueprint.max_context,
        "explain": True,
        "run": not not_run(blueprint),
        "package": None if entry.package is None else entry.package.name,
    }


def _kinds(blueprint: Blueprint) -> frozenset[str]:
    """Kinds of layers, as `--mixer` calls them; latent attention that an indexer chooses keys for is sparse as well."""
    kinds: set[str] = {layer_kind(layer) for layer in blueprint.layers}
    if any(isinstance(m := layer.mixer, LatentAttention) and m.indexer is not None for layer in blueprint.layers):
        kinds.add("sparse")
    return frozenset(kinds)


class _Parameters(click.ParamType[int]):
    """A number of parameters, with K, M, B or T for thousands, millions, billions, trillions."""

    name = "parameters"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; a usage error where it is none."""
        match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,12})?)([KMBT]?)", str(value).strip().upper())
        number = None if match is None else Fraction(match[1]) * _SCALES[match[2]]
        if number is None or number.denominator != 1:
            self.fail(f"number of parameters {value!r} is not understood; write it like 270M, 4B or 1500000000")
        return number.numerator


@click.command("models")
@click.option("--family", metavar="F", help="Only models of this family, for example gemma3.")
@click.option(
    "--mixer",
    "mixers",
    multiple=True,
    type=click.Choice(_MIXERS),
    help="Only models that have layers of this kind; given twice: of both.",
)
@click.option("--max-params", type=_Parameters(), metavar="N", help="Only models of at most N parameters: 270M, 4B.")
@click.option("--min-context", type=TOKENS, metavar="N", help="Only models of at least N tokens of context: 32k, 1m.")
@click.option("--runs", is_flag=True, help="Only models that Plait runs.")
@json_option
def command(
    family: str | None,
    mixers: tuple[str, ...],
    max_params: int | None,
    min_context: int | None,
    runs: bool,
    as_json: bool,
) -> None:
    """List the catalogue: layers, parameters, context, and what Plait can do with each model.

    Every name listed can stand for MODEL in the other commands. The parameters are those the graph uses. Several
    filters together leave what passes all of them.
    """
    known = sorted(set(MODEL_TYPES.values()))
    if family is not None and family not in known:
        raise UsageError(f"family {family!r} is not known; choose one of {', '.join(known)}")

    def passes(blueprint: Blueprint) -> bool:
        return (
            family in (None, blueprint.family)
            and _kinds(blueprint).issuperset(mixers)
            and (min_context is None or blueprint.max_context >= min_context)
            and not (runs and not_run(blueprint))
        )

    sources = [(entry, source) for entry in entries() if passes((source := open_entry(entry)).blueprint)]
    found = [(entry, source, parameters_of(source)) for entry, source in sources]
    found = [item for item in found if max_params is None or item[2].used <= max_params]
    if as_json:
        print_json([_facts(entry, source.blueprint, account) for entry, source, account in found])
        return
    if not found:
        click.echo("No model of the catalogue passes these filters.")
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
            for entry, source, account in found
        ],
        header=("name", "family", "layers", "parameters", "context", "Plait can"),
        right=(3, 4),
    )

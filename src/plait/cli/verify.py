"""`plait verify`: the invariants of a model, tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from plait.blueprint.check import not_run
from plait.blueprint.pattern import pattern
from plait.blueprint.shrink import tiny
from plait.blueprint.shrink_blueprint import tiny_blueprint
from plait.blueprint.source import Source, from_config, open_model
from plait.blueprint.spec import Blueprint
from plait.cli.common import config_keys, json_option, model_argument, print_json, printable, requires, source_facts
from plait.errors import UnsupportedError, UsageError, fault
from plait.units import parse_count

if TYPE_CHECKING:
    from plait.runtime.verify import Check

__all__ = ["command"]

_DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
# Every split of every length is run, many of them token by token.
_LONGEST: Final = 16384


@click.command("verify")
@model_argument
@click.option("--weights", is_flag=True, help="Try MODEL's own weights, not a small random model of its kind.")
@click.option("--lengths", metavar="N,N,...", help="Tokens of the prompts.  Default: around slabs and windows.")
@click.option(
    "--dtype",
    type=click.Choice(_DTYPES),
    metavar="TYPE",
    default="float32",
    show_default=True,
    help="Type weights are used in: float32, bfloat16, float16 or float64.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and prompts.")
@json_option
def command(model: str, weights: bool, lengths: str | None, dtype: str, seed: int, as_json: bool) -> None:
    """Try whether the invariants hold for MODEL, and show the first place where one does not.

    A random model of MODEL's own kinds of layers is made, with small sizes, and asked the same in different ways: the
    bits that come out may depend on the tokens alone. Exit status 1 if something does not hold.

    JSON: `holds`; `checks` (name, claim, outcome: holds, fails or not tried, tried, count, found); and what was tried.
    """
    source = open_model(model)
    missing = not_run(source.blueprint)
    if missing:
        raise UnsupportedError(f"{source.blueprint.name}: this version cannot run {', '.join(missing)}")
    with requires("run"):
        import plait.runtime.verify  # noqa: F401
    blueprint, used, checks = (_real if weights else _small)(model, source, lengths, dtype, seed)
    if as_json:
        made = list(checks)
        facts: dict[str, object] = {
            **source_facts(model, source),
            "weights": "own" if weights else "random",
            "pattern": pattern(blueprint),
            "hidden": blueprint.hidden,
            "dtype": dtype,
            "seed": seed,
            "lengths": list(used),
            "holds": all(check.outcome != "fails" for check in made),
            "checks": [asdict(check) for check in made],
        }
        print_json(facts)
    else:
        made = list(_printed(blueprint, checks, own=weights, about=f"{dtype}, seed {seed}"))
    if any(check.outcome == "fails" for check in made):
        raise click.exceptions.Exit(1)


def _printed(blueprint: Blueprint, checks: Iterator[Check], *, own: bool, about: str) -> Iterator[Check]:
    """Each check on a line of its own as soon as it is made, then how many there were."""
    from plait.runtime.verify import CLAIMS

    what = "its own weights" if own else "random weights"
    layers = pattern(blueprint)
    click.echo(f"{printable(blueprint.name)}: layers {layers}, {blueprint.hidden} wide, {what}, {about}")
    width = max(map(len, CLAIMS.values()))
    counts = {"holds": 0, "fails": 0, "not tried": 0}
    for check in checks:
        click.echo(f"{check.outcome:<9}  {check.claim:<{width}}  {printable(check.tried)}")
        if check.found is not None:
            click.echo(f"{'':<9}  {printable(check.found)}")
        counts[check.outcome] += 1
        yield check
    click.echo(f"{counts['holds']} hold, {counts['fails']} fail, {counts['not tried']} not tried")


_Tried = tuple[Blueprint, tuple[int, ...], "Iterator[Check]"]


def _small(model: str, source: Source, lengths: str | None, dtype: str, seed: int) -> _Tried:
    """A small random model of the same kinds of layers."""
    from plait.engine.load import DTYPES
    from plait.runtime.verify import default_lengths, verify_small

    keys = config_keys(source)
    small: Mapping[str, object] | None = None
    if keys is None:
        blueprint = tiny_blueprint(source.blueprint)
    else:
        small = tiny(keys)
        blueprint, _ = from_config(small, file=f"tiny {model}", name=f"{source.blueprint.name}-tiny")
    used = _lengths(lengths, blueprint, default_lengths(blueprint, small=True))
    return blueprint, used, verify_small(blueprint, small, used, seed=seed, dtype=DTYPES[dtype])


def _real(model: str, source: Source, lengths: str | None, dtype: str, seed: int) -> _Tried:
    """MODEL as it is."""
    from plait.engine.load import load
    from plait.runtime.verify import Subject, default_lengths, verify_model

    # Bad lengths are refused before the weights are read.
    _lengths(lengths, source.blueprint, ())
    loaded = load(model, dtype=dtype).model
    used = _lengths(lengths, loaded.blueprint, default_lengths(loaded.blueprint, small=False))
    subject = Subject(loaded, used, seed, small=False)
    return loaded.blueprint, used, verify_model(subject)


def _lengths(text: str | None, blueprint: Blueprint, default: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of tokens, ascending. UsageError: none that a prompt of this model can have."""
    if text is None:
        return default
    found = sorted({parse_count(part) for part in text.split(",")})
    limit = min(blueprint.max_context, _LONGEST)
    for length in found:
        if not 1 <= length <= limit:
            raise UsageError(fault("--lengths", expected=f"numbers of tokens in [1, {limit}]", found=length))
    return tuple(found)

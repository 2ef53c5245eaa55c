"""What the page knows of one model: facts to filter by, closed forms to count with, and its pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Final

from plait.account.headers import headers_of
from plait.account.memory import Weights, stored_weights
from plait.account.outline import outline_laws, outline_weights
from plait.account.parameters import ParameterAccount, account_of
from plait.account.speed import file_weights
from plait.blueprint.check import not_run
from plait.blueprint.source import Sketch, Source
from plait.blueprint.spec import Blueprint
from plait.blueprint.state import laws
from plait.draw.theme import FEED_FORWARDS, MIXERS, feed_forward_role, mixer_role
from plait.errors import UnsupportedError, WeightsError
from plait.explore.forms import Json, fetched_form, flops_form, integer, reads_form, state_form, weights_forms
from plait.explore.pictures import pictures

__all__ = ["Listed", "facts"]

# An outline's words for what a layer keeps, as the pictures call them.
_OUTLINED: Final = MappingProxyType({"full": "attention", "window": "window", "none": "none", "unknown": "unknown"})


@dataclass(frozen=True, slots=True)
class Listed:
    """One model of the page.

    id     its name in addresses, unlike any other's of the page
    named  what names it on a command line
    given  named by the user, beside the catalogue
    """

    id: str
    named: str
    source: Source | Sketch
    given: bool = False


def _kinds(blueprint: Blueprint) -> list[str]:
    """Kinds of layers to filter by; latent attention that an indexer chooses keys for is latent and sparse."""
    found = {mixer_role(layer.mixer) for layer in blueprint.layers}
    if "sparse" in found:
        found.add("latent")
    return [kind for kind in MIXERS if kind in found]


def _runs(kinds: list[tuple[str, str]]) -> list[list[object]]:
    """Layers in order, as [mixer, feed-forward, how many in a row]."""
    return [[*kind, len(list(group))] for kind, group in groupby(kinds)]


def _parameters(found: ParameterAccount) -> Json:
    return {
        "in_file": integer(found.in_file),
        "used": integer(found.used),
        "active": integer(found.active),
        "parts": {part: integer(n) for part, n in found.parts.items() if n},
    }


def _pair(found: Weights) -> list[int | str]:
    return [integer(found.total_bytes), integer(found.table_bytes)]


def facts(listed: Listed) -> Json:
    """The model as JSON. Of a model of an unknown family what is not known is null, and `notes` say why."""
    source = listed.source
    common: Json = {"id": listed.id, "named": listed.named, "given": listed.given, "kind": source.kind}
    if isinstance(source, Sketch):
        return common | _of_sketch(source)
    return common | _of_source(source)


def _of_source(source: Source) -> Json:
    blueprint, entry = source.blueprint, source.entry
    headers = headers_of(source)
    account = account_of(source, headers)
    if source.header is not None or account.used_bytes is None:
        stored = stored_weights(source)
    else:
        stored = Weights(account.used_bytes, account.table_bytes)
    notes = list(account.differences)
    weights, fetched = weights_forms(blueprint)
    weights["stored"] = _pair(stored)
    try:
        fetched["stored"] = fetched_form(blueprint, file_weights(source))
    except WeightsError as error:
        # The file is not whole: its state is known all the same, a bound from its weights is not.
        fetched["stored"] = None
        notes.append(str(error))
    title = blueprint.name if entry is None else entry.title
    feeds = {feed_forward_role(layer.feed_forward) for layer in blueprint.layers}
    runtime, textbook = state_form(laws(blueprint)), state_form(laws(blueprint, kv_layout=True))
    return {
        "name": blueprint.name,
        "title": title,
        "hub": str(source.hub.id) if source.hub is not None else None if entry is None else entry.hub,
        "family": blueprint.family,
        "known": True,
        "runs": not not_run(blueprint),
        "mixers": _kinds(blueprint),
        "feeds": [role for role in FEED_FORWARDS if role in feeds],
        "layers": _runs(
            [(mixer_role(layer.mixer), feed_forward_role(layer.feed_forward)) for layer in blueprint.layers]
        ),
        "hidden": blueprint.hidden,
        "vocabulary": blueprint.vocabulary,
        "max_context": integer(blueprint.max_context),
        "parameters": _parameters(account),
        "stored_format": blueprint.stored_format,
        "state": {"runtime": runtime, "kv": textbook if textbook != runtime else None},
        "reads": reads_form(blueprint),
        "flops": flops_form(blueprint),
        "weights": weights,
        "fetched": fetched,
        "notes": notes,
        "pictures": pictures(replace(blueprint, name=title), account),
    }


def _of_sketch(sketch: Sketch) -> Json:
    outline = sketch.outline
    kinds = [_OUTLINED[layer.kind] for layer in outline.layers]
    try:
        state: Json | None = {"runtime": state_form(outline_laws(sketch)), "kv": None}
    except UnsupportedError:
        state = None
    total = outline_weights(sketch)
    weights: Json = {} if total is None else {"stored": [integer(total), 0]}
    return {
        "name": sketch.name,
        "title": sketch.name,
        "hub": None if sketch.hub is None else str(sketch.hub.id),
        "family": outline.family,
        "known": False,
        "runs": False,
        "mixers": [kind for kind in MIXERS if kind in kinds],
        "feeds": [],
        "layers": _runs([(kind, "unknown") for kind in kinds]),
        "hidden": outline.hidden,
        "vocabulary": outline.vocabulary,
        "max_context": None if outline.max_context is None else integer(outline.max_context),
        "parameters": None,
        "stored_format": None,
        "state": state,
        "reads": None,
        "flops": None,
        "weights": weights,
        "fetched": {},
        "notes": [*outline.notes, *outline.doubts],
        "pictures": None,
    }

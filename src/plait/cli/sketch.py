"""What is shown of a model whose family is not known, and of where a model came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Final

import click

from plait.account.headers import headers_of
from plait.blueprint.outline import OutlineLayer
from plait.blueprint.read.config import Coverage
from plait.blueprint.source import Sketch, Source
from plait.cli.common import print_json, print_table, printable
from plait.errors import UnsupportedError, fault
from plait.units import count

__all__ = ["coverage_title", "hub_facts", "place_of", "print_inspect", "print_params", "sketch_facts"]

_SHOWN: Final = 60


def hub_facts(source: Source | Sketch) -> dict[str, object]:
    """The model's id on the hub and the commit it was read from, for JSON; nothing for a model that is here."""
    return {} if source.hub is None else {"hub": str(source.hub.id), "commit": source.hub.commit}


def place_of(source: Source | Sketch) -> str:
    """Where a model was read from, in words."""
    if source.hub is not None:
        return f"hub, {source.hub.id} at {source.hub.commit}"
    if isinstance(source, Source) and source.entry is not None:
        return f"catalogue, {source.entry.hub}"
    return str(source.path)


def coverage_title(coverage: Coverage) -> str:
    """`Keys of the file: 25 used, 8 irrelevant, 1 unknown`."""
    used, irrelevant, unknown = map(len, (coverage.used, coverage.irrelevant, coverage.unknown))
    return f"Keys of the file: {used} used, {irrelevant} irrelevant, {unknown} unknown"


def sketch_facts(model: str, sketch: Sketch) -> dict[str, object]:
    """Where a model of an unknown family came from, for JSON."""
    return {
        "model": model,
        "name": sketch.name,
        "kind": sketch.kind,
        "path": None if sketch.path is None else str(sketch.path),
        **hub_facts(sketch),
        "family": sketch.outline.family,
        "family_known": False,
    }


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _look_up(keys: Mapping[str, object], dotted: str) -> object:
    """The value of a key as coverage writes it; GGUF keys hold dots of their own."""
    if dotted in keys:
        return keys[dotted]
    first, _, rest = dotted.partition(".")
    inner = keys.get(first)
    return _look_up(inner, rest) if isinstance(inner, Mapping) and rest else None


def _layer(layer: OutlineLayer) -> tuple[str, str]:
    named = f" ({layer.word})" if layer.word else ""
    if layer.kind == "none":
        return f"no keys and values{named}", ""
    if layer.kind == "unknown":
        return f"not known{named}", ""
    kind = "full" if layer.window is None else f"window {layer.window}"
    sizes = f"KV heads {layer.kv_heads}, head {layer.qk_dim}"
    if layer.heads is not None:
        sizes = f"heads {layer.heads}, {sizes}"
    return kind + named, sizes if layer.v_dim == layer.qk_dim else f"{sizes}, value {layer.v_dim}"


def _layer_rows(sketch: Sketch) -> list[tuple[str, str, str]]:
    rows = []
    for layer, group in groupby(enumerate(sketch.outline.layers), key=lambda item: item[1]):
        indexes = [index for index, _ in group]
        shown = str(indexes[0]) if len(indexes) == 1 else f"{indexes[0]}-{indexes[-1]}"
        rows.append((shown, *_layer(layer)))
    return rows


def print_inspect(model: str, sketch: Sketch, *, as_json: bool) -> None:
    """What the keys tell, and every key with its value."""
    outline, coverage = sketch.outline, sketch.coverage
    if as_json:
        keys = {"used": list(coverage.used), "irrelevant": list(coverage.irrelevant), "unknown": list(coverage.unknown)}
        facts: dict[str, object] = {
            "hidden": outline.hidden,
            "vocabulary": outline.vocabulary,
            "max_context": outline.max_context,
            "width": outline.width,
            "experts": outline.experts,
            "active_experts": outline.active_experts,
            "layers": [asdict(layer) for layer in outline.layers],
            "notes": list(outline.notes),
            "doubts": list(outline.doubts),
            "evidence": {field: asdict(item) for field, item in outline.evidence.items()},
        }
        print_json({**sketch_facts(model, sketch), "outline": facts, "coverage": keys})
        return
    experts = None if outline.experts is None else f"{outline.experts}, {outline.active_experts or '?'} a token"
    sizes = (
        ("layers", None if not outline.layers else str(len(outline.layers))),
        ("hidden", None if outline.hidden is None else f"{outline.hidden:,}"),
        ("context", None if outline.max_context is None else f"{outline.max_context:,}"),
        ("vocabulary", None if outline.vocabulary is None else f"{outline.vocabulary:,}"),
        ("feed-forward", None if outline.width is None else f"{outline.width:,}"),
        ("experts", experts),
    )
    rows = [
        ("family", f"{outline.family}: unknown; its keys are read by their usual meaning, which is a guess"),
        ("source", place_of(sketch)),
        *((name, text) for name, text in sizes if text is not None),
        ("Plait runs it", "no: the family is unknown"),
    ]
    print_table(rows, title=printable(sketch.name))
    if outline.layers:
        click.echo()
        print_table(_layer_rows(sketch), header=("layers", "keeps", "sizes"))
    for title, lines in (("Assumed:", outline.notes), ("Keys and values are not counted, because:", outline.doubts)):
        if lines:
            click.echo()
            click.echo(title)
            for line in lines:
                click.echo("  " + printable(line))
    click.echo()
    listed = (("used", coverage.used), ("irrelevant", coverage.irrelevant), ("unknown", coverage.unknown))
    print_table(
        [(kind, key, _value(_look_up(sketch.keys, key))) for kind, keys in listed for key in keys],
        title=coverage_title(coverage),
        header=("", "key", "value"),
    )


def print_params(model: str, sketch: Sketch, *, as_json: bool) -> None:
    """What the files hold; UnsupportedError where there are none, as keys alone do not tell an unknown graph."""
    headers = headers_of(sketch)
    if headers is None:
        what = f"the family {sketch.outline.family!r} is not known, and no weights are at hand to count"
        advice = "name a directory with its safetensors files, a .gguf file or a hub id; `plait inspect` shows its keys"
        raise UnsupportedError(fault(what, file=place_of(sketch), advice=advice))
    elements = headers.elements
    formats = Counter[str]()
    for tensor in headers.tensors.values():
        size = 1
        for n in tensor.shape:
            size *= n
        formats[tensor.format.name] += size
    note = "the family is not known: what the graph uses, and what a token uses, is not known either"
    if as_json:
        facts = {"in_file": elements, "used": None, "active": None, "by_format": dict(formats)}
        print_json({**sketch_facts(model, sketch), **facts, "counted_from": str(headers), "notes": [note]})
        return
    print_table(
        [("in the file", f"{elements:,}", count(elements)), *((k, f"{n:,}", count(n)) for k, n in formats.items())],
        title=f"Parameters of {printable(sketch.name)}",
        right=(1, 2),
    )
    click.echo()
    click.echo(f"Counted from {headers}.")
    click.echo(f"Note: {note}.")

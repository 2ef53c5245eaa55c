"""Makes the pages on families: docs/families.md, and docs/families/NAME.md for each family of the catalogue.

The sentences stand in docs/families/src/NAME.toml; figures, config keys and names come from blueprints and accounts.
`scripts/docs.py` writes the pages, or checks them, with the other documents. A file of sentences holds

    title, what     heading and introduction
    pictures        names of the models to show
    papers          title and url of each
    traps           of each: name and text; keys, `MODEL FIELD` whose evidence names the config key; code, classes or
                    functions of the reference code; where, another place in words

In texts a figure is written `{MODEL FIELD}`: a field as `compare.leaves` names it, or a name of `MORE`. A field that
differs between layers gives all its values in order. What names no model or no field is an error.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from plait.account.memory import MemoryAccount, memory, stored_weights  # noqa: E402  (after the path is set)
from plait.account.parameters import ParameterAccount, parameters_of  # noqa: E402
from plait.blueprint.catalog import Entry, entries  # noqa: E402
from plait.blueprint.check import not_run  # noqa: E402
from plait.blueprint.families import family  # noqa: E402
from plait.blueprint.pattern import KINDS, layer_kind, pattern  # noqa: E402
from plait.blueprint.source import Source, open_entry  # noqa: E402
from plait.blueprint.spec import Blueprint, LatentAttention  # noqa: E402
from plait.blueprint.tensors import inventory  # noqa: E402
from plait.compare.leaves import feed_forward_kind, leaves  # noqa: E402
from plait.units import binary_bytes, count  # noqa: E402

INDEX: Final = "docs/families.md"
PAGES: Final = "docs/families"
SOURCES: Final = "docs/families/src"
FIGURE: Final = re.compile(r"\{([a-z0-9.-]+) ([a-z_.]+)\}")
KEYS: Final = frozenset({"title", "what", "pictures", "papers", "traps"})
TRAP_KEYS: Final = frozenset({"name", "text", "keys", "code", "where"})
CONTEXTS: Final = ((32 * 1024, "32k"), (128 * 1024, "128k"))
MIXERS: Final[Mapping[str, str]] = MappingProxyType(
    {"full": "full", "window": "windows", "delta": "Gated DeltaNet", "latent": "latent"}
)
FEED_FORWARDS: Final[Mapping[str, str]] = MappingProxyType(
    {"dense": "dense", "mixture": "experts", "both": "dense and experts in one layer"}
)
BEYOND: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mtp": "multi-token-prediction layers",
        "duplicates": "copies of embedding or head",
        "unused_shared_kv": "key and value weights nobody reads",
        "router_bias": "biases that only choose experts",
        "layer_scalars": "layer scalars",
        "fp8_scales": "FP8 block scales",
        "buffers": "constants",
    }
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the catalogue."""

    entry: Entry
    source: Source
    parameters: ParameterAccount

    @property
    def blueprint(self) -> Blueprint:
        return self.source.blueprint

    @property
    def picture(self) -> str:
        """Its diagram, from the page of its family."""
        return f"../gallery/{self.entry.name}.svg"

    def memory(self, context: int, *, kv_layout: bool = False) -> MemoryAccount:
        """Of one sequence, keys and values in bf16."""
        return memory(self.blueprint, context, kv_layout=kv_layout, weights=stored_weights(self.source))

    def at_limit(self, *, kv_layout: bool = False) -> MemoryAccount:
        return self.memory(self.blueprint.max_context, kv_layout=kv_layout)


def _fixed(account: MemoryAccount) -> int:
    """Bytes that do not depend on the context."""
    return sum(account.categories[name].need_bytes for name in ("recurrent", "convolution"))


def _table(blueprint: Blueprint) -> int:
    return sum(tensor.elements for tensor in inventory(blueprint) if tensor.role == "per_layer_embedding")


MORE: Final[Mapping[str, Callable[[Model], object]]] = MappingProxyType(
    {
        "layers": lambda model: len(model.blueprint.layers),
        "dense_layers": lambda model: sum(feed_forward_kind(x.feed_forward) == "dense" for x in model.blueprint.layers),
        "sharing_layers": lambda model: model.at_limit().layers.shared_kv,
        "predicting_layers": lambda model: 0 if model.blueprint.mtp is None else len(model.blueprint.mtp.layers),
        "parameters": lambda model: count(model.parameters.used),
        "in_file": lambda model: count(model.parameters.in_file),
        "active": lambda model: count(model.parameters.active),
        "table": lambda model: _table(model.blueprint),
        "duplicates": lambda model: model.parameters.beyond.duplicates,
        "growth": lambda model: model.at_limit().per_token_bytes,
        "growth_kv": lambda model: model.at_limit(kv_layout=True).per_token_bytes,
        "state": lambda model: binary_bytes(model.at_limit().total_bytes),
        "rows": lambda model: binary_bytes(model.at_limit().categories["rows"].need_bytes),
        "windows": lambda model: binary_bytes(model.at_limit().categories["windows"].need_bytes),
        "fixed": lambda model: binary_bytes(_fixed(model.memory(1))),
    }
)


def _written(value: object) -> str:
    """A value as people write it."""
    if isinstance(value, list | tuple):
        return " and ".join(map(_written, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:.5g}"


def figure(models: Mapping[str, Model], name: str, field: str) -> str:
    """What `{MODEL FIELD}` stands for; KeyError where there is no such model or field."""
    model = models[name]
    if field in MORE:
        return _written(MORE[field](model))
    # Dims that are rotated come in pairs, and a blueprint counts the pairs.
    pairs = re.sub(r"\brope\.rotated$", "rope.pairs", field)
    values = [value for value, _ in leaves(model.blueprint)[pairs].values if value is not None]
    return _written(values if pairs == field else [2 * value for value in values if isinstance(value, int)])


def filled(text: str, models: Mapping[str, Model]) -> str:
    """A text with its figures; a brace that is left is an error."""
    made = FIGURE.sub(lambda match: figure(models, match[1], match[2]), text.strip())
    if "{" in made or "}" in made:
        raise ValueError(f"no figure is understood in {made!r}; write {{MODEL FIELD}}")
    return made


def _keys(models: Mapping[str, Model], wanted: Sequence[str]) -> list[str]:
    """The config keys behind `MODEL FIELD`s, with what stands in for one that a model's file leaves out."""
    of_model: dict[str, list[str]] = {}
    for name, field in map(str.split, wanted):
        item = models[name].blueprint.evidence[field]
        key = {"key": f"`{item.key}`", "default": f"`{item.key}` (left out, the default counts)"}.get(item.origin)
        of_model.setdefault(name, []).append(f"no key: {item.key}" if key is None else key)
    return [f"{models[name].entry.title}: {', '.join(keys)}" for name, keys in of_model.items()]


def _trap(trap: Mapping[str, Any], models: Mapping[str, Model]) -> str:
    assert trap.keys() <= TRAP_KEYS, trap
    places = _keys(models, trap.get("keys", ()))
    if "code" in trap:
        places.append("reference code: " + ", ".join(f"`{name}`" for name in trap["code"]))
    if "where" in trap:
        places.append(filled(trap["where"], models))
    assert places, f"{trap['name']}: say where it can be checked"
    return f"- **{trap['name']}.** {filled(trap['text'], models)}\n  - {'; '.join(places)}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table, the first `left` columns as text and the rest as numbers."""
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    return [_row(header), _row(rule), *map(_row, rows)]


def _sizes(models: Sequence[Model]) -> list[str]:
    header = ("model", "layers", "hidden", "vocabulary", "context", "in the file", "used", "active per token")
    rows = [
        (
            f"[{model.entry.title}]({model.picture})",
            pattern(model.blueprint),
            f"{model.blueprint.hidden:,}",
            f"{model.blueprint.vocabulary:,}",
            f"{model.blueprint.max_context:,}",
            count(model.parameters.in_file),
            count(model.parameters.used),
            count(model.parameters.active),
        )
        for model in models
    ]
    return _columns(header, rows, 2)


def _at(model: Model, context: int) -> str:
    return binary_bytes(model.memory(context).total_bytes) if context <= model.blueprint.max_context else "-"


def _windows(model: Model) -> str:
    found = leaves(model.blueprint).get("window.window")
    if found is None:
        return "-"
    size = binary_bytes(model.at_limit().categories["windows"].need_bytes)
    return f"{size} ({', '.join(_written(value) for value, _ in found.values)})"


def _state(models: Sequence[Model]) -> list[str]:
    header = (
        "model",
        "growth per token",
        "full windows (tokens)",
        "fixed",
        *(f"at {name}" for _, name in CONTEXTS),
        "at its limit",
        "weights",
    )
    rows = [
        (
            model.entry.title,
            binary_bytes(account.per_token_bytes),
            _windows(model),
            binary_bytes(_fixed(account)) if _fixed(account) else "-",
            *(_at(model, context) for context, _ in CONTEXTS),
            binary_bytes(account.total_bytes),
            binary_bytes(account.weights_bytes),
        )
        for model in models
        for account in [model.at_limit()]
    ]
    return _columns(header, rows, 1)


def _beyond(models: Sequence[Model]) -> list[str]:
    """What files hold beside the parameters that are used."""
    lines = []
    for model in models:
        found = asdict(model.parameters.beyond)
        parts = [f"{BEYOND[name]} {count(number)}" for name, number in found.items() if number]
        if parts:
            lines.append(f"- {model.entry.title}: {', '.join(parts)}")
    return ["In the files and not used:", "", *lines, ""] if lines else []


def _runs(models: Sequence[Model]) -> str:
    missing = dict.fromkeys(part for model in models for part in not_run(model.blueprint))
    if missing:
        return f"described and counted; of some models not run yet: {', '.join(missing)}"
    towers = any(model.blueprint.towers for model in models)
    return "described, counted and run" + (", text alone" if towers else "")


def _page(name: str, text: Mapping[str, Any], models: Mapping[str, Model]) -> str:
    assert text.keys() <= KEYS, sorted(text.keys() - KEYS)
    own = [model for model in models.values() if model.blueprint.family == name]
    shown = [models[picture] for picture in text["pictures"]]
    assert shown, f"{name}: no picture"
    assert all(model in own for model in shown), f"{name}: {text['pictures']} are not all of the family"
    hubs = [f"[{model.entry.hub}](https://huggingface.co/{model.entry.hub})" for model in own]
    lines = [
        f"<!-- Made by scripts/docs.py from {SOURCES}/{name}.toml and the catalogue. -->",
        f"# {text['title']}",
        "",
        filled(text["what"], models),
        "",
        f"Family `{name}`; {_runs(own)}. [All families](../families.md)",
        "",
    ]
    for model in shown:
        lines += [f"![Diagram of {model.entry.title}, bottom to top]({model.picture})", ""]
    lines += ["## Sizes", "", *_sizes(own), "", *_beyond(own)]
    lines += ["## Memory of one sequence", "", *_state(own), ""]
    lines += ["Keys and values in bf16, weights as published; states and convolution tails are float32.", ""]
    lines += [
        "## What is easy to get wrong",
        "",
        "Below each: where to check it.",
        "",
        *(_trap(trap, models) for trap in text["traps"]),
        "",
    ]
    lines += ["## Where it comes from", "", f"- Published: {', '.join(hubs)}"]
    lines += [f"- Reference code: {family(name).REFERENCE}"]
    lines += [f"- [{paper['title']}]({paper['url']})" for paper in text.get("papers", ())]
    lines += ["", "```sh", f"plait inspect {shown[0].entry.name} --evidence", "```", ""]
    return "\n".join(lines)


def _kinds(models: Sequence[Model]) -> tuple[str, str]:
    """Token mixers and feed-forwards of a family, in words."""
    layers = [layer for model in models for layer in model.blueprint.layers]
    mixers = {layer_kind(layer) for layer in layers}
    sparse = any(isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None for layer in layers)
    words = [MIXERS[kind] for kind in KINDS if kind in mixers] + (["indexer"] if sparse else [])
    parts = {feed_forward_kind(layer.feed_forward) for layer in layers}
    return ", ".join(words), ", ".join(word for kind, word in FEED_FORWARDS.items() if kind in parts)


def _index(texts: Mapping[str, Mapping[str, Any]], models: Mapping[str, Model]) -> str:
    rows = []
    for name, text in texts.items():
        own = [model for model in models.values() if model.blueprint.family == name]
        contexts = sorted({model.blueprint.max_context for model in own})
        rows.append(
            (
                f"[{text['title']}](families/{name}.md)",
                f"`{name}`",
                *_kinds(own),
                str(len(own)),
                " to ".join(f"{n:,}" for n in dict.fromkeys((contexts[0], contexts[-1]))),
            )
        )
    header = ("family", "name", "token mixers", "feed-forward", "models", "context")
    return "\n".join(
        [
            f"<!-- Made by scripts/docs.py from {SOURCES} and the catalogue. -->",
            "# The families",
            "",
            "A page for each family of the catalogue: what it is, its diagram, its sizes, what it keeps in memory, and",
            "what is easy to get wrong, each with the place where it can be checked.",
            "",
            *_columns(header, rows, 4),
            "",
            "[The gallery](gallery.md) has the diagram of every model.",
            "",
        ]
    )


def pages() -> dict[str, str]:
    """The text of each page, by its path from the root; an error where a family of the catalogue has no sentences."""
    sources = [(entry, open_entry(entry)) for entry in entries()]
    found = (Model(entry, source, parameters_of(source)) for entry, source in sources)
    models = {model.entry.name: model for model in sorted(found, key=lambda model: model.parameters.used)}
    names = sorted({model.blueprint.family for model in models.values()})
    places = {path.stem: path for path in (ROOT / SOURCES).glob("*.toml")}
    assert sorted(places) == names, f"{SOURCES}: expected {names}, found {sorted(places)}"
    texts = {name: tomllib.loads(places[name].read_text(encoding="utf-8")) for name in names}
    made = {f"{PAGES}/{name}.md": _page(name, text, models) for name, text in texts.items()}
    return {INDEX: _index(texts, models), **made}

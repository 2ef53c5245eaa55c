"""`plait cache`: the prefix store, explained on prompts that are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

from plait.blueprint.source import Source, open_model
from plait.blueprint.state import SLAB
from plait.cache.anchors import Mark
from plait.cache.report import Reason, Stats
from plait.cache.simulate import STORES, Outcome, Simulation
from plait.cli.common import BYTES, json_option, model_argument, pattern, print_json, printable, requires, source_facts
from plait.cli.traces import Asked, Reader, read_requests
from plait.errors import TokenizerError, fault
from plait.units import binary_bytes

if TYPE_CHECKING:
    from plait.engine.tokenizer import Tokenizer

__all__ = ["REASONS", "command"]

_BUDGET: Final = "2GiB"
# Other names of the types, as `generate` takes them.
_SPELLINGS: Final = MappingProxyType(
    {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8": "q8"}
)
# Tokens of text that are shown before the first one that differs, and from it on.
_BEFORE: Final = 12
_AFTER: Final = 10

REASONS: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        "none": "all that is known is reused",
        "no_anchor": "recurrent layers can resume only where a snapshot was taken, and the nearest one lies before it",
        "tail_differs": f"the next anchor lies within {SLAB} tokens behind the place where the prompt goes another way",
        "window_dropped": "full rows are there, rows of a window are not any more",
        "evicted": "it was stored, and went to keep the budget",
        "fingerprint": "it was computed with another model, type, adapter or layout",
    }
)
_LEFT_OUT: Final = MappingProxyType(
    {
        "near": "an anchor nearby serves it",
        "off": "its kind is not in use",
        "no_snapshot": "no call ended there",
        "window_gone": "rows of a window are gone",
    }
)


@dataclass(frozen=True, slots=True)
class _Difference:
    """Where a prompt leaves the earlier request that begins most like it.

    position  index of the first token that is not alike
    before    the last tokens that are
    stored    what comes then there; nothing: it ends
    prompt    what comes then here; nothing: the prompt ends
    """

    position: int
    request: int
    before: tuple[int, ...]
    stored: tuple[int, ...]
    prompt: tuple[int, ...]


@click.group("cache")
def command() -> None:
    """Explain what the prefix store reuses of prompts, and why not more."""


@command.command("explain")
@model_argument
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--budget", type=BYTES, default=_BUDGET, show_default=True, metavar="SIZE", help="What the store may hold."
)
@click.option(
    "--kv-dtype",
    type=click.Choice([*STORES, *_SPELLINGS]),
    default="f32",
    show_default=True,
    metavar="TYPE",
    help=f"Type of keys and values, {', '.join(STORES)}, or as `generate` spells it.",
)
@click.option("--tokens", "as_tokens", is_flag=True, help="FILEs hold token ids; no tokenizer is needed.")
@click.option("--plain", is_flag=True, help="Control tokens written in prompts stay text.")
@json_option
def explain(
    model: str, files: tuple[Path, ...], budget: int, kv_dtype: str, as_tokens: bool, plain: bool, as_json: bool
) -> None:
    """Send the prompts in FILEs through MODEL's prefix store and say of each what is reused, and why not more.

    Weights are not needed: the store, its anchors and its sizes are those of generation, one request after the other. A
    FILE is a prompt, or, named .jsonl, a trace: lines of {"prompt": P, "reply": R, "marks": [{"position": N, "kind":
    "turn"}]}, P and R text or token ids, R and marks optional. R is what was generated up to an end-of-text token. Text
    of a reply may have been generated as other tokens than it is read as; ids are exact.

    JSON: `requests` (place, prompt, reply, common, resume, lost, reason, why, differs, anchors, placed, left_out,
    store), `total`, and what was assumed.
    """
    source = open_model(model)
    tokenizer = None if as_tokens else _tokenizer(source)
    blueprint = source.blueprint
    reader = _reader(source, tokenizer, plain)
    # Every file is read before the first answer: a fault in the last is not found behind pages of output.
    asked = tuple(read_requests(files, reader))
    kv_dtype = _SPELLINGS.get(kv_dtype, kv_dtype)
    simulation = Simulation(blueprint, budget, kv_format=kv_dtype)
    answers = zip(asked, _answers(simulation, asked), strict=True)
    if as_json:
        requests = [_json(one, outcome, tokenizer) for one, outcome in answers]
        print_json(
            {
                **source_facts(model, source),
                "budget_bytes": budget,
                "kv_dtype": kv_dtype,
                "page_tokens": SLAB,
                "page_bytes": sum(simulation.sizes.slabs),
                "snapshot_bytes": sum(simulation.sizes.snapshots),
                "requests": requests,
                "total": _total(simulation.store.stats()),
            }
        )
        return
    about = f"keys and values in {kv_dtype}, at most {binary_bytes(budget)}"
    click.echo(f"Prefix store of {printable(blueprint.name)}: layers {pattern(blueprint)}, {about}")
    click.echo(_unit(simulation))
    for number, (one, outcome) in enumerate(answers, 1):
        click.echo()
        for line in _lines(number, one, outcome, asked, tokenizer):
            click.echo(line)
    if len(asked) > 1:
        stats = simulation.store.stats()
        known = stats.reused + stats.lost
        click.echo(f"\nIn all {stats.prompt_tokens:,} prompt tokens, {stats.reused:,} reused of {known:,} known")


def _answers(simulation: Simulation, asked: tuple[Asked, ...]) -> Iterator[Outcome]:
    for one in asked:
        yield simulation.request(one.prompt, one.reply, one.marks)


def _tokenizer(source: Source) -> Tokenizer:
    """The tokenizer beside the blueprint. TokenizerError: it is not here."""
    with requires("run"):
        from plait.engine.packages import packaged_weights
        from plait.engine.tokenizer import load_tokenizer, tokenizer_from_gguf
    if source.entry is not None and source.entry.package is not None:
        source = open_model(packaged_weights(source.entry))
    if source.entry is not None or source.hub is not None:
        advice = "name a directory or a .gguf file that has one, or give token ids with --tokens"
        raise TokenizerError(fault(f"{source.blueprint.name}: its tokenizer is not here", advice=advice))
    if source.header is not None:
        return tokenizer_from_gguf(source.header)
    assert source.path is not None
    return load_tokenizer(source.path if source.kind == "directory" else source.path.parent)


def _reader(source: Source, tokenizer: Tokenizer | None, plain: bool) -> Reader:
    blueprint = source.blueprint
    if tokenizer is None:
        return Reader(blueprint.vocabulary, blueprint.max_context, None, None)
    known = tokenizer
    return Reader(
        blueprint.vocabulary,
        blueprint.max_context,
        known.encode if plain else known.encode_markup,
        # A generated text spells no control token, and begins no document.
        lambda text: known.encode(text, start=False),
    )


def _difference(asked: Asked, outcome: Outcome) -> _Difference | None:
    nearest = outcome.nearest
    if nearest is None:
        return None
    at = nearest.common
    return _Difference(
        at,
        nearest.request,
        asked.prompt[max(0, at - _BEFORE) : at],
        nearest.tokens[at : at + _AFTER],
        asked.prompt[at : at + _AFTER],
    )


def _why(outcome: Outcome) -> str:
    """Why the prefill begins where it does."""
    report = outcome.report
    if report.reason != "none":
        return REASONS[report.reason]
    if not report.common:
        return "nothing that begins alike was stored"
    if report.resume == report.prompt - 1:
        return "all of it is reused but the last token, which is always computed"
    return REASONS["none"]


def _shown(ids: tuple[int, ...], tokenizer: Tokenizer | None) -> str:
    """Text in quotes, on one line; without a tokenizer the ids."""
    return str(list(ids)) if tokenizer is None else f'"{printable(_text(ids, tokenizer))}"'


def _text(ids: tuple[int, ...], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(ids, control=True, start=False)


def _anchors(marks: tuple[Mark, ...]) -> str:
    return ", ".join(f"{mark.kind} {mark.position:,}" for mark in marks) or "none"


def _unit(simulation: Simulation) -> str:
    page = f"A page of {SLAB} tokens is {binary_bytes(sum(simulation.sizes.slabs))}"
    if not simulation.sizes.snapshots:
        return page
    return f"{page}, a snapshot {binary_bytes(sum(simulation.sizes.snapshots))}"


def _lines(
    number: int, asked: Asked, outcome: Outcome, every: tuple[Asked, ...], tokenizer: Tokenizer | None
) -> Iterator[str]:
    """One request in words."""
    report, stats = outcome.report, outcome.stats
    reply = f", reply {len(asked.reply):,}" if asked.reply else ""
    yield f"{number}  {printable(asked.place)}: prompt {report.prompt:,} tokens{reply}"
    yield f"   common {report.common:,}, resume {report.resume:,}, lost {report.lost:,}: {_why(outcome)}"
    differs = _difference(asked, outcome)
    if differs is not None:
        there = f"request {differs.request + 1} ({printable(every[differs.request].place)})"
        if not differs.prompt:
            yield f"   {there} begins with all of it"
        elif not differs.stored:
            yield f"   it goes on where {there} ends, at token {differs.position:,}"
        else:
            yield f"   token {differs.position:,} is not that of {there}"
            yield f"     after   {_shown(differs.before, tokenizer)}"
            yield f"     stored  {_shown(differs.stored, tokenizer)}"
            yield f"     prompt  {_shown(differs.prompt, tokenizer)}"
    yield f"   anchors on its way: {_anchors(report.anchors)}"
    yield f"   anchors placed: {_anchors(outcome.anchors)}"
    for left in outcome.left_out:
        yield f"   no anchor for {left.mark.kind} {left.mark.position:,}: {_LEFT_OUT[left.why]}"
    yield (
        f"   store: pages {binary_bytes(stats.page_bytes)}, tails {binary_bytes(stats.tail_bytes)}, "
        f"snapshots {binary_bytes(stats.snapshot_bytes)}; {_evicted(stats)}"
    )


def _evicted(stats: Stats) -> str:
    gone = {"windows": stats.evicted_windows, "pages": stats.evicted_pages, "anchors": stats.evicted_anchors}
    return "evicted so far: " + (", ".join(f"{count:,} {what}" for what, count in gone.items() if count) or "nothing")


def _json(asked: Asked, outcome: Outcome, tokenizer: Tokenizer | None) -> dict[str, object]:
    """One request; the names are stable. Texts are null where there is no tokenizer."""
    report, stats, differs = outcome.report, outcome.stats, _difference(asked, outcome)
    found: dict[str, object] | None = None
    if differs is not None:
        parts = {"before": differs.before, "stored": differs.stored, "prompt": differs.prompt}
        texts = {f"{key}_text": None if tokenizer is None else _text(ids, tokenizer) for key, ids in parts.items()}
        found = {**asdict(differs), **texts}
    return {
        "place": asked.place,
        "prompt": report.prompt,
        "reply": len(asked.reply),
        "common": report.common,
        "resume": report.resume,
        "lost": report.lost,
        "reason": report.reason,
        "why": _why(outcome),
        "differs": found,
        "anchors": [asdict(mark) for mark in report.anchors],
        "placed": [asdict(mark) for mark in outcome.anchors],
        "left_out": [asdict(left) for left in outcome.left_out],
        "store": {
            "bytes": stats.bytes,
            "page_bytes": stats.page_bytes,
            "tail_bytes": stats.tail_bytes,
            "snapshot_bytes": stats.snapshot_bytes,
            "pages": stats.pages,
            "anchors": dict(stats.anchors),
            "evicted": {
                "windows": stats.evicted_windows,
                "pages": stats.evicted_pages,
                "anchors": stats.evicted_anchors,
            },
        },
    }


def _total(stats: Stats) -> dict[str, object]:
    return {
        "prompt_tokens": stats.prompt_tokens,
        "reused": stats.reused,
        "lost": stats.lost,
        "reasons": dict(stats.reasons),
    }

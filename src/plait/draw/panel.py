"""What stands beside the trunk: facts, legend, entries of images and sound, layers that are no part of the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from plait.account.memory import memory
from plait.account.parameters import ParameterAccount
from plait.blueprint.spec import Attention, Blueprint, Layer, MultiTokenPrediction, Tower
from plait.draw.canvas import GRID, Canvas, Line, baseline, fact, label, stack
from plait.draw.facts import figure, mixer_facts, packed
from plait.draw.fold import Leaf, Node, Repeat, leaves, source_of
from plait.draw.scene import Text
from plait.draw.text import BODY, LABEL, SMALL, shorten, width, wrap
from plait.draw.theme import FEED_FORWARDS, MIXERS, Role, feed_forward_role, mixer_role
from plait.draw.towers import tower_words
from plait.draw.trunk import CARD, FRAME_SIDE, card
from plait.draw.words import Lang, word
from plait.dtypes import BY_NAME
from plait.units import binary_bytes, count

__all__ = ["ASIDE", "Row", "entries", "facts_panel", "legend", "mtp_frame", "panel_rows", "table_box"]

ASIDE: Final = CARD + 2 * FRAME_SIDE
PAD: Final = 2 * GRID
SWATCH: Final = 2 * GRID
# Norms and the like, in a wider format than the matrices, change the room by less than this share.
_SAME: Final = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """A name and a value; no value: the title of what follows."""

    name: str
    value: str | None = None


def panel_rows(blueprint: Blueprint, account: ParameterAccount, lang: Lang) -> Iterator[Row]:
    """Parameters, state and sizes of a model."""
    yield Row(word("fact_parameters", lang))
    yield Row(word("fact_in_file", lang), count(account.in_file))
    yield Row(word("fact_used", lang), count(account.used))
    yield Row(word("fact_active", lang), count(account.active))
    state = memory(blueprint, blueprint.max_context, weights=0)
    parts = {name: part.need_bytes for name, part in state.categories.items()}
    fixed = parts.get("recurrent", 0) + parts.get("convolution", 0)
    yield Row(word("fact_state", lang))
    yield Row(word("fact_per_token", lang), binary_bytes(state.per_token_bytes))
    windows = sorted({m.window for m in _own(blueprint.layers) if m.window is not None})
    if windows:
        sizes = ", ".join(map(figure, windows))
        yield Row(f"{word('fact_windows', lang)} ({sizes})", binary_bytes(parts.get("windows", 0)))
    if fixed:
        yield Row(word("fact_fixed", lang), binary_bytes(fixed))
    yield Row(word("fact_at", lang, n=figure(blueprint.max_context)), binary_bytes(state.total_bytes))
    yield Row(word("fact_sizes", lang))
    yield Row(word("fact_layers", lang), figure(len(blueprint.layers)))
    yield Row(word("fact_hidden", lang), figure(blueprint.hidden))
    yield Row(word("fact_vocabulary", lang), figure(blueprint.vocabulary))
    yield Row(word("fact_context", lang), figure(blueprint.max_context))
    yield Row(word("fact_stored", lang), _stored(blueprint, account, lang))


def _stored(blueprint: Blueprint, account: ParameterAccount, lang: Lang) -> str:
    """The weights' format; where a file mixes formats, and so takes other room than that one, its bits a weight."""
    if blueprint.quantization is not None:
        return blueprint.quantization.format
    name = blueprint.stored_format
    if account.used_bytes is None:
        return name
    bits = 8 * account.used_bytes / account.used
    usual = BY_NAME[name].block_bytes * 8 / BY_NAME[name].block if name in BY_NAME else 0
    return name if abs(bits - usual) < _SAME * usual else word("fact_bits", lang, x=f"{bits:.3g}")


def _own(layers: Sequence[Layer]) -> Iterator[Attention]:
    return (m for layer in layers if isinstance(m := layer.mixer, Attention) and m.kv_source is None)


def facts_panel(canvas: Canvas, rows: Sequence[Row], x: float, y: float) -> int:
    """The panel with its corner at (x, y); its number."""
    heads = sum(row.value is None for row in rows)
    height = 2 * PAD - GRID + len(rows) * BODY.line + (heads - 1) * GRID
    number = canvas.box("panel", x, y, ASIDE, height)
    y += PAD - GRID / 2
    for place, row in enumerate(rows):
        if row.value is None:
            y += GRID if place else 0
            canvas.write(number, Text(x + PAD, y + baseline(LABEL), row.name, LABEL))
        else:
            value = shorten(row.value, BODY, ASIDE / 2)
            name = shorten(row.name, BODY, ASIDE - 2 * PAD - GRID - width(value, BODY))
            canvas.write(number, Text(x + PAD, y + baseline(BODY), name, BODY, muted=True))
            canvas.write(number, Text(x + ASIDE - PAD, y + baseline(BODY), value, BODY, anchor="end"))
        y += BODY.line
    return number


def legend(
    canvas: Canvas, blueprint: Blueprint, nodes: Sequence[Node], x: float, y: float, room: float, lang: Lang
) -> float:
    """What the hues and lines of this picture mean, from left to right in as many rows as needed; the lower edge."""
    found = list(leaves(nodes))
    layers = [leaf.layer for leaf in found]
    outside = blueprint.mtp.layers if blueprint.mtp is not None else ()
    mixers = {mixer_role(layer.mixer) for layer in (*layers, *outside)}
    parts = {feed_forward_role(layer.feed_forward) for layer in (*layers, *outside)}
    shown: list[tuple[str, str]] = [(role, word(role, lang)) for role in MIXERS if role in mixers]
    shown += [(role, word(role, lang)) for role in FEED_FORWARDS if role in parts]
    if any(isinstance(node, Repeat) for node in nodes):
        shown.append(("repeat", word("legend_repeat", lang)))
    reuse = [layer for layer in layers if source_of(layer) is not None]
    if any(isinstance(layer.mixer, Attention) for layer in reuse):
        shown.append(("kv", word("legend_kv", lang)))
    if any(not isinstance(layer.mixer, Attention) for layer in reuse):
        shown.append(("choice", word("legend_choice", lang)))
    if blueprint.head.tied:
        shown.append(("tied", word("legend_tied", lang)))
    roles: dict[str, Role] = {role: role for role in (*MIXERS, *FEED_FORWARDS)}
    left = x
    for sign, text in shown:
        taken = SWATCH + GRID + width(text, SMALL)
        if left > x and left + taken > x + room:
            left, y = x, y + 2 * GRID + 4
        line = Text(left + SWATCH + GRID, y + 12, text, SMALL)
        canvas.box("legend", left, y, taken, 2 * GRID, texts=[line], role=roles.get(sign), sign=sign)
        left += -(-taken // GRID) * GRID + 2 * GRID
    return y + 2 * GRID


def _aside(canvas: Canvas, kind: str, lines: Sequence[Line], x: float, y: float) -> int:
    height = stack(lines) + 2 * GRID
    number = canvas.box("table" if kind == "table" else "tower", x, y, ASIDE, height)
    canvas.lines(number, lines, x=x + PAD, y=y + GRID)
    return number


def table_box(canvas: Canvas, facts: Sequence[str], x: float, y: float, lang: Lang) -> int:
    """The box of the table of per-layer embeddings."""
    lines = [label(word("per_layer_table", lang)), *map(fact, packed(facts, SMALL, ASIDE - 2 * PAD))]
    return _aside(canvas, "table", lines, x, y)


def entries(canvas: Canvas, towers: Sequence[Tower], x: float, y: float, lang: Lang) -> tuple[list[int], float]:
    """Boxes of vision and audio one under another; their numbers and the lower edge."""
    found = []
    for place, tower in enumerate(towers):
        y += GRID if place else 0
        size = f"{count(tower.parameters)}"
        lines = [label(f"{word(f'tower_{tower.kind}', lang)} · {size}")]
        lines += [fact(line) for line in wrap(tower_words(tower, lang), SMALL, ASIDE - 2 * PAD)]
        lines += [fact(line) for line in wrap(word("tower_joins", lang), SMALL, ASIDE - 2 * PAD)]
        number = _aside(canvas, "tower", lines, x, y)
        y = canvas.boxes[number].bottom
        found.append(number)
    return found, y


def mtp_frame(canvas: Canvas, blueprint: Blueprint, mtp: MultiTokenPrediction, x: float, y: float, lang: Lang) -> int:
    """Layers for predicting further tokens, in a frame of their own."""
    about = [word("mtp_outside", lang)]
    for key, holds in (
        ("mtp_shared", mtp.one_projection),
        ("mtp_copy_embedding", mtp.copies_embedding),
        ("mtp_copy_head", mtp.copies_head),
    ):
        if holds:
            about.append(word(key, lang))
    inner = ASIDE - 2 * FRAME_SIDE
    lines = [label(word("mtp", lang)), *map(fact, packed(about, SMALL, inner))]
    number = canvas.box("mtp", x, y, ASIDE, 0)
    canvas.lines(number, lines, x=x + FRAME_SIDE, y=y + GRID)
    below = y + GRID + stack(lines) + GRID
    for place, (layer, same) in enumerate(groupby(reversed(mtp.layers))):
        below += GRID if place else 0
        times = len(list(same))
        if times > 1:
            canvas.lines(number, [label(word("equal_layers", lang, n=times))], x=x + FRAME_SIDE, y=below)
            below += LABEL.line + 4
        # The layers of the trunk are not those of this frame: a source number would name another layer.
        facts = mixer_facts(blueprint, Leaf(layer, ()), lang)
        drawn = card(canvas, "mtp_layer", layer, facts, x + FRAME_SIDE, below, lang, parent=number)
        below = canvas.boxes[drawn].bottom
    canvas.resize(number, below + FRAME_SIDE - y)
    return number

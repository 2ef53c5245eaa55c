"""Damaged configs and GGUF headers: a case is a function of seed and number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from random import Random
from struct import error as struct_error
from struct import pack
from typing import Any, Final

from plait.blueprint.catalog import entries
from plait.blueprint.families import ARCHITECTURES, MODEL_TYPES, family
from plait.blueprint.source import open_entry
from plait.errors import UnsupportedError

__all__ = ["case"]

NUMBERS: Final = (
    0, -1, 1, 2, 3, 7, 31, 255, 65_536, 2**31 - 1, 2**31, 2**32, 2**40, 2**40 + 1, 2**63, 2**64, -(2**63), 10**400,
    0.5, 1.5, -0.0, 1e-320, 1e308, -1e308, 1e999, -1e999, float("nan"), 1e-6, 2.0,
)  # fmt: skip
TEXTS: Final = (
    "", "x", "full_attention", "sliding_attention", "linear_attention", "yarn", "llama3", "default", "bfloat16", "fp8",
    "none", "true", "1", "\x1b[2J\x07", "a\nb\r\nc", "\u202e\u0000", "\ud800", "日本", "{}{0}{body}", "%s", "[bold]",
    "../../x", "z" * 3000,
)  # fmt: skip


def nested(depth: int) -> object:
    """Lists within lists."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def hostile(rng: Random) -> object:
    """Some value that no config holds at a place chosen by chance."""
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            return rng.choice(NUMBERS)
        case 4 | 5:
            return rng.choice(TEXTS)
        case 6:
            return rng.choice((None, True, False))
        case 7:
            return [rng.choice(NUMBERS + TEXTS) for _ in range(rng.choice((0, 1, 2, 5, 64)))]
        case 8:
            return {rng.choice(TEXTS): rng.choice(NUMBERS + TEXTS) for _ in range(rng.choice((0, 1, 3)))}
    return rng.choice((nested(3), nested(40), {"a": {"b": {"c": [{}]}}}, [[]], [None], [True, 0], [{}, "x", 1.5]))


def nudged(value: object, rng: Random) -> object:
    """A value of the same kind, a little off."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        decimal = float(value) if abs(value) < 2**1000 else 0.5
        return rng.choice((value + 1, value - 1, -value, value * 2, value // 2, value * 1000, decimal, str(value)))
    if isinstance(value, float):
        return rng.choice((-value, value * 1e10, value / 1e10, 0.0, 1 / 3, int(value) if abs(value) < 1e18 else 1))
    if isinstance(value, str):
        return rng.choice((value + " ", value.upper(), value[:-1], value * 2, rng.choice(TEXTS)))
    if isinstance(value, Mapping):
        return rng.choice(({}, list(value.items()), {**value, rng.choice(TEXTS): hostile(rng)}, list(value)))
    if isinstance(value, Sequence):
        items = list(value)
        place = rng.randrange(len(items) + 1)
        return rng.choice(
            (
                items[:place],
                items[:place] + items[place + 1 :],
                [*items[:place], hostile(rng), *items[place + 1 :]],
                [*items, *items[:1]],
                items * 2,
                items[::-1],
                [items],
                dict(enumerate(map(str, items[:3]))),
            )
        )
    return hostile(rng)


def objects(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The object and all objects inside it."""
    found = [data]
    for value in data.values():
        if isinstance(value, dict):
            found += objects(value)
    return found


def damage(data: dict[str, Any], other: Mapping[str, Any], words: Sequence[str], rng: Random) -> None:
    """One change of one key, in place. `other` is what another model says, `words` the names of families."""
    part = rng.choice(objects(data))
    key = rng.choice(list(part)) if part else "model_type"
    match rng.randrange(12):
        case 0 | 1:
            part.pop(key, None)
        case 2 | 3 | 4:
            part[key] = hostile(rng)
        case 5 | 6 | 7:
            part[key] = nudged(part.get(key), rng)
        case 8:
            part[rng.choice((*TEXTS, *part, *other))] = part.pop(key, None)
        case 9:
            name = rng.choice(list(other))
            part[name] = deepcopy(other[name])
        case 10:
            name = rng.choice(list(part) or [key])
            part[key], part[name] = part.get(name), part.get(key)
        case _:
            word = rng.choice((*words, "unknown", rng.choice(TEXTS)))
            data["model_type" if "model_type" in data else "general.architecture"] = word


@cache
def configs() -> tuple[Mapping[str, Any], ...]:
    """The configs of the catalogue."""
    return tuple(dict(item.config) for item in entries())


@cache
def headers() -> tuple[Mapping[str, Any], ...]:
    """GGUF metadata of every entry of the catalogue whose family has some."""
    found = []
    for item in entries():
        blueprint = open_entry(item).blueprint
        word = next((a for a, name in ARCHITECTURES.items() if name == blueprint.family), None)
        if word is None:
            continue
        try:
            own = family(blueprint.family).gguf_metadata(blueprint)
        except UnsupportedError:
            continue
        found.append({"general.architecture": word, **{f"{word}.{key}": value for key, value in own.items()}})
    return tuple(found)


def damaged_text(text: str, rng: Random) -> bytes:
    """JSON damaged as bytes."""
    raw = text.encode("utf-8", "surrogatepass")
    place = rng.randrange(len(raw))
    match rng.randrange(6):
        case 0:
            return raw[:place]
        case 1:
            return raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :]
        case 2:
            return raw[:place] + raw[rng.randrange(len(raw)) :]
        case 3:
            return b"\xef\xbb\xbf" + raw
        case 4:
            return raw[:1] + b'"hidden_size": 64, "hidden_size": 64,' + raw[1:]
    return b"[" * rng.choice((10, 1000, 200_000)) + raw


def config_case(rng: Random) -> bytes:
    """A damaged config.json."""
    data, other = deepcopy(dict(rng.choice(configs()))), rng.choice(configs())
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        damage(data, other, tuple(MODEL_TYPES), rng)
    text = json.dumps(data, ensure_ascii=rng.random() < 0.9)
    return damaged_text(text, rng) if rng.random() < 0.1 else text.encode("utf-8", "surrogatepass")


@dataclass
class Writer:
    """The bytes of a GGUF header; `counts` are the places of its numbers of things, lengths and types."""

    data: bytearray = field(default_factory=bytearray)
    counts: list[tuple[int, int]] = field(default_factory=list)

    def word(self, value: int, size: int) -> None:
        self.counts.append((len(self.data), size))
        self.data += (value % 2 ** (8 * size)).to_bytes(size, "little")

    def text(self, value: str) -> None:
        raw = value.encode("utf-8", "surrogatepass")
        self.word(len(raw), 8)
        self.data += raw

    def value(self, value: object, rng: Random) -> None:
        """A value with its type; the type of a number is one that holds it, mostly."""
        if isinstance(value, str):
            self.word(8, 4)
            self.text(value)
        elif isinstance(value, Mapping | Sequence):
            self.word(9, 4)
            self.array(list(value.values()) if isinstance(value, Mapping) else list(value), rng)
        else:
            kind, raw = scalar(value, rng)
            self.word(kind, 4)
            self.data += raw

    def array(self, items: list[object], rng: Random) -> None:
        if items and all(isinstance(item, str) for item in items):
            self.word(8, 4)
            self.word(len(items), 8)
            for item in items:
                self.text(str(item))
        elif items and all(isinstance(item, list) for item in items):
            self.word(9, 4)
            self.word(len(items), 8)
            for item in items:
                assert isinstance(item, list)
                self.array(item, rng)
        else:
            made = [scalar(item, rng) for item in items]
            kind = max((kind for kind, _ in made), default=4)
            alike = [raw for number, raw in made if number == kind]
            self.word(kind, 4)
            self.word(len(alike), 8)
            self.data += b"".join(alike)


def scalar(value: object, rng: Random) -> tuple[int, bytes]:
    """(type number, bytes) of a number, a bool, or whatever else as a number."""
    if isinstance(value, bool):
        return 7, bytes([value])
    if isinstance(value, float):
        if rng.random() < 0.1:
            return 12, pack("<d", value)
        try:
            return 6, pack("<f", value)
        except OverflowError:
            return 6, pack("<f", float("inf"))
    number = value if isinstance(value, int) else 0
    for kind, letter in ((4, "I"), (5, "i"), (10, "Q"), (11, "q")):
        try:
            return kind, pack("<" + letter, number)
        except struct_error:
            continue
    return 10, pack("<Q", 2**64 - 1)


NAMES: Final = (
    "token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight", "blk.0.attn_q.weight",
    "blk.0.attn_norm.weight", "blk.0.ffn_gate_exps.weight", "per_layer_token_embd.weight", "x",
    "blk.0.attn_sinks.weight",
)  # fmt: skip


def gguf_case(rng: Random) -> bytes:
    """A damaged GGUF header, with the data its tensors need in most cases."""
    data, other = deepcopy(dict(rng.choice(headers()))), rng.choice(headers())
    if rng.random() < 0.3:
        data["tokenizer.ggml.bos_token_id"] = rng.choice(NUMBERS)
        data["general.name"] = rng.choice(TEXTS)
        data["general.alignment"] = rng.choice((32, 64, *NUMBERS[:8]))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        damage(data, other, tuple(ARCHITECTURES), rng)
    tensors = rng.sample(NAMES, rng.randrange(len(NAMES))) if rng.random() < 0.5 else []
    writer = Writer(bytearray(b"GGUF"))
    writer.word(rng.choice((3, 3, 3, 3, 2, 2, 1, 4, 3 << 24)) if rng.random() < 0.05 else 3, 4)
    pairs = list(data.items())
    if pairs and rng.random() < 0.02:
        pairs.append(rng.choice(pairs))
    writer.word(len(tensors), 8)
    writer.word(len(pairs), 8)
    for key, value in pairs:
        writer.text(key)
        writer.value(value, rng)
    place = 0
    for name in tensors:
        writer.text(name)
        shape = rng.choice(((64,), (32, 4), (64, 3), (2, 2, 32), (), (1, 0)))
        writer.word(len(shape), 4)
        for n in shape:
            writer.word(n, 8)
        writer.word(rng.choice((0, 0, 0, 1, 8, 30, 99)), 4)
        writer.word(place, 8)
        place += 1024
    raw = writer.data + bytes(place + 64)
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 1, 2, 4))):
            hurt(raw, writer.counts, rng)
    return bytes(raw)


def hurt(raw: bytearray, counts: Sequence[tuple[int, int]], rng: Random) -> None:
    """One damage of the bytes, in place."""
    place = rng.randrange(len(raw))
    match rng.randrange(6):
        case 0 | 1:
            raw[place] ^= 1 << rng.randrange(8)
        case 2:
            del raw[place:]
        case 3:
            at, size = rng.choice(counts)
            raw[at : at + size] = (int(rng.choice(NUMBERS[:17])) % 2 ** (8 * size)).to_bytes(size, "little")
        case 4:
            raw[place:place] = rng.randbytes(rng.randrange(1, 9))
        case _:
            del raw[place : place + rng.randrange(1, 9)]
    # The next damage needs a place.
    raw += b"" if raw else b"G"


def case(seed: int, number: int) -> tuple[str, bytes]:
    """(file name, bytes) of a case."""
    rng = Random(f"{seed}:{number}")
    if number % 2:
        return "model.gguf", gguf_case(rng)
    return "config.json", config_case(rng)

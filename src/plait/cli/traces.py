"""Prompts in files, one request after the other: text files, and traces of a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from plait.cache.anchors import KINDS, Mark
from plait.errors import ContextExceeded, FileFormatError, UsageError, fault

__all__ = ["Asked", "Reader", "read_requests"]

_KEYS: Final = ("prompt", "reply", "marks")
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a trace.

    place   the file, with the line where it has several requests
    reply   tokens generated and processed
    """

    place: str
    prompt: tuple[int, ...] = field(repr=False)
    reply: tuple[int, ...] = field(default=(), repr=False)
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """How text becomes tokens, and what a sequence may be.

    prompt, reply  token ids of a text; None: files hold ids, and text is refused
    """

    vocabulary: int
    max_context: int
    prompt: Callable[[str], list[int]] | None
    reply: Callable[[str], list[int]] | None


def read_requests(files: tuple[Path, ...], reader: Reader) -> Iterator[Asked]:
    """The requests of `files`, in order: of a `.jsonl` file one a line, of any other file one.

    A line holds `prompt` and, where there is any, `reply`, each text or token ids, and `marks`, a list of
    {"position": n, "kind": "system" | "turn" | ...}. Empty lines are passed over.

    FileFormatError: a file that is not UTF-8, no such line, or no token ids. ContextExceeded, UsageError: tokens that
    the model does not have room or a row for.
    """
    for file in files:
        text = _text(file)
        if file.suffix == ".jsonl":
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    yield _line(line, f"{file}:{number}", reader)
        else:
            place = str(file)
            tokens = reader.prompt(text) if reader.prompt is not None else _ids(text, place)
            yield _checked(Asked(place, tuple(tokens)), reader)


def _text(file: Path) -> str:
    data = file.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(fault("not UTF-8 text", file=file, found=f"byte {error.start}")) from None


def _ids(text: str, place: str) -> list[int]:
    """Ids between spaces or commas, or a JSON list of them."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 20):
            raise FileFormatError(fault("token ids", file=place, expected="whole numbers", found=repr(word[:_SHOWN])))
    return [int(word) for word in words]


def _line(line: str, place: str, reader: Reader) -> Asked:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise FileFormatError(fault("a request", file=place, expected="a JSON object", found=reason)) from None
    if not isinstance(found, dict):
        raise FileFormatError(fault("a request", file=place, expected="a JSON object", found=_shown(found)))
    unknown = [key for key in found if key not in _KEYS]
    if unknown or "prompt" not in found:
        expected = "prompt, and where there are any reply and marks"
        raise FileFormatError(fault("keys of a request", file=place, expected=expected, found=_shown(list(found))))
    prompt = _tokens(found["prompt"], "prompt", place, reader.prompt)
    reply = _tokens(found["reply"], "reply", place, reader.reply) if "reply" in found else ()
    marks = found.get("marks", [])
    if not isinstance(marks, list):
        raise FileFormatError(fault("marks", file=place, expected="a list", found=_shown(marks)))
    made = tuple(_mark(mark, place, len(prompt)) for mark in marks)
    return _checked(Asked(place, prompt, reply, made), reader)


def _tokens(value: object, key: str, place: str, encode: Callable[[str], list[int]] | None) -> tuple[int, ...]:
    if isinstance(value, str):
        if encode is None:
            advice = "with --tokens a trace holds no text"
            raise FileFormatError(fault(key, file=place, expected="token ids", found="text", advice=advice))
        return tuple(encode(value))
    if not isinstance(value, list) or any(isinstance(token, bool) or not isinstance(token, int) for token in value):
        raise FileFormatError(fault(key, file=place, expected="text or a list of token ids", found=_shown(value)))
    return tuple(value)


def _mark(value: object, place: str, count: int) -> Mark:
    expected = f'{{"position": 1..{count}, "kind": one of {", ".join(KINDS)}}}'
    if isinstance(value, Mapping) and set(value) == {"position", "kind"}:
        position, wanted = value["position"], value["kind"]
        kind = next((kind for kind in KINDS if kind == wanted), None)
        whole = isinstance(position, int) and not isinstance(position, bool)
        if whole and kind is not None and 1 <= position <= count:
            return Mark(position, kind)
    raise FileFormatError(fault("a mark", file=place, expected=expected, found=_shown(value)))


def _checked(asked: Asked, reader: Reader) -> Asked:
    for key, tokens in (("prompt", asked.prompt), ("reply", asked.reply)):
        for token in tokens:
            if not 0 <= token < reader.vocabulary:
                what, expected = f"{key}: token id", f"an integer in [0, {reader.vocabulary})"
                raise UsageError(fault(what, file=asked.place, expected=expected, found=token))
    if not asked.prompt:
        raise UsageError(fault("the prompt has no tokens", file=asked.place, advice="at least one is needed"))
    length = max(len(asked.prompt) + 1, len(asked.prompt) + len(asked.reply))
    if length > reader.max_context:
        raise ContextExceeded(needed=length, limit=reader.max_context, advice=f"shorten the request at {asked.place}")
    return asked


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

"""What the files beside a tokenizer.json say about it: special tokens, beginnings, ends, templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plait.engine.tokenizer.hub import Rules
from plait.errors import TokenizerError, fault

__all__ = ["Side", "rules_of"]

_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_LISTS: Final = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class Side:
    """The contents of the files beside a tokenizer.json; empty where there is no such file."""

    directory: Path
    tokenizer: Mapping[str, Any]
    special: Mapping[str, Any]
    generation: Mapping[str, Any]
    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    templates: Mapping[str, str]


def rules_of(document: dict[str, Any], side: Side) -> tuple[dict[str, Any], Rules]:
    """(the document with tokens added that only tokenizer_config.json lists, the rules)."""
    document, flagged = _with_listed(document, side)
    ids = _ids(document)
    named = {key: text for key in _NAMED if (text := _named(side, key)) is not None}
    bos = _bos(named.get("bos_token"), ids, side)
    eos = set(_end_ids(side))
    if (text := named.get("eos_token")) in ids:
        eos.add(ids[text])
    start, adds_eos = _around(document, side, bos, named.get("eos_token"), ids)
    default, templates = _templates(side)
    return document, Rules(
        bos=bos,
        start=start,
        eos=tuple(sorted(eos)),
        adds_eos=adds_eos,
        special=(*named.values(), *flagged, *_listed(side)),
        template=default,
        templates=templates,
    )


def _ids(document: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {row[0]: token for token, row in enumerate(vocabulary)}
    return {**vocabulary, **{entry["content"]: entry["id"] for entry in document["added_tokens"]}}


def _content(value: object) -> str | None:
    """A special token is written as a string, or as an object with `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) and text else None


def _named(side: Side, key: str) -> str | None:
    for source in (side.tokenizer, side.special):
        text = _content(source.get(key))
        if text is not None:
            return text
    return None


def _listed(side: Side) -> Iterator[str]:
    for source in (side.tokenizer, side.special):
        for key in _LISTS:
            value = source.get(key)
            values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
            yield from (text for text in map(_content, values) if text is not None)


def _with_listed(document: dict[str, Any], side: Side) -> tuple[dict[str, Any], list[str]]:
    """Adds what `added_tokens_decoder` lists and tokenizer.json lacks; and says what it flags as special."""
    file = side.directory / "tokenizer_config.json"
    decoder = side.tokenizer.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise TokenizerError(fault("added_tokens_decoder", file=file, expected="an object", found=decoder))
    known = {entry["content"] for entry in document["added_tokens"]}
    more: list[dict[str, Any]] = []
    flagged: list[str] = []
    for key, entry in decoder.items():
        text = _content(entry)
        if text is None or not isinstance(entry, dict) or not key.isascii() or not key.isdigit():
            raise TokenizerError(
                fault(f"added_tokens_decoder.{key}", file=file, expected="a token under its id", found=entry)
            )
        if entry.get("special"):
            flagged.append(text)
        if text not in known:
            flags = {name: bool(entry.get(name)) for name in _FLAGS}
            more.append({"id": int(key), "content": text, **flags})
    added = sorted([*document["added_tokens"], *more], key=lambda entry: int(entry["id"]))
    return ({**document, "added_tokens": added} if more else document), flagged


def _bos(text: str | None, ids: Mapping[str, int], side: Side) -> int | None:
    if text is not None:
        return ids.get(text)
    for source in (side.generation, side.config):
        value = source.get("bos_token_id")
        if isinstance(value, int):
            return value
    return None


def _end_ids(side: Side) -> Iterator[int]:
    nested = side.config.get("text_config")
    for name, source in (
        ("generation_config.json", side.generation),
        ("config.json", side.config),
        ("config.json", nested if isinstance(nested, Mapping) else {}),
    ):
        value = source.get("eos_token_id")
        values = value if isinstance(value, list) else [] if value is None else [value]
        for token in values:
            if not isinstance(token, int):
                raise TokenizerError(
                    fault("eos_token_id", file=side.directory / name, expected="token ids", found=value)
                )
            yield token


def _around(
    document: Mapping[str, Any], side: Side, bos: int | None, eos: str | None, ids: Mapping[str, int]
) -> tuple[tuple[int, ...], bool]:
    """(ids put before a text, whether EOS is put after it): tokenizer_config's flags, else the post-processor."""
    flags = [side.tokenizer.get(key) for key in ("add_bos_token", "add_eos_token")]
    if any(flag is not None for flag in flags):
        return (bos,) if flags[0] and bos is not None else (), bool(flags[1] and eos in ids)
    before, after = _post_processor(document.get("post_processor"), ids, side.directory / "tokenizer.json")
    return tuple(before), bool(after)


def _post_processor(post: object, ids: Mapping[str, int], file: Path) -> tuple[list[int], list[int]]:
    """The ids that a post-processor puts (before, after) a single text."""
    if post is None:
        return [], []
    kind = post.get("type") if isinstance(post, dict) else None
    if isinstance(post, dict) and kind == "ByteLevel":
        return [], []
    if isinstance(post, dict) and kind == "Sequence" and isinstance(post.get("processors"), list):
        before: list[int] = []
        after: list[int] = []
        for part in post["processors"]:
            first, last = _post_processor(part, ids, file)
            before, after = first + before, after + last
        return before, after
    if isinstance(post, dict) and kind == "TemplateProcessing" and isinstance(post.get("single"), list):
        return _template(post["single"], post.get("special_tokens"), file)
    if isinstance(post, dict) and kind in ("BertProcessing", "RobertaProcessing"):
        pair = [post.get("cls"), post.get("sep")]
        found = [ids.get(item[0]) if isinstance(item, list) and item else None for item in pair]
        if found[0] is not None and found[1] is not None:
            return [found[0]], [found[1]]
    raise TokenizerError(
        fault("post_processor", file=file, expected="ByteLevel, TemplateProcessing or a Sequence of them", found=kind)
    )


def _template(single: Sequence[object], special: object, file: Path) -> tuple[list[int], list[int]]:
    parts: tuple[list[int], list[int]] = ([], [])
    side = 0
    for step in single:
        token = step.get("SpecialToken") if isinstance(step, dict) else None
        if not isinstance(token, dict):
            side = 1
            continue
        entry = special.get(token.get("id")) if isinstance(special, dict) else None
        found = entry.get("ids") if isinstance(entry, dict) else None
        if not isinstance(found, list) or not all(isinstance(id_, int) for id_ in found):
            raise TokenizerError(
                fault("post_processor.special_tokens", file=file, expected=f"ids of {token.get('id')}", found=found)
            )
        parts[side].extend(found)
    return parts


def _templates(side: Side) -> tuple[str | None, tuple[str, ...]]:
    """(the default chat template, all of them): files of their own go before keys."""
    found = dict(side.templates)
    for source, file in ((side.tokenizer, "tokenizer_config.json"), (side.processor, "chat_template.json")):
        value = source.get("chat_template")
        entries = value if isinstance(value, list) else [{"name": "default", "template": value}]
        for entry in entries if value is not None else ():
            name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
            if not isinstance(name, str) or not isinstance(text, str):
                what = type(value).__name__
                raise TokenizerError(
                    fault("chat_template", file=side.directory / file, expected="Jinja text", found=what)
                )
            found.setdefault(name, text)
    return found.get("default"), tuple(found.values())

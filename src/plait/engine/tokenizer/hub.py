"""Tokenizers in the format of a tokenizer.json, run by the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.engine.tokenizer.backend import Library
from plait.engine.tokenizer.base import Facts, Tokenizer
from plait.engine.tokenizer.guard import out_of_reach
from plait.engine.tokenizer.markers import markers
from plait.engine.tokenizer.spelling import Spelling, parse_decoder
from plait.errors import TokenizerError, UsageError, fault

__all__ = ["HubTokenizer", "Rules", "build", "check_document"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the files beside a tokenizer.json (or the keys of a GGUF) say.

    special    spellings that are special whatever the tokenizer.json says of them
    start      ids put before a text;  adds_eos: whether EOS is put after one
    templates  every chat template;  template: the default one
    """

    bos: int | None
    start: tuple[int, ...]
    eos: tuple[int, ...]
    adds_eos: bool
    special: tuple[str, ...]
    template: str | None
    templates: tuple[str, ...]


class HubTokenizer(Tokenizer):
    """Two library tokenizers over one vocabulary: one that knows control tokens and one that cannot spell them."""

    __slots__ = ("_added", "_for_markup", "_for_plain", "_spelling")

    def __init__(
        self, facts: Facts, *, markup: Library, plain: Library, spelling: Spelling, added: frozenset[int]
    ) -> None:
        super().__init__(facts)
        self._for_markup = markup
        self._for_plain = plain
        self._spelling = spelling
        self._added = added

    def _plain(self, text: str) -> list[int]:
        ids = self._for_plain.encode(text)
        if not self.facts.control.isdisjoint(ids):
            # Only the model's unknown token can get here, where it is also the token that begins or ends texts.
            raise UsageError(
                fault("text", expected="characters that the vocabulary can spell", found="one that it cannot")
            )
        return ids

    def _markup(self, text: str) -> list[int]:
        return self._for_markup.encode(text)

    def _bytes(self, token: int) -> bytes:
        text = self._for_markup.text_of(token)
        return b"" if text is None else self._spelling.spell(text, added=token in self._added)


def build(document: Mapping[str, Any], rules: Rules, file: str | Path) -> HubTokenizer:
    """A tokenizer from a checked tokenizer.json document. Raises TokenizerError naming `file`."""
    document = {**document, "truncation": None, "padding": None}
    spelling = parse_decoder(document.get("decoder"), file)
    document["added_tokens"] = _completed(document, rules.special)
    markup = Library(document, file)
    added = {str(entry["content"]): int(entry["id"]) for entry in document["added_tokens"]}
    for text, token in added.items():
        if (known := markup.id_of(text)) != token:
            raise TokenizerError(fault(f"added_tokens: id of {text!r}", file=file, expected=known, found=token))
    tokens = document["model"]["vocab"]
    ids = range(len(tokens)) if isinstance(tokens, list) else tokens.values()
    vocabulary = max((*added.values(), max(ids, default=-1))) + 1
    for named in (*rules.start, *rules.eos, *([] if rules.bos is None else [rules.bos])):
        if not 0 <= named < vocabulary:
            raise TokenizerError(
                fault("id of a special token", file=file, expected=f"0 to {vocabulary - 1}", found=named)
            )
    hidden, unknown = _hidden(document, rules, added)
    facts = Facts(
        vocabulary=vocabulary,
        bos=rules.bos,
        start=rules.start,
        eos=tuple(sorted(set(rules.eos))),
        adds_eos=rules.adds_eos,
        control=frozenset(token for text, token in hidden.items() if text != unknown),
        chat_template=rules.template,
        first_space=spelling.first_space,
    )
    plain = _plain(document, hidden, markup, file) if hidden else markup
    return HubTokenizer(facts, markup=markup, plain=plain, spelling=spelling, added=frozenset(added.values()))


def _plain(document: Mapping[str, Any], hidden: Mapping[str, int], markup: Library, file: str | Path) -> Library:
    """The library tokenizer without the `hidden` tokens; it shares the model of `markup` where that has none."""
    guarded = out_of_reach(document, hidden)
    return Library(guarded, file, markup.model if guarded["model"] is document["model"] else None)


def check_document(document: object, file: str | Path) -> dict[str, Any]:
    """`document` as far as this module itself relies on its form; the rest is checked by the library."""
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise TokenizerError(fault("tokenizer", file=file, expected="an object with a key 'model'", found="none"))
    vocabulary = document["model"].get("vocab")
    rows = vocabulary if isinstance(vocabulary, list) else []
    if not isinstance(vocabulary, dict | list) or not all(
        isinstance(row, list) and row and isinstance(row[0], str) for row in rows
    ):
        raise TokenizerError(fault("model.vocab", file=file, expected="tokens with their ids", found="something else"))
    if document["model"].get("dropout"):
        raise TokenizerError(
            fault("model.dropout", file=file, expected="none", found=document["model"]["dropout"], advice="remove it")
        )
    added = document.get("added_tokens")
    for place, entry in enumerate([] if added is None else added if isinstance(added, list) else [added]):
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("content"), str)
            or not entry["content"]
            or not isinstance(entry.get("id"), int)
        ):
            raise TokenizerError(
                fault(f"added_tokens[{place}]", file=file, expected="an object with 'id' and 'content'", found=entry)
            )
    return {**document, "added_tokens": added or []}


def _completed(document: Mapping[str, Any], special: Iterable[str]) -> Sequence[Mapping[str, Any]]:
    """The added tokens, and the special ones that so far are only in the vocabulary, so that markup finds them."""
    known = {entry["content"] for entry in document["added_tokens"]}
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {row[0]: token for token, row in enumerate(vocabulary)}
    more = [
        added_token(text, vocabulary[text], special=True)
        for text in dict.fromkeys(special)
        if text in vocabulary and text not in known
    ]
    return [*document["added_tokens"], *more]


def added_token(text: str, token: int, *, special: bool) -> dict[str, Any]:
    """An entry of `added_tokens` that is matched literally, before anything else."""
    return {
        "id": token,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _hidden(document: Mapping[str, Any], rules: Rules, added: Mapping[str, int]) -> tuple[dict[str, int], str | None]:
    """(spelling and id of every token that text must not spell, the one of them that stands for the unknown).

    All of them are control tokens but the last: characters that the vocabulary lacks do become the
    unknown token, unless that token also begins or ends texts.
    """
    special = {entry["content"] for entry in document["added_tokens"] if entry.get("special")}
    special.update(text for text in rules.special if text in added)
    special |= markers(added.keys() - special, rules.templates)
    ends = {rules.bos, *rules.eos}
    special.update(text for text, token in added.items() if token in ends)
    unknown = _unknown(document["model"])
    if unknown is not None and added.get(unknown) in ends:
        unknown = None
    return {text: added[text] for text in special}, unknown


def _unknown(model: Mapping[str, Any]) -> str | None:
    unknown = model.get("unk_token")
    if isinstance(unknown, str):
        return unknown
    token, vocabulary = model.get("unk_id"), model["vocab"]
    if isinstance(token, int) and isinstance(vocabulary, list) and 0 <= token < len(vocabulary):
        return str(vocabulary[token][0])
    return None

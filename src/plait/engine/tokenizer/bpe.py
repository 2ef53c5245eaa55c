"""Byte-level BPE from a GGUF (`tokenizer.ggml.model` = "gpt2"), run by the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from tokenizers.models import BPE

from plait.engine.tokenizer.backend import Library, byte_pairs
from plait.engine.tokenizer.base import Facts
from plait.engine.tokenizer.keys import Keys, Kind, read_vocabulary
from plait.engine.tokenizer.literal import LiteralTokenizer
from plait.engine.tokenizer.markers import markers
from plait.engine.tokenizer.pretokenizers import PRETOKENIZERS, Pretokenizer
from plait.engine.tokenizer.spelling import Spelling
from plait.errors import TokenizerError

__all__ = ["byte_level_from_gguf"]

_PRE = "pre"


def byte_level_from_gguf(keys: Keys) -> LiteralTokenizer:
    """The tokenizer that the keys describe. Raises TokenizerError naming file and key."""
    name = keys.text(_PRE)
    cut = PRETOKENIZERS.get(name) if name is not None else None
    if cut is None:
        raise keys.error(_PRE, "one of " + ", ".join(sorted(PRETOKENIZERS)), "nothing" if name is None else name)
    if keys.flag("add_space_prefix"):
        raise keys.error("add_space_prefix", "false for a byte-level vocabulary", "true")
    vocabulary = read_vocabulary(keys, adds_bos=cut.adds_bos)
    if Kind.BYTE in vocabulary.kinds:
        raise keys.error("token_type", "no byte tokens in a byte-level vocabulary", vocabulary.kinds.index(Kind.BYTE))
    default, templates = keys.templates()
    user = vocabulary.of(Kind.USER)
    ends = {vocabulary.bos, *vocabulary.eos}
    # Unused tokens are among them: padding must not be spelled by text any more than a control token.
    hidden = vocabulary.of(Kind.CONTROL, Kind.UNKNOWN, Kind.UNUSED) | vocabulary.ends()
    marks = markers(user.keys() - hidden.keys(), templates)
    hidden |= {text: token for text, token in user.items() if text in marks or token in ends}
    facts = Facts(
        vocabulary=len(vocabulary.tokens),
        bos=vocabulary.bos,
        start=vocabulary.start,
        eos=vocabulary.eos,
        adds_eos=vocabulary.adds_eos,
        control=frozenset(hidden.values()),
        chat_template=default,
        first_space=False,
    )
    prefix = _prefix(vocabulary.ids, hidden)
    model = _model(keys, vocabulary.ids, hidden, prefix, whole_words=cut.whole_words)
    return LiteralTokenizer(
        facts,
        words=Library(_around(cut), keys.header.path, model),
        control=hidden,
        prefix=prefix,
        user={text: token for text, token in user.items() if text not in hidden},
        spelling=Spelling(byte_level=True),
    )


def _around(cut: Pretokenizer) -> dict[str, Any]:
    """The tokenizer.json of a tokenizer without a single token."""
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "NFC"} if cut.composes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _cuts(cut)},
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }


def _cuts(cut: Pretokenizer) -> list[dict[str, Any]]:
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in cut.patterns
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": cut.gpt2}
    return [*splits, bytes_]


def _prefix(ids: Mapping[str, int], hidden: Mapping[str, int]) -> str:
    """What makes names of `hidden` tokens that no other token has and no word: those are of the byte alphabet."""
    prefix = "\0"
    while not ids.keys().isdisjoint(map(prefix.__add__, hidden)):
        prefix += "\0"
    return prefix


def _model(
    keys: Keys, ids: Mapping[str, int], hidden: Mapping[str, int], prefix: str, *, whole_words: bool
) -> BPE:
    """The model of all tokens, with `hidden` ones under names that begin with `prefix`."""
    names = {prefix + text if text in hidden else text: token for text, token in ids.items()}
    raw = cast("Iterable[str] | None", keys.array("merges"))
    if raw is None:
        raise keys.error("merges", "an array of strings", "nothing")
    file = keys.header.path
    try:
        pairs = cast("list[tuple[str, str]]", [tuple(merge.split(" ")) for merge in raw])
        return byte_pairs(names, pairs, file, ignore_merges=whole_words)
    except (AttributeError, TokenizerError):
        # Either a merge is wrong, which the library does not say as exactly, or it is one of hidden tokens.
        return byte_pairs(names, _checked(keys, raw, ids, hidden), file, ignore_merges=whole_words)


def _checked(
    keys: Keys, raw: Iterable[object], ids: Mapping[str, int], hidden: Mapping[str, int]
) -> list[tuple[str, str]]:
    """The merges, each two tokens that make a third, without those that make or use hidden tokens."""
    merges: list[tuple[str, str]] = []
    for place, merge in enumerate(raw):
        left, space, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
        touched = left, right, left + right
        if not space or " " in right or not all(token in ids for token in touched):
            raise keys.error("merges", f"two tokens that make a third at {place}", merge)
        if not any(token in hidden for token in touched):
            merges.append((left, right))
    return merges

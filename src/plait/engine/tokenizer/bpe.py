"""Byte-level BPE from a GGUF (`tokenizer.ggml.model` = "gpt2"), as a tokenizer.json document."""

from __future__ import annotations

from typing import Any

from plait.engine.tokenizer.hub import HubTokenizer, Rules, added_token, build
from plait.engine.tokenizer.keys import Keys, Kind, Vocabulary, read_vocabulary
from plait.engine.tokenizer.pretokenizers import PRETOKENIZERS, Pretokenizer

__all__ = ["byte_level_from_gguf"]

_PRE = "pre"


def byte_level_from_gguf(keys: Keys) -> HubTokenizer:
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
    special = vocabulary.of(Kind.CONTROL, Kind.UNKNOWN) | vocabulary.ends()
    rules = Rules(
        bos=vocabulary.bos,
        start=vocabulary.start,
        eos=vocabulary.eos,
        adds_eos=vocabulary.adds_eos,
        special=tuple(special),
        template=default,
        templates=templates,
    )
    return build(_document(keys, vocabulary, cut, special), rules, keys.header.path)


def _document(keys: Keys, vocabulary: Vocabulary, cut: Pretokenizer, special: dict[str, int]) -> dict[str, Any]:
    # Unused tokens are added ones too: their spelling is literal, not in the byte alphabet, and padding
    # must not be spelled by text any more than a control token.
    special = special | vocabulary.of(Kind.UNUSED)
    literal = vocabulary.of(Kind.USER)
    added = [added_token(text, token, special=False) for text, token in literal.items() if text not in special]
    added += [added_token(text, token, special=True) for text, token in special.items()]
    return {
        "version": "1.0",
        "added_tokens": sorted(added, key=lambda entry: entry["id"]),
        "normalizer": {"type": "NFC"} if cut.composes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _cuts(cut)},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": cut.whole_words,
            "vocab": dict(vocabulary.ids),
            "merges": _merges(keys, vocabulary),
        },
    }


def _cuts(cut: Pretokenizer) -> list[dict[str, Any]]:
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in cut.patterns
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": cut.gpt2}
    return [*splits, bytes_]


def _merges(keys: Keys, vocabulary: Vocabulary) -> list[list[str]]:
    raw = keys.items("merges")
    if raw is None:
        raise keys.error("merges", "an array of strings", "nothing")
    merges: list[list[str]] = []
    ids = vocabulary.ids
    for place, merge in enumerate(raw):
        parts = merge.split(" ") if isinstance(merge, str) else []
        if len(parts) != 2 or not (parts[0] in ids and parts[1] in ids and parts[0] + parts[1] in ids):
            raise keys.error("merges", f"two tokens that make a third at {place}", merge)
        merges.append(parts)
    return merges

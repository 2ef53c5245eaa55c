"""A library tokenizer made from the parts of a document is the one made from its text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from plait.engine.tokenizer.backend import Library
from plait.engine.tokenizer.guard import out_of_reach
from plait.engine.tokenizer.spelling import BYTE_LEVEL
from plait.errors import TokenizerError

LETTERS = sorted(BYTE_LEVEL)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
PAIRS = [["a", "b"], ["ab", "c"], ["Ġ", "a"], ["#", "v"]]


def entry(text: str, token: int, *on: str) -> dict[str, Any]:
    return {"id": token, "content": text, **{flag: flag in on for flag in FLAGS}}


def document(**model: Any) -> dict[str, Any]:
    vocabulary = [*LETTERS, *("".join(pair) for pair in PAIRS), "<in>"]
    count = len(vocabulary)
    return {
        "version": "1.0",
        "added_tokens": [
            entry("<in>", count - 1, "special"),
            entry("<s>", count, "special"),
            entry("<l>", count + 1, "lstrip"),
            entry("<r>", count + 2, "rstrip", "special"),
            entry("one", count + 3, "single_word", "normalized"),
        ],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(vocabulary)},
            "merges": PAIRS,
            **model,
        },
    }


MODELS: dict[str, dict[str, Any]] = {
    "pairs": {},
    "strings": {"merges": [" ".join(pair) for pair in PAIRS[:3]]},
    # The library takes a string that begins so for a comment.
    "comment": {"merges": [" ".join(pair) for pair in PAIRS] + ["#version a"]},
    "whole words": {"ignore_merges": True, "merges": PAIRS[:1]},
    "unknown": {"unk_token": "<in>", "fuse_unk": True},
    "no switches": {"fuse_unk": None, "ignore_merges": None},
}

TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["<in>", "<s>", "<l>", "<r>", "one", "One", "#v", "#version a"]),
        st.sampled_from([" ", "  ", "\n", "abc", "ABC", "a", "Z"]),
        st.text(max_size=4),
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module", params=sorted(MODELS))
def made(request: pytest.FixtureRequest) -> dict[str, Any]:
    return document(**MODELS[request.param])


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=3, max_size=3))
def test_parts_are_the_text(made: dict[str, Any], texts: list[str]) -> None:
    whole = LibraryTokenizer.from_str(json.dumps(made))
    parts = Library(made, "tokenizer.json")
    for text in texts:
        assert parts.encode(text) == whole.encode(text, add_special_tokens=False).ids
    every = whole.get_vocab(with_added_tokens=True)
    assert all(parts.id_of(text) == token and parts.text_of(token) == text for text, token in every.items())
    assert parts.text_of(len(every)) is None


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=3, max_size=3))
def test_a_shared_model_serves_as_one_of_its_own(made: dict[str, Any], texts: list[str]) -> None:
    guarded = out_of_reach(made, {"<s>": len(LETTERS) + 5, "<r>": len(LETTERS) + 7})
    assert guarded["model"] is made["model"]
    markup = Library(made, "tokenizer.json")
    shared = Library(guarded, "tokenizer.json", markup.model)
    apart = LibraryTokenizer.from_str(json.dumps(guarded))
    for text in texts:
        before = markup.encode(text)
        assert shared.encode(text) == apart.encode(text, add_special_tokens=False).ids
        assert markup.encode(text) == before


def test_a_model_with_a_hidden_token_is_not_shared() -> None:
    made = document()
    guarded = out_of_reach(made, {"<in>": len(LETTERS) + 4})
    assert guarded["model"] is not made["model"]
    assert "<in>" not in guarded["model"]["vocab"]
    assert document(unk_token="<in>")["model"]["unk_token"] == "<in>"
    assert out_of_reach(document(unk_token="<in>"), {"<in>": 0})["model"]["unk_token"] != "<in>"


BROKEN: list[dict[str, Any]] = [
    {"merges": [["a", "b", "c"]]},
    {"merges": [["a", "z\u2580"]]},
    {"merges": [["a"]]},
    {"merges": ["ab"]},
    {"merges": [["a", 3]]},
    {"merges": [3]},
    {"merges": 7},
    {"vocab": {"a": -1}},
    {"vocab": {"a": "0"}},
    {"vocab": {"a": 1 << 40}},
    {"vocab": {"a": True}},
    {"unk_token": 3},
    {"fuse_unk": "yes"},
]


@pytest.mark.parametrize("model", BROKEN)
def test_a_broken_model_is_told_as_the_library_tells_it(model: dict[str, Any]) -> None:
    broken = document(**model)
    with pytest.raises(Exception) as whole:  # noqa: PT011  (the library has no kind of its own)
        LibraryTokenizer.from_str(json.dumps(broken))
    with pytest.raises(TokenizerError) as ours:
        Library(broken, "tokenizer.json")
    assert " ".join(str(whole.value).split()) in str(ours.value)
    assert "\n" not in str(ours.value)


def test_an_added_token_without_its_flags_is_an_error_of_the_library() -> None:
    made = document()
    del made["added_tokens"][0]["lstrip"]
    with pytest.raises(TokenizerError, match="missing field `lstrip`"):
        Library(made, "tokenizer.json", Library(document(), "tokenizer.json").model)

"""Tokens matched before the library against the library's own matching, over the same vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_texts import Header, with_keys

from plait.engine.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf
from plait.engine.tokenizer.spelling import BYTE_LEVEL
from plait.errors import TokenizerError

LETTERS = sorted(BYTE_LEVEL)
CONTROL = ("<s>", "</s>", "<|a|>", "<|a|>b", "abc", "\u2581x", "éx", "q")
USER = ("\n\n", "<b>", "b<|a", "ab", " <", "z", "\0<s>")
UNUSED = ("[PAD0]", "[PAD1]")
WORDS = ("Ġa", "bc", "<|", "Ġ<|", "s>", "\0abc")
# "a bc" makes a control token, "abc q" begins with one: neither may happen in a plain text.
MERGES = ("< |", "Ġ <|", "b c", "a bc", "Ġ a", "s >")


def gguf(**keys: Any) -> Header:
    tokens = [*LETTERS, *WORDS, *CONTROL, *USER, *UNUSED]
    tokens = list(dict.fromkeys(tokens))
    kinds = dict.fromkeys(LETTERS + list(WORDS), 1) | dict.fromkeys(CONTROL, 3)
    kinds |= dict.fromkeys(USER, 4) | dict.fromkeys(UNUSED, 5)
    made: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [kinds[token] for token in tokens],
        "merges": list(MERGES),
        "eos_token_id": tokens.index("</s>"),
    }
    return with_keys(Header({}), **{**made, **keys})


def library(header: Header, directory: Path, cut: dict[str, Any], *, whole_words: bool, composes: bool) -> Tokenizer:
    """The same vocabulary as a tokenizer.json, in which the library matches all tokens itself."""
    keys = {key.removeprefix("tokenizer.ggml."): value for key, value in header.metadata.items()}
    added = [
        {
            "id": token,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != 4,
        }
        for token, (text, kind) in enumerate(zip(keys["tokens"], keys["token_type"], strict=True))
        if kind != 1
    ]
    document = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if composes else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                cut,
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "ignore_merges": whole_words,
            "vocab": {text: token for token, text in enumerate(keys["tokens"])},
            "merges": [merge.split(" ") for merge in keys["merges"]],
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}), encoding="utf-8")
    return load_tokenizer(directory)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CUTS = {
    "gpt-2": (split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), False, False),
    "llama-bpe": (split(_CONTRACTIONS + r"|\p{N}{1,3}" + _REST), True, False),
    "qwen2": (split(_CONTRACTIONS + r"|\p{N}" + _REST), False, True),
}


@pytest.fixture(scope="module", params=sorted(CUTS))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    cut, whole_words, composes = CUTS[request.param]
    header = gguf(pre=request.param)
    apart = library(header, tmp_path_factory.mktemp("hub"), cut, whole_words=whole_words, composes=composes)
    return tokenizer_from_gguf(header), apart


PIECES = st.one_of(
    st.sampled_from([*CONTROL, *USER, *UNUSED, " ", "\n", "a", "b", "c", "<", "|", ">", "x", "1", "e\u0301", "漢"]),
    st.sampled_from([*CONTROL, *USER]).map(lambda text: text[1:]),
    st.sampled_from([*CONTROL, *USER]).map(lambda text: text[:-1]),
    st.text(max_size=4),
)


@settings(max_examples=250, deadline=None)
@given(text=st.lists(PIECES, max_size=10).map("".join))
def test_matching_before_the_library_is_matching_in_it(both: tuple[Tokenizer, Tokenizer], text: str) -> None:
    ours, apart = both
    assert ours.control == apart.control
    plain = ours.encode(text)
    assert plain == apart.encode(text)
    assert ours.control.isdisjoint(plain)
    assert ours.encode_markup(text) == apart.encode_markup(text)
    assert ours.decode(plain, control=True) == apart.decode(plain, control=True)


def test_every_token_is_spelled_alike(both: tuple[Tokenizer, Tokenizer]) -> None:
    ours, apart = both
    assert ours.vocabulary == apart.vocabulary
    for token in range(ours.vocabulary + 2):
        assert ours.token_bytes(token) == apart.token_bytes(token)


def test_control_tokens_of_markup_are_one_id_each() -> None:
    tokenizer = tokenizer_from_gguf(gguf())
    for text in CONTROL:
        assert [tokenizer.token_text(token) for token in tokenizer.encode_markup(text, start=False)] == [text]


def test_a_control_token_named_like_a_byte_is_no_byte() -> None:
    # U+00E9 stands for the byte 0xE9, the first of this character.
    kinds = [3 if letter == "é" else 1 for letter in LETTERS]
    tokenizer = tokenizer_from_gguf(with_keys(gguf(), tokens=LETTERS, token_type=kinds, merges=[], eos_token_id=0))
    control = LETTERS.index("é")
    assert "退".encode()[0] == BYTE_LEVEL["é"] == 0xE9
    assert control not in tokenizer.encode("退é") + tokenizer.encode_markup("退")
    assert tokenizer.encode_markup("é") == [control]


@pytest.mark.parametrize("place", [0, 700, 1999])
@pytest.mark.parametrize("wrong", ["ab", "a  b", "a b c", "a \u2580", ""])
def test_one_wrong_merge_among_thousands_is_named(place: int, wrong: str) -> None:
    merges = ["b c"] * 2000
    merges[place] = wrong
    header = with_keys(gguf(), merges=merges)
    with pytest.raises(TokenizerError, match=rf"merges: expected two tokens that make a third at {place}, found") as e:
        tokenizer_from_gguf(header)
    assert "\n" not in str(e.value)

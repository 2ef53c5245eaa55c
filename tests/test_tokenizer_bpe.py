"""Byte-level BPE from a GGUF vocabulary, against a plain reference on another regex engine."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_texts import TEXTS, Header, with_keys

from plait.blueprint.read.gguf import read_gguf
from plait.engine.tokenizer import Tokenizer, tokenizer_from_gguf
from plait.engine.tokenizer.pretokenizers import PRETOKENIZERS
from plait.errors import TokenizerError

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"


def alphabet() -> list[str]:
    """GPT-2's printable character for each byte (Radford et al. 2019, encoder.py)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def cut(patterns: Sequence[str], text: str) -> list[str]:
    """Each pattern in turn cuts every piece into its matches and what lies between them."""
    pieces = [text]
    for pattern in patterns:
        pieces = [part for piece in pieces for part in regex.split(f"({pattern})", piece) if part]
    return pieces


def reference(tokens: Sequence[str], merges: Sequence[str], patterns: Sequence[str]) -> Callable[[str], list[int]]:
    """Byte-pair encoding by the book: again and again the best merge, everywhere, until there is none."""
    ids = {token: place for place, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): place for place, merge in enumerate(merges)}
    letters = alphabet()

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for word in cut(patterns, text):
            symbols = [letter for byte in word.encode() if (letter := letters[byte]) in ids]
            while True:
                pairs = itertools.pairwise(symbols)
                best = min(pairs, key=lambda pair: ranks.get(pair, 1 << 40), default=("", ""))
                if best not in ranks:
                    break
                merged: list[str] = []
                for symbol in symbols:
                    if merged and (merged[-1], symbol) == best:
                        merged[-1] += symbol
                    else:
                        merged.append(symbol)
                symbols = merged
            out += [ids[symbol] for symbol in symbols]
        return out

    return encode


@pytest.fixture(scope="module")
def header(smollm_gguf: Path) -> Any:
    return read_gguf(smollm_gguf)


@pytest.fixture(scope="module")
def smollm(header: Any) -> tuple[Tokenizer, Callable[[str], list[int]]]:
    keys = header.metadata
    book = reference(list(keys["tokenizer.ggml.tokens"]), list(keys["tokenizer.ggml.merges"]), [DIGIT, GPT2])
    return tokenizer_from_gguf(header), book


def test_facts_of_smollm(smollm: tuple[Tokenizer, object]) -> None:
    tokenizer, _ = smollm
    assert (tokenizer.vocabulary, tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (49_152, 1, (2,), False)
    assert tokenizer.control == frozenset(range(17))
    assert tokenizer.chat_template is not None
    assert "<|im_start|>" in tokenizer.chat_template
    assert tokenizer.token_bytes(1) == b"<|im_start|>"
    assert tokenizer.token_bytes(1116) == b"\n\n"
    assert tokenizer.token_text(9212) == "$$"


@pytest.mark.parametrize("text", TEXTS)
def test_smollm_encodes_by_the_book(smollm: tuple[Tokenizer, Callable[[str], list[int]]], text: str) -> None:
    tokenizer, book = smollm
    ids = tokenizer.encode(text)
    assert ids == book(text)
    assert tokenizer.decode(ids) == text


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_smollm_encodes_any_text_by_the_book(smollm: tuple[Tokenizer, Callable[[str], list[int]]], text: str) -> None:
    tokenizer, book = smollm
    assert tokenizer.encode(text) == book(text)


def test_bytes_without_a_token_are_left_out(smollm: tuple[Tokenizer, Callable[[str], list[int]]]) -> None:
    # 21 bytes never came up in this vocabulary's training text, 0x04 among them.
    tokenizer, book = smollm
    assert tokenizer.encode("a\x04b") == book("a\x04b") == tokenizer.encode("a") + tokenizer.encode("b")


def test_smollm_ids_of_another_implementation(smollm: tuple[Tokenizer, object]) -> None:
    # Ids that llama.cpp gives for the same file.
    tokenizer, _ = smollm
    assert tokenizer.encode("Hello World! we'VE don't IT'S  42 1234567") == [
        19556, 2260, 17, 392, 23, 18525, 1326, 982, 9627, 23, 67, 256, 36, 34, 216, 33, 34, 35, 36, 37, 38, 39,
    ]  # fmt: skip
    assert tokenizer.encode("def f(x):\n\treturn x//2  # ok\n") == [
        1604, 275, 24, 104, 727, 198, 197, 5406, 1792, 1559, 34, 216, 907, 10907, 198,
    ]  # fmt: skip
    assert tokenizer.encode_markup("<|im_start|>user\nhi<|im_end|>\n") == [1, 4093, 198, 6004, 2, 198]


def words_of(name: str, text: str) -> list[str]:
    """The words that the cut `name` makes of `text`: in this vocabulary every word is one token."""
    letters = alphabet()
    spelled = "".join(letters[byte] for byte in text.encode())
    longer = {spelled[i:j] for i in range(len(spelled)) for j in range(i + 2, len(spelled) + 1)}
    tokens = [*letters, *sorted(longer, key=lambda token: (len(token), token))]
    merges = [f"{token[:place]} {token[place:]}" for token in tokens[256:] for place in range(1, len(token))]
    keys = {"model": "gpt2", "pre": name, "tokens": tokens, "merges": merges, "token_type": [1] * len(tokens)}
    tokenizer = tokenizer_from_gguf(with_keys(Header({}), **keys))
    return [tokenizer.decode([token]) for token in tokenizer.encode(text)]


CUTS = {
    # name: cuts of "a's A'S", of " 12345\n", of "x\n\ny", of "aBCd://\n", of "的カ१", of "$a"
    "gpt-2": ("a|'s| A|'|S", " 12345|\n", "x|\n|\n|y", "aBCd|://|\n", "的カ|१", "$|a"),
    "default": ("a|'|s| A|'|S", " |123|45|\n", "x|\n|\n|y", "aBCd|://|\n", "的カ|१", "$|a"),
    "smollm": ("a|'s| A|'|S", " |1|2|3|4|5|\n", "x|\n|\n|y", "aBCd|://|\n", "的カ|१", "$|a"),
    "starcoder": ("a|'s| A|'|S", " |1|2|3|4|5|\n", "x|\n|\n|y", "aBCd|://|\n", "的カ|१", "$|a"),
    "llama-bpe": ("a|'s| A|'S", " |123|45|\n", "x|\n\n|y", "aBCd|://\n", "的カ|१", "$a"),
    "qwen2": ("a|'s| A|'S", " |1|2|3|4|5|\n", "x|\n\n|y", "aBCd|://\n", "的カ|१", "$a"),
    "qwen35": ("a|'s| A|'S", " |1|2|3|4|5|\n", "x|\n\n|y", "aBCd|://\n", "的カ|१", "$a"),
    "tekken": ("a|'s| A|'S", " |1|2|3|4|5|\n", "x|\n\n|y", "a|BCd|://\n", "的カ|१", "$a"),
    "gpt-4o": ("a's| A'S", " |123|45|\n", "x|\n\n|y", "a|BCd|://\n", "的カ|१", "$a"),
    "deepseek-v3": ("a|'s| A|'S", " |123|45|\n", "x|\n\n|y", "aBCd|://\n", "的カ|१", "$a"),
    "spark3": ("a|'s| A|'S", " |1|2|3|4|5|\n", "x|\n|\n|y", "aBCd|://|\n", "的カ|१", "$a"),
}
SAMPLES = ("a's A'S", " 12345\n", "x\n\ny", "aBCd://\n", "的カ१", "$a")
SAME = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "minimax-m2": "gpt-4o",
    "glm4": "llama-bpe",
    "chatglm-bpe": "glm4",
}


@pytest.mark.parametrize("name", sorted(CUTS))
def test_each_name_cuts_as_its_models_do(name: str) -> None:
    assert tuple("|".join(words_of(name, text)) for text in SAMPLES) == CUTS[name]


def test_every_name_has_its_cuts_tested() -> None:
    assert CUTS.keys() | SAME.keys() == PRETOKENIZERS.keys()
    for name, other in SAME.items():
        assert PRETOKENIZERS[name].patterns == PRETOKENIZERS[other].patterns


def test_combining_marks_belong_to_words_where_the_pattern_says_so() -> None:
    text = "क्षि x"  # letters and marks in turn; nothing composes
    assert words_of("qwen2", text) != words_of("qwen35", text) == ["क्षि", " x"]


@pytest.mark.parametrize("name", ["qwen2", "qwen35"])
def test_qwen_composes_text_first(name: str) -> None:
    text = "e\u0301"
    keys = {"model": "gpt2", "tokens": alphabet(), "token_type": [1] * 256, "merges": []}
    composes = tokenizer_from_gguf(with_keys(Header({}), pre=name, **keys))
    keeps = tokenizer_from_gguf(with_keys(Header({}), pre="gpt-4o", **keys))
    assert composes.decode(composes.encode(text)) == unicodedata.normalize("NFC", text) == "\u00e9"
    assert keeps.decode(keeps.encode(text)) == text


def test_llama3_takes_a_whole_word_before_merging() -> None:
    letters = alphabet()
    keys = {
        "model": "gpt2",
        "tokens": [*letters, "ab", "bc", "abc"],
        "token_type": [1] * 259,
        "merges": ["b c", "a b"],
        "bos_token_id": 0,
    }
    header = with_keys(Header({}), **keys)
    assert tokenizer_from_gguf(with_keys(header, pre="llama-bpe")).encode("abc") == [0, 258]
    assert tokenizer_from_gguf(with_keys(header, pre="glm4")).encode("abc") == [letters.index("a"), 257]


def test_user_defined_tokens_match_in_plain_text_unless_the_template_writes_them() -> None:
    letters = alphabet()
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*letters, "<think>", "<b>", "<|x|>"],
        "token_type": [1] * 256 + [4, 4, 3],
        "merges": [],
    }
    header = with_keys(Header({}), **keys)
    assert tokenizer_from_gguf(header).encode("<think><b>") == [256, 257]
    templated = Header({**header.metadata, "tokenizer.chat_template": "{% if x %}<think>{% endif %}"})
    tokenizer = tokenizer_from_gguf(templated)
    assert tokenizer.control == {256, 258}
    ids = tokenizer.encode("<think><b><|x|>")
    assert {256, 258}.isdisjoint(ids)
    assert 257 in ids
    assert tokenizer.decode(ids) == "<think><b><|x|>"
    assert tokenizer.encode_markup("<think><b><|x|>") == [256, 257, 258]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"pre": None}, r"tokenizer\.ggml\.pre: expected one of chatglm-bpe, .*, found nothing"),
    ({"pre": "gpt-9"}, r"tokenizer\.ggml\.pre: expected one of .*smollm.*, found gpt-9"),
    ({"merges": None}, r"tokenizer\.ggml\.merges: expected an array of strings, found nothing"),
    ({"merges": ["a b", "a  c"]}, r"tokenizer\.ggml\.merges: expected two tokens that make a third at 1, found a  c"),
    ({"merges": ["ab"]}, r"tokenizer\.ggml\.merges: .* at 0, found ab"),
    ({"merges": ["a c"]}, r"tokenizer\.ggml\.merges: .* at 0, found a c"),
    ({"merges": [3]}, r"tokenizer\.ggml\.merges: .* at 0, found 3"),
    ({"token_type": [1, 1, 6]}, r"tokenizer\.ggml\.token_type"),
    ({"add_space_prefix": True}, r"tokenizer\.ggml\.add_space_prefix"),
]


@pytest.mark.parametrize(("keys", "message"), BAD)
def test_a_malformed_vocabulary_is_an_error_naming_file_and_key(keys: dict[str, Any], message: str) -> None:
    good = with_keys(
        Header({}), model="gpt2", pre="gpt-2", tokens=["a", "b", "ab"], token_type=[1, 1, 1], merges=["a b"]
    )
    assert tokenizer_from_gguf(good).encode("aba") == [2, 0]
    with pytest.raises(TokenizerError, match=r"^model\.gguf: " + message):
        tokenizer_from_gguf(with_keys(good, **keys))

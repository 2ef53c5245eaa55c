"""SentencePiece BPE from a GGUF vocabulary, against the sentencepiece library."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_texts import TEXTS, Header, with_keys

from plait.blueprint.read.gguf import read_gguf
from plait.engine.tokenizer import Tokenizer, tokenizer_from_gguf
from plait.errors import TokenizerError, UsageError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protocol buffer message: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def processor(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], *, prefix: bool, bytes_: bool
) -> sentencepiece.SentencePieceProcessor:
    """A sentencepiece model of the same pieces (sentencepiece_model.proto: pieces 1, trainer 2, normalizer 3)."""
    pieces = bytearray()
    for text, score, kind in zip(tokens, scores, kinds, strict=True):
        piece = text.replace(" ", "\u2581") if kind == USER else text
        body = field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + field(3, kind)
        pieces += field(1, body)
    trainer = field(3, 2) + field(35, int(bytes_)) + field(40, list(kinds).index(UNKNOWN))
    trainer += b"".join(field(number, (1 << 64) - 1) for number in (41, 42, 43))  # no bos, eos, pad
    normalizer = field(1, b"identity") + field(3, int(prefix)) + field(4, 0) + field(5, 1)
    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(bytes(pieces) + field(2, trainer) + field(3, normalizer))
    return model


def keys_of(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], *, prefix: bool = False, **more: Any
) -> Header:
    keys = {
        "model": "llama",
        "tokens": list(tokens),
        "scores": list(scores),
        "token_type": list(kinds),
        "add_space_prefix": prefix,
        "unknown_token_id": list(kinds).index(UNKNOWN),
        **more,
    }
    return with_keys(Header({}), **keys)


@pytest.fixture(scope="module")
def gemma(gemma_gguf: Path) -> Tokenizer:
    return tokenizer_from_gguf(read_gguf(gemma_gguf))


@pytest.fixture(scope="module")
def reference(gemma_gguf: Path) -> sentencepiece.SentencePieceProcessor:
    data = read_gguf(gemma_gguf).metadata
    tokens, scores = list(data["tokenizer.ggml.tokens"]), list(data["tokenizer.ggml.scores"])
    kinds = list(data["tokenizer.ggml.token_type"])
    kinds[tokens.index("<unk>")] = UNKNOWN  # the file says CONTROL, sentencepiece insists on one unknown piece
    return processor(tokens, scores, kinds, prefix=False, bytes_=True)


def test_facts_of_gemma(gemma: Tokenizer) -> None:
    assert (gemma.vocabulary, gemma.bos, gemma.eos, gemma.adds_bos, gemma.adds_eos) == (262_144, 2, (1,), True, False)
    assert len(gemma.control) == 6249
    assert {0, 1, 2, 3, 105, 106} <= gemma.control
    assert 107 not in gemma.control
    assert gemma.chat_template is None


@pytest.mark.parametrize("text", TEXTS)
def test_gemma_encodes_as_sentencepiece_does(
    gemma: Tokenizer, reference: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    ids = gemma.encode(text, start=False)
    assert ids == reference.EncodeAsIds(text)
    assert gemma.encode(text) == [2, *ids]
    assert gemma.decode(ids) == text.replace("\u2581", " ")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_gemma_encodes_any_text_as_sentencepiece_does(gemma_pair: tuple[Tokenizer, Any], text: str) -> None:
    gemma, reference = gemma_pair
    assert gemma.encode(text, start=False) == reference.EncodeAsIds(text)


@pytest.fixture(scope="module")
def gemma_pair(gemma: Tokenizer, reference: Any) -> tuple[Tokenizer, Any]:
    return gemma, reference


def test_gemma_ids_of_another_implementation(gemma: Tokenizer) -> None:
    # Ids that llama.cpp gives for the same file.
    assert gemma.encode("Hello World! we'VE don't IT'S  42 1234567", start=False) == [
        9259, 4109, 236888, 692, 236789, 11818, 1537, 236789, 236745, 9053, 236789, 236773, 138, 236812, 236778, 236743,
        236770, 236778, 236800, 236812, 236810, 236825, 236832,
    ]  # fmt: skip
    assert gemma.encode("  spaces\tand\n\n\n  x \r\n\r\ny ", start=False) == [
        138, 35220, 255968, 624, 109, 138, 236781, 236743, 251, 107, 251, 107, 236762, 236743,
    ]  # fmt: skip


def test_markup_knows_control_tokens_and_does_not_double_bos(gemma: Tokenizer) -> None:
    text = "<bos><start_of_turn>user\nhi<end_of_turn>\n"
    ids = gemma.encode_markup(text)
    assert ids == [2, 105, 2364, 107, 2202, 106, 107]
    assert gemma.encode_markup(text, start=False) == ids
    assert gemma.encode_markup(text.removeprefix("<bos>")) == ids
    assert gemma.decode(ids) == "user\nhi\n"
    assert gemma.decode(ids, control=True) == text


PIECES = st.sets(st.text("ab\u2581c", min_size=2, max_size=4), max_size=14).map(sorted)


@settings(max_examples=200, deadline=None)
@given(PIECES, st.booleans(), st.booleans(), st.integers(0, 2**32), st.text("abc dé", max_size=20))
def test_any_small_vocabulary_encodes_as_sentencepiece_does(
    merged: list[str], prefix: bool, bytes_: bool, seed: int, text: str
) -> None:
    draw = random.Random(seed)
    tokens = ["<unk>", "<s>", *([f"<0x{byte:02X}>" for byte in range(256)] if bytes_ else [])]
    kinds = [UNKNOWN, CONTROL, *([BYTE] * 256 if bytes_ else [])]
    for piece in ["a", "b", "c", "\u2581", *merged]:
        tokens.append(piece)
        kinds.append(NORMAL if len(piece) == 1 else draw.choice([NORMAL, NORMAL, NORMAL, USER, UNUSED]))
    scores = [float(draw.randint(-4, 0)) for _ in tokens]  # few values: ties are frequent
    ours = tokenizer_from_gguf(keys_of(tokens, scores, kinds, prefix=prefix))
    theirs = processor(tokens, scores, kinds, prefix=prefix, bytes_=bytes_)
    ids = ours.encode(text)
    assert ids == theirs.EncodeAsIds(text)
    if bytes_:
        assert ours.decode(ids) == text == theirs.DecodeIds(ids)


def test_user_defined_pieces_stay_apart_from_both_neighbours() -> None:
    tokens, kinds = (
        ["<unk>", "a", "b", "c", "bc", "abc", "bca"],
        [UNKNOWN, NORMAL, NORMAL, NORMAL, USER, NORMAL, NORMAL],
    )
    ours = tokenizer_from_gguf(keys_of(tokens, [0.0] * 7, kinds))
    theirs = processor(tokens, [0.0] * 7, kinds, prefix=False, bytes_=False)
    for text, ids in (("abc", [1, 4]), ("bca", [4, 1]), ("abcbca", [1, 4, 4, 1])):
        assert ours.encode(text) == theirs.EncodeAsIds(text) == ids


def test_a_token_that_ends_texts_is_a_control_token_whatever_its_kind() -> None:
    tokens, kinds = ["<unk>", "<", "e", ">", "<e", "<e>", "<t>", "\n"], [UNKNOWN, *[NORMAL] * 7]
    header = keys_of(tokens, [0.0] * 8, kinds, eos_token_id=5, eot_token_id=6, eom_token_id=7)
    tokenizer = tokenizer_from_gguf(header)
    # A line break may end a completion, yet text must be able to hold it.
    assert tokenizer.eos == (5, 6, 7)
    assert tokenizer.control == {5, 6}
    assert tokenizer.encode("<e>\n") == [4, 3, 7]
    assert tokenizer.encode_markup("<e>\n") == [5, 7]


def test_a_space_before_a_text_is_taken_away_only_at_its_beginning() -> None:
    tokens, kinds = ["<unk>", "\u2581a", "a", "\u2581"], [UNKNOWN, NORMAL, NORMAL, NORMAL]
    tokenizer = tokenizer_from_gguf(keys_of(tokens, [0.0] * 4, kinds, prefix=True))
    assert tokenizer.encode("a a") == [1, 1]
    assert tokenizer.decode([1, 1]) == "a a"
    assert tokenizer.decode([1], start=False) == " a"
    late = tokenizer.stream()
    assert [late.push(token) for token in (99, 1, 1)] == ["", "a", " a"]  # 99 has no token and writes nothing
    assert tokenizer.stream().push(1) == "a"
    assert tokenizer.stream(start=False).push(1) == " a"


def test_a_character_that_nothing_can_spell_is_refused_or_unknown() -> None:
    tokens, kinds = ["<unk>", "a"], [UNKNOWN, NORMAL]
    assert tokenizer_from_gguf(keys_of(tokens, [0.0] * 2, kinds)).encode("axya") == [1, 0, 1]
    with pytest.raises(UsageError, match=r"U\+0078"):
        tokenizer_from_gguf(keys_of(tokens, [0.0] * 2, kinds, unknown_token_id=None)).encode("axya")


def test_user_defined_tokens_that_the_template_writes_are_control_tokens() -> None:
    tokens = ["<unk>", "<think>", "<b>", "\n", *"<think>b"]
    tokens = list(dict.fromkeys(tokens))
    kinds = [UNKNOWN, USER, USER, USER, *[NORMAL] * (len(tokens) - 4)]
    header = keys_of(tokens, [0.0] * len(tokens), kinds)
    template = {"tokenizer.chat_template": "{{ '<think>\\n' }}{{ m.content }}\n"}
    tokenizer = tokenizer_from_gguf(Header({**header.metadata, **template}))
    assert tokenizer.control == {1}
    ids = tokenizer.encode("<think><b>\n")
    assert 1 not in ids
    assert ids[-2:] == [2, 3]
    assert tokenizer.decode(ids) == "<think><b>\n"
    assert tokenizer.encode_markup("<think><b>\n") == [1, 2, 3]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": "none"}, r"tokenizer\.ggml\.model: expected llama or gpt2, found none"),
    ({"model": None}, r"tokenizer\.ggml\.model: expected llama or gpt2, found nothing"),
    ({"model": 7}, r"tokenizer\.ggml\.model: expected a string, found 7"),
    ({"tokens": None}, r"tokenizer\.ggml\.tokens"),
    ({"tokens": []}, r"tokenizer\.ggml\.tokens"),
    ({"tokens": "ab"}, r"tokenizer\.ggml\.tokens: expected an array"),
    ({"tokens": ["<unk>", "a", "a"]}, r"tokenizer\.ggml\.tokens: expected every token once, found 'a' at 1 and at 2"),
    ({"tokens": ["<unk>", "", "a"]}, r"tokenizer\.ggml\.tokens: .* at 1"),
    ({"tokens": ["<unk>", 1, "a"]}, r"tokenizer\.ggml\.tokens: .* at 1"),
    ({"scores": None}, r"tokenizer\.ggml\.scores"),
    ({"scores": [0.0, 0.0]}, r"tokenizer\.ggml\.scores: expected 3 numbers, one for each token, found 2"),
    ({"scores": [0.0, float("nan"), 0.0]}, r"tokenizer\.ggml\.scores: expected a finite number at 1"),
    ({"scores": [0.0, "x", 0.0]}, r"tokenizer\.ggml\.scores: expected a finite number at 1"),
    ({"token_type": [2, 1]}, r"tokenizer\.ggml\.token_type: expected 3 numbers"),
    ({"token_type": [2, 1, 9]}, r"tokenizer\.ggml\.token_type: expected 1 to 6 at 2, found 9"),
    ({"token_type": [2, 1, 6]}, r"tokenizer\.ggml\.tokens: expected 256 byte tokens"),
    ({"bos_token_id": 3}, r"tokenizer\.ggml\.bos_token_id: expected a token id below 3, found 3"),
    ({"eos_token_id": -1}, r"tokenizer\.ggml\.eos_token_id"),
    ({"eot_token_id": "x"}, r"tokenizer\.ggml\.eot_token_id"),
    ({"add_bos_token": True}, r"tokenizer\.ggml\.bos_token_id: .*add_bos_token is true"),
    ({"add_bos_token": 1}, r"tokenizer\.ggml\.add_bos_token"),
    ({"remove_extra_whitespaces": True}, r"tokenizer\.ggml\.remove_extra_whitespaces"),
    ({"precompiled_charsmap": [1]}, r"tokenizer\.ggml\.precompiled_charsmap"),
]


@pytest.mark.parametrize(("keys", "message"), BAD)
def test_a_malformed_vocabulary_is_an_error_naming_file_and_key(keys: dict[str, Any], message: str) -> None:
    good = keys_of(["<unk>", "a", "b"], [0.0, 0.0, 0.0], [UNKNOWN, NORMAL, NORMAL])
    assert tokenizer_from_gguf(good).encode("ab") == [1, 2]
    with pytest.raises(TokenizerError, match=r"^model\.gguf: " + message) as caught:
        tokenizer_from_gguf(with_keys(good, **keys))
    assert "\n" not in str(caught.value)

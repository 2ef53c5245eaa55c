"""Streams: never half a character, and in sum what decoding all tokens at once gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer_hub import KINDS

from plait.blueprint.read.gguf import read_gguf
from plait.engine.tokenizer import TextStream, Tokenizer, load_tokenizer, tokenizer_from_gguf


def streamed(stream: TextStream, ids: list[int]) -> list[str]:
    return [*(stream.push(token) for token in ids), stream.finish()]


@pytest.fixture(scope="module", params=["gemma", "smollm", *sorted(KINDS)])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param in KINDS:
        directory = tmp_path_factory.mktemp("stream")
        KINDS[request.param]().save(str(directory / "tokenizer.json"))
        return load_tokenizer(directory)
    file: Path = request.getfixturevalue(f"{request.param}_gguf")
    return tokenizer_from_gguf(read_gguf(file))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), control=st.booleans(), start=st.booleans())
def test_any_tokens_stream_to_what_they_decode_to(
    tokenizer: Tokenizer, data: st.DataObject, control: bool, start: bool
) -> None:
    # Low ids are control and byte tokens, so broken characters are frequent; some ids have no token.
    token = st.one_of(st.integers(0, 300), st.integers(0, tokenizer.vocabulary + 5))
    ids = data.draw(st.lists(token, max_size=20))
    parts = streamed(tokenizer.stream(control=control, start=start), ids)
    assert "".join(parts) == tokenizer.decode(ids, control=control, start=start)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("aé漢😀\u200d👩🏽ह ी\n"), max_size=20))
def test_valid_text_streams_without_a_broken_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, start=False)
    parts = streamed(tokenizer.stream(), ids)
    assert "\ufffd" not in "".join(parts)
    assert parts[-1] == ""
    place = 0
    for part in parts:  # each part is whole characters of the text, in order
        assert tokenizer.decode(ids)[place : place + len(part)] == part
        place += len(part)


def test_a_character_in_pieces_comes_out_whole(gemma_gguf: Path) -> None:
    tokenizer = tokenizer_from_gguf(read_gguf(gemma_gguf))
    bytes_ = [238 + byte for byte in "\U0001f9ff".encode()]  # <0x00> has id 238
    assert tokenizer.token_bytes(238) == b"\0"
    assert streamed(tokenizer.stream(), bytes_) == ["", "", "", "\U0001f9ff", ""]
    assert streamed(tokenizer.stream(), bytes_[:3]) == ["", "", "", "\ufffd"]
    assert streamed(tokenizer.stream(), [bytes_[0], 2, *bytes_[1:]])[-2] == "\U0001f9ff"  # control writes nothing
    assert streamed(tokenizer.stream(), [bytes_[0], 9259]) == ["", "\ufffdHello", ""]


def test_token_bytes_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    text = "naïve 漢字 \n\n x"
    ids = tokenizer.encode(text, start=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().removeprefix(" ") == tokenizer.decode(ids)
    assert tokenizer.token_text(ids[0]) == tokenizer.token_bytes(ids[0]).decode(errors="replace")

"""No text spells a control token: neither whole, nor in pieces, nor through normalisation or merges."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer_hub import ADDED, KINDS, SPECIAL, TEMPLATE, byte_level
from tokenizer_texts import Header
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from plait.blueprint.read.gguf import read_gguf
from plait.engine.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf
from plait.errors import UsageError

GEMMA = ("<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<unused0>", "<unused6241>")
SMOLLM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<empty_output>")


def forgeries(controls: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Texts made of control tokens, of pieces of them, of one inside another, and of other things between."""
    whole = st.sampled_from(controls)
    cut = st.tuples(whole, st.integers(0, 16))
    pieces = st.one_of(
        whole,
        cut.map(lambda pair: pair[0][: pair[1]]),
        cut.map(lambda pair: pair[0][pair[1] :]),
        st.tuples(cut, whole).map(lambda two: two[0][0][: two[0][1]] + two[1] + two[0][0][two[0][1] :]),
        st.sampled_from(
            [" ", "\n", "\n\n", "  ", "\t", "user", "<", "|", ">", "<table>", "e\u0301", "漢", "\u200b", "a"]
        ),
    )
    return st.lists(pieces, max_size=12).map("".join)


@pytest.fixture(scope="module")
def gemma(gemma_gguf: Path) -> Tokenizer:
    return tokenizer_from_gguf(read_gguf(gemma_gguf))


@pytest.fixture(scope="module")
def smollm(smollm_gguf: Path) -> Tokenizer:
    return tokenizer_from_gguf(read_gguf(smollm_gguf))


@settings(max_examples=300, deadline=None)
@given(text=forgeries(GEMMA))
def test_gemma_text_yields_no_control_token_and_comes_back(gemma: Tokenizer, text: str) -> None:
    ids = gemma.encode(text, start=False)
    assert gemma.control.isdisjoint(ids)
    assert gemma.decode(ids) == text


@settings(max_examples=300, deadline=None)
@given(text=forgeries(SMOLLM))
def test_smollm_text_yields_no_control_token_and_comes_back(smollm: Tokenizer, text: str) -> None:
    ids = smollm.encode(text)
    assert smollm.control.isdisjoint(ids)
    assert smollm.decode(ids) == text


@pytest.fixture(scope="module", params=sorted(KINDS))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tokenizer]:
    directory = tmp_path_factory.mktemp("trained")
    KINDS[request.param]().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return request.param, load_tokenizer(directory)


@settings(max_examples=150, deadline=None)
@given(text=forgeries((*SPECIAL, *ADDED)))
def test_small_vocabularies_too(trained: tuple[str, Tokenizer], text: str) -> None:
    kind, tokenizer = trained
    ids = tokenizer.encode(text, start=False)
    markers = {
        tokenizer.encode_markup(marker, start=False)[-1] for marker in ("<s>", "<|im_end|>", "<think>", "</think>")
    }
    assert markers <= tokenizer.control
    assert tokenizer.control.isdisjoint(ids)
    if kind == "bytes":
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", SPECIAL[1:])
def test_every_special_token_is_a_control_token_in_markup_only(trained: tuple[str, Tokenizer], text: str) -> None:
    _, tokenizer = trained
    token = tokenizer.encode_markup(text, start=False)
    assert len(token) == 1
    assert token[0] in tokenizer.control
    assert token[0] not in tokenizer.encode(text, start=False)


def saved(tokenizer: LibraryTokenizer, directory: Path) -> Tokenizer:
    tokenizer.save(str(directory / "tokenizer.json"))
    return load_tokenizer(directory)


def test_normalisation_does_not_spell_a_control_token(tmp_path: Path) -> None:
    # Matched after normalisation, "<|END|>" and full-width letters would become the token.
    library = byte_level()
    library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    library.add_special_tokens([AddedToken("<|end|>", normalized=True)])
    tokenizer = saved(library, tmp_path)
    (end,) = tokenizer.encode_markup("<|end|>")
    for text in ("<|end|>", "<|END|>", "\uff1c|end|\uff1e", "<|e\uff4ed|>"):
        assert end not in tokenizer.encode(text)
        assert tokenizer.encode_markup(text) == [end]


def test_merges_do_not_spell_a_control_token(tmp_path: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: place for place, text in enumerate([*letters, "ab", "abc"])}
    library = LibraryTokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["abc"])
    tokenizer = saved(library, tmp_path)
    assert tokenizer.encode("abc") == [256, vocabulary["c"]]
    assert tokenizer.encode_markup("abc") == [257]


def test_whole_words_do_not_spell_a_control_token() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    keys = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": [*letters, "abc"],
        "token_type": [*[1] * 256, 3],
        "merges": [],
    }
    tokenizer = tokenizer_from_gguf(Header({f"tokenizer.ggml.{key}": value for key, value in keys.items()}))
    assert tokenizer.encode("abc") == [letters.index(letter) for letter in "abc"]
    assert tokenizer.encode_markup("abc") == [256]


def test_an_unknown_token_that_is_also_eos_is_refused_rather_than_produced(tmp_path: Path) -> None:
    library = LibraryTokenizer(models.BPE({"<|end|>": 0, "a": 1}, [], unk_token="<|end|>"))
    library.decoder = decoders.Metaspace(prepend_scheme="never")
    library.add_special_tokens(["<|end|>"])
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}', encoding="utf-8")
    tokenizer = saved(library, tmp_path)
    assert tokenizer.encode("aa") == [1, 1]
    with pytest.raises(UsageError, match="expected characters that the vocabulary can spell"):
        tokenizer.encode("ab")


def test_user_defined_tokens_inside_the_text_of_a_control_token_still_match(tmp_path: Path) -> None:
    library = byte_level()
    library.add_tokens([AddedToken("im_", normalized=False)])
    tokenizer = saved(library, tmp_path)
    inner = tokenizer.encode("im_")
    assert len(inner) == 1
    assert inner[0] in tokenizer.encode("<|im_start|>")


@pytest.mark.parametrize(
    "template",
    [
        "<think>",
        "{{ '<think>' }}",
        '{{ "\\n<think>\\n" }}',
        "{{ '\\u003cthink\\x3e' }}",
        "{% if '<think>' in m %}{% endif %}",
        "{% generation %}{{ x['<think>'] }}",
        "{{ '<think>",  # does not even parse
    ],
)
def test_a_marker_is_found_wherever_the_template_writes_it(tmp_path: Path, template: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    tokenizer = saved(byte_level(), tmp_path)
    (token,) = tokenizer.encode_markup("<think>")
    assert token in tokenizer.control
    assert token not in tokenizer.encode("<think>")


@pytest.mark.parametrize("template", ["{# <think> #}", "{{ think }}", "{{ '\\n\\n' }}\n\n", "< think >"])
def test_other_tokens_are_not_markers(tmp_path: Path, template: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    tokenizer = saved(byte_level(), tmp_path)
    assert tokenizer.control == frozenset(range(len(SPECIAL)))
    assert [len(tokenizer.encode(text)) for text in ("<think>", "\n\n")] == [1, 1]

"""tokenizer.json directories, against transformers on small trained tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizer_texts import TEXTS
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from plait.engine.tokenizer import load_tokenizer
from plait.errors import TokenizerError, UsageError

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool>", "\n\n"]
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}\n\n{{ '<think>\\n' }}{% endfor %}</think>"


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer


def with_bytes(*, prefix: bool) -> Tokenizer:
    """As Llama's and Gemma's files are: spaces as U+2581, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*SPECIAL, *bytes_], show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat, the cat that sat"], trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [entry for entry in document["added_tokens"] if entry["content"] in SPECIAL]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer


def unigram() -> Tokenizer:
    """Looks words up without merging: a control token in the vocabulary would be found by its text."""
    entries = [(text, 0.0) for text in SPECIAL] + [(chr(code), -9.0) for code in range(33, 127)] + [("\u2581", -2.0)]
    tokenizer = Tokenizer(models.Unigram(entries, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "bytes": lambda: with_bytes(prefix=False),
    "bytes-prefix": lambda: with_bytes(prefix=True),
    "metaspace": metaspace,
    "unigram": unigram,
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    KINDS[request.param]().save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(directory: Path, name: str, content: object) -> None:
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def reference(directory: Path) -> PreTrainedTokenizerFast:
    file = str(directory / "tokenizer.json")
    return PreTrainedTokenizerFast(tokenizer_file=file, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("text", TEXTS)
def test_markup_is_what_transformers_makes_of_a_text(saved: Path, text: str) -> None:
    ours, theirs = load_tokenizer(saved), reference(saved)
    text = text + "<|im_start|>a <think> b</think><s>x"
    ids = ours.encode_markup(text, start=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids, control=True) == theirs.decode(ids)
    assert ours.vocabulary == len(theirs)


@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_without_control_tokens_is_encoded_the_same(saved: Path, text: str) -> None:
    ours, theirs = load_tokenizer(saved), reference(saved)
    text = text.replace("<unk>", "").replace("<|im_start|>", "").replace("<|im_end|>", "")
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) or "<unk>" in ours.decode(ids)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=50))
def test_any_text_is_encoded_the_same(byte_level_pair: tuple[Any, Any], text: str) -> None:
    ours, theirs = byte_level_pair
    assert ours.encode(text) == theirs.encode(text)


@pytest.fixture(scope="module")
def byte_level_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    directory = tmp_path_factory.mktemp("pair")
    byte_level().save(str(directory / "tokenizer.json"))
    return load_tokenizer(directory), reference(directory)


def test_the_beginning_follows_the_post_processor(saved: Path) -> None:
    tokenizer = load_tokenizer(saved)
    begins = "bytes" in saved.name
    assert tokenizer.adds_bos is begins
    assert tokenizer.adds_eos is False
    assert (tokenizer.encode("a")[0] == 1) is begins
    assert tokenizer.encode("a", start=False)[0] != 1
    assert tokenizer.encode_markup("<s>a") == tokenizer.encode_markup("<s>a", start=False)
    assert tokenizer.encode("") == ([1] if begins else [])


@pytest.mark.parametrize(("bos", "eos", "ids", "adds_eos"), [(True, False, [1], False), (False, True, [], True)])
def test_the_flags_of_tokenizer_config_go_before_the_post_processor(
    tmp_path: Path, bos: bool, eos: bool, ids: list[int], adds_eos: bool
) -> None:
    with_bytes(prefix=False).save(str(tmp_path / "tokenizer.json"))
    flags = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": bos, "add_eos_token": eos}
    write(tmp_path, "tokenizer_config.json", flags)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.encode(""), tokenizer.adds_eos) == (ids, adds_eos)


def test_ends_come_from_all_files(plain: Path) -> None:
    assert load_tokenizer(plain).eos == ()
    write(plain, "tokenizer_config.json", {"eos_token": "<|im_end|>", "bos_token": "<s>"})
    write(plain, "generation_config.json", {"eos_token_id": [4, 2]})
    write(plain, "config.json", {"eos_token_id": 3, "text_config": {"eos_token_id": [0]}})
    tokenizer = load_tokenizer(plain)
    assert tokenizer.eos == (0, 2, 3, 4)
    assert tokenizer.bos == 1


def test_bos_falls_to_the_files_that_name_an_id(plain: Path) -> None:
    write(plain, "config.json", {"bos_token_id": 1})
    assert load_tokenizer(plain).bos == 1
    write(plain, "special_tokens_map.json", {"bos_token": "</s>"})
    assert load_tokenizer(plain).bos == 2


def test_template_files_go_before_keys(plain: Path) -> None:
    assert load_tokenizer(plain).chat_template is None
    write(plain, "tokenizer_config.json", {"chat_template": [{"name": "default", "template": "one"}]})
    assert load_tokenizer(plain).chat_template == "one"
    write(plain, "chat_template.jinja", "two")
    assert load_tokenizer(plain).chat_template == "two"


def test_control_tokens_are_the_special_ones_and_those_the_template_writes(plain: Path) -> None:
    ids = {text: place for place, text in enumerate(SPECIAL)}
    base = load_tokenizer(plain)
    assert base.control == frozenset(ids.values())
    first = base.vocabulary - len(ADDED)
    assert base.encode("<think>") == [first]
    assert base.encode("\n\n") == [first + 3]
    write(plain, "chat_template.jinja", TEMPLATE)
    tokenizer = load_tokenizer(plain)
    assert tokenizer.control == {*ids.values(), first, first + 1}  # not <tool>; not the line breaks
    assert first not in tokenizer.encode("<think>")
    assert tokenizer.encode_markup("<think>") == [first]
    assert tokenizer.encode("<tool>\n\n") == [first + 2, first + 3]


def test_tokens_that_only_tokenizer_config_knows(plain: Path) -> None:
    count = load_tokenizer(plain).vocabulary
    extra = {str(count): {"content": "<|extra|>", "special": True}}
    write(plain, "tokenizer_config.json", {"added_tokens_decoder": extra, "pad_token": "the"})
    tokenizer = load_tokenizer(plain)
    assert tokenizer.vocabulary == count + 1
    assert count in tokenizer.control
    assert tokenizer.encode_markup("<|extra|>") == [count]
    assert count not in tokenizer.encode("<|extra|>")


def test_ids_without_a_token_write_nothing_and_negative_ones_are_refused(saved: Path) -> None:
    tokenizer = load_tokenizer(saved)
    for token in (tokenizer.vocabulary, 2**31, 2**40):
        assert tokenizer.token_bytes(token) == b""
        assert tokenizer.decode([token]) == ""
    with pytest.raises(UsageError, match=f"token id: expected 0 to {tokenizer.vocabulary - 1}, found -1"):
        tokenizer.decode([-1])


def test_a_lone_surrogate_is_refused(saved: Path) -> None:
    tokenizer = load_tokenizer(saved)
    for encode in (tokenizer.encode, tokenizer.encode_markup):
        with pytest.raises(UsageError, match=r"lone surrogate U\+D83D at character 2"):
            encode("ab\ud83d")


def test_truncation_and_padding_of_training_are_not_used(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "one two three four five six"
    assert load_tokenizer(tmp_path).decode(load_tokenizer(tmp_path).encode(text)) == text
    assert len(load_tokenizer(tmp_path).encode("o")) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"expected tokenizer\.json .*found neither it nor tokenizer\.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"found only tokenizer\.model"):
        load_tokenizer(tmp_path)


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, r"tokenizer\.json: tokenizer: expected an object with a key 'model'"),
    ({"model": {"type": "BPE"}}, r"tokenizer\.json: model\.vocab"),
    ({"model": {"type": "Unigram", "vocab": [1]}}, r"tokenizer\.json: model\.vocab"),
    ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, r"tokenizer\.json: tokenizer: .*-1"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, r"tokenizer\.json: tokenizer: .*`b`"),
    ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}}, r"tokenizer\.json: model\.dropout"),
    ({"decoder": None}, r"tokenizer\.json: decoder: expected ByteLevel, .*found none"),
    ({"decoder": {"type": "WordPiece"}}, r"tokenizer\.json: decoder: .*found WordPiece"),
    ({"decoder": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}}, r"decoder: .*found Replace"),
    ({"post_processor": {"type": "Odd"}}, r"tokenizer\.json: post_processor"),
    ({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}}, r"post_processor"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}}}, r"tokenizer\.json: tokenizer"),
    ({"added_tokens": {}}, r"tokenizer\.json: added_tokens\[0\]"),
    ({"added_tokens": [{"id": 0}]}, r"tokenizer\.json: added_tokens\[0\]"),
    ({"added_tokens": [3]}, r"tokenizer\.json: added_tokens\[0\]"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_broken_tokenizer_json_is_an_error_naming_it(plain: Path, change: dict[str, Any], message: str) -> None:
    document = json.loads((plain / "tokenizer.json").read_text(encoding="utf-8"))
    write(plain, "tokenizer.json", {**document, **change})
    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer(plain)
    assert "\n" not in str(caught.value)


def test_an_id_that_would_shift_is_an_error(plain: Path) -> None:
    document = json.loads((plain / "tokenizer.json").read_text(encoding="utf-8"))
    document["added_tokens"][-1]["id"] += 7
    write(plain, "tokenizer.json", document)
    with pytest.raises(TokenizerError, match=r"added_tokens: id of '\\n\\n'"):
        load_tokenizer(plain)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json: JSON: expected a JSON object"),
        ("tokenizer.json", "[]", r"tokenizer\.json: JSON: expected a JSON object, found list"),
        ("tokenizer.json", "[" * 100_000, r"tokenizer\.json: JSON"),
        ("tokenizer_config.json", "7", r"tokenizer_config\.json: JSON"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, r"added_tokens_decoder\.x"),
        ("tokenizer_config.json", {"added_tokens_decoder": []}, None),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, r"added_tokens_decoder: expected an object"),
        ("tokenizer_config.json", {"chat_template": 5}, r"chat_template: expected Jinja text"),
        ("generation_config.json", {"eos_token_id": ["x"]}, r"generation_config\.json: eos_token_id"),
        ("generation_config.json", {"eos_token_id": 99_999}, r"id of a special token: expected 0 to"),
        ("config.json", {"bos_token_id": -1}, r"id of a special token: expected 0 to"),
    ],
)
def test_broken_files_beside_it_are_errors_naming_them(
    plain: Path, name: str, content: object, message: str | None
) -> None:
    write(plain, name, content)
    if message is None:
        load_tokenizer(plain)
        return
    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer(plain)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_text_are_an_error(plain: Path) -> None:
    (plain / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja: file: expected UTF-8 text"):
        load_tokenizer(plain)
    (plain / "tokenizer.json").write_bytes(b'{"\xff"')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: JSON"):
        load_tokenizer(plain)

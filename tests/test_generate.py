"""Generation through the Python API: what a request asks for is what comes out."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from generating import PROMPT, WARM, generate, tokens_of, variant, write_model
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import plait
from plait.engine.events import Prefill, Result, Tail, Timing, Token
from plait.engine.sampling import Sampling
from plait.errors import ContextExceeded


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("generate") / "model")


@pytest.fixture(scope="module")
def engine(directory):
    return plait.load(directory, cache=0)


# -- events --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_events_add_up_to_the_result(engine, seed):
    events, result = generate(engine, sampling=Sampling(temperature=2.0, seed=seed), max_tokens=60)
    prompt = engine.tokenizer.encode(PROMPT)
    made = [event for event in events if isinstance(event, Token)]
    assert events[0] == Prefill(len(prompt), len(prompt))
    assert [type(event) for event in events[1:]] in ([Token] * 60, [Token] * 60 + [Tail])
    assert tuple(event.id for event in made) == result.tokens
    assert [event.position for event in made] == list(range(len(prompt), len(prompt) + 60))
    assert "".join(event.text for event in events[1:]) == result.text
    assert result.text == engine.tokenizer.decode(result.tokens, start=False)
    assert (result.usage.prompt, result.usage.completion, result.usage.reused) == (len(prompt), 60, 0)
    assert (result.finish_reason, result.stop, result.seed) == ("length", None, seed)
    assert result.timing.prompt_seconds > 0
    assert result.timing.decode_seconds > 0


def test_prefill_of_a_long_prompt_is_reported_in_pieces(engine):
    events, _ = generate(engine, [5] * 1100, max_tokens=1)
    done = [event.done for event in events if isinstance(event, Prefill)]
    assert done == sorted(set(done))
    assert done[-1] == 1100
    assert len(done) > 1
    assert {event.total for event in events if isinstance(event, Prefill)} == {1100}


def test_the_async_twin_yields_the_same_events(engine):
    async def collect():
        return [event async for event in engine.agenerate(PROMPT, sampling=WARM, max_tokens=12, stop="\0\0")]

    def untimed(events):
        return [
            dataclasses.replace(event, timing=Timing(0.0, 0.0)) if isinstance(event, Result) else event
            for event in events
        ]

    expected = list(engine.generate(PROMPT, sampling=WARM, max_tokens=12, stop="\0\0"))
    assert untimed(asyncio.run(collect())) == untimed(expected)


def test_the_text_goes_on_where_the_prompt_ends(directory, tmp_path):
    """A tokenizer that puts a space before texts takes one away again, but not from the middle of a text."""
    target = variant(directory, tmp_path / "spaced", bos_token_id=None, eos_token_id=1)
    entries = [("<unk>", 0.0), ("</s>", 0.0)]
    entries += [("\u2581" + chr(code), -1.0) for code in range(97, 123)] + [
        (chr(code), -3.0) for code in range(97, 123)
    ]
    entries += [("\u2581", -5.0)]
    tokenizer = Tokenizer(models.Unigram(entries, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").unlink()
    spaced = plait.load(target)
    texts = []
    for seed in range(6):
        _, result = generate(spaced, "the end", sampling=Sampling(temperature=3.0, seed=seed), max_tokens=15)
        prompt = spaced.tokenizer.encode("the end")
        assert spaced.tokenizer.decode([*prompt, *result.tokens]) == "the end" + result.text
        texts.append(result.text)
    assert any(text.startswith(" ") for text in texts)
    assert any(text and not text.startswith(" ") for text in texts)


# -- which tokens --------------------------------------------------------------------------------------------------


def test_greedy_takes_the_largest_logit(engine):
    prompt = engine.tokenizer.encode(PROMPT)
    events, result = generate(engine, max_tokens=40)
    logits = engine.logits([*prompt, *result.tokens])[len(prompt) - 1 : -1]
    assert list(result.tokens) == logits.argmax(-1).tolist()
    expected = logits.double().log_softmax(-1).max(-1).values
    found = torch.tensor([event.logprob for event in events if isinstance(event, Token)], dtype=torch.float64)
    assert (found - expected).abs().max() < 1e-6


def test_a_seed_repeats_and_max_tokens_only_cuts(engine):
    whole = tokens_of(engine, sampling=WARM, max_tokens=40)
    assert tokens_of(engine, sampling=WARM, max_tokens=40) == whole
    for count in (1, 2, 17):
        assert tokens_of(engine, sampling=WARM, max_tokens=count) == whole[:count]
    assert tokens_of(engine, sampling=Sampling(temperature=1.5, seed=8), max_tokens=40) != whole


def test_without_a_seed_runs_differ_and_the_result_tells_the_seed(engine):
    fresh = Sampling(temperature=2.0)
    _, first = generate(engine, sampling=fresh)
    _, second = generate(engine, sampling=fresh)
    assert first.seed != second.seed
    assert first.tokens != second.tokens
    _, again = generate(engine, sampling=Sampling(temperature=2.0, seed=first.seed))
    assert again.tokens == first.tokens


@pytest.mark.parametrize(
    "sampling", [Sampling(), WARM, Sampling(temperature=1.0, top_k=20, top_p=0.9, min_p=0.01, seed=3)]
)
def test_a_prompt_that_holds_the_answer_so_far_goes_on_alike(engine, sampling):
    prompt = engine.tokenizer.encode(PROMPT)
    whole = tokens_of(engine, prompt, sampling=sampling, max_tokens=40)
    for k in (1, 7, 8, 9, 39):
        assert tokens_of(engine, [*prompt, *whole[:k]], sampling=sampling, max_tokens=40 - k) == whole[k:], f"from {k}"


@pytest.mark.parametrize(
    "penalties",
    [{"repetition_penalty": 1.7}, {"presence_penalty": 0.6}, {"frequency_penalty": 0.3}, {"frequency_penalty": -0.5}],
    ids=str,
)
def test_penalties_count_generated_tokens_only(engine, penalties):
    prompt = engine.tokenizer.encode(PROMPT)
    favourite = tokens_of(engine, prompt, max_tokens=1)[0]
    prompt = [*prompt, favourite, favourite, favourite]
    found = tokens_of(engine, prompt, sampling=Sampling(**penalties), max_tokens=20)
    expected = []
    for _ in range(20):
        row = engine.logits([*prompt, *expected])[-1].double()
        counts = torch.bincount(torch.tensor(expected, dtype=torch.int64), minlength=len(row))
        factor = penalties.get("repetition_penalty", 1.0)
        row = torch.where(counts > 0, torch.where(row > 0, row / factor, row * factor), row)
        row -= counts * penalties.get("frequency_penalty", 0.0)
        row -= (counts > 0) * penalties.get("presence_penalty", 0.0)
        expected.append(int(row.argmax()))
    assert found == expected
    if "frequency_penalty" not in penalties or penalties["frequency_penalty"] > 0:
        assert found != tokens_of(engine, prompt, max_tokens=20)


# -- the end -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unstopped(engine):
    """Samplings and what they give without stop strings."""
    samplings = [Sampling(temperature=2.0, seed=seed) for seed in range(4)]
    return [(sampling, generate(engine, sampling=sampling, max_tokens=30)[1]) for sampling in samplings]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_stop_strings_cut_the_text_and_never_leak(engine, unstopped, data):
    sampling, free = data.draw(st.sampled_from(unstopped))
    stops = []
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(free.text) - 1))
        stops.append(free.text[at : at + data.draw(st.integers(1, 6))])
    events, result = generate(engine, sampling=sampling, max_tokens=30, stop=stops)
    cut = min(free.text.find(stop) for stop in stops)
    assert result.text == free.text[:cut]
    assert "".join(event.text for event in events if isinstance(event, Token | Tail)) == result.text
    assert (result.finish_reason, result.stop in stops) == ("stop", True)
    assert free.text.startswith(result.stop, cut)
    assert result.tokens == free.tokens[: len(result.tokens)]


def test_a_stop_string_over_several_tokens_is_found(engine):
    _, free = generate(engine, sampling=WARM, max_tokens=30)
    pieces = [engine.tokenizer.decode([token], start=False) for token in free.tokens]
    at = next(i for i in range(3, 27) if all("\ufffd" not in piece and piece for piece in pieces[i : i + 3]))
    stop = "".join(pieces[at : at + 3])
    _, result = generate(engine, sampling=WARM, max_tokens=30, stop=stop)
    assert (result.stop, result.finish_reason) == (stop, "stop")
    assert result.text == free.text[: free.text.find(stop)]
    assert len(result.tokens) <= at + 3


def test_the_beginning_of_a_stop_string_is_shown_at_the_end(engine):
    _, free = generate(engine, sampling=WARM, max_tokens=12)
    events, result = generate(engine, sampling=WARM, max_tokens=12, stop=free.text[-1] + "\0never")
    assert isinstance(events[-1], Tail)
    assert (result.text, result.finish_reason, result.stop) == (free.text, "length", None)


def test_an_end_token_ends_and_is_not_part_of_the_answer(directory, engine, tmp_path):
    free = tokens_of(engine, sampling=WARM, max_tokens=30)
    end = free[10]
    ending = plait.load(variant(directory, tmp_path / "ending", eos_token_id=[1, end]))
    events, result = generate(ending, sampling=WARM, max_tokens=30, ignore_eos=False)
    assert list(result.tokens) == free[: free.index(end)]
    assert (result.finish_reason, result.stop) == ("stop", None)
    assert result.text == engine.tokenizer.decode(result.tokens, start=False)
    assert end not in [event.id for event in events if isinstance(event, Token)]
    assert tokens_of(ending, sampling=WARM, max_tokens=30) == free


def test_an_end_token_at_once_gives_an_empty_answer(directory, engine, tmp_path):
    first = tokens_of(engine, max_tokens=1)[0]
    ending = plait.load(variant(directory, tmp_path / "at-once", eos_token_id=[first]))
    events, result = generate(ending, ignore_eos=False)
    assert [type(event) for event in events] == [Prefill]
    assert (result.text, result.tokens, result.finish_reason, result.usage.completion) == ("", (), "stop", 0)


def test_the_context_is_filled_and_not_exceeded(directory, tmp_path):
    small = plait.load(variant(directory, tmp_path / "small", max_position_embeddings=20))
    for length in (1, 15, 19):
        for wanted in (None, 100):
            _, result = generate(small, [5] * length, max_tokens=wanted)
            assert (len(result.tokens), result.finish_reason) == (20 - length, "length")
    for length in (20, 21, 500):
        with pytest.raises(ContextExceeded, match=f"{length + 1} tokens needed, the limit is 20") as caught:
            small.generate([5] * length)
        assert (caught.value.needed, caught.value.limit) == (length + 1, 20)
    with pytest.raises(ContextExceeded):
        small.generate("x" * 40)


# -- a real chat model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chat(smollm_gguf):
    return plait.load(smollm_gguf)


def chatml(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_a_chat_model_answers_and_stops(chat):
    _, result = generate(chat, chatml("What is the capital of France?"), max_tokens=60, ignore_eos=False)
    assert "Paris" in result.text
    assert (result.finish_reason, result.stop) == ("stop", None)
    assert "<|" not in result.text


def test_a_message_cannot_forge_a_turn(chat):
    forged = chatml("hi")
    control = chat.tokenizer.control
    _, trusted = generate(chat, forged, max_tokens=1)
    _, plain = generate(chat, forged, max_tokens=1, markup=False)
    assert trusted.usage.prompt == len(chat.tokenizer.encode_markup(forged))
    assert plain.usage.prompt == len(chat.tokenizer.encode(forged)) > trusted.usage.prompt
    assert sum(token in control for token in chat.tokenizer.encode_markup(forged)) == 3
    assert control.isdisjoint(chat.tokenizer.encode(forged))

"""Guessing ahead: the same tokens, texts, logprobs and ends, whatever is guessed and however much of it stands."""

from __future__ import annotations

import pytest
import tiny
import torch
from engines import FAMILIES, SAMPLINGS, Engines, ask, facts, idle, wish
from hypothesis import given
from hypothesis import strategies as st

from plait.engine.events import Token
from plait.engine.sampling import Sampling
from plait.engine.speculate import Lookup


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    made = Engines(tmp_path_factory.mktemp)
    yield made
    made.close()


@pytest.fixture
def guessing(monkeypatch):
    """Guesses are taken from known sequences, `right(position)` tokens of each, and then go wrong."""
    known, right = [], [lambda position: 3]

    def draft(self, room):
        at = len(self._tokens)
        for sequence in known:
            if sequence[:at] == self._tokens:
                count = min(room, self._most)
                true = right[0](at)
                told = [(token if n < true else (token + 1) % 211) for n, token in enumerate(sequence[at : at + count])]
                return tuple(told)
        return ()

    monkeypatch.setattr(Lookup, "draft", draft)
    return known, right


@pytest.mark.parametrize(
    ("name", "sampling"),
    [*((name, SAMPLINGS[1]) for name in FAMILIES), ("gemma3", SAMPLINGS[0]), ("gemma3", SAMPLINGS[3])],
)
def test_any_part_of_a_guess_may_stand(engines, guessing, name, sampling):
    """Also none and all of it; the state afterwards is that of decoding without guesses."""
    known, right = guessing
    plain, quick = engines(name, cache=2**30), engines(name, cache=2**30)
    prompt = tiny.tokens(70)
    options = {"max_tokens": 40, "ignore_eos": True, "sampling": sampling, "logprobs": 2}
    expected = ask(plain, prompt, options)
    known.append([*prompt, *expected[-1].tokens])
    follow = [*prompt, *expected[-1].tokens, 9]
    then = ask(plain, follow, {"max_tokens": 3, "ignore_eos": True})[-1]
    drafted = accepted = 0
    for size in (1, 5, 32):
        right[0] = lambda position, size=size: (position * 13) % (size + 2)
        quick.clear_cache()
        events = ask(quick, prompt, {**options, "speculate": size})
        assert facts(events) == facts(expected)
        drafted, accepted = drafted + events[-1].usage.drafted, accepted + events[-1].usage.accepted
        # What later requests find is the same, and it is sound.
        found = ask(quick, follow, {"max_tokens": 3, "ignore_eos": True})[-1]
        assert found.tokens == then.tokens
        assert found.usage.reused == then.usage.reused > 0
    assert 0 < accepted < drafted
    assert idle(quick)
    quick.prefixes.store.check()


@pytest.mark.parametrize("name", ["gemma3", "qwen3_next"])
def test_company_with_and_without_guesses(engines, guessing, name):
    known, right = guessing
    engine = engines(name)
    wishes = [wish(n, max_tokens=30) for n in range(8)]
    expected = [facts(ask(engine, *each)) for each in wishes]
    known.extend([*prompt, *result.tokens] for (prompt, _), (_, result) in zip(wishes, expected, strict=True))
    right[0] = lambda position: position % 6
    sizes = (0, 4, 8, 1, 32, 0, 4, 8)
    tickets = [engine.submit(each[0], **each[1], speculate=n) for n, each in zip(sizes, wishes, strict=True)]
    for ticket, each in zip(tickets, expected, strict=True):
        assert facts(list(ticket)) == each
    assert idle(engine)


@pytest.mark.parametrize("name", ["gemma3", "qwen3_next"])
def test_ends_inside_a_guess(engines, guessing, name):
    """`max_tokens`, the end of the context and end-of-text tokens."""
    known, right = guessing
    engine = engines(name, cache=2**30)
    prompt = tiny.tokens(20)
    sampling = Sampling(temperature=1.0, seed=11)
    whole = ask(engine, prompt, {"max_tokens": 60, "ignore_eos": True, "sampling": sampling})[-1].tokens
    known.append([*prompt, *whole, *tiny.tokens(40)])
    right[0] = lambda position: 99
    quick = {"sampling": sampling, "speculate": 8}
    for count in (1, 2, 7, 8, 9, 33):
        result = ask(engine, prompt, {**quick, "max_tokens": count, "ignore_eos": True})[-1]
        assert (result.tokens, result.finish_reason) == (whole[:count], "length")
    end = whole[20]
    object.__setattr__(engine.blueprint.tokens, "eos", (end,))
    for size in (0, 3, 8, 32):
        engine.clear_cache()
        result = ask(engine, prompt, {**quick, "max_tokens": 60, "speculate": size})[-1]
        assert (result.tokens, result.finish_reason) == (whole[: whole.index(end)], "stop")
        logits = engine.session([*prompt, *result.tokens, 5]).logits
        assert torch.equal(logits, engine.logits([*prompt, *result.tokens, 5])[-1])
    long = tiny.tokens(1010)
    full = ask(engine, long, {"ignore_eos": True, "sampling": sampling})[-1]
    known.append([*long, *full.tokens, *tiny.tokens(40)])
    again = ask(engine, long, {**quick, "ignore_eos": True, "speculate": 32})[-1]
    assert (again.tokens, len(full.tokens), again.finish_reason) == (full.tokens, 14, "length")


def test_repeating_texts_take_fewer_steps(engines):
    engine = engines("gemma3")
    prompt = tiny.tokens(12, seed=1) * 6
    steps = []
    for size in (0, 8):
        before = engine.stats()["steps"]
        events = ask(engine, prompt, {"max_tokens": 60, "ignore_eos": True, "speculate": size})
        steps.append((engine.stats()["steps"] - before, events[-1].tokens, events[-1].usage))
    assert steps[0][1] == steps[1][1]
    assert steps[1][0] + steps[1][2].accepted == steps[0][0] == 60
    assert (steps[0][2].drafted, steps[0][2].accepted) == (0, 0)


def test_the_engine_may_guess_for_all(engines):
    prompt = tiny.tokens(12, seed=1) * 6
    engine = engines("gemma3", speculate=8)
    assert list(engine.generate(prompt, max_tokens=40, ignore_eos=True))[-1].usage.accepted > 0
    assert list(engine.generate(prompt, max_tokens=40, ignore_eos=True, speculate=0))[-1].usage.drafted == 0
    tokens = [e for e in engine.generate(prompt, max_tokens=40, ignore_eos=True) if isinstance(e, Token)]
    assert len(tokens) == 40


# -- what is guessed -----------------------------------------------------------------------------------------------


def _expected(tokens, count):
    """By definition: what followed the latest earlier place with the same last tokens, as a loop where it ends."""
    for size in (4, 3, 2):
        for stop in range(len(tokens) - 1, size - 1, -1):
            if tokens[stop - size : stop] == tokens[len(tokens) - size :]:
                made = list(tokens)
                for _ in range(count):
                    made.append(made[stop + len(made) - len(tokens)])
                return tuple(made[len(tokens) :])
    return ()


@given(tokens=st.lists(st.integers(0, 2), max_size=40), room=st.integers(0, 12))
def test_a_guess_is_what_followed_before(tokens, room):
    lookup = Lookup(4)
    for token in tokens:
        lookup.push([token])
    assert lookup.draft(room) == _expected(tokens, min(4, room))


def test_guesses_grow_while_they_stand_and_rest_after_they_do_not():
    lookup = Lookup(32)
    lookup.push([1, 2, 3] * 20)
    sizes = []
    for _ in range(4):
        sizes.append(len(lookup.draft(100)))
        lookup.told(sizes[-1], sizes[-1])
    assert sizes == [4, 8, 16, 32]
    lookup.told(32, 5)
    assert len(lookup.draft(100)) == 6
    rests = []
    for _ in range(6):
        lookup.told(6, 0)
        rest = 0
        while not lookup.draft(100):
            rest += 1
        rests.append(rest)
    assert rests == [4, 8, 16, 32, 64, 64]
    assert lookup.accepted == 65

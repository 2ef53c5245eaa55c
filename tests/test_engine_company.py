"""Many requests at once: each is answered as if it were alone, whoever joins, leaves or fails meanwhile."""

from __future__ import annotations

import threading

import pytest
import tiny
import torch
from engines import FAMILIES, Engines, ask, busy, facts, idle, wish
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.engine.batch import BESIDE
from plait.engine.events import Prefill, Result, Token
from plait.engine.ticket import Channel
from plait.errors import PlaitError


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    made = Engines(tmp_path_factory.mktemp)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(engines):
    """Facts of request `number` of a family, run with nobody else there."""
    known, solo = {}, {}

    def get(name, number):
        if (name, number) not in known:
            if name not in solo:
                solo[name] = engines(name)
            known[name, number] = facts(ask(solo[name], *wish(number)))
        return known[name, number]

    return get


@pytest.mark.parametrize(("name", "cache"), [*((name, 2**30) for name in FAMILIES), ("gemma3", 0)])
def test_company_changes_nothing(engines, alone, name, cache):
    engine = engines(name, cache=cache)
    for count in (1, 2, 3, 4, 8):
        tickets = [engine.submit(*wish(n)[:1], **wish(n)[1]) for n in range(count)]
        for number, ticket in enumerate(tickets):
            assert facts(list(ticket)) == alone(name, number), f"request {number} of {count}"
    assert idle(engine)


@pytest.mark.parametrize("name", FAMILIES)
def test_some_come_late_and_some_leave_early(engines, alone, name):
    engine = engines(name, cache=2**30)
    # Prefix, then the rest: who is there is certain, where the others stand is not.
    first = iter(engine.submit(wish(2)[0], **{**wish(2)[1], "max_tokens": 300}))
    while not isinstance(next(first), Token):
        pass
    second, third = (engine.submit(wish(n)[0], **wish(n)[1]) for n in (1, 5))
    next(iter_third := iter(third))
    first.close()
    late = engine.submit(wish(3)[0], **wish(3)[1])
    iter_third.close()
    assert facts(list(second)) == alone(name, 1)
    assert facts(list(late)) == alone(name, 3)
    again = facts(ask(engine, *wish(5)))
    assert again == alone(name, 5)
    assert idle(engine)
    engine.prefixes.store.check()


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_traffic(engines, alone, data):
    name = data.draw(st.sampled_from(("gemma3", "qwen3_next")))
    engine = engines(
        name, cache=data.draw(st.sampled_from([0, 150_000, 2**30])), sequences=data.draw(st.integers(1, 5))
    )
    there = []
    for _ in range(data.draw(st.integers(2, 9))):
        number = data.draw(st.integers(0, 7))
        action = data.draw(st.sampled_from(["submit", "submit", "cancel", "read"]))
        if action == "submit":
            there.append((number, engine.submit(wish(number)[0], **wish(number)[1])))
        elif there and action == "cancel":
            _, ticket = there.pop(number % len(there))
            ticket.cancel()
            assert ticket.result(60).finish_reason in ("cancelled", "length")
        elif there:
            at, ticket = there.pop(number % len(there))
            assert facts(list(ticket)) == alone(name, at)
    for number, ticket in there:
        assert facts(list(ticket)) == alone(name, number)
    assert idle(engine)
    engine.prefixes.store.check()
    engine.close()


def test_many_threads_submit(engines, alone):
    engine = engines("gemma3", cache=2**20)
    wrong = []

    def work(own):
        for number in range(4):
            if facts(ask(engine, *wish((own + number) % 8))) != alone("gemma3", (own + number) % 8):
                wrong.append((own, number))

    for number in range(8):
        alone("gemma3", number)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert idle(engine)


def test_calls_are_done_between_requests(engines, alone):
    engine = engines("gemma3", cache=2**30)
    expected = engine.logits(tiny.tokens(600))
    ticket = engine.submit(wish(2)[0], **{**wish(2)[1], "max_tokens": 150})
    talk = engine.session(tiny.tokens(590))
    assert torch.equal(talk.append(tiny.tokens(600)[590:]), expected[-1])
    assert torch.equal(engine.logits(tiny.tokens(600), [599, 1]), expected)
    engine.clear_cache()
    assert torch.equal(talk.fork().rollback(595), expected[594])
    assert len(ticket.result(60).tokens) == 150
    talk.close()


# -- who gets how much ---------------------------------------------------------------------------------------------


@pytest.fixture
def steps(engines, monkeypatch):
    """An engine, and for each of its calls {prompt's first token: (position before, rows)}."""
    engine = engines("gemma3", sequences=6)
    seen = []
    run = type(engine.model).run

    def watched(self, spans, want="last"):
        firsts = [(span.session.tokens or span.tokens)[0] for span in spans]
        rows = [(span.session.position, len(span.tokens)) for span in spans]
        seen.append(dict(zip(firsts, rows, strict=True)))
        return run(self, spans, want)

    monkeypatch.setattr(type(engine.model), "run", watched)
    return engine, seen


def _prompt(first, length):
    return [first, *tiny.tokens(length - 1, seed=first)]


def test_a_long_prompt_and_a_decoding_sequence_go_on_together(steps):
    engine, seen = steps
    reader = iter(engine.submit(_prompt(10, 4), max_tokens=400, ignore_eos=True))
    while not isinstance(next(reader), Token):
        pass
    engine.submit(_prompt(11, 900), max_tokens=1, ignore_eos=True).result(60)
    reader.close()
    calls = [call for call in seen if 11 in call]
    beside = [call for call in calls if 10 in call]
    assert all(call[11][1] <= BESIDE for call in beside)
    # Unless it had ended, whoever decodes had a token in every call.
    assert len(beside) >= min(len(calls), 50)


def test_prompts_take_turns(steps):
    engine, seen = steps
    engine.schedule.call(lambda: None)
    with busy(engine):
        tickets = [engine.submit(_prompt(first, 1000), max_tokens=2, ignore_eos=True) for first in (20, 21, 22)]
    for ticket in tickets:
        ticket.result(60)
    done = {20: 0, 21: 0, 22: 0}
    for call in seen:
        for first, (at, rows) in call.items():
            done[first] = min(1000, at + rows)
        assert max(done.values()) - min(done.values()) <= 512
    assert set(done.values()) == {1000}


def test_first_come_first_served(engines, monkeypatch):
    engine = engines("qwen3", sequences=1)
    order = []
    end = Channel.end
    monkeypatch.setattr(Channel, "end", lambda self, result: (order.append(self.id), end(self, result))[1])
    with busy(engine):
        tickets = [engine.submit([n + 1], max_tokens=3, ignore_eos=True) for n in range(6)]
    for ticket in tickets:
        assert ticket.result(60).timing.queued_seconds > 0
    assert order == [ticket.id for ticket in tickets]


def test_under_a_cap_requests_wait_for_room(engines):
    probe = engines("gemma3")
    room = probe.model.pool.most(120, 512)
    engine = engines("gemma3", memory=probe.model.weight_bytes + 2 * room, cache="1MiB")
    most = []
    run = engine.model.run

    def watched(spans, want="last"):
        most.append(len(engine.schedule.running))
        return run(spans, want)

    engine.model.run = watched
    tickets = [engine.submit(tiny.tokens(100, seed=n), max_tokens=20, ignore_eos=True) for n in range(5)]
    for n, ticket in enumerate(tickets):
        expected = ask(probe, tiny.tokens(100, seed=n), {"max_tokens": 20, "ignore_eos": True})[-1].tokens
        assert ticket.result(60).tokens == expected
    assert max(most) <= 2
    with pytest.raises(PlaitError, match="the memory cap is"):
        engine.submit(tiny.tokens(100), max_tokens=400)
    assert idle(engine)


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["raise", "nan", "odd"])
def test_a_failure_ends_one_request(engines, alone, monkeypatch, kind):
    engine = engines("gemma3")
    run = type(engine.model).run
    bad = [13, *tiny.tokens(38)]

    def failing(self, spans, want="last"):
        at = [n for n, span in enumerate(spans) if span.session.tokens[:39] == bad and span.session.position > 40]
        if at and kind != "nan":
            raise MemoryError("none left") if kind == "raise" else KeyError("x")
        rows = run(self, spans, want)
        for n in at:
            rows[n] = torch.full_like(rows[n], float("nan"))
        return rows

    monkeypatch.setattr(type(engine.model), "run", failing)
    poor = engine.submit(bad, max_tokens=50, ignore_eos=True)
    others = [engine.submit(wish(n)[0], **wish(n)[1]) for n in range(5)]
    seen = []
    words = {"raise": "MemoryError: none left", "nan": "NaN", "odd": "KeyError"}[kind]
    with pytest.raises(PlaitError, match=words) as caught:
        seen.extend(poor)
    assert not any(isinstance(event, Result) for event in seen)
    assert "\n" not in str(caught.value)
    with pytest.raises(PlaitError):
        poor.result()
    for number, ticket in enumerate(others):
        assert facts(list(ticket)) == alone("gemma3", number)
    assert idle(engine)
    assert engine.stats()["failed"] == 1


def test_what_fails_before_a_request_runs_reaches_its_ticket(engines, monkeypatch):
    engine = engines("gemma3", cache=2**20)

    def begin(*_, **__):
        raise OSError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(engine.prefixes, "begin", begin)
        with pytest.raises(PlaitError, match="OSError: no such luck"):
            engine.submit([1, 2], max_tokens=2).result(60)
    events = ask(engine, [1, 2], {"max_tokens": 2, "ignore_eos": True})
    assert isinstance(events[0], Prefill)
    assert idle(engine)

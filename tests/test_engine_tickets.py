"""Tickets: events to threads and to async code, cancellation at every stage, a bounded queue, and the end of it all."""

from __future__ import annotations

import _thread
import asyncio
import gc
import threading
import weakref

import pytest
import tiny
from engines import Engines, ask, busy, facts, idle, wish
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.engine.events import Prefill, Result, Token
from plait.engine.sampling import Sampling
from plait.engine.ticket import Channel
from plait.errors import ContextExceeded, PlaitError, QueueFull, UsageError


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    made = Engines(tmp_path_factory.mktemp)
    yield made
    made.close()


@pytest.fixture(scope="module")
def engine(engines):
    return engines("gemma3")


# -- what a ticket gives -------------------------------------------------------------------------------------------


def test_events_come_in_order_and_the_result_stays(engine):
    ticket = engine.submit(tiny.tokens(600), max_tokens=9, ignore_eos=True)
    result = ticket.result(60)
    assert ticket.done
    events = list(ticket)
    kinds = [type(event) for event in events]
    assert kinds == [Prefill] * kinds.count(Prefill) + [Token] * 9 + [Result]
    assert kinds.count(Prefill) > 1
    assert events[-1] == result == ticket.result()
    assert list(ticket) == []
    assert result.timing.queued_seconds >= 0


def test_async_readers_get_what_threads_get(engine):
    async def one(number):
        prompt, options = wish(number)
        return [event async for event in engine.submit(prompt, **options)]

    async def several():
        return await asyncio.gather(*map(one, range(6)))

    for number, events in enumerate(asyncio.run(several())):
        assert facts(events) == facts(ask(engine, *wish(number)))
    assert idle(engine)


def test_an_async_reader_that_leaves_cancels(engine):
    async def leave():
        ticket = engine.submit([3, 5], max_tokens=900, ignore_eos=True)
        async for event in ticket:
            if isinstance(event, Token):
                break
        return await asyncio.to_thread(ticket.result, 60)

    async def interrupted():
        async def read():
            async for _ in engine.submit([3, 5], max_tokens=900, ignore_eos=True):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert asyncio.run(leave()).finish_reason == "cancelled"
    asyncio.run(interrupted())
    assert idle(engine)


@pytest.mark.parametrize("count", [0, 1, 3, 211])
def test_the_most_probable_tokens_are_told(engine, count):
    events = ask(engine, [3, 5], {"max_tokens": 4, "logprobs": count, "sampling": Sampling(temperature=1.0, seed=3)})
    made = [event for event in events if isinstance(event, Token)]
    rows = engine.logits([3, 5, *(event.id for event in made)])[1:-1].double().log_softmax(-1)
    assert len(rows) == len(made) > 0
    for row, event in zip(rows, made, strict=True):
        order = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))[:count]
        assert [token for token, _ in event.top] == order
        assert all(abs(logprob - float(row[token])) < 1e-5 for token, logprob in event.top)
        told = dict(event.top)
        assert told.get(event.id, event.logprob) == event.logprob


@pytest.mark.parametrize(
    "options",
    [{"logprobs": -1}, {"logprobs": 212}, {"logprobs": True}, {"speculate": -1}, {"speculate": 33}, {"speculate": 1.0}],
    ids=str,
)
def test_wrong_numbers_are_refused(engine, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        engine.submit([1], **options)
    with pytest.raises(ContextExceeded, match="1025 tokens needed, the limit is 1024"):
        engine.submit([1] * 1024)
    with pytest.raises(TypeError, match="colour"):
        engine.submit([1], colour="red")


# -- the queue -----------------------------------------------------------------------------------------------------


def test_no_more_wait_than_may(engines):
    engine = engines("gemma3", sequences=2, queue=3)
    with busy(engine):
        tickets = [engine.submit([n + 1], max_tokens=3, ignore_eos=True) for n in range(5)]
        with pytest.raises(QueueFull, match="5 requests waiting; try again in .* s") as caught:
            engine.submit([9])
        assert 0 < caught.value.retry_after < 1000
        # A place is free again when one that waits is cancelled and the engine has noticed.
        tickets[4].cancel()
    assert [ticket.result(60).finish_reason for ticket in tickets] == ["length"] * 4 + ["cancelled"]
    assert ask(engine, [9], {"max_tokens": 3, "ignore_eos": True})[-1].usage.completion == 3
    assert idle(engine)


def test_more_readers_step_by_step_than_run_at_once(engines):
    engine = engines("gemma3", sequences=2)
    readers = [engine.generate([n + 1], max_tokens=30, ignore_eos=True) for n in range(5)]
    firsts = [next(reader) for reader in readers]
    assert {type(event) for event in firsts} == {Prefill}
    assert [len(list(reader)[-1].tokens) for reader in readers] == [30] * 5


# -- cancellation --------------------------------------------------------------------------------------------------


def test_what_there_is_comes_with_the_cancelled_result(engine):
    whole = ask(engine, [3, 5], {"max_tokens": 400, "ignore_eos": True})[-1].tokens
    ticket = engine.submit([3, 5], max_tokens=400, ignore_eos=True)
    events = []
    for event in ticket:
        events.append(event)
        if len(events) == 6:
            assert engine.cancel(ticket.id)
    result = events[-1]
    assert result.finish_reason == "cancelled"
    made = tuple(event.id for event in events if isinstance(event, Token))
    assert result.tokens == made == whole[: len(made)]
    assert 5 <= len(result.tokens) < 400
    assert not engine.cancel(ticket.id)
    assert not engine.cancel("nobody")


def test_one_that_waits_is_cancelled_at_once(engines):
    engine = engines("gemma3", sequences=1)
    with busy(engine):
        tickets = [engine.submit([n + 1], max_tokens=200, ignore_eos=True) for n in range(3)]
        tickets[1].cancel()
        dropped = tickets.pop()
        del dropped
    result = tickets[1].result(60)
    assert (result.finish_reason, result.tokens, result.usage.completion) == ("cancelled", (), 0)
    assert len(tickets[0].result(60).tokens) == 200
    assert idle(engine)


def _leave(engine, ticket, way):
    if way == "cancel":
        ticket.cancel()
    elif way == "id":
        engine.cancel(ticket.id)
    elif way == "close":
        ticket.close()


@pytest.mark.parametrize(("name", "cache"), [("gemma3", 0), ("gemma3", 120_000), ("qwen3_next", 300_000)])
def test_hundreds_of_aborts_leave_nothing(engines, name, cache):
    """Waiting, in the prompt, decoding, checking guesses: whatever the stage, all comes back."""
    engine = engines(name, cache=cache, sequences=3)
    repeating = [7, 8, 9, 10] * 8
    expected = ask(engine, repeating, {"max_tokens": 10, "ignore_eos": True})[-1].tokens
    engine.clear_cache()
    base = engine.stats()["held"]
    for count in range(42):
        prompts = (tiny.tokens(300 + count), [5, 6, count % 200], repeating, tiny.tokens(90, seed=count))
        tickets = [engine.submit(p, max_tokens=50 + count, ignore_eos=True, speculate=4) for p in prompts]
        readers = [iter(ticket) for ticket in tickets[:2]]
        for reader in readers[: count % 3]:
            for _ in range(count % 5):
                next(reader, None)
        for number, way in enumerate(("cancel", "id", "close", "drop")):
            _leave(engine, tickets[(number + count) % 4], way)
        del tickets, readers
    gc.collect()
    assert idle(engine)
    if cache:
        engine.prefixes.store.check()
        assert engine.stats()["cache"].bytes <= cache
    engine.clear_cache()
    assert engine.stats()["held"] == base
    assert set(base.values()) == {0}
    assert (engine.stats()["anchors"], engine.stats()["failed"]) == (0, 0)
    assert ask(engine, repeating, {"max_tokens": 10, "ignore_eos": True})[-1].tokens == expected


@settings(max_examples=12, deadline=None)
@given(after=st.integers(0, 12), length=st.sampled_from([1, 64, 300, 900]), speculate=st.sampled_from([0, 6]))
def test_leaving_gives_all_back_before_it_returns(engine, after, length, speculate):
    events = engine.generate([7, 8, 9, 10] * (length // 4) + [7], max_tokens=60, ignore_eos=True, speculate=speculate)
    for _ in range(after):
        next(events)
    if after:
        assert engine.stats()["running"] == 1
    events.close()
    assert idle(engine)
    assert set(engine.stats()["held"].values()) == {0}


# -- the thread ----------------------------------------------------------------------------------------------------


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "plait-engine"]


def test_an_engine_that_is_collected_ends_its_thread(engines):
    before = len(_threads())
    engine = engines("gemma3")
    engines._open.remove(engine)
    ticket = engine.submit([1, 2], max_tokens=400, ignore_eos=True)
    gone = weakref.ref(engine)
    assert len(_threads()) == before + 1
    del engine
    gc.collect()
    # Whoever waits for an answer keeps the engine.
    assert len(ticket.result(60).tokens) == 400
    del ticket
    gc.collect()
    assert gone() is None
    assert len(_threads()) == before


def test_a_closed_engine_answers_all_and_takes_nothing(engines):
    with engines("gemma3", sequences=1) as engine:
        assert len(ask(engine, [1], {"max_tokens": 2, "ignore_eos": True})[-1].tokens) == 2
        talk = engine.session([1, 2, 3])
        running = engine.submit([1, 2], max_tokens=1000, ignore_eos=True)
        waiting = engine.submit([1, 2], max_tokens=1000, ignore_eos=True)
        next(iter_running := iter(running))
    assert [ticket.result(60).finish_reason for ticket in (running, waiting)] == ["cancelled"] * 2
    iter_running.close()
    talk.close()
    engine.close()
    for refused in (lambda: engine.submit([1]), lambda: engine.logits([1]), lambda: engine.session([1])):
        with pytest.raises(PlaitError, match="the engine is closed"):
            refused()
    engine.clear_cache()
    assert set(engine.stats()["held"].values()) == {0}


def test_stats_answer_while_the_engine_is_busy(engine):
    before = engine.stats()
    with busy(engine):
        ticket = engine.submit([1, 2, 3], max_tokens=5, ignore_eos=True)
        assert engine.stats()["queued"] == 1
        assert engine.stats()["idle_seconds"] > 0
    ticket.result(60)
    engine.schedule.call(lambda: None)
    after = engine.stats()
    assert (after["tokens"] - before["tokens"], after["prompt_tokens"] - before["prompt_tokens"]) == (5, 3)
    assert after["requests"] - before["requests"] == 1
    assert after["steps"] > before["steps"]
    assert after["queued"] == after["running"] == 0


def test_a_conversation_nobody_holds_is_closed(engine):
    talk = engine.session([1, 2, 3])
    assert engine.stats()["sessions"] == 1
    del talk
    gc.collect()
    assert idle(engine)
    assert set(engine.stats()["held"].values()) == {0}


def test_the_end_comes_with_the_last_event():
    """A reader that looks while the engine says the end does not see it before what comes with it."""
    channel = Channel("r1", lambda: None, stepwise=False)
    with channel._changed:
        ending = threading.Thread(target=channel.fail, args=(PlaitError("no more"),))
        ending.start()
        ending.join(0.1)
        assert ending.is_alive()
        assert not channel.ended
    ending.join()
    assert channel.ended
    with pytest.raises(PlaitError, match="no more"):
        channel.take()


@pytest.mark.parametrize("wait", [Channel.take, Channel.wait])
def test_a_signal_that_wakes_nobody_is_noticed(wait):
    """One that comes just before a reader falls asleep leaves it asleep; so does one that is only marked."""
    channel = Channel("a", lambda: None, stepwise=False)
    rescue = threading.Timer(20, channel.fail, [RuntimeError("not noticed")])
    rescue.start()
    threading.Timer(0.2, _thread.interrupt_main).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            wait(channel)
    finally:
        rescue.cancel()
    assert not channel.ended

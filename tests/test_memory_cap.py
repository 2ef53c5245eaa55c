"""The memory cap while requests and conversations run: no allocation of state passes it."""

from __future__ import annotations

import json

import pytest
import tiny
import torch

import plait
from plait.cache import Mark
from plait.errors import PlaitError
from plait.runtime.model import CALL_ROWS


def _peak(pool, monkeypatch):
    """Of all state, at any allocation; a list of one number."""
    most, counted = [0], pool.count

    def count(category, nbytes):
        counted(category, nbytes)
        most[0] = max(most[0], sum(pool.held().values()))

    monkeypatch.setattr(pool, "count", count)
    return most


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen3_5_moe", "glm_moe_dsa"])
def test_state_never_passes_the_cap(family, tmp_path, monkeypatch):
    """At no allocation: not while tails are copied, nor when sessions leave behind what only the store keeps then."""
    directory = tiny.save(family, tmp_path)
    config = json.loads((directory / "config.json").read_text())
    # Windows beyond the tokens of a call: a sequence that goes on leaves a whole window behind.
    config |= {"sliding_window": 600, "max_position_embeddings": 2048}
    (directory / "config.json").write_text(json.dumps(config))
    prompt, more = 650, 700
    with plait.load(directory, cache=0) as engine:
        weights, state = engine.model.weight_bytes, engine.model.pool.most(prompt + more, CALL_ROWS)
    room = state + state // 2
    with plait.load(directory, memory=weights + room) as engine:
        most = _peak(engine.model.pool, monkeypatch)
        for turn in range(3):
            ask = [(turn * 31 + i * 7) % 200 + 3 for i in range(prompt)]
            for together in (((prompt, more),), ((prompt - 99, 20), (prompt // 2, 3))):
                tickets = [
                    engine.submit(
                        ask[:length],
                        max_tokens=tokens,
                        ignore_eos=True,
                        speculate=4,
                        marks=[Mark(length // 2, "system"), Mark(length, "turn")],
                    )
                    for length, tokens in together
                ]
                for ticket in tickets:
                    ticket.result()
            conversation = engine.session(ask[turn:400])
            # It runs between the parts of what is appended, and begins when there is room.
            beside = engine.submit(ask[:300], max_tokens=8, ignore_eos=True)
            conversation.append([5] * 700)
            fork = conversation.fork()
            conversation.rollback(conversation.position - 30)
            beside.result()
            fork.close()
            conversation.close()
        assert 0.8 * room < most[0] <= room


def _filled(engine, room):
    """Forks of a short conversation, each with a slab of its own, until no slab and value more fit into `room`."""
    made, pool = [engine.session([5] * 10)], engine.model.pool
    more = pool.tail_bytes() + sum(values.elements * 4 for values in pool.values)
    while room - sum(pool.held().values()) >= more:
        made.append(made[0].fork())
    return made


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_moe"])
def test_going_back_needs_no_room_where_nothing_is_shared(family, tmp_path, monkeypatch):
    directory = tiny.save(family, tmp_path)
    tokens = tiny.tokens(700)
    with plait.load(directory, cache=0) as engine:
        pool = engine.model.pool
        weights, room = engine.model.weight_bytes, pool.most(700, CALL_ROWS) + 4 * pool.tail_bytes()
        expected = engine.logits(tokens)
    with plait.load(directory, memory=weights + room, cache=0) as engine:
        most = _peak(engine.model.pool, monkeypatch)
        conversation = engine.session(tokens)
        fork = conversation.fork() if family == "qwen3" else None
        others = _filled(engine, room)
        # Its whole slabs are shared: what goes back into them copies one first.
        if fork is not None:
            with pytest.raises(PlaitError, match="going back: expected at most"):
                conversation.rollback(600)
            assert conversation.position == 700
            fork.close()
            assert torch.equal(conversation.rollback(600), expected[599])
        assert torch.equal(conversation.rollback(conversation.position - 20), expected[conversation.position - 1])
        assert others
        assert most[0] <= room


def test_a_request_waits_while_a_conversation_grows(tmp_path):
    directory = tiny.save("qwen3", tmp_path)
    with plait.load(directory, cache=0) as engine:
        weights, room = engine.model.weight_bytes, engine.model.pool.most(1000, CALL_ROWS)
    with plait.load(directory, memory=weights + room, cache=0) as engine:
        work = engine.cap.growing(session := engine.model.session(), 1000)
        engine.schedule.call(work.__enter__)
        ticket = engine.submit([5] * 300, max_tokens=3, ignore_eos=True)
        with pytest.raises(PlaitError, match="goes on for another thread"):
            engine.schedule.call(engine.cap.growing(session, 1).__enter__)
        assert engine.stats()["running"] == 0
        engine.schedule.call(lambda: work.__exit__(None, None, None))
        assert len(ticket.result().tokens) == 3

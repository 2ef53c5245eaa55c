"""Forks and going back: what follows has the bits of a sequence that never went elsewhere, and shares what it can."""

from __future__ import annotations

import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plait
from plait.blueprint.state import SLAB, SLACK
from plait.errors import PlaitError, UsageError
from plait.runtime.session import BASE_STEP, Span

FAMILIES = tuple(tiny.MODELS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = plait.load(tiny.save(name, tmp_path_factory.mktemp(name))).model
        return made[name]

    return get


def _run(model, session, ids):
    return model.run([Span(session, tuple(ids))], want="all")[0]


def _cold(model, ids, last):
    session = model.session()
    try:
        return _run(model, session, ids)[-last:]
    finally:
        session.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_going_back_to_every_position_that_is_kept(models, name):
    model = models(name)
    ids = tiny.tokens(150)
    follow = tiny.tokens(3, seed=9)
    session = model.session(returns=True)
    _run(model, session, ids[:100])
    for token in ids[100:]:
        _run(model, session, [token])
    windows = {len(c.law.required(10**6)) for c in model.pool.classes if c.category == "windows"}
    # Rows alone go back everywhere; windows and values only as far as they are kept.
    reach = 150 if not windows and not model.pool.values else SLACK - (BASE_STEP if windows else 0)
    # Every position for one model with windows, for the others those around edges.
    near = range(reach + 1) if name == "gemma3" else (0, 1, 2, 21, 22, 23, 24, 31, 32)
    for back in {*near, reach}:
        other = session.fork()
        position = 150 - back
        if not model.pool.values:
            assert model.can_rollback(other, position)
            model.rollback(other, position)
            assert other.position == position
            assert torch.equal(_run(model, other, follow), _cold(model, ids[:position] + follow, 3)), position
        other.close()
    if model.pool.values:
        for back in (0, 1, 5, 31, 32, 33, reach):
            assert model.can_rollback(session, 150 - back)
            model.rollback(session, 150 - back)
            assert torch.equal(_run(model, session, ids[150 - back :] + follow)[-3:], _cold(model, ids + follow, 3))
            model.rollback(session, 150)
    with pytest.raises(UsageError, match="going back"):
        model.rollback(session, session.position + 1)
    session.close()
    assert set(model.pool.held().values()) == {0}


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_forks_and_returns_in_any_order(models, name, data):
    model = models(name)
    sessions = [(model.session(returns=True), [])]
    for step in range(data.draw(st.integers(2, 6))):
        session, ids = sessions[data.draw(st.integers(0, len(sessions) - 1))]
        action = data.draw(st.sampled_from(["run", "run", "fork", "back"]))
        if action == "fork":
            sessions.append((session.fork(), list(ids)))
        elif action == "back" and ids:
            position = data.draw(st.integers(max(0, len(ids) - 70), len(ids)))
            if model.can_rollback(session, position):
                model.rollback(session, position)
                del ids[position:]
            else:
                with pytest.raises(UsageError):
                    model.rollback(session, position)
        else:
            more = tiny.tokens(data.draw(st.integers(1, 80)), seed=step)
            expected = _cold(model, ids + more, len(more))
            assert torch.equal(_run(model, session, more), expected)
            ids.extend(more)
        assert session.tokens == ids
    for session, ids in sessions:
        more = tiny.tokens(2, seed=77)
        assert torch.equal(_run(model, session, more), _cold(model, ids + more, 2))
    for session, _ in sessions:
        session.close()
    assert set(model.pool.held().values()) == {0}


def test_a_fork_shares_whole_slabs_and_no_write_reaches_the_other(models):
    model = models("gemma3")
    ids = tiny.tokens(3 * SLAB + 5)
    first = model.session()
    _run(model, first, ids)
    alone = sum(model.pool.held().values())
    second = first.fork()
    copied = sum(c.elements * model.pool.dtype.itemsize for c in model.pool.classes)
    assert sum(model.pool.held().values()) == alone + copied
    before = [slab.data.clone() for run in first.runs for slab in run.slabs]
    _run(model, second, tiny.tokens(40, seed=3))
    model.rollback(second, 3 * SLAB - 2)
    _run(model, second, tiny.tokens(90, seed=4))
    for slab, data in zip((slab for run in first.runs for slab in run.slabs), before, strict=True):
        assert torch.equal(slab.data, data)
    first.close()
    assert torch.equal(
        _run(model, second, [5]),
        _cold(model, ids[: 3 * SLAB - 2] + tiny.tokens(90, seed=4) + [5], 1),
    )
    second.close()
    assert set(model.pool.held().values()) == {0}


def test_a_conversation_goes_back_and_forks(tmp_path):
    engine = plait.load(tiny.save("gemma3", tmp_path), cache=0)
    ids = tiny.tokens(90)
    whole = engine.logits(ids)
    talk = engine.session(ids)
    assert torch.equal(talk.logits, whole[-1])
    other = talk.fork()
    assert torch.equal(talk.rollback(70), whole[69])
    assert talk.position == 70 and other.position == 90
    more = tiny.tokens(6, seed=8)
    assert torch.equal(talk.append(more), engine.logits(ids[:70] + more)[-1])
    assert torch.equal(other.append(more), engine.logits(ids + more)[-1])
    assert not other.can_rollback(0) and not other.can_rollback(97) and other.can_rollback(96)
    for wrong in (0, 97, -1):
        with pytest.raises(UsageError, match="position to go back to"):
            other.rollback(wrong)
    talk.close()
    other.close()
    assert set(engine.model.pool.held().values()) == {0}


def test_a_fork_is_refused_where_it_does_not_fit(tmp_path):
    directory = tiny.save("gemma3", tmp_path)
    engine = plait.load(directory)
    need = engine.model.weight_bytes + engine.model.pool.most(64, 512) + 3 * engine.model.pool.tail_bytes()
    small = plait.load(directory, memory=need, cache=0)
    talk = small.session(tiny.tokens(60))
    forks = []

    def more():
        while len(forks) < 40:
            forks.append(talk.fork())

    with pytest.raises(PlaitError, match="a fork: expected at most .*the memory cap"):
        more()
    assert forks

"""Cold and warm are one: what begins with known tokens has the bits of what was computed from the start."""

from __future__ import annotations

import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plait
from plait.blueprint.state import SLAB
from plait.cache.anchors import Mark
from plait.engine.events import Token

FAMILIES = tuple(tiny.MODELS)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = plait.load(tiny.save(name, tmp_path_factory.mktemp(name)))
        made[name].clear_cache()
        return made[name]

    return get


def _last(engine, ids):
    """Logits after `ids`, by way of the store, and how much of them was known."""
    before = engine.stats()["cache"].reused
    talk = engine.session(ids)
    logits = talk.logits
    talk.close()
    engine.prefixes.store.check()
    return logits, engine.stats()["cache"].reused - before


@pytest.mark.parametrize("name", FAMILIES)
def test_warm_is_cold(engines, name):
    engine = engines(name)
    base = tiny.tokens(2 * SLAB + 9)
    _last(engine, base)
    recurrent = bool(engine.model.pool.values)
    for common, more in ((len(base), 1), (len(base), 70), (len(base), 0), (SLAB, 5), (SLAB + 1, 66), (40, 3), (0, 9)):
        ids = base[:common] + tiny.tokens(more, seed=common + 5)
        logits, reused = _last(engine, ids)
        assert torch.equal(logits, engine.logits(ids)[-1]), (common, more, reused)
        assert reused < len(ids)
        if common == len(base):
            # The end of a prompt is an anchor in every model, one token before it.
            assert reused >= len(base) - 1
        elif not recurrent and not engine.prefixes.store.shape.windows:
            assert reused == min(common, len(ids) - 1)
    engine.clear_cache()
    assert set(engine.model.pool.held().values()) == {0}


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_traffic_is_cold(engines, name, data):
    engine = engines(name)
    # A small budget, so that much of it goes again.
    engine.prefixes.make_room(data.draw(st.sampled_from([0, 60_000, 400_000, 2**31])))
    known = [[]]
    for step in range(data.draw(st.integers(2, 5))):
        base = known[data.draw(st.integers(0, len(known) - 1))]
        ids = base[: data.draw(st.integers(0, len(base)))] + tiny.tokens(data.draw(st.integers(1, 90)), seed=step)
        marks = sorted({data.draw(st.integers(1, len(ids))) for _ in range(data.draw(st.integers(0, 2)))})
        events = list(engine.generate(ids, max_tokens=3, ignore_eos=True, marks=[Mark(p, "turn") for p in marks]))
        result = events[-1]
        assert result.usage.reused == result.cache.resume < len(ids)
        cold = engine.logits([*ids, *result.tokens])
        assert list(result.tokens) == cold[len(ids) - 1 : -1].argmax(-1).tolist()
        known.append([*ids, *result.tokens])
        engine.prefixes.store.check()
    engine.clear_cache()
    assert set(engine.model.pool.held().values()) == {0}
    engine.prefixes.make_room(2**31)


def test_an_exact_repeat_computes_one_token(engines):
    for name in ("gemma3", "qwen3", *(n for n in FAMILIES if "next" in n)):
        engine = engines(name)
        ids = tiny.tokens(300)
        first = list(engine.generate(ids, max_tokens=4, ignore_eos=True))[-1]
        again = list(engine.generate(ids, max_tokens=4, ignore_eos=True))[-1]
        assert (first.usage.reused, again.usage.reused) == (0, 299)
        assert again.tokens == first.tokens
        follow = [*ids, *first.tokens, 7]
        # Anchors with values stand a page apart: the reply's end is too near to the prompt's.
        known = 299 if engine.model.pool.values else 303
        assert list(engine.generate(follow, max_tokens=1))[-1].usage.reused == known


def test_an_iteration_that_is_broken_off_leaves_a_sound_store(engines):
    engine = engines("gemma3")
    ids = tiny.tokens(200)
    for stop_after in (1, 2, 3):
        events = engine.generate(ids, max_tokens=5, ignore_eos=True)
        for _ in range(stop_after):
            next(events)
        events.close()
        engine.prefixes.store.check()
        assert _last(engine, [*ids, 3])[0].equal(engine.logits([*ids, 3])[-1])
    engine.clear_cache()
    assert set(engine.model.pool.held().values()) == {0}


def test_an_answer_that_was_stopped_is_gone_on_from(engines):
    engine = engines("gemma3")
    ids = tiny.tokens(70)
    made = []
    events = engine.generate(ids, max_tokens=50, ignore_eos=True)
    while len(made) < 9:
        event = next(events)
        made += [event.id] if isinstance(event, Token) else []
    events.close()
    logits, reused = _last(engine, [*ids, *made, 5])
    # The last token was chosen and not yet processed.
    assert reused == len(ids) + 8
    assert torch.equal(logits, engine.logits([*ids, *made, 5])[-1])


def test_under_a_cap_the_store_gives_way(tmp_path):
    directory = tiny.save("gemma3", tmp_path)
    probe = plait.load(directory)
    cap = probe.model.weight_bytes + 2 * probe.model.pool.most(400, 512)
    engine = plait.load(directory, memory=cap)
    for seed in range(6):
        list(engine.generate(tiny.tokens(390, seed=seed), max_tokens=4, ignore_eos=True))
        assert engine.model.weight_bytes + sum(engine.model.pool.held().values()) <= cap
    assert engine.stats()["cache"].pages > 0
    assert plait.load(directory, cache=0).prefixes.store.budget == 0

"""Warm is cold at every length and for every way in which two prompts share a beginning, one model of each mix of laws.

A row's bits are a function of the tokens before it, so one pass over a long sequence gives the cold answers of all its
beginnings, and each warm one is held against its row.
"""

from __future__ import annotations

from random import Random

import pytest
import tiny
import torch
from generating import SPARK

import plait
from plait.blueprint.state import SLAB
from plait.cache.anchors import Mark
from plait.errors import UsageError

FAMILIES = ("spark", "gemma3", "gemma3n", "gemma4_12b", "qwen3_5", "mimo_v2_flash", "deepseek_v32")
LENGTHS = (*range(1, 68), *range(127, 132), *range(191, 196))
BASE = 260
# How many tokens of a prompt of n the store has seen, and what it saw after them.
SHARED = {
    "none": lambda n: 0,
    "shorter than a page": lambda n: min(n, 1 + (7 * n) % (SLAB - 1)),
    "to a page's edge": lambda n: max(SLAB * (n // SLAB), min(n, SLAB)),
    "into a page": lambda n: max(1, n - 1 - (5 * n) % 40),
    "the whole prompt": lambda n: n,
    "longer than the prompt": lambda n: n + 1 + (11 * n) % 60,
}
CLOSE = 20


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request, tmp_path_factory):
    name = request.param
    return plait.load(SPARK if name == "spark" else tiny.save(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def base(engine):
    return _random(engine, BASE, 1)


@pytest.fixture(scope="module")
def cold(engine, base):
    return engine.logits(base)


@pytest.fixture(autouse=True)
def empty(engine):
    """Each test begins with a store of its own size, and leaves nothing held."""
    engine.prefixes.make_room(2**31)
    engine.clear_cache()
    yield
    engine.prefixes.store.check()
    engine.clear_cache()
    assert set(engine.model.pool.held().values()) == {0}


def _random(engine, count, seed):
    return tiny.tokens(count, vocabulary=engine.blueprint.vocabulary, seed=seed)


def _ask(engine, tokens):
    """(logits of the last token, tokens reused)"""
    before = engine.prefixes.stats().reused
    talk = engine.session(tokens)
    logits = talk.logits
    talk.close()
    return logits, engine.prefixes.stats().reused - before


@pytest.mark.parametrize("kind", SHARED)
def test_every_length(engine, base, cold, kind):
    used = 0
    for n in LENGTHS:
        engine.clear_cache()
        common = SHARED[kind](n)
        # The next token of what is stored is another one.
        other = [(base[common] + 1) % engine.blueprint.vocabulary, *_random(engine, CLOSE + n % 3, n)]
        # Recurrent layers can resume where a mark says so.
        marks = [Mark(common, "turn")] if common else []
        list(engine.generate(base[:common] + other, max_tokens=1, ignore_eos=True, marks=marks))
        logits, reused = _ask(engine, base[:n])
        assert torch.equal(logits, cold[n - 1]), (n, common, reused)
        assert reused <= min(common, n - 1), (n, common)
        used += reused
        if n % 5 == 0:
            again, reused = _ask(engine, base[:n])
            assert torch.equal(again, cold[n - 1])
            # Its own end is an anchor, one token before it, unless one that serves it is near.
            assert reused >= n - SLAB if engine.model.pool.values else reused == n - 1, (n, common, reused)
            engine.prefixes.store.check()
    # Beyond a prompt's end a snapshot is of no use to it.
    useless = ("none", "the whole prompt", "longer than the prompt") if engine.model.pool.values else ("none",)
    assert (used > 0) == (kind not in useless)


def test_forks_and_rollbacks_of_conversations(engine, base, cold):
    for length, more, back in ((63, 1, 2), (64, 3, 3), (65, 30, 20), (130, 61, 60), (191, 5, 1), (195, 20, 33)):
        talk = engine.session(base[:length])
        assert torch.equal(talk.logits, cold[length - 1])
        fork = talk.fork()
        own = _random(engine, more, length)
        fork.append(own)
        talk.append(base[length : length + more])
        assert torch.equal(talk.logits, cold[length + more - 1])
        assert torch.equal(fork.logits, engine.logits([*base[:length], *own])[-1])
        if talk.can_rollback(length + more - back):
            talk.rollback(length + more - back)
            assert torch.equal(talk.logits, cold[length + more - back - 1])
            talk.append(own)
            assert torch.equal(talk.logits, engine.logits([*base[: length + more - back], *own])[-1])
        # What was committed on the way is whole, whatever the sequences did then.
        engine.prefixes.store.check()
        for n in (length - 1, length, length + more):
            assert torch.equal(_ask(engine, base[:n])[0], cold[n - 1])
        fork.close()
        talk.close()


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_a_prefill_that_is_interrupted_leaves_no_trace(engine, base, cold, at, monkeypatch):
    _ask(engine, base[:70])
    held = engine.model.pool.held()
    piece, pieces = engine.model._piece, iter(range(100))

    def stopping(*arguments):
        piece(*arguments)
        if next(pieces) == at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "_piece", stopping)
        for ask in (
            lambda: engine.session(base[:200]),
            lambda: list(engine.generate(base[:200], max_tokens=6, ignore_eos=True)),
        ):
            pieces = iter(range(100))
            try:
                closed = ask()
            except KeyboardInterrupt:
                continue
            if not isinstance(closed, list):
                closed.close()
    engine.prefixes.store.check()
    assert sum(engine.model.pool.held().values()) - engine.prefixes.stats().bytes == 0
    assert sum(held.values()) <= sum(engine.model.pool.held().values())
    for n in (71, 130, 199, 200, 201):
        assert torch.equal(_ask(engine, base[:n])[0], cold[n - 1])


def test_a_mark_outside_the_prompt_is_refused_and_holds_nothing(engine, base, cold):
    _ask(engine, base[:150])
    before = engine.model.pool.held(), engine.prefixes.stats().bytes
    for position in (0, 201, -1):
        with pytest.raises(UsageError, match=r"mark turn: expected a position in 1\.\.200"):
            list(engine.generate(base[:200], max_tokens=1, marks=[Mark(position, "turn")]))
    assert (engine.model.pool.held(), engine.prefixes.stats().bytes) == before
    assert torch.equal(_ask(engine, base[:200])[0], cold[199])


def test_tight_budgets(engine, base, cold):
    page = sum(slab_class.elements for slab_class in engine.model.pool.classes) * 4
    value = sum(value_class.elements for value_class in engine.model.pool.values) * 4
    random = Random(5)
    for budget in (0, 1, page, page + value, 2 * page + value, 3 * page + 2 * value, 5 * (page + value)):
        engine.prefixes.make_room(budget)
        for step in range(4):
            n = random.randint(1, 200)
            # Other prompts come between, and push out what was known.
            _ask(engine, base[: random.randint(0, n)] + _random(engine, random.randint(1, 80), 100 * step + 1))
            assert engine.prefixes.stats().bytes <= budget
            assert torch.equal(_ask(engine, base[:n])[0], cold[n - 1]), (budget, n)
            engine.prefixes.store.check()

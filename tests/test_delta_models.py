"""Models with Gated DeltaNet: what a session keeps of all tokens, in every type, from every container."""

from __future__ import annotations

import pytest
import qwen_configs
import tiny
import tiny_delta
import torch
from configs import read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plait
from plait.account.memory import memory
from plait.runtime.checkpoint import write_random
from plait.runtime.session import Span

# Around the kernel of 4 and its tail of 3, and around the chunks of 64 of other implementations.
EDGES = (1, 2, 3, 4, 5, 6, 63, 64, 65, 66, 126, 127, 128, 129)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return {name: plait.load(tiny.save(name, tmp_path_factory.mktemp(name))) for name in tiny_delta.MODELS}


def states(engine, ids, split):
    """The values of a session after `ids` in calls of the lengths `split`: one tensor a category."""
    session = engine.model.session()
    at = 0
    for n in split:
        engine.model.run([Span(session, tuple(ids[at : at + n]))], want="none")
        at += n
    kept = [run.now.data.clone() for run in session.values]
    assert all(run.next is None for run in session.values)
    session.close()
    return kept


def cut(length, size):
    return [min(size, length - at) for at in range(0, length, size)]


@pytest.mark.parametrize("name", tiny_delta.MODELS)
def test_states_and_tails_on_the_way_are_those_of_one_call(engines, name):
    engine, ids = engines[name], tiny.tokens(EDGES[-1])
    whole = {length: states(engine, ids[:length], [length]) for length in EDGES}
    assert all(len(values) == 2 for values in whole.values()), "a state and a tail"
    for size in (1, 2, 3, 64):
        session, met = engine.model.session(), 0
        for n in cut(len(ids), size):
            at = session.position
            engine.model.run([Span(session, tuple(ids[at : at + n]))], want="none")
            expected = whole.get(session.position)
            if expected is not None:
                met += 1
                found = [run.now.data for run in session.values]
                assert all(map(torch.equal, found, expected)), f"calls of {size}, at {session.position}"
        assert met > 2, "the edges were met"
        session.close()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_states_after_random_cuts(engines, data):
    engine = engines[data.draw(st.sampled_from(tuple(tiny_delta.MODELS)))]
    ids = tiny.tokens(data.draw(st.integers(2, 140)), seed=data.draw(st.integers(0, 99)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=8)))
    split = [b - a for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    pairs = zip(states(engine, ids, split), states(engine, ids, [len(ids)]), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_call_in_pieces_carries_the_state_on(engines):
    """600 tokens are two pieces of a call."""
    engine, ids = engines["qwen3_5"], tiny.tokens(600)
    assert torch.equal(engine.logits(ids), engine.logits(ids, [511, 89]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_every_type_keeps_the_contract_and_its_bytes(dtype, tmp_path):
    engine = plait.load(tiny.save("qwen3_5", tmp_path), dtype=dtype)
    ids = tiny.tokens(100)
    whole = engine.logits(ids)
    for size in (1, 3, 64, 65):
        assert torch.equal(engine.logits(ids, cut(100, size)), whole), f"calls of {size}"
    conversation = engine.session(ids)
    form = {"bfloat16": "bf16", "float16": "f16", "float64": "f64"}[dtype]
    account = memory(engine.blueprint, 100, kv_format=form).categories
    held = conversation.held()
    # Beside what the account predicts: values of earlier positions, to go back to.
    assert held.pop("returns") > 0
    assert held == {c: line.reserved_bytes for c, line in account.items() if line.reserved_bytes}
    assert {run.now.data.dtype for run in conversation._session.values} == {
        torch.float64 if dtype == "float64" else torch.float32
    }
    conversation.close()


@pytest.mark.parametrize("config", [qwen_configs.qwen3_5, qwen_configs.qwen3_5_moe, qwen_configs.qwen3_next])
def test_both_containers_of_one_seed_give_the_same_bits(config, tmp_path):
    """Heads tiled and grouped, norms as 1 + w, the decay as -exp(w): what a container does to weights is undone."""
    engines = []
    for gguf in (False, True):
        written = write_random(read(config()), config(), tmp_path / str(gguf), seed=5, gguf=gguf)
        engines.append(plait.load(written.path))
    ids = tiny.tokens(70)
    first, second = (engine.logits(ids) for engine in engines)
    assert torch.isfinite(first).all()
    assert first.std() > 0.1, "the logits say something"
    assert torch.equal(first, second)


def test_values_of_float64_rows_in_a_float32_model_and_the_other_way_round(tmp_path):
    directory = tiny.save("qwen3_5", tmp_path)
    ids = tiny.tokens(80)
    for dtype, kv_dtype in (("float32", "float64"), ("float64", "float32")):
        engine = plait.load(directory, dtype=dtype, kv_dtype=kv_dtype)
        assert torch.equal(engine.logits(ids, cut(80, 3)), engine.logits(ids))


def test_the_first_token_matters_to_the_last_and_a_later_one_does_not_to_an_earlier(engines):
    engine = engines["qwen3_5"]
    ids = tiny.tokens(70)
    base = engine.logits(ids)
    first = engine.logits([(ids[0] + 1) % 211, *ids[1:]])
    assert not torch.equal(first[-1], base[-1])
    last = engine.logits([*ids[:-1], (ids[-1] + 1) % 211])
    assert torch.equal(last[:-1], base[:-1])


def test_a_failed_call_leaves_state_and_tail(engines, monkeypatch):
    """Invariant of sessions: whichever step fails, the session is where it was, and goes on as if nothing had been."""
    engine, ids = engines["qwen3_next"], tiny.tokens(90)
    conversation = engine.session(ids[:70])
    kept = [run.now.data.clone() for run in conversation._session.values]
    held, steps = conversation.held(), engine.model.steps

    def broken(call):
        raise KeyboardInterrupt

    for stop in range(1, len(steps), 7):
        monkeypatch.setattr(engine.model, "steps", (*steps[:stop], broken))
        with pytest.raises(KeyboardInterrupt):
            conversation.append(ids[70:])
        assert conversation.position == 70
        assert conversation.held() == held
    monkeypatch.setattr(engine.model, "steps", steps)
    for run, expected in zip(conversation._session.values, kept, strict=True):
        assert torch.equal(run.now.data, expected)
    assert torch.equal(conversation.append(ids[70:]), engine.logits(ids)[-1])
    conversation.close()
    engine.clear_cache()
    assert set(engine.model.pool.held().values()) == {0}

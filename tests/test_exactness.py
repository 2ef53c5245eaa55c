"""The exactness contract: bits are a function of the token prefix alone. And what is allocated is what is predicted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plait
from plait.account.memory import memory
from plait.errors import ContextExceeded, PlaitError, UsageError
from plait.runtime.session import Span
from plait.runtime.steps.call import EndLayer

SPARK = Path(__file__).parent / "data" / "spark-tiny"
MODELS = (*tiny.SETTINGS, "spark")
WINDOWS = {**{name: model.window for name, model in tiny.MODELS.items()}, "spark": 16}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    made = {name: plait.load(tiny.save(name, tmp_path_factory.mktemp(name)), cache=0) for name in tiny.SETTINGS}
    return {**made, "spark": plait.load(SPARK, cache=0)}


def _window(name):
    """The model's window; for a model without windows lengths are taken around another's."""
    return WINDOWS[name] or tiny.WINDOW


def _cut(length, size):
    return [min(size, length - at) for at in range(0, length, size)]


@pytest.mark.parametrize("name", MODELS)
def test_any_split_gives_the_same_bits(engines, name):
    engine, w = engines[name], _window(name)
    length = 64 * 2 + 3 * w + 5
    ids = tiny.tokens(length)
    whole = engine.logits(ids)
    for size in (1, 3, w - 1, w, w + 1, 2 * w, 16, 64, 65):
        assert torch.equal(engine.logits(ids, _cut(length, size)), whole), f"calls of {size}"


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_splits_give_the_same_bits(engines, name, data):
    engine = engines[name]
    ids = tiny.tokens(data.draw(st.integers(2, 150)), seed=data.draw(st.integers(0, 99)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=12)))
    split = [b - a for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert torch.equal(engine.logits(ids, split), engine.logits(ids))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_types_keep_the_contract_too(dtype, tmp_path):
    engine = plait.load(tiny.save("gemma3", tmp_path), dtype=dtype)
    ids = tiny.tokens(150)
    whole = engine.logits(ids)
    for size in (1, 7, 33, 64, 100):
        assert torch.equal(engine.logits(ids, _cut(150, size)), whole), f"calls of {size}"


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_in_company_is_alone(engines, name):
    model = engines[name].model
    lengths = (1, 70, 129, 3)
    prompts = [tuple(tiny.tokens(n, seed=n)) for n in lengths]
    follow = [tuple(tiny.tokens(n, seed=100 + n)) for n in (5, 1, 66, 2)]
    alone = []
    for first, second in zip(prompts, follow, strict=True):
        session = model.session()
        alone.append([model.run([Span(session, part)], want="all")[0] for part in (first, second)])
        session.close()
    sessions = [model.session() for _ in prompts]
    for part, calls in enumerate((prompts, follow)):
        # The company changes: the third sequence sits out one call, order is turned round.
        order = [3, 1, 0] if part else [0, 1, 2, 3]
        got = model.run([Span(sessions[i], calls[i]) for i in order], want="all")
        for index, logits in zip(order, got, strict=True):
            assert torch.equal(logits, alone[index][part])
    assert torch.equal(model.run([Span(sessions[2], follow[2])], want="all")[0], alone[2][1])
    for session in sessions:
        session.close()
    assert set(model.pool.held().values()) == {0}


@pytest.mark.parametrize("name", [name for name in MODELS if WINDOWS[name] is not None])
@pytest.mark.parametrize("how", ["one call", "token by token", "chunks"])
def test_window_impulse(engines, name, how, tmp_path):
    """In a model whose layers are all windows, token p - W changes nothing at p one layer up, p - W + 1 does."""
    from dataclasses import replace

    from plait.runtime.model import Model

    source = engines[name]
    blueprint = source.blueprint
    sliding = next(i for i, layer in enumerate(blueprint.layers) if layer.mixer.window is not None)
    model = Model.__new__(Model)
    model.__dict__.update(source.model.__dict__)
    ends = [i for i, step in enumerate(source.model.steps) if isinstance(step, EndLayer)]
    first = ends[sliding - 1] + 1 if sliding else 1
    model.steps = (source.model.steps[0], *source.model.steps[first : ends[sliding] + 1])
    model.blueprint = replace(blueprint, layers=(blueprint.layers[sliding],))
    w, p = _window(name), 2 * _window(name) + 9
    ids = tiny.tokens(p + 1)
    split = {"one call": [p + 1], "token by token": [1] * (p + 1), "chunks": _cut(p + 1, w - 1)}[how]

    def last(changed=None):
        edited = [(t + 1) % 200 if i == changed else t for i, t in enumerate(ids)]
        session = model.session()
        at = 0
        for n in split:
            logits = model.run([Span(session, tuple(edited[at : at + n]))])[0]
            at += n
        session.close()
        return logits

    base = last()
    assert torch.equal(last(p - w), base)
    assert torch.equal(last(0), base)
    assert not torch.equal(last(p - w + 1), base)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_allocated_are_bytes_predicted(engines, name):
    engine = engines[name]
    w = _window(name)
    for length in (1, 63, 64, 65, w - 1, w, w + 1, w + 63, w + 64, w + 65, 64 + 2 * w, 300):
        conversation = engine.model.session()
        engine.model.run([Span(conversation, tuple(tiny.tokens(length)))])
        account = memory(engine.blueprint, length, kv_format="f32")
        predicted = {category: line.reserved_bytes for category, line in account.categories.items()}
        held = conversation.held()
        assert {c: n for c, n in predicted.items() if n} == {c: n for c, n in held.items() if n}, f"length {length}"
        assert engine.model.pool.held() == held
        conversation.close()
        assert set(engine.model.pool.held().values()) == {0}


def test_no_row_is_ever_fully_masked(engines):
    for name in MODELS:
        assert torch.isfinite(engines[name].logits(tiny.tokens(200))).all()


def test_a_failed_call_changes_nothing(engines, monkeypatch):
    engine = engines["gemma3"]
    ids = tiny.tokens(90)
    conversation = engine.session(ids[:70])
    held = conversation.held()
    steps = engine.model.steps

    def broken(call):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.model, "steps", (*steps[:-1], broken))
    with pytest.raises(KeyboardInterrupt):
        conversation.append(ids[70:])
    monkeypatch.setattr(engine.model, "steps", steps)
    assert conversation.position == 70
    assert conversation.held() == held
    assert torch.equal(conversation.append(ids[70:]), engine.logits(ids)[-1])
    conversation.close()


def test_what_one_sequence_cannot_take_changes_no_other(engines):
    """Refused before any work: neither the sequence that is too long moves nor its company, and no room is kept."""
    model = engines["gemma3"].model
    limit = model.blueprint.max_context
    first, second, closed = model.session(), model.session(), model.session()
    model.run([Span(first, tuple(tiny.tokens(10)))])
    held = first.held()
    closed.close()
    for other, count, error in ((second, limit + 1, ContextExceeded), (closed, 1, PlaitError)):
        with pytest.raises(error):
            model.run([Span(first, tuple(tiny.tokens(100))), Span(other, (1,) * count)])
        assert (first.position, other.position) == (10, 0)
        assert first.held() == held == model.pool.held()
    first.close()


def test_threads_that_begin_together_get_the_bits_of_one(engines, tmp_path):
    """Nothing that calls make on first use (tables of rotations) depends on which call makes it."""
    expected = engines["llama"].logits(tiny.tokens(600))
    directory = tiny.save("llama", tmp_path)
    for _ in range(3):
        engine = plait.load(directory)
        barrier = Barrier(4)

        def work(_, engine=engine, barrier=barrier):
            barrier.wait()
            return engine.logits(tiny.tokens(600))

        with ThreadPoolExecutor(4) as pool:
            assert all(torch.equal(found, expected) for found in pool.map(work, range(4)))
        assert torch.equal(engine.logits(tiny.tokens(600)), expected)
        assert set(engine.model.pool.held().values()) == {0}


def test_rotations_grown_by_two_calls_at_once_are_right():
    """Between the reads and the write of one call another one grows the table."""
    from plait.blueprint.spec import Rope
    from plait.runtime.ops.rope import RopeTable

    class Meddled(RopeTable):
        def __init__(self):
            super().__init__(Rope(theta=100.0, pairs=4, divisor=8, distance=4), torch.float64, torch.device("cpu"))
            self.free = True

        def __getattribute__(self, name):
            if name == "_factor" and self.free:  # read while a block is being made
                self.free = False
                self(torch.tensor([1500]), 1500)
            return super().__getattribute__(name)

    table, at = Meddled(), torch.arange(0, 3000, 7)
    expected = torch.outer(at.double(), 100.0 ** (-torch.arange(4, dtype=torch.float64) / 4))
    for _ in range(2):
        cos, sin = table(at, 2999)
        assert torch.allclose(cos, expected.cos(), atol=1e-9)
        assert torch.allclose(sin, expected.sin(), atol=1e-9)


def test_values_beyond_float16_are_refused(tmp_path):
    """In one call they would turn earlier rows into NaN, and token by token they would not."""
    reference = tiny.reference_model("llama")
    with torch.no_grad():
        reference.model.layers[1].self_attn.v_proj.weight *= 1e6
    reference.save_pretrained(tmp_path)
    ids = tiny.tokens(20)
    engine = plait.load(tmp_path, kv_dtype="float16")
    with pytest.raises(PlaitError, match="layer 1: keys or values are beyond what float16 holds"):
        engine.logits(ids)
    assert set(engine.model.pool.held().values()) == {0}
    wide = plait.load(tmp_path, kv_dtype="bfloat16")
    assert torch.isfinite(wide.logits(ids)).all()
    assert torch.equal(wide.logits(ids, [1] * 20), wide.logits(ids))


def test_context_limit_and_bad_tokens(engines):
    engine = engines["gemma3"]
    limit = engine.blueprint.max_context
    with pytest.raises(ContextExceeded, match=rf"{limit + 1} tokens needed, the limit is {limit}"):
        engine.logits(tiny.tokens(limit + 1))
    for bad in ([], [-1], [211], [True], ["a"]):
        with pytest.raises(UsageError):
            engine.logits(bad)
    for split in ([1], [3, 0], [2, 2], [-1, 4], []):
        with pytest.raises(UsageError, match="split"):
            engine.logits([1, 2, 3], split)
    assert set(engine.model.pool.held().values()) == {0}

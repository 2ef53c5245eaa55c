"""Native programs: bit for bit what the same steps give in Python, and which steps they hold."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny
import torch

import plait
from plait.runtime import kernels
from plait.runtime.lower import NativePart
from plait.runtime.model import CALL_ROWS
from plait.runtime.session import Span
from plait.runtime.steps.call import Step
from plait.runtime.weight_plan import weight_plan

pytestmark = pytest.mark.skipif(kernels.native() is None, reason="torch computes here")


# Steps that are not lowered.
_CHOSEN = {"Normalise", "Choose", "AttendLatent"}
_STREAMS = {"Inputs", "Widen", "Predict", "Augment", "Feed", "Correct", "AddInput"}
PYTHON = {
    "deepseek_v32": _CHOSEN,
    "glm_moe_dsa": _CHOSEN,
    "gemma4_12b": {"AttendValues"},
    "gemma4_26b": {"AttendValues"},
    "gemma4_e2b": {"AttendValues", "Inputs"},
    "gemma3n": _STREAMS,
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return {name: plait.load(tiny.save(name, tmp_path_factory.mktemp(name)), cache=0) for name in tiny.SETTINGS}


class _Python(Step):
    """A step that is not lowered."""

    def __init__(self, step):
        self._step = step

    def __call__(self, call):
        self._step(call)


def _without_programs(model, run, kept=()):
    """What `run` gives where only the steps `kept` may be lowered."""
    steps = model.steps
    model.steps = tuple(step if i in kept else _Python(step) for i, step in enumerate(steps))
    try:
        return run()
    finally:
        model.steps = steps


def _company(model):
    """Logits of three sequences that go on in one call."""
    sessions = [model.session() for _ in range(3)]
    found = []
    for lengths in ((40, 1, 70), (1, 1, 1), (3, 66, 1)):
        taken = zip(sessions, lengths, strict=True)
        spans = [Span(s, tuple(tiny.tokens(n, seed=n + i))) for i, (s, n) in enumerate(taken)]
        found += model.run(spans, want="all")
    return found


@pytest.mark.parametrize("name", tiny.SETTINGS)
def test_programs_give_the_bits_of_their_steps(engines, name):
    model = engines[name].model
    expected = _without_programs(model, lambda: _company(model))
    assert all(torch.equal(a, b) for a, b in zip(_company(model), expected, strict=True))
    # Whichever steps stay in Python, registers go to and fro.
    for start in (0, 1):
        kept = range(start, len(model.steps), 2)
        made = _without_programs(model, lambda: _company(model), kept)
        assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


@pytest.mark.parametrize("name", tiny.SETTINGS)
def test_models_are_one_program_but_for_known_steps(engines, name):
    kinds = Counter(type(part).__name__ for part in engines[name].model.plan().parts)
    assert kinds.pop("Embed") == 1
    programs = kinds.pop("NativePart")
    assert kinds.keys() == PYTHON.get(name, set())
    assert programs == 1 or kinds


def test_a_step_that_is_not_lowered_works_between_programs(engines):
    model = engines["gemma3"].model
    steps, seen = model.steps, []

    class Watch(Step):
        def __call__(self, call):
            seen.append(call.registers["h"].clone())

    middle = len(steps) // 2
    model.steps = (*steps[:middle], Watch(), *steps[middle:])
    try:
        kinds = [isinstance(part, NativePart) for part in model.plan().parts]
        assert kinds == [False, True, False, True]
        made = model.run([Span(model.session(), (1, 2, 3))])
    finally:
        model.steps = steps
    assert torch.equal(made[0], model.run([Span(model.session(), (1, 2, 3))])[0])
    assert seen[0].shape == (3, model.blueprint.hidden)
    assert seen[0].isfinite().all()


def test_logits_of_several_sequences_are_views_of_one_product(engines):
    model = engines["gemma3"].model
    first, second = (model.session() for _ in range(2))
    made = model.run([Span(first, (1, 2, 3)), Span(second, (4,))])
    assert [x.shape for x in made] == [(1, model.blueprint.vocabulary)] * 2
    assert made[0].untyped_storage().data_ptr() == made[1].untyped_storage().data_ptr()


@pytest.mark.parametrize("name", tiny.SETTINGS)
def test_scratch_is_in_the_memory_plan(engines, name):
    model = engines[name].model
    plan = weight_plan(model.blueprint, model.numbers, model.device)
    assert 4 * model.plan().scratch_elements(CALL_ROWS) < plan.rows


@pytest.mark.parametrize("kv", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gemma3", "deepseek_v3", "gemma4_e2b", "qwen3_next"])
def test_other_types_have_the_bits_of_their_steps(name, kv, dtype, tmp_path):
    model = plait.load(tiny.save(name, tmp_path), dtype=dtype, kv_dtype=kv, cache=0).model
    expected = _without_programs(model, lambda: _company(model))
    assert all(torch.equal(a, b) for a, b in zip(_company(model), expected, strict=True))


@pytest.mark.parametrize(("kv", "dtype"), [("float64", "float64"), ("float32", "float16")])
def test_types_that_no_kernel_has_stay_in_python(kv, dtype, tmp_path):
    model = plait.load(tiny.save("llama", tmp_path), dtype=dtype, kv_dtype=kv, cache=0).model
    assert dtype != "float64" or model.plan() is None
    made = _one(model)
    assert torch.equal(made, _without_programs(model, lambda: _one(model)))


def _one(model):
    return model.run([Span(model.session(), tuple(tiny.tokens(9)))], want="all")[0]


def test_calls_from_several_threads_have_scratch_of_their_own(engines):
    model = engines["gemma3"].model
    expected = _one(model)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: _one(model), range(24)))
    assert all(torch.equal(made, expected) for made in found)


def test_memory_of_a_value_is_used_again_once_nobody_has_it(engines):
    model = engines["qwen3_5"].model
    session = model.session()
    places = []
    for token in (1, 2, 3):
        model.run([Span(session, (token,))])
        places.append(session.values[0].now.address)
    assert places[0] == places[2] != places[1]
    fork = session.fork()
    held = session.values[0].now
    before = held.data.clone()
    for token in (4, 5, 6):
        model.run([Span(session, (token,))])
        assert session.values[0].now.address != held.address
    assert torch.equal(fork.values[0].now.data, before)

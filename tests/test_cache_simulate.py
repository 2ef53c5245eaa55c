"""The store over counted bytes does what the store of a running model does: same answers, same anchors, same bytes."""

from __future__ import annotations

from random import Random

import pytest
import tiny
import torch

import plait
from plait.blueprint.state import SLAB, laws
from plait.cache.anchors import Mark
from plait.cache.placement import Placement
from plait.cache.simulate import STORES, Simulation, Sizes
from plait.engine.prefix import Prefixes
from plait.errors import UsageError
from plait.runtime.slabs import SlabPool

# Rows; windows and rows; shared rows; keys that are values; snapshots; two kinds of heads; latents and index keys.
FAMILIES = ("qwen3", "gemma3", "gemma3n", "gemma4_12b", "qwen3_5", "mimo_v2_flash", "deepseek_v32")


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request, tmp_path_factory):
    return plait.load(tiny.save(request.param, tmp_path_factory.mktemp(request.param)))


def _trace(seed, count):
    """Prompts that fork from earlier ones, repeat them or go on, with marks."""
    random = Random(seed)
    known = [[]]
    for number in range(count):
        base = random.choice(known)
        cut = len(base) if random.random() < 0.5 else random.randint(0, len(base))
        prompt = base[:cut] + tiny.tokens(random.choice((1, 5, 40, 64, 90, 200)), seed=1000 * seed + number)
        if random.random() < 0.2 and base:
            prompt = list(base)
        prompt = prompt[:700]
        at = [random.randint(1, len(prompt)) for _ in range(random.randint(0, 2))]
        marks = [Mark(position, random.choice(("system", "turn"))) for position in at]
        reply = yield prompt, marks
        known.append(prompt + reply)


@pytest.mark.parametrize("budget", [2**40, 0, "tight"])
def test_the_simulation_is_the_engine(engine, budget):
    own = sum(Sizes.of(laws(engine.blueprint), "f32").slabs)
    budget = 9 * own if budget == "tight" else budget
    for seed, placement in ((1, None), (2, Placement(frozenset({"prompt", "grid", "turn"}), grid=100))):
        engine.prefixes = Prefixes(engine.model, engine.prefixes.fingerprint, budget, placement)
        engine.schedule.prefixes = engine.prefixes
        simulation = Simulation(engine.blueprint, budget, placement=placement)
        trace = _trace(seed, 12)
        prompt, marks = next(trace)
        while True:
            *_, result = engine.generate(prompt, max_tokens=1 + len(prompt) % 3, ignore_eos=True, marks=marks)
            # The last token was chosen and not processed.
            reply = list(result.tokens[:-1])
            outcome = simulation.request(prompt, reply, marks)
            assert outcome.report == result.cache
            assert outcome.stats == engine.stats()["cache"]
            simulation.store.check()
            try:
                prompt, marks = trace.send(reply)
            except StopIteration:
                break
        if budget > 2**30:
            assert outcome.stats.reused > 0
        engine.clear_cache()
    assert set(engine.model.pool.held().values()) == {0}


def test_sizes_are_those_of_allocations(engine):
    pool = engine.model.pool
    sizes = Sizes.of(laws(engine.blueprint), "f32")
    assert list(sizes.slabs) == [slab_class.elements * 4 for slab_class in pool.classes]
    assert list(sizes.snapshots) == [value_class.elements * 4 for value_class in pool.values]
    assert Sizes.of(laws(engine.blueprint), "bf16").slabs == tuple(size // 2 for size in sizes.slabs)
    # Values stay float32 beside bf16 rows and are float64 beside float64 rows.
    assert Sizes.of(laws(engine.blueprint), "bf16").snapshots == sizes.snapshots
    assert Sizes.of(laws(engine.blueprint), "f64").snapshots == tuple(2 * size for size in sizes.snapshots)
    blocks = SlabPool(engine.blueprint, torch.int8, torch.device("cpu"))
    found = Sizes.of(laws(engine.blueprint), "q8")
    assert list(found.slabs) == [slab_class.elements for slab_class in blocks.classes]
    assert found.snapshots == sizes.snapshots
    assert set(STORES) == {"f64", "f32", "bf16", "f16", "q8"}


def test_published_sizes():
    """Spark-X2.5-4B: 9 full layers and 27 windows, 4 KiB a token each in bf16. Qwen3.5-0.8B: 12 KiB a token in 6 full
    layers; 18 states of 16 heads of 128 x 128 and 18 tails of 3 times 6144 channels, in float32."""
    assert Sizes.of(laws(plait.blueprint("spark-x2.5-4b")), "bf16") == Sizes((SLAB * 27 * 4096, SLAB * 36 * 1024), ())
    sizes = Sizes.of(laws(plait.blueprint("qwen3.5-0.8b")), "bf16")
    assert sizes.slabs == (SLAB * 12 * 1024,)
    assert sizes.snapshots == (18 * 16 * 128 * 128 * 4, 18 * 6144 * 3 * 4)


def test_the_nearest_earlier_request_is_named():
    simulation = Simulation(plait.blueprint("gemma-3-270m"), 2**30)
    first = simulation.request(range(100), range(100, 110))
    assert (first.nearest, first.report.common, first.report.resume) == (None, 0, 0)
    simulation.request([*range(50), 7, 7])
    third = simulation.request([*range(105), 3, 3])
    assert (third.nearest.request, third.nearest.common, third.nearest.tokens[105]) == (0, 105, 105)
    assert (third.report.common, third.report.resume) == (105, 105)
    fourth = simulation.request([*range(50), 9])
    # Of several the latest.
    assert (fourth.nearest.request, fourth.nearest.common) == (2, 50)


@pytest.mark.parametrize("marks", [[Mark(0, "turn")], [Mark(4, "turn")], [Mark(-1, "system")]])
def test_a_mark_outside_the_prompt_changes_nothing(marks):
    simulation = Simulation(plait.blueprint("gemma-3-270m"), 2**30)
    simulation.request([1, 2, 3])
    before = simulation.store.stats()
    with pytest.raises(UsageError, match=r"a position in 1\.\.3"):
        simulation.request([1, 2, 3], marks=marks)
    assert simulation.store.stats() == before
    simulation.store.check()


def test_what_is_refused():
    blueprint = plait.blueprint("gemma-3-270m")
    with pytest.raises(UsageError, match="f64, f32, bf16, f16, q8"):
        Simulation(blueprint, 0, kv_format="q4")
    with pytest.raises(UsageError, match="budget of 0 or more"):
        Simulation(blueprint, -1)
    with pytest.raises(UsageError, match="no tokens"):
        Simulation(blueprint, 0).request([])

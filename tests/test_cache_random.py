"""The prefix store against a model of integers: warm answers are cold ones, whatever the laws, lengths and budgets."""

from __future__ import annotations

import itertools

import pytest
from cache_oracle import MIXES, PAGE, PLAIN, Memory, random_requests, request, shape

from plait.cache import Placement, Shape, Store

AMPLE = 1 << 40
by_mix = pytest.mark.parametrize("model", MIXES.values(), ids=MIXES)


@by_mix
@pytest.mark.parametrize(("budget", "seed"), [(None, 1), (4000, 2), (1000, 3), (300, 4), (0, 5)])
def test_warm_is_cold(model: Shape, budget: int | None, seed: int) -> None:
    stats = random_requests(model, 200, budget, seed).stats()
    assert (stats.reused > 0) == (budget != 0)
    assert stats.lookups == 200 and sum(stats.reasons.values()) == 200


@by_mix
def test_warm_is_cold_on_short_prompts(model: Shape) -> None:
    random_requests(model, 150, 1500, 6, length=9)


@by_mix
@pytest.mark.parametrize("kinds", [{"reply"}, {"fork"}, {"prompt", "grid"}, {"ladder", "system"}, set()], ids=sorted)
def test_warm_is_cold_with_every_placement(model: Shape, kinds: set[str]) -> None:
    placement = Placement(frozenset(kinds), grid=6, spacing=3)
    random_requests(model, 60, 1500, 7, placement=placement)


@by_mix
def test_every_small_case(model: Shape) -> None:
    """A prompt, then one that shares any beginning of it with any number of new tokens, twice, then the first again."""
    for first, new in itertools.product(range(1, 2 * PAGE + 2), (0, 1, PAGE, PAGE + 1)):
        for common in range(first + 1):
            memory = Memory()
            store = Store(model, AMPLE, page_size=PAGE)
            one, two = [0] * first, [0] * common + [1] * new
            request(store, memory, one, [2])
            if two:
                assert request(store, memory, two).common <= common
                again = request(store, memory, two)
                # An exact repeat computes its last token, and less than a page where anchors must be apart.
                assert again.resume >= len(two) - 1 - (PAGE - 1 if model.snapshots else 0)
            back = request(store, memory, one)
            assert back.resume >= first - 1 - (PAGE - 1 if model.snapshots else 0)
            store.check()


@by_mix
@pytest.mark.parametrize("split", range(17, 25))
def test_a_branch_is_learned(model: Shape, split: int) -> None:
    """Whatever two prompts share, the third that shares it loses less than a page, wherever they part."""
    memory = Memory()
    store = Store(model, AMPLE, page_size=PAGE)
    prompts = [[0] * split + [tail] * 30 for tail in (1, 2, 3)]
    assert request(store, memory, prompts[0]).resume == 0
    second = request(store, memory, prompts[1])
    assert second.common == split
    third = request(store, memory, prompts[2])
    assert third.common == split
    assert third.resume > split - PAGE
    assert store.match(prompts[2], PLAIN).position >= len(prompts[2]) - PAGE


@pytest.mark.parametrize("rows", [1, 2])
def test_full_rows_lose_nothing(rows: int) -> None:
    """Rows can be cut anywhere, so all that is known is used, to the token."""
    for seed in range(2):
        stats = random_requests(shape(rows=rows), 100, None, seed).stats()
        assert stats.lost == 0 and set(stats.reasons) == {"none"}


def test_aliases_add_nothing() -> None:
    """A layer that reads another's rows has no class: the shape is that of the model without it."""
    from plait.blueprint.state import Alias, LayerLaw, Part, Rows, Snapshot, WindowRows

    part = (Part("key", 1, 8),)
    items = (
        LayerLaw(0, "rows", Rows(part)),
        LayerLaw(1, "windows", WindowRows(8, part)),
        LayerLaw(2, "recurrent", Snapshot(part)),
        LayerLaw(2, "convolution", Snapshot(part)),
        LayerLaw(3, "recurrent", Snapshot(part)),
        LayerLaw(4, "indexer", Rows(part)),
        LayerLaw(5, "windows", WindowRows(4, part)),
    )
    found = Shape.of((*items, LayerLaw(6, "alias", Alias(0)), LayerLaw(7, "alias", Alias(1))))
    assert found == Shape.of(items)
    assert [law.required(20) for law in found.rows] == [range(20), range(13, 20), range(20), range(17, 20)]
    assert found.snapshots == 2 and found.windows == ((1, 8), (3, 4))

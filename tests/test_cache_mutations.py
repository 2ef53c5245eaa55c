"""Faults that stores of this kind have had, put in one at a time: the integer model or `check` must catch each."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import pytest
from cache_oracle import MIXES, PAGE, PLAIN, IntSession, Memory, Misuse, cold, random_requests, request, shape

from plait.cache import Mark, Placement, Store, branches, commit, match, restore
from plait.cache.eviction import Eviction
from plait.cache.holdings import Holdings
from plait.errors import PlaitError

CAUGHT = (AssertionError, Misuse, PlaitError)
COMMIT = commit.Commit


def changed(function: Callable[..., Any], old: str, new: str) -> CodeType:
    """The code of a function in whose source `old`, which must be there, is `new`."""
    source = textwrap.dedent(inspect.getsource(function))
    assert old in source, f"{function.__qualname__} has changed: choose the mutation anew"
    code = compile(source.replace(old, new), "<mutation>", "exec", __future__.annotations.compiler_flag, True)
    space: dict[str, Any] = dict(function.__globals__)
    exec(code, space)
    made = space[function.__name__]
    assert isinstance(made, FunctionType)
    return made.__code__


def drafts() -> None:
    """Text of rejected drafts, full pages of it, must be found by nobody."""
    for drafted in range(1, 3 * PAGE):
        memory = Memory()
        store = Store(MIXES["everything"], 1 << 40, page_size=PAGE)
        session = IntSession(store.shape, memory, slack=4 * PAGE)
        session.extend([0] * 6)
        session.draft([1] * drafted)
        store.commit(session)
        session.accept(0)
        session.extend([2] * 9)
        store.commit(session, [Mark(15, "reply")])
        session.close()
        store.settle()
        store.check()
        report = request(store, memory, [0] * 6 + [1] * drafted + [3])
        assert report.common == 6


def wrong_positions() -> None:
    """A snapshot that comes from another position than it is published for is refused."""
    memory = Memory()
    store = Store(MIXES["snapshots and rows"], 1 << 40, page_size=PAGE)

    class Late(IntSession):
        def snapshots(self, position: int) -> Any:
            return self.values

    session = Late(store.shape, memory)
    session.extend([0] * 9)
    with pytest.raises(PlaitError, match="snapshots"):
        store.commit(session, [Mark(8, "reply")])
    assert request(store, memory, [0] * 9).resume == 0


def repeats() -> None:
    """A prompt that is the beginning of a longer one, where only branch points become anchors."""
    for pages in (2, 3, 4):
        memory = Memory()
        store = Store(shape(rows=1, snapshots=1), 1 << 40, page_size=PAGE, placement=Placement(frozenset(["fork"])))
        prompt = [0] * (pages * PAGE)
        request(store, memory, [*prompt, 1, 1, 1])
        request(store, memory, prompt)
        assert request(store, memory, prompt).resume == len(prompt) - PAGE


def promises() -> None:
    """Two positions in one page, the later first: both stay resumable until an anchor has to go."""
    memory = Memory()
    store = Store(shape((4,), rows=1), 1 << 40, page_size=PAGE)
    session = IntSession(store.shape, memory, slack=2 * PAGE)
    session.extend([0] * 11)
    store.commit(session, [Mark(11, "reply")])
    store.commit(session, [Mark(9, "turn")])
    session.close()
    store.settle()
    while not store.stats().evicted_anchors:
        store.check()
        assert store.match([0] * 9 + [1], PLAIN).position == 9
        assert store.match([0] * 11 + [1], PLAIN).position == 11
        store.budget = store.stats().bytes - 1
    assert store.stats().evicted_windows


def traffic(*mixes: str) -> Callable[[], None]:
    def run() -> None:
        for seed, name in enumerate(mixes):
            for budget in (None, 2000, 600):
                random_requests(MIXES[name], 40, budget, seed)

    return run


WINDOWS = traffic("windows and rows", "windows", "everything")
SNAPSHOTS = traffic("snapshots and rows", "everything")
ALL = traffic("rows", "windows and rows", "snapshots and rows", "everything")

MUTATIONS: dict[str, tuple[Callable[[], None], Callable[..., Any], str, str]] = {
    "window off by one in coverage": (WINDOWS, match.covered, "<= needed.start", "<= needed.start + 1"),
    "window off by one in restore": (WINDOWS, restore.restore, "<= needed.start", "<= needed.start + 1"),
    "window off by one in promises": (WINDOWS, Eviction._windows, "<= start", "<= start + 1"),
    "no token left": (ALL, match.match, "limit = max(0, len(tokens) - 1)", "limit = len(tokens)"),
    "tail tokens not compared": (SNAPSHOTS, branches.Branches.beginnings, "if key[: len(k)] == k", "if k"),
    "tail tokens cut too late": (ALL, branches.shared, "break", "pass"),
    "coverage not checked": (WINDOWS, match.covered, "enumerate(shape.rows)", "()"),
    "tail's rows not checked": (WINDOWS, match.covered, "tail[index] is None", "False"),
    "snapshot or slab aliased": (ALL, Holdings.keep, "held.share()", "pass"),
    "snapshot handed out aliased": (SNAPSHOTS, Holdings.lend, "held.share()", "pass"),
    "tail aliased in restore": (ALL, restore.restore, ".copy(position - base.stop)", "; source.share()"),
    "tail aliased in commit": (ALL, COMMIT._copies, "source.copy(rows)", "(source.share(), source)[1]"),
    "tail copied short": (ALL, restore.restore, "copy(position - base.stop)", "copy(position - base.stop - 1)"),
    "needed windows dropped": (WINDOWS, Eviction.window_came, "and not page.needed[index]", ""),
    "needed windows not counted": (WINDOWS, Eviction.anchor_came, "page.needed[index] += 1", "pass"),
    "promise given up too late": (WINDOWS, Eviction.take_anchor, "page.needed[index] -= 1", "pass"),
    "pages under anchors dropped": (ALL, Eviction._leaf, "and not page.anchors", ""),
    "pages with children dropped": (ALL, Eviction.page_came, "self.leaves.pop(page.parent, None)", "pass"),
    "cut promise forgotten": (promises, COMMIT._near, "longest[1].lowest <= position", "True"),
    "slabs of the wrong page": (WINDOWS, commit._slab, "number - run.first", "max(0, number - run.first - 1)"),
    "bytes counted twice": (ALL, Holdings.own, "self.total += entry.nbytes", "self.total += 2 * entry.nbytes"),
    "lent bytes never come back": (ALL, Holdings.settle, "self.bytes += entry.nbytes", "pass"),
    "what is dropped is not freed": (ALL, Holdings.drop, "held.release()", "pass"),
    "budget exceeded": (ALL, Eviction.fit, "> budget", "> 2 * budget"),
    "fork at n": (repeats, Placement._own, "min(found.report.common, limit)", "found.report.common"),
    "drafts published": (drafts, COMMIT.publish, "settled = session.settled", "settled = len(session.tokens)"),
    "snapshot's position not verified": (wrong_positions, COMMIT._anchor, "s.position != mark.position", "False"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, function, old, new = MUTATIONS[name]
    monkeypatch.setattr(function, "__code__", changed(function, old, new))
    with pytest.raises((*CAUGHT, pytest.fail.Exception)):
        probe()


@pytest.mark.parametrize("probe", list(dict.fromkeys(probe for probe, *_ in MUTATIONS.values())))
def test_without_a_fault_nothing_is_caught(probe: Callable[[], None]) -> None:
    probe()


def test_the_model_itself_tells_prompts_apart() -> None:
    """The oracle can fail: one other token, anywhere, changes all that follows and nothing before."""
    for model in MIXES.values():
        base = cold(model, [0] * 12)
        for at in range(12):
            other = cold(model, [0] * at + [1] + [0] * (11 - at))
            assert other[:at] == base[:at]
            assert other[at] != base[at]

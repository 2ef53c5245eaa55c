"""The prefix store's answers and refusals: reports, plans, budgets, fingerprints, failures half-way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import pytest
from cache_oracle import MIXES, PAGE, PLAIN, IntSession, IntSlab, Memory, cold, request, shape

from plait.cache import Fingerprint, Mark, Placement, Plan, Published, StateRun, Store
from plait.cache.branches import Branches, shared
from plait.errors import PlaitError, UsageError

AMPLE = 1 << 40
HYBRID = shape(rows=1, snapshots=1)
by_mix = pytest.mark.parametrize("model", MIXES.values(), ids=MIXES)


def stored(model: Any, tokens: Sequence[int], *marks: Mark, budget: int = AMPLE, **more: Any) -> tuple[Store, Memory]:
    """A store that has seen one session, with anchors where `marks` say."""
    memory = Memory()
    store = Store(model, budget, page_size=PAGE, **more)
    session = IntSession(model, memory)
    for mark in marks:
        session.extend(tokens[session.position : mark.position])
        store.commit(session, [mark])
    session.extend(tokens[session.position :])
    store.commit(session)
    session.close()
    store.settle()
    store.check()
    return store, memory


# What a look-up says.


def test_nothing_is_known() -> None:
    store = Store(HYBRID, AMPLE)
    report = store.match([1, 2, 3], PLAIN).report
    assert (report.common, report.resume, report.lost, report.reason, report.differs_at) == (0, 0, 0, "none", 0)
    assert store.match([], PLAIN).report.prompt == 0


@pytest.mark.parametrize("model", [shape(rows=1), HYBRID], ids=["rows", "snapshots"])
def test_the_last_token_is_computed(model: Any) -> None:
    store, _ = stored(model, [0] * 12, Mark(7, "prompt"), Mark(11, "reply"), Mark(12, "reply"))
    repeat = store.match([0] * 12, PLAIN).report
    assert (repeat.common, repeat.resume, repeat.lost, repeat.reason) == (12, 11, 0, "none")
    assert repeat.differs_at is None
    beginning = store.match([0] * 8, PLAIN).report
    assert (beginning.common, beginning.resume, beginning.reason) == (8, 7, "none")


def test_no_anchor() -> None:
    store, _ = stored(HYBRID, [0] * 20, Mark(4, "turn"), Mark(20, "reply"))
    report = store.match([0] * 17 + [1, 1], PLAIN).report
    assert (report.common, report.resume, report.lost, report.reason) == (17, 4, 13, "no_anchor")
    assert report.differs_at == 17
    assert report.anchors == (Mark(4, "turn"),)
    # A prompt that is all known, up to an anchor it may not use.
    repeat = store.match([0] * 20, PLAIN).report
    assert (repeat.common, repeat.resume, repeat.lost, repeat.reason) == (20, 4, 15, "no_anchor")
    assert repeat.anchors == (Mark(4, "turn"), Mark(20, "reply"))


def test_tail_differs() -> None:
    store, _ = stored(HYBRID, [0] * 8 + [1, 2, 3], Mark(4, "turn"), Mark(11, "reply"))
    report = store.match([0] * 8 + [1, 2, 9, 9], PLAIN).report
    assert (report.common, report.resume, report.reason, report.differs_at) == (10, 4, "tail_differs", 10)


def test_window_dropped() -> None:
    store, _ = stored(shape((6,), rows=1), [0] * 40, Mark(40, "reply"))
    report = store.match([0] * 20 + [1, 1], PLAIN).report
    assert (report.common, report.resume, report.reason) == (20, 0, "window_dropped")
    assert store.match([0] * 40 + [1], PLAIN).report.resume == 40


def test_evicted() -> None:
    store, _ = stored(HYBRID, [0] * 20, Mark(8, "turn"), Mark(19, "reply"))
    store.budget = 0
    report = store.match([0] * 20, PLAIN).report
    assert (report.common, report.resume, report.reason) == (20, 0, "evicted")
    # Only the later anchor went: the pages are there as far as the earlier one needs them.
    store, _ = stored(HYBRID, [0] * 20, Mark(19, "reply"), Mark(20, "system"))
    while not store.stats().evicted_anchors:
        store.budget = store.stats().bytes - 1
    report = store.match([0] * 20, PLAIN).report
    assert (report.resume, report.reason) == (0, "evicted")
    store.clear()
    assert store.match([0] * 20, PLAIN).report.reason == "none"


def test_fingerprints_keep_apart() -> None:
    base = {"weights": "a", "kv": "f16", "layout": "1"}
    fingerprints = [
        Fingerprint.of(**base),
        Fingerprint.of(**base | {"kv": "f32"}),
        Fingerprint.of(**base, adapter="x"),
        Fingerprint.of(**base, salt="s"),
        # Names and values do not run into one another.
        Fingerprint.of(weights="a", kv="f16", layout="1x"),
    ]
    memory = Memory()
    store = Store(HYBRID, AMPLE, page_size=PAGE)
    request(store, memory, [0] * 30, fingerprint=fingerprints[0])
    for other in fingerprints[1:]:
        report = store.match([0] * 30, other).report
        assert (report.common, report.resume, report.lost) == (0, 0, 0)
        if other.salt:
            # What another salt holds is nobody's business.
            assert (report.reason, report.elsewhere, report.facts) == ("none", 0, ())
        else:
            assert (report.reason, report.elsewhere) == ("fingerprint", 29)
            assert report.facts == fingerprints[0].differs(other) != ()
    for other in fingerprints:
        request(store, memory, [0] * 30, [1] * 5, fingerprint=other)
        assert request(store, memory, [0] * 30, fingerprint=other).resume == 29
    store.check()


def test_content_is_part_of_the_tokens() -> None:
    """Placeholders of two images are integers made from their digests, of any size."""
    one, two = 2**200 + 1, 2**200 + 2**61
    memory = Memory()
    store = Store(HYBRID, AMPLE, page_size=PAGE)
    request(store, memory, [5, one, 6, 7, 8, 9, 9, 9])
    assert request(store, memory, [5, two, 6, 7, 8, 9, 9, 9]).common == 1


def test_tokens_whose_hashes_collide_are_told_apart() -> None:
    """Python hashes n and n + 2^61 - 1 alike, so these two pages have one hash."""
    prime = 2**61 - 1
    assert hash((0, 1, 2, 3)) == hash((prime, 1, 2, 3))
    memory = Memory()
    store = Store(shape(rows=1), AMPLE, page_size=PAGE)
    request(store, memory, [0, 1, 2, 3, 4, 5])
    assert request(store, memory, [prime, 1, 2, 3, 4, 5]).common == 0


# Plans.


def test_stops_lie_between_resume_and_the_last_token() -> None:
    for count in range(1, 80):
        store, _ = stored(HYBRID, [0] * 40, Mark(13, "turn"))
        found = store.match([0] * min(count, 37) + [1] * max(0, count - 37), PLAIN)
        plan = store.plan(found, [Mark(max(1, count // 2), "system")])
        marks = [*plan.stops, *plan.end]
        positions = [mark.position for mark in marks]
        assert positions == sorted(set(positions))
        assert all(found.position < position <= count for position in positions)
        assert all(mark.position < count for mark in plan.stops)
        near = [(a, b) for a, b in pairwise(marks) if b.position - a.position < PAGE]
        assert not any("ladder" in (a.kind, b.kind) for a, b in near)


def test_kinds_of_stops() -> None:
    store, _ = stored(HYBRID, [0] * 200)
    found = store.match([0] * 101 + [1] * 99, PLAIN)
    plan = store.plan(found, [Mark(50, "system"), Mark(180, "turn")])
    kinds = {kind: [m.position for m in plan.stops if m.kind == kind] for kind in ("system", "turn", "fork", "prompt")}
    assert kinds == {"system": [50], "turn": [180], "fork": [100], "prompt": [199]}
    assert [m.position for m in plan.stops if m.kind == "ladder"] == [68, 132, 164, 188, 192]
    grid = Placement(frozenset(["grid"]), grid=50)
    assert [m.position for m in grid.plan(HYBRID, PAGE, found, ()).stops] == [52, 104, 156]
    assert Placement(frozenset()).plan(HYBRID, PAGE, found, [Mark(50, "system")]) == Plan((), ())


def test_full_rows_need_no_stops() -> None:
    store = Store(shape(rows=2), AMPLE, page_size=PAGE)
    assert store.plan(store.match([0] * 100, PLAIN), [Mark(50, "system")]) == Plan((), (Mark(99, "prompt"),))


@pytest.mark.parametrize("position", [-1, 0, 8])
def test_marks_outside_are_refused(position: int) -> None:
    store = Store(HYBRID, AMPLE, page_size=PAGE)
    with pytest.raises(UsageError, match=r"mark turn: expected a position in 1\.\.7, found"):
        store.plan(store.match([0] * 7, PLAIN), [Mark(position, "turn")])
    session = IntSession(HYBRID, Memory())
    session.extend([0] * 7)
    with pytest.raises(UsageError, match=r"mark turn: expected a settled position in 1\.\.7, found"):
        store.commit(session, [Mark(position, "turn")])


def test_bad_settings_are_refused() -> None:
    for make in (
        lambda: Store(HYBRID, -1),
        lambda: Store(HYBRID, 0, page_size=0),
        lambda: Placement(grid=0),
        lambda: Placement(spacing=0),
        lambda: Placement(frozenset(["tail"])),
        lambda: Placement(last=frozenset(["reply"])),
    ):
        with pytest.raises(UsageError):
            make()
    with pytest.raises(UsageError):
        Store(HYBRID, 0).budget = -1


# Commits.


def test_what_a_commit_says() -> None:
    memory = Memory()
    placement = Placement(frozenset(["reply"]), spacing=PAGE)
    store = Store(shape((3,), rows=1, snapshots=1), AMPLE, page_size=PAGE, placement=placement)
    session = IntSession(store.shape, memory)
    session.extend([0] * 18)
    marks = [Mark(2, "reply"), Mark(9, "reply"), Mark(18, "turn")]
    said = store.commit(session, marks)
    assert (said.pages, said.healed, said.anchors) == (4, 0, ())
    assert [(left.mark, left.why) for left in said.left_out] == [
        (marks[0], "no_snapshot"),
        (marks[1], "no_snapshot"),
        (marks[2], "off"),
    ]
    assert store.commit(session, [Mark(18, "reply")]) == Published(0, 0, (Mark(18, "reply"),), ())
    session.extend([0] * 2)
    assert [left.why for left in store.commit(session, [Mark(20, "reply")]).left_out] == ["near"]
    session.close()
    store.settle()
    store.check()


def test_windows_that_went_come_back() -> None:
    """A later session that holds a window's rows fills the pages that lost them."""
    memory = Memory()
    store = Store(shape((6,), rows=1), AMPLE, page_size=PAGE)
    request(store, memory, [0] * 32)
    assert store.match([0] * 20 + [1], PLAIN).report.reason == "window_dropped"
    said = request(store, memory, [0] * 20 + [1] * 4)
    assert said.resume < 20
    assert store.stats().healed > 0
    assert request(store, memory, [0] * 20 + [2] * 4).resume == 20


def test_an_anchor_asked_for_again_keeps_the_kind_that_stays_longer() -> None:
    store, _ = stored(HYBRID, [0] * 9, Mark(8, "ladder"))
    session = IntSession(HYBRID, Memory())
    session.extend([0] * 8)
    for kind in ("system", "prompt"):
        assert [left.why for left in store.commit(session, [Mark(8, kind)]).left_out] == ["near"]
        assert store.match([0] * 9, PLAIN).report.anchors == (Mark(8, "system"),)
        store.check()


def test_sessions_that_break_the_protocol_are_refused() -> None:
    class Short(IntSession):
        def run(self, index: int) -> StateRun:
            return StateRun(0, self.slabs[index][:-1])

    class Late(IntSession):
        def run(self, index: int) -> StateRun:
            return StateRun(1, self.slabs[index])

    class Few(IntSession):
        def snapshots(self, position: int) -> Any:
            return ()

    class Counts(IntSession):
        settled = 99

    for broken in (Short, Late, Few, Counts):
        store = Store(HYBRID, AMPLE, page_size=PAGE)
        session = broken(HYBRID, Memory())
        session.extend([0] * 10)
        with pytest.raises(PlaitError, match="session: "):
            store.commit(session, [Mark(10, "reply")])
        store.check()


# All or nothing.


class Full(Exception):
    """There is no memory left."""


@by_mix
def test_a_restore_that_fails_leaves_nothing_behind(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    store = Store(model, AMPLE, page_size=PAGE)
    request(store, memory, [0] * 14, [0])
    found = store.match([0] * 14, PLAIN)
    assert found.position % PAGE
    counts = {thing: thing.holders for thing in memory.alive}
    real = IntSlab.copy
    left = 0

    def fails(self: IntSlab, rows: int) -> IntSlab:
        nonlocal left
        left -= 1
        if left < 0:
            raise Full
        return real(self, rows)

    tails = sum(bool(law.required(found.position)) for law in model.rows)
    monkeypatch.setattr(IntSlab, "copy", fails)
    for copies in range(tails):
        left = copies
        with pytest.raises(Full):
            store.restore(found)
        assert {thing: thing.holders for thing in memory.alive} == counts
        store.check()
    left = tails
    state = store.restore(found)
    assert state.position == found.position
    state.release()
    store.settle()
    assert {thing: thing.holders for thing in memory.alive} == counts
    store.check()


@by_mix
def test_a_commit_that_fails_leaves_the_store_sound(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    store = Store(model, AMPLE, page_size=PAGE)
    session = IntSession(model, memory)
    session.extend([0] * 14)

    def fails(self: IntSlab, rows: int) -> IntSlab:
        raise Full

    with monkeypatch.context() as patch:
        patch.setattr(IntSlab, "copy", fails)
        if model.rows:
            with pytest.raises(Full):
                store.commit(session, [Mark(14, "reply")])
    store.check()
    store.commit(session, [Mark(14, "reply")])
    session.close()
    store.settle()
    store.check()
    assert request(store, memory, [0] * 15).resume == 14
    store.clear()
    assert not memory.alive


@by_mix
def test_a_restored_session_can_be_published_at_once(model: Any) -> None:
    """Windows of one row need nothing to resume: their slab begins with the next token."""
    memory = Memory()
    store = Store(model, AMPLE, page_size=PAGE)
    request(store, memory, [0] * 15)
    state = store.restore(store.match([0] * 15, PLAIN))
    assert state.position == 14
    session = IntSession(model, memory, tokens=[0] * 15, restored=state)
    assert store.commit(session, [Mark(14, "reply")]).pages == 0
    assert session.extend([0, 5]) == cold(model, [0] * 15 + [5])[-2:]
    store.commit(session, [Mark(16, "reply")])
    session.close()
    store.settle()
    store.check()
    assert request(store, memory, [0] * 15 + [5, 5]).resume == 16


def test_a_match_from_before_is_looked_for_anew() -> None:
    memory = Memory()
    store = Store(HYBRID, AMPLE, page_size=PAGE)
    request(store, memory, [0] * 14)
    found = store.match([0] * 14, PLAIN)
    store.budget = 0
    state = store.restore(found)
    assert state.position == 0
    assert state.report.reason == "evicted"


# Budget and live sessions.


@by_mix
def test_sessions_pin_what_they_hold(model: Any) -> None:
    """What a session holds is not evicted under it and not counted twice; when it goes, the budget holds again."""
    memory = Memory()
    store = Store(model, 100, page_size=PAGE)
    sessions = []
    for tail in range(4):
        tokens = [0] * 20 + [tail] * 5
        state = store.restore(store.match(tokens, PLAIN))
        session = IntSession(model, memory, tokens=tokens, restored=state)
        out = session.extend(tokens[session.position :])
        assert out == cold(model, tokens)[-len(out) :]
        store.commit(session, [Mark(25, "reply")])
        store.check()
        assert store.stats().bytes <= 100
        sessions.append((session, tokens))
    for session, tokens in sessions:
        out = session.extend([1, 2, 3])
        assert out == cold(model, [*tokens, 1, 2, 3])[-3:]
        session.close()
        store.settle()
        store.check()
        assert store.stats().bytes <= 100
    assert memory.nbytes <= 100
    store.clear()
    assert not memory.alive


def test_system_text_goes_last() -> None:
    memory = Memory(snapshot_bytes=1000)
    store = Store(HYBRID, 3500, page_size=PAGE)
    request(store, memory, [0] * 8 + [1] * 12, marks=[Mark(8, "system")])
    for tail in range(2, 40):
        request(store, memory, [9] * 8 + [tail] * 12)
    assert store.match([0] * 9, PLAIN).position == 8
    assert store.stats().evicted_anchors > 30


def test_what_is_used_stays() -> None:
    memory = Memory(snapshot_bytes=1000)
    store = Store(HYBRID, 4500, page_size=PAGE, placement=Placement(frozenset(["prompt"])))
    for tail in range(1, 40):
        request(store, memory, [tail] * 12)
        assert request(store, memory, [0] * 12).resume == (11 if tail > 1 else 0)


def test_fingerprints_without_state_are_forgotten() -> None:
    memory = Memory()
    store = Store(HYBRID, 0, page_size=PAGE)
    for number in range(50):
        request(store, memory, [0] * 9, fingerprint=Fingerprint.of(salt=str(number)))
    assert not store._roots


# Branches.


def test_nearest_finds_the_longest_beginning() -> None:
    keys = [key for length in range(4) for key in product((0, 1, 2), repeat=length) if sum(key) % 2]
    branches: Branches[tuple[int, ...]] = Branches()
    for key in keys:
        branches.add(key, key)
    for key in product((0, 1, 2), repeat=3):
        found = list(branches.nearest(key))
        expected = sorted((shared(other, key) for other in keys if shared(other, key)), reverse=True)
        assert [common for common, _ in found] == expected
        assert all(shared(other, key) == common for common, other in found)
        begins = [other for other in keys if key[: len(other)] == other]
        assert branches.beginnings(key) == sorted(begins, key=len, reverse=True)
    for key in keys:
        branches.remove(key)
    assert not branches and list(branches.nearest((0, 0))) == []

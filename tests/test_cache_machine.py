"""Random histories of a store: sessions come, grow, draft, fork, roll back and go, with `check` after each step."""

from __future__ import annotations

from cache_oracle import MIXES, PAGE, PLAIN, IntSession, Memory, begin, cold
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from plait.cache import Fingerprint, Mark, Store

TEXT = st.lists(st.integers(0, 1), min_size=1, max_size=10)
OTHER = Fingerprint.of(weights="w", adapter="a")
SESSIONS: Bundle[IntSession] = Bundle("sessions")


class History(RuleBasedStateMachine):
    sessions = SESSIONS

    @initialize(mix=st.sampled_from(sorted(MIXES)), budget=st.sampled_from([0, 300, 1500, 1 << 40]))
    def made(self, mix: str, budget: int) -> None:
        self.memory = Memory()
        self.store = Store(MIXES[mix], budget, page_size=PAGE)
        self.open: list[IntSession] = []
        self.texts: list[list[int]] = [[]]

    def right(self, session: IntSession, out: list[int]) -> None:
        whole = cold(session.model, session.tokens)
        assert out == whole[len(whole) - len(out) :]

    @rule(target=sessions, data=st.data(), new=TEXT, other=st.booleans())
    def ask(self, data: st.DataObject, new: list[int], other: bool) -> IntSession:
        base = data.draw(st.sampled_from(self.texts))
        tokens = [*base[: data.draw(st.integers(0, len(base)))], *new][:40]
        marks = [Mark(p, "turn") for p in data.draw(st.sets(st.integers(1, len(tokens)), max_size=2))]
        fingerprint = OTHER if other else PLAIN
        session, out, report = begin(self.store, self.memory, tokens, marks=marks, fingerprint=fingerprint)
        assert report.resume < len(tokens)
        self.right(session, out)
        self.open.append(session)
        self.texts.append(tokens)
        return session

    @rule(session=sessions, tokens=TEXT)
    def generate(self, session: IntSession, tokens: list[int]) -> None:
        self.right(session, session.extend(tokens))

    @rule(session=sessions, drafted=TEXT, data=st.data())
    def speculate(self, session: IntSession, drafted: list[int], data: st.DataObject) -> None:
        settled = session.settled
        session.draft(drafted)
        self.store.commit(session)
        accepted = data.draw(st.integers(0, len(drafted)))
        if not session.can_rollback(settled + accepted):
            accepted = len(drafted)
        session.accept(accepted)
        assert session.settled == settled + accepted

    @rule(session=sessions)
    def publish(self, session: IntSession) -> None:
        self.store.commit(session, [Mark(session.settled, "reply")])
        self.texts.append(list(session.tokens))

    @rule(target=sessions, session=sessions)
    def fork(self, session: IntSession) -> IntSession:
        made = session.fork()
        self.open.append(made)
        return made

    @rule(session=sessions, data=st.data())
    def roll_back(self, session: IntSession, data: st.DataObject) -> None:
        position = data.draw(st.integers(1, session.position))
        if session.can_rollback(position):
            session.rollback(position)

    @rule(session=consumes(SESSIONS))
    def close(self, session: IntSession) -> None:
        session.close()
        self.open.remove(session)
        self.store.settle()

    @rule(budget=st.sampled_from([0, 100, 500, 2000, 1 << 40]))
    def resize(self, budget: int) -> None:
        self.store.budget = budget

    @rule()
    def clear(self) -> None:
        self.store.clear()
        assert self.store.stats().bytes == 0 and self.store.stats().pages == 0

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store.check()
        held = {id(slab): slab.nbytes for s in self.open for slabs in s.slabs for slab in slabs}
        held |= {id(value): value.nbytes for s in self.open for value in s.values}
        self.store.settle()
        self.store.check()
        assert self.memory.nbytes == self.store.stats().bytes + sum(held.values())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for session in self.open:
                session.close()
            self.store.clear()
            assert not self.memory.alive


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)

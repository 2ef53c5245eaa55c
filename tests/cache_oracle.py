"""A runtime of integers over the prefix store's protocol, and the same model without any store.

A row is a hash of position, token and all that the laws make visible there; a snapshot is a fold over these hashes.
So one wrong, missing or misplaced row or snapshot changes everything computed after it. Slabs refuse to be written
while they are shared, to be read where nothing was written, and to be used after they were freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from plait.blueprint.state import Rows, WindowRows
from plait.cache import Fingerprint, Mark, Placement, Report, Restored, Shape, StateRun, Store
from plait.cache.branches import shared

PAGE = 4
PLAIN = Fingerprint.of(weights="w")


class Misuse(Exception):
    """The store or the runtime has done what the protocol forbids."""


def shape(windows: Sequence[int] = (), *, rows: int = 0, snapshots: int = 0) -> Shape:
    return Shape((Rows(()),) * rows + tuple(WindowRows(w, ()) for w in windows), snapshots)


# Windows of one row, of less than a page, of a page and one more, of several pages.
MIXES = {
    "rows": shape(rows=1),
    "two kinds of rows": shape(rows=2),
    "windows": shape((6, 3)),
    "windows and rows": shape((1, 2, 5, 9), rows=1),
    "snapshots": shape(snapshots=1),
    "snapshots and rows": shape(rows=1, snapshots=2),
    "everything": shape((4, 7), rows=2, snapshots=2),
}


def visible(law: Rows | WindowRows, position: int, dense: bool) -> Iterable[int]:
    """Rows that the token at `position` reads; not dense: the first and the last of them."""
    rows = law.required(position)
    return rows if dense or len(rows) < 3 else (rows[0], rows[-1])


def cold(model: Shape, tokens: Sequence[int], *, dense: bool = True) -> list[int]:
    """The "logits" of every position, computed without slabs, sessions or a store."""
    rows: list[list[int]] = [[] for _ in model.rows]
    folds = [0] * model.snapshots
    out: list[int] = []
    for position, token in enumerate(tokens):
        seen = tuple(
            tuple(rows[i][at] for at in visible(law, position, dense)) for i, law in enumerate(model.rows)
        )
        out.append(hash((position, token, seen, tuple(folds))))
        for index, column in enumerate(rows):
            column.append(hash((index, out[-1])))
        folds = [hash((index, fold, out[-1])) for index, fold in enumerate(folds)]
    return out


@dataclass(eq=False)
class Memory:
    """Counts what is alive. `row_bytes`: of all row classes, or of each."""

    page: int = PAGE
    row_bytes: int | tuple[int, ...] = 8
    snapshot_bytes: int = 40
    alive: set[IntSlab | IntSnapshot] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        return sum(thing.nbytes for thing in self.alive)


class Counted:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.holders = 1
        memory.alive.add(self)

    def share(self) -> None:
        if self.holders < 1:
            raise Misuse("shared after it was freed")
        self.holders += 1

    def release(self) -> None:
        if self.holders < 1:
            raise Misuse("released twice")
        self.holders -= 1
        if not self.holders:
            self.memory.alive.remove(self)

    def alive(self) -> None:
        if self.holders < 1:
            raise Misuse("used after it was freed")


class IntSlab(Counted):
    def __init__(self, memory: Memory, index: int) -> None:
        super().__init__(memory)
        self.index = index
        self.rows: list[int | None] = [None] * memory.page

    @property
    def nbytes(self) -> int:
        sizes = self.memory.row_bytes
        return self.memory.page * (sizes if isinstance(sizes, int) else sizes[self.index])

    def copy(self, rows: int) -> IntSlab:
        self.alive()
        made = IntSlab(self.memory, self.index)
        made.rows[:rows] = self.rows[:rows]
        return made

    def read(self, at: int) -> int:
        self.alive()
        row = self.rows[at]
        if row is None:
            raise Misuse("a row is read that was never written")
        return row

    def write(self, at: int, row: int) -> None:
        self.alive()
        if self.holders > 1:
            raise Misuse("a shared slab is written")
        self.rows[at] = row


class IntSnapshot(Counted):
    def __init__(self, memory: Memory, value: int, position: int) -> None:
        super().__init__(memory)
        self.value = value
        self.position = position

    @property
    def nbytes(self) -> int:
        return self.memory.snapshot_bytes


class IntSession:
    """A session as the runtime's is: slabs by class, values at its position, rows kept `slack` behind each window."""

    def __init__(
        self,
        model: Shape,
        memory: Memory,
        *,
        fingerprint: Fingerprint = PLAIN,
        tokens: Sequence[int] = (),
        restored: Restored | None = None,
        dense: bool = True,
        slack: int | None = None,
    ) -> None:
        self.model, self.memory, self.fingerprint, self.dense = model, memory, fingerprint, dense
        self.slack = memory.page if slack is None else slack
        self.tokens: list[int] = []
        self.drafted = 0
        self.firsts = [0] * len(model.rows)
        self.slabs: list[list[IntSlab]] = [[] for _ in model.rows]
        self.values: list[IntSnapshot] = []
        self.folds: dict[int, list[int]] = {}
        if restored is not None and restored.position:
            self.tokens = list(tokens[: restored.position])
            for index, run in enumerate(restored.runs):
                self.firsts[index] = run.first
                slabs = [*run.shared, *([run.tail] if run.tail is not None else [])]
                self.slabs[index] = [slab for slab in slabs if isinstance(slab, IntSlab)]
            self.values = [value for value in restored.snapshots if isinstance(value, IntSnapshot)]
        else:
            self.values = [IntSnapshot(memory, 0, 0) for _ in range(model.snapshots)]
        self.folds[len(self.tokens)] = [value.value for value in self.values]

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def settled(self) -> int:
        return len(self.tokens) - self.drafted

    def run(self, index: int) -> StateRun:
        return StateRun(self.firsts[index], self.slabs[index])

    def snapshots(self, position: int) -> Sequence[IntSnapshot] | None:
        return self.values if position == self.position else None

    def extend(self, tokens: Sequence[int]) -> list[int]:
        """One call: the "logits" of its tokens."""
        out = []
        for token in tokens:
            out.append(self._step(token))
        for index, law in enumerate(self.model.rows):
            start = max(0, law.required(self.position).start - self.slack) if isinstance(law, WindowRows) else 0
            while self.slabs[index] and (self.firsts[index] + 1) * self.memory.page <= start:
                self.slabs[index].pop(0).release()
                self.firsts[index] += 1
        return out

    def _step(self, token: int) -> int:
        page, position = self.memory.page, self.position
        seen = []
        for index, law in enumerate(self.model.rows):
            seen.append(tuple([self._read(index, at) for at in visible(law, position, self.dense)]))
        out = hash((position, token, tuple(seen), tuple([value.value for value in self.values])))
        for index, slabs in enumerate(self.slabs):
            if not slabs:
                self.firsts[index] = position // page
            if (self.firsts[index] + len(slabs)) * page <= position:
                slabs.append(IntSlab(self.memory, index))
            slabs[position // page - self.firsts[index]].write(position % page, hash((index, out)))
        for index, value in enumerate(self.values):
            if value.holders > 1:  # the store or a fork keeps it: go on with a value of one's own
                value.release()
                value = self.values[index] = IntSnapshot(self.memory, value.value, value.position)
            value.value, value.position = hash((index, value.value, out)), position + 1
        self.tokens.append(token)
        self.folds[position + 1] = [value.value for value in self.values]
        return out

    def _read(self, index: int, row: int) -> int:
        slab = row // self.memory.page - self.firsts[index]
        if not 0 <= slab < len(self.slabs[index]):
            raise Misuse(f"row {row} of class {index} is read and not there")
        return self.slabs[index][slab].read(row % self.memory.page)

    def draft(self, tokens: Sequence[int]) -> None:
        """Compute tokens that may be rejected."""
        self.drafted += len(tokens)
        self.extend(tokens)

    def accept(self, count: int) -> None:
        """Keep the first of the drafted tokens, take back the rest."""
        end = self.settled + count
        self.drafted = 0
        if end < self.position:
            self.rollback(end)

    def can_rollback(self, position: int) -> bool:
        return position in self.folds and all(
            self.firsts[index] * self.memory.page <= law.required(position).start or not law.required(position)
            for index, law in enumerate(self.model.rows)
        )

    def rollback(self, position: int) -> None:
        page = self.memory.page
        for index in range(len(self.model.rows)):
            slabs = self.slabs[index]
            while slabs and (self.firsts[index] + len(slabs) - 1) * page >= position:
                slabs.pop().release()
            if slabs and position % page and slabs[-1].holders > 1:
                shared = slabs[-1]
                slabs[-1] = shared.copy(position % page)
                shared.release()
        for value in self.values:
            value.release()
        self.values = [IntSnapshot(self.memory, fold, position) for fold in self.folds[position]]
        self.folds = {at: folds for at, folds in self.folds.items() if at <= position}
        del self.tokens[position:]

    def fork(self) -> IntSession:
        """Shares full slabs and values, copies partial slabs."""
        made = IntSession(self.model, self.memory, fingerprint=self.fingerprint, dense=self.dense, slack=self.slack)
        for value in made.values:
            value.release()
        made.tokens, made.drafted, made.firsts = list(self.tokens), self.drafted, list(self.firsts)
        made.folds = dict(self.folds)
        partial = self.position % self.memory.page
        for index, slabs in enumerate(self.slabs):
            for number, slab in enumerate(slabs):
                if partial and number == len(slabs) - 1:
                    made.slabs[index].append(slab.copy(partial))
                else:
                    slab.share()
                    made.slabs[index].append(slab)
        made.values = list(self.values)
        for value in made.values:
            value.share()
        return made

    def close(self) -> None:
        for slabs in self.slabs:
            for slab in slabs:
                slab.release()
            slabs.clear()
        for value in self.values:
            value.release()
        self.values.clear()


def begin(
    store: Store,
    memory: Memory,
    tokens: Sequence[int],
    *,
    marks: Iterable[Mark] = (),
    fingerprint: Fingerprint = PLAIN,
    chunk: Callable[[], int] = lambda: 1 << 30,
    dense: bool = True,
    slack: int | None = None,
    model: Shape | None = None,
) -> tuple[IntSession, list[int], Report]:
    """Restore and prefill as an engine does: the session, the "logits" of the tokens computed, and the report."""
    restored = store.restore(store.match(tokens, fingerprint))
    session = IntSession(
        model or store.shape,
        memory,
        fingerprint=fingerprint,
        tokens=tokens,
        restored=restored,
        dense=dense,
        slack=slack,
    )
    plan = store.plan(restored.found, marks)
    out: list[int] = []
    for mark in (*plan.stops, Mark(len(tokens), "prompt")):
        while session.position < mark.position:
            upto = min(mark.position, session.position + chunk())
            out += session.extend(tokens[session.position : upto])
        if mark in plan.stops:
            store.commit(session, [mark])
    store.commit(session, plan.end)
    return session, out, restored.report


def request(
    store: Store,
    memory: Memory,
    tokens: Sequence[int],
    reply: Sequence[int] = (),
    *,
    marks: Iterable[Mark] = (),
    fingerprint: Fingerprint = PLAIN,
    chunk: Callable[[], int] = lambda: 1 << 30,
    dense: bool = True,
    slack: int | None = None,
    model: Shape | None = None,
    verify: bool = True,
) -> Report:
    """A whole request, held against the model without a store."""
    session, out, report = begin(
        store,
        memory,
        tokens,
        marks=marks,
        fingerprint=fingerprint,
        chunk=chunk,
        dense=dense,
        slack=slack,
        model=model,
    )
    assert report.resume <= max(0, len(tokens) - 1), "the last token is computed"
    assert report.resume <= report.common <= len(tokens)
    assert (report.lost == 0) == (report.reason in ("none", "fingerprint")), f"a loss has a reason: {report}"
    for token in reply:
        out += session.extend([token])
    if reply:
        store.commit(session, [Mark(session.settled, "reply")])
    if verify:
        assert out == cold(session.model, [*tokens, *reply], dense=dense)[report.resume :], f"warm != cold: {report}"
    session.close()
    store.settle()
    return report


def largest(store: Store, tokens: Sequence[int]) -> int:
    """Where a prompt could resume: every position is tried with every page and anchor that holds rows for it."""
    best, base, rows = 0, store._roots.get(PLAIN), [set[int]() for _ in store.shape.rows]
    while base is not None:
        for more, slabs, anchor in (
            *((child.tokens, child.slabs, False) for child in base.children),
            *((anchor.tail, anchor.slabs, True) for anchor in base.anchors),
        ):
            for position in range(base.stop, min(len(tokens) - 1, base.stop + len(more)) + 1):
                if position > base.stop and tokens[position - 1] != more[position - base.stop - 1]:
                    break
                if position <= best or (store.shape.snapshots and not (anchor and position == base.stop + len(more))):
                    continue
                tail = set(range(base.stop, position))
                needs = [set(law.required(position)) for law in store.shape.rows]
                there = [have | tail if slab else have for have, slab in zip(rows, slabs, strict=True)]
                if all(need <= have for need, have in zip(needs, there, strict=True)):
                    best = position
        following = base.children.get(tuple(tokens[base.stop : base.stop + PAGE]))
        if following is not None:
            for index, slab in enumerate(following.slabs):
                if slab is not None:
                    rows[index].update(range(base.stop, following.stop))
        base = following
    return best


@dataclass
class Traffic:
    """Random prompts that share beginnings: an earlier text, cut somewhere, with something new behind."""

    random: Random
    longest: int = 60
    vocabulary: int = 3
    texts: list[tuple[int, ...]] = field(default_factory=lambda: [()])

    def prompt(self) -> list[int]:
        random = self.random
        base = random.choice(self.texts[-12:])
        cut = len(base) if random.random() < 0.4 else random.randint(0, len(base))
        # Now and then nothing is new: repeats, and prompts that are a beginning of an earlier one.
        new = 0 if random.random() < 0.2 else random.randint(1, 14)
        text = [*base[:cut], *(random.randrange(self.vocabulary) for _ in range(new))][-self.longest :]
        return text or [random.randrange(self.vocabulary)]

    def remember(self, text: Sequence[int]) -> None:
        self.texts.append(tuple(text))


def random_requests(
    model: Shape, count: int, budget: int | None, seed: int, *, placement: Placement | None = None, length: int = 60
) -> Store:
    """Random requests under one budget (None: ample), each checked; the store, when everything is given back."""
    random = Random(seed)
    memory = Memory(row_bytes=random.choice((4, 8)), snapshot_bytes=random.choice((8, 64)))
    store = Store(model, 1 << 40 if budget is None else budget, page_size=PAGE, placement=placement)
    traffic = Traffic(random, length)
    for number in range(count):
        tokens = traffic.prompt()
        reply = [random.randrange(3) for _ in range(random.choice((0, 0, 1, 5, 9)))]
        marks = [
            Mark(random.randint(1, len(tokens)), random.choice(("system", "turn")))
            for _ in range(random.choice((0, 1, 2)))
        ]
        best = largest(store, tokens)
        report = request(
            store,
            memory,
            tokens,
            reply,
            marks=marks,
            chunk=lambda: random.choice((1, 3, 7, 100)),
            slack=random.choice((0, 1, PAGE)),
        )
        assert report.resume == best, "the largest position is found"
        known = max(shared(text, tuple(tokens)) for text in traffic.texts)
        assert known // PAGE * PAGE <= report.common <= known, "what was computed before is known, to the page at least"
        if number % (4 if number < 40 else 20) == 0:
            store.check()
            assert memory.nbytes == store.stats().bytes, "bytes of the store are those that are alive"
        traffic.remember([*tokens, *reply])
    store.check()
    store.clear()
    store.check()
    assert not memory.alive, "something was not given back"
    return store

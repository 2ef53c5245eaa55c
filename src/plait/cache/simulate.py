"""The prefix store over counted bytes: what requests would reuse, without weights and without a runtime.

`Store`, its placement and its eviction are those of a running model; slabs and snapshots have the sizes that the state
laws give, and nothing in them. So a trace of prompts has here the positions, reasons, anchors and bytes it would have
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from plait.blueprint.spec import Blueprint
from plait.blueprint.state import SLAB, LayerLaw, Part, Rows, Snapshot, WindowRows, laws, row_classes, slab_span
from plait.cache.anchors import Mark
from plait.cache.branches import shared
from plait.cache.fingerprint import Fingerprint
from plait.cache.placement import Placement
from plait.cache.protocol import HeldSlab, HeldSnapshot, Shape, StateRun
from plait.cache.report import LeftOut, Published, Report, Stats
from plait.cache.restore import Restored
from plait.cache.store import Store
from plait.dtypes import BY_NAME, Format
from plait.errors import UsageError, fault

__all__ = ["STORES", "Nearest", "Outcome", "Simulation", "Sizes"]

# What a runtime keeps keys and values in; in q8 each head's vector is whole blocks.
STORES: Final[Mapping[str, Format]] = MappingProxyType(
    {**{name: BY_NAME[name] for name in ("f64", "f32", "bf16", "f16")}, "q8": BY_NAME["q8_0"]}
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a slab of each row class, and of a value of each snapshot class."""

    slabs: tuple[int, ...]
    snapshots: tuple[int, ...]

    @staticmethod
    def of(found: tuple[LayerLaw, ...], kv_format: str) -> Sizes:
        """As a runtime allocates: rows in `kv_format` (one of `STORES`), values in float32, in float64 beside f64.

        UsageError: another format.
        """
        if kv_format not in STORES:
            raise UsageError(fault("format of keys and values", expected=", ".join(STORES), found=repr(kv_format)))
        kv, value = STORES[kv_format], BY_NAME["f64" if kv_format == "f64" else "f32"]

        def size(parts: tuple[Part, ...]) -> int:
            return sum(_size(part, kv if part.store == "kv" else value) for part in parts)

        slabs = tuple(
            SLAB * sum(size(item.law.parts) for item in members if isinstance(item.law, Rows | WindowRows))
            for members in row_classes(found)
        )
        values: dict[str, int] = {}
        for item in found:
            if isinstance(item.law, Snapshot):
                values[item.category] = values.get(item.category, 0) + size(item.law.parts)
        return Sizes(slabs, tuple(values.values()))


def _size(part: Part, stored: Format) -> int:
    return part.heads * -(-part.dim // stored.block) * stored.block_bytes


@dataclass(slots=True, eq=False)
class _Counted:
    """Bytes with a count of their holders."""

    nbytes: int
    holders: int = 1

    def share(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1


@dataclass(slots=True, eq=False)
class _Slab(_Counted):
    def copy(self, rows: int) -> _Slab:
        """`rows` are a matter of content, which is not there."""
        return _Slab(self.nbytes)


@dataclass(slots=True, eq=False)
class _Snapshot(_Counted):
    position: int = field(kw_only=True)


class _Session:
    """A session that holds what a runtime's would."""

    def __init__(self, shape: Shape, sizes: Sizes, fingerprint: Fingerprint, state: Restored) -> None:
        self._shape = shape
        self._sizes = sizes
        self.fingerprint = fingerprint
        self.tokens: list[int] = list(state.found.tokens[: state.position])
        self._runs: list[tuple[int, list[HeldSlab]]] = []
        for run in state.runs:
            slabs = [*run.shared, *(() if run.tail is None else (run.tail,))]
            self._runs.append((run.first if slabs else state.position // SLAB, slabs))
        self._values: tuple[HeldSnapshot, ...] = state.snapshots
        self._trim()

    @property
    def settled(self) -> int:
        return len(self.tokens)

    def run(self, index: int) -> StateRun:
        return StateRun(*self._runs[index])

    def snapshots(self, position: int) -> Sequence[HeldSnapshot] | None:
        at_hand = position == self.settled and len(self._values) == self._shape.snapshots
        return self._values if at_hand else None

    def advance(self, tokens: Sequence[int]) -> None:
        """A call ends here."""
        self.tokens.extend(tokens)
        position = self.settled
        for (first, slabs), size in zip(self._runs, self._sizes.slabs, strict=True):
            while (first + len(slabs)) * SLAB < position:
                slabs.append(_Slab(size))
        for value in self._values:
            value.release()
        self._values = tuple(_Snapshot(size, position=position) for size in self._sizes.snapshots)
        self._trim()

    def _trim(self) -> None:
        position = self.settled
        for index, law in enumerate(self._shape.rows):
            first, slabs = self._runs[index]
            kept = slab_span(law.kept(position))
            gone = min(len(slabs), max(0, kept.start - first))
            for slab in slabs[:gone]:
                slab.release()
            self._runs[index] = (first + gone, slabs[gone:])

    def close(self) -> None:
        for _, slabs in self._runs:
            for slab in slabs:
                slab.release()
        for value in self._values:
            value.release()


@dataclass(frozen=True, slots=True)
class Nearest:
    """The latest of the earlier requests that begin most like a prompt.

    request   its number, from 0
    common    tokens alike; its own end, or the prompt's, where they do not differ
    tokens    all of its own, the processed reply included
    """

    request: int
    common: int
    tokens: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one request found and left behind.

    nearest   None: no earlier request begins with its first token
    anchors   new ones, in the order in which they came; some may have been evicted again
    left_out  marks that became none, and why
    stats     of the store, when the request has ended
    """

    report: Report
    nearest: Nearest | None
    anchors: tuple[Mark, ...]
    left_out: tuple[LeftOut, ...]
    stats: Stats


class Simulation:
    """A model's prefix store, and sessions that go through it one after the other.

        simulation = Simulation(plait.blueprint("gemma-3-270m"), budget=2**31)
        outcome = simulation.request(prompt, reply)
    """

    def __init__(
        self, blueprint: Blueprint, budget: int, *, kv_format: str = "f32", placement: Placement | None = None
    ) -> None:
        """`kv_format`: see `Sizes.of`. UsageError: an unknown one, or a negative budget."""
        found = laws(blueprint)
        self.shape = Shape.of(found)
        self.sizes = Sizes.of(found, kv_format)
        self.store = Store(self.shape, budget, placement=placement)
        self._fingerprint = Fingerprint.of(blueprint=repr(blueprint), types=kv_format)
        self._earlier: list[tuple[int, ...]] = []

    def request(self, tokens: Sequence[int], reply: Sequence[int] = (), marks: Iterable[Mark] = ()) -> Outcome:
        """One prompt and its reply.

        reply  the generated tokens that were processed: all of them where an end-of-text token followed, all but the
               last where the length ended it
        marks  positions in 1..len(tokens) up to which later prompts will share this one

        UsageError: no tokens, or a mark that lies elsewhere; nothing has changed then.
        """
        prompt, wanted = tuple(tokens), tuple(marks)
        if not prompt:
            raise UsageError("the prompt has no tokens; at least one is needed")
        store = self.store
        found = store.match(prompt, self._fingerprint)
        store.plan(found, wanted)
        state = store.restore(found)
        session = _Session(self.shape, self.sizes, self._fingerprint, state)
        # A store that may hold nothing needs no stops.
        plan = store.plan(state.found, wanted) if store.budget else None
        published: list[Published] = []
        if plan is not None:
            for stop in sorted({mark.position for mark in plan.stops}):
                session.advance(prompt[session.settled : stop])
                if stop < len(prompt):
                    published.append(store.commit(session, [m for m in plan.stops if m.position == stop]))
        if session.settled < len(prompt):
            session.advance(prompt[session.settled :])
        if plan is not None:
            ends = [mark for mark in plan.stops if mark.position == len(prompt)]
            published.append(store.commit(session, [*ends, *plan.end]))
        if reply:
            session.advance(tuple(reply))
            if store.budget:
                published.append(store.commit(session, [Mark(session.settled, "reply")]))
        session.close()
        store.settle()
        nearest = self._nearest(prompt)
        self._earlier.append(tuple(session.tokens))
        return Outcome(
            state.report,
            nearest,
            tuple(mark for one in published for mark in one.anchors),
            tuple(left for one in published for left in one.left_out),
            store.stats(),
        )

    def _nearest(self, prompt: tuple[int, ...]) -> Nearest | None:
        best: Nearest | None = None
        for number, earlier in enumerate(self._earlier):
            common = shared(earlier, prompt)
            if common and (best is None or common >= best.common):
                best = Nearest(number, common, earlier)
        return best

"""A blueprint and its weights become a step plan, and ragged calls run through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor

from plait.blueprint.check import not_run
from plait.blueprint.spec import Blueprint
from plait.blueprint.state import SLACK
from plait.cache.fingerprint import Fingerprint
from plait.errors import UnsupportedError, UsageError, fault
from plait.runtime.build.builder import Builder, Numbers
from plait.runtime.build.layer import add_layer
from plait.runtime.build.per_layer import add_inputs
from plait.runtime.build.streams import add_widen, merge
from plait.runtime.ops.exact import settle
from plait.runtime.program import Plan, Scratch, plan_for
from plait.runtime.session import Session, Span
from plait.runtime.slabs import SlabPool
from plait.runtime.steps.call import Call, Step
from plait.runtime.steps.logits import Logits
from plait.runtime.weight_source import WeightSource

__all__ = ["CALL_ROWS", "Model", "Numbers", "Want"]

# Longer calls are cut: scratch stays small and an interrupt is noticed within one piece.
CALL_ROWS: Final = 512

Want = Literal["last", "all", "none"]
Progress = Callable[[int, int], None]
MakeBuilder = Callable[[Blueprint, WeightSource, Numbers, torch.device, SlabPool], Builder]


class Model:
    """A runnable model. Holds no value of any request: sessions do.

    steps         the plan; those of the layers begin at `first_layer`
    weight_bytes  bytes of the prepared weights; rows of embeddings stay in the mapped file
    forms         how many products each form of `ops.linear` serves
    rooms         where blocks lie
    kept          prepared bytes of each role whose weights stay the blocks their file holds
    """

    def __init__(
        self,
        blueprint: Blueprint,
        weights: WeightSource,
        numbers: Numbers,
        device: torch.device,
        progress: Progress | None = None,
        builder: MakeBuilder = Builder,
        *,
        later: bool = False,
    ) -> None:
        """`builder` prepares the weights; `weight_plan` gives one that only counts.

        later  weights may still be on their way when this returns: `ready` is called before anything is run
        """
        missing = not_run(blueprint)
        if missing:
            raise UnsupportedError(f"{blueprint.name}: this version describes it and cannot run {', '.join(missing)}")
        settle()
        self.blueprint = blueprint
        self.numbers = numbers
        self.device = device
        self.pool = SlabPool(blueprint, numbers.kv, device)
        build = builder(blueprint, weights, numbers, device, self.pool)
        total = len(blueprint.layers) + 1
        build.embed()
        if blueprint.per_layer_embeddings is not None:
            add_inputs(build, blueprint.per_layer_embeddings)
        if blueprint.altup is not None:
            add_widen(build, blueprint.altup)
        self.first_layer = len(build.steps)
        for index, layer in enumerate(blueprint.layers):
            if progress is not None:
                progress(index, total)
            add_layer(build, index, layer)
        if progress is not None:
            progress(total - 1, total)
        self._logits = Logits(
            build.norm("final_norm", blueprint.final_norm),
            blueprint.final_norm.eps,
            build.linear(["embedding" if blueprint.head.tied else "head"]),
            blueprint.head.softcap,
            merge(build, blueprint.altup) if blueprint.altup is not None else None,
        )
        if progress is not None:
            progress(total, total)
        self.steps = tuple(build.steps)
        self._plan: tuple[tuple[Step, ...], Plan | None] | None = None
        self.weight_bytes = build.bytes
        self.rooms = build.rooms
        self._packing = build.packing
        self.forms = dict(build.forms)
        self.kept = MappingProxyType(dict(build.kept))
        if not later:
            self.ready()

    def ready(self) -> None:
        """Wait for weights that are on their way."""
        self._packing.wait()
        self.rooms.gather()

    def session(self, *, returns: bool = False, fingerprint: Fingerprint | None = None) -> Session:
        """A session at position 0. `returns`, `fingerprint`: see `Session`."""
        return Session(self.pool, self.blueprint.max_context, returns=returns, fingerprint=fingerprint)

    def can_rollback(self, session: Session, position: int) -> bool:
        """Whether `rollback` can take the session back to `position`."""
        return not session.closed and session.resume_point(position) is not None

    def rollback(self, session: Session, position: int) -> None:
        """Take back all tokens from `position` on; what follows has the bits of a session that never had them.

        Where values are kept for some positions only, the tokens from the nearest one before are run again.
        UsageError, with the session as it was: that is not a position it has, or too far back for what is kept.
        """
        session.check(0)
        point = session.resume_point(position)
        if point is None:
            expected = f"a position in [0, {session.position}] whose state is kept"
            raise UsageError(fault("going back", expected=expected, found=position, advice="begin a new session"))
        again = tuple(session.tokens[point:position])
        session.cut(point)
        if again:
            self.run([Span(session, again)], want="none")

    def run(self, spans: Sequence[Span], want: Want | Sequence[Want] = "last") -> list[Tensor]:
        """One ragged call: advances every session by its span and returns logits per span, float32.

        What a session cannot take is refused before any work is done. A call of more than `CALL_ROWS` tokens runs in
        pieces; if one fails or is interrupted, the sessions stand where the pieces before it left them.

        want  `last`: [1, vocabulary] of each span's last token; `all`: [n, vocabulary]; `none`: [0, vocabulary]; or
              one of them for each span
        """
        if not torch.is_inference_mode_enabled():
            # Entering it is slow between the tokens of a large model: who makes many calls does it once.
            with torch.inference_mode():
                return self.run(spans, want)
        wants = [want] * len(spans) if isinstance(want, str) else list(want)
        if len(wants) != len(spans):
            raise UsageError(fault("want", expected=f"one for each of {len(spans)} spans", found=len(wants)))
        for span in spans:
            self._check(span)
        if len({id(span.session) for span in spans}) != len(spans):
            raise UsageError("a session stands twice in one call")
        rows: list[list[Tensor]] = [[] for _ in spans]
        for piece in _pieces(spans):
            self._piece(piece, wants, rows)
        return [self._joined(found) for found in rows]

    def _joined(self, found: list[Tensor]) -> Tensor:
        if len(found) == 1:
            return found[0]
        return torch.cat(found) if found else torch.empty(0, self.blueprint.vocabulary)

    def _check(self, span: Span) -> None:
        if not span.tokens:
            raise UsageError("a call needs at least one token per sequence")
        for token in (min(span.tokens), max(span.tokens)):
            if not 0 <= token < self.blueprint.vocabulary:
                raise UsageError(f"token id {token} is outside the vocabulary of {self.blueprint.vocabulary}")
        span.session.check(len(span.tokens))

    def _piece(self, piece: Iterable[tuple[int, Span, bool]], wants: Sequence[Want], rows: list[list[Tensor]]) -> None:
        parts = list(piece)
        spans = tuple(span for _, span, _ in parts)
        try:
            for span in spans:
                span.session.prepare(len(span.tokens))
            h, scratch = self._forward(spans)
            wanted = _wanted(parts, wants)
            if wanted:
                logits = self._logits(_chosen(h, [row for _, own in wanted for row in own]))
                if logits.dtype != torch.float32:
                    logits = logits.float()
                at = 0
                for index, own in wanted:
                    # Between the tokens of a large model each call into torch is a cold one: one part needs none.
                    rows[index].append(logits if len(wanted) == 1 else logits[at : at + len(own)])
                    at += len(own)
            if scratch is not None:
                scratch.give_back()
        except BaseException:
            for span in spans:
                span.session.trim()
            raise
        for span in spans:
            span.session.advance(span.tokens)

    @torch.inference_mode()
    def trace(self, span: Span) -> list[Tensor]:
        """Each layer's output of one call of at most `CALL_ROWS` tokens; advances the session.

        [n, hidden], with alternating updates [streams, n, hidden].
        """
        self._check(span)
        if len(span.tokens) > CALL_ROWS:
            raise UsageError(fault("a traced call", expected=f"at most {CALL_ROWS} tokens", found=len(span.tokens)))
        session, outputs = span.session, list[Tensor]()
        try:
            session.prepare(len(span.tokens))
            self._forward((span,), outputs)
        except BaseException:
            session.trim()
            raise
        session.advance(span.tokens)
        return outputs

    def _forward(self, spans: tuple[Span, ...], trace: list[Tensor] | None = None) -> tuple[Tensor, Scratch | None]:
        """The last layer's output of all tokens end to end, and the scratch it may lie in."""
        tokens = [token for span in spans for token in span.tokens]
        call = Call(spans, torch.tensor(tokens, dtype=torch.int64, device=self.device), trace)
        plan, scratch = self.plan() if trace is None else None, None
        if plan is not None:
            scratch = plan(call)
        else:
            for step in self.steps:
                step(call)
        return call.registers["h" if self.blueprint.altup is None else "streams"], scratch

    def plan(self) -> Plan | None:
        """The steps with those that can in native programs, None: all run in Python."""
        # Whoever puts other steps in gets another plan.
        if self._plan is None or self._plan[0] is not self.steps:
            made = plan_for(self.steps, self.pool, self.numbers.compute, self.blueprint.hidden)
            self._plan = (self.steps, made)
        return self._plan[1]


def _wanted(parts: Sequence[tuple[int, Span, bool]], wants: Sequence[Want]) -> list[tuple[int, range]]:
    """Rows of a call whose logits are asked for: (index of the span, its rows)."""
    found, start = list[tuple[int, range]](), 0
    for index, span, ends in parts:
        stop, want = start + len(span.tokens), wants[index]
        if want == "all":
            found.append((index, range(start, stop)))
        elif want == "last" and ends:
            found.append((index, range(stop - 1, stop)))
        start = stop
    return found


def _chosen(h: Tensor, rows: list[int]) -> Tensor:
    """Rows of h [..., n, hidden]: h itself, or a view where they lie end to end."""
    if len(rows) == h.shape[-2]:
        return h
    if rows[-1] - rows[0] + 1 == len(rows):
        return h[..., rows[0] : rows[-1] + 1, :]
    return h[..., rows, :]


def _pieces(spans: Sequence[Span]) -> Iterable[list[tuple[int, Span, bool]]]:
    """Cut a call into pieces of at most `CALL_ROWS` rows: (index of the span, part of it, is it the last part)."""
    piece: list[tuple[int, Span, bool]] = []
    room = CALL_ROWS
    for index, span in enumerate(spans):
        at, stop = 0, len(span.tokens)
        # A session that may go back needs a value that far before its end.
        pause = stop - SLACK if span.session.returns and span.session.values else 0
        while at < stop:
            end = min(at + room, pause) if at < pause else at + room
            taken = span.tokens[at:end]
            at += len(taken)
            room -= len(taken)
            piece.append((index, Span(span.session, taken), at == stop))
            if room == 0 or at == pause:
                yield piece
                piece, room = [], CALL_ROWS
    if piece:
        yield piece

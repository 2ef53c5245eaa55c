"""Checks of the exactness contract: how tokens are cut into calls, who is in a call, what a failed call leaves."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from random import Random
from typing import Final

import torch

from plait.blueprint.pattern import layer_kind
from plait.blueprint.state import SLAB
from plait.errors import UserError
from plait.runtime.model import CALL_ROWS
from plait.runtime.session import Span
from plait.runtime.steps.call import Call, Step
from plait.runtime.verify.check import Broken, NotTried, Tried, require_equal
from plait.runtime.verify.subject import Subject, cut, edges

__all__ = ["company", "failure", "finite", "splits"]

_RANDOM_SPLITS: Final = 4
_FAILING: Final = 40  # tokens of a failing call: some lie in another slab than the last


# -- how tokens are cut into calls ---------------------------------------------------------------------------------


def splits(subject: Subject) -> Tried:
    """Any split of the tokens into calls gives the bits of one call."""
    count = 0
    for length in subject.lengths:
        tokens, whole = subject.tokens(length), subject.whole(length)
        for name, split in _splits(subject, length):
            where = f"{length} tokens in {name}"
            try:
                require_equal(subject.run(tokens, split), whole, where)
            except Broken as error:
                raise Broken(f"{error}{_first_layer(subject, tokens, split)}") from None
            count += 1
    if not count:
        raise NotTried("one token cannot be split; ask for longer --lengths")
    return Tried(f"{count} splits of {_lengths(subject)} tokens", count)


def _splits(subject: Subject, length: int) -> Iterator[tuple[str, list[int]]]:
    sizes = {1, 3, 16, *(edge + d for edge in (SLAB, *edges(subject.model.blueprint)) for d in (-1, 0, 1))}
    if not subject.small:
        # Token by token a large model takes its time: once is enough.
        sizes = {7, 16, *(size for size in sizes if size > 16), *({1} if length == subject.longest else ())}
    for size in sorted(size for size in sizes if 0 < size < length):
        yield f"calls of {size}", cut(length, size)
    for number in range(_RANDOM_SPLITS if subject.small else 1):
        random = Random(f"{subject.seed} {length} {number}")
        ends = sorted(random.sample(range(1, length), min(length - 1, random.randint(1, 9))))
        split = [b - a for a, b in zip([0, *ends], [*ends, length], strict=True)]
        if len(split) > 1:
            yield f"calls of {', '.join(map(str, split))}", split


def _first_layer(subject: Subject, tokens: tuple[int, ...], split: list[int]) -> str:
    """Which layer's output is the first to differ; nothing where that cannot be told."""
    if len(tokens) > CALL_ROWS:
        return ""
    traces = []
    for lengths in ([len(tokens)], split):
        session, parts, at = subject.model.session(), [], 0
        try:
            for size in lengths:
                parts.append(subject.model.trace(Span(session, tokens[at : at + size])))
                at += size
        finally:
            session.close()
        traces.append([torch.cat(layer, -2) for layer in zip(*parts, strict=True)])
    for index, (whole, found) in enumerate(zip(*traces, strict=True)):
        differs = (whole != found).flatten(0, -3).any(0) if whole.ndim > 2 else whole != found
        rows = torch.nonzero(differs.any(-1))
        if len(rows):
            kind = layer_kind(subject.model.blueprint.layers[index])
            return f"; the first layer that differs is {index} ({kind}), at row {int(rows[0])}"
    return "; all layers agree, the head does not"


def _lengths(subject: Subject) -> str:
    return ", ".join(map(str, subject.lengths))


# -- who is in a call ----------------------------------------------------------------------------------------------


def company(subject: Subject) -> Tried:
    """A sequence in company gives the bits it gives alone, whoever comes and goes."""
    model, longest = subject.model, subject.longest
    lengths = [length for length in dict.fromkeys((1, longest // 2, longest, 3)) if 0 < length <= longest]
    limit = model.blueprint.max_context
    prompts = [subject.tokens(n, 10 + i) for i, n in enumerate(lengths)]
    follow = [subject.tokens(min(n, limit - lengths[i]), 20 + i) for i, n in enumerate((5, 1, 66, 2)[: len(lengths)])]
    alone = [subject.run(a + b, (len(a), *([len(b)] if b else []))) for a, b in zip(prompts, follow, strict=True)]
    sessions = [model.session() for _ in prompts]
    count = 0
    try:
        everybody = list(range(len(sessions)))
        # One sits out the second call, and the order is turned round; then it comes alone.
        for calls, order in ((prompts, everybody), (follow, everybody[-2::-1]), (follow, everybody[-1:])):
            there = [i for i in order if calls[i]]
            found = model.run([Span(sessions[i], calls[i]) for i in there], want="all") if there else []
            for i, logits in zip(there, found, strict=True):
                start = 0 if calls is prompts else lengths[i]
                where = f"{len(calls[i])} tokens from {start} on, in company of {len(there) - 1}"
                require_equal(logits, alone[i][start : start + len(calls[i])], where)
                count += 1
    finally:
        for session in sessions:
            session.close()
    sizes = ", ".join(str(n) for n in lengths)
    return Tried(f"{len(sessions)} sequences of {sizes} tokens in ragged calls, {count} comparisons", count)


# -- what comes out ------------------------------------------------------------------------------------------------


def finite(subject: Subject) -> Tried:
    """Every row sees a key: all logits are finite."""
    count = 0
    for length in subject.lengths:
        logits = subject.whole(length)
        rows = torch.nonzero(~torch.isfinite(logits).all(-1))
        if len(rows):
            raise Broken(f"{length} tokens: {len(rows)} rows with logits that are not finite, the first {int(rows[0])}")
        count += length
    return Tried(f"{count} rows of logits", count)


# -- what a failed call leaves -------------------------------------------------------------------------------------


class _Stop(Exception):
    """What the broken step of a failing call raises."""


class _Fail(Step):
    def __call__(self, call: Call) -> None:
        raise _Stop


def failure(subject: Subject) -> Tried:
    """A call that fails, at whatever step, or is refused, changes nothing."""
    model = subject.model
    first = max(1, subject.longest - min(subject.longest // 2, _FAILING))
    tokens = subject.tokens(subject.longest)
    rest = tokens[first:]
    if not rest:
        raise NotTried("one token leaves nothing to go on with; ask for longer --lengths")
    expected = subject.whole(subject.longest)[first:]
    session = model.session()
    try:
        model.run([Span(session, tokens[:first])], want="none")
        held = session.held()
        total = len(model.steps)
        places = range(total + 1) if subject.small else sorted({0, 1, total // 2, total - 1, total})
        for place in places:
            broken = copy(model)
            broken.steps = (*model.steps[:place], _Fail(), *model.steps[place:])
            try:
                broken.run([Span(session, rest)], want="none")
            except _Stop:
                _unchanged(session.position, first, session.held(), held, f"after a failure at step {place}")
            else:
                raise Broken(f"a call whose step {place} fails ends as if nothing had happened")
        for bad in (-1, model.blueprint.vocabulary):
            try:
                model.run([Span(session, (*rest, bad))], want="none")
            except UserError:
                _unchanged(session.position, first, session.held(), held, f"after token id {bad} was refused")
            else:
                raise Broken(f"token id {bad} is not refused")
        require_equal(model.run([Span(session, rest)], want="all")[0], expected, f"{len(rest)} tokens after failures")
    finally:
        session.close()
    tried = f"calls of {len(rest)} tokens that failed at {len(places)} of {total + 1} places, 2 refused"
    return Tried(tried, len(places) + 2)


def _unchanged(position: int, first: int, found: dict[str, int], held: dict[str, int], when: str) -> None:
    if position != first:
        raise Broken(f"{when} the session stands at {position}, expected {first}")
    if found != held:
        raise Broken(f"{when} the session holds {found}, expected {held}")

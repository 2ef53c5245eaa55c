"""Checks of what is remembered: where windows end, how many bytes are held, going back and forking."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Final

import torch
from torch import Tensor

from plait.account.memory import memory
from plait.blueprint.spec import Attention
from plait.blueprint.state import SLAB, SLACK
from plait.runtime.model import Model
from plait.runtime.session import BASE_STEP, Session, Span
from plait.runtime.steps.call import EndLayer
from plait.runtime.verify.check import Broken, NotTried, Tried, require_equal
from plait.runtime.verify.subject import Subject, cut, edges

__all__ = ["back", "held", "window"]

_AFTER: Final = 3
_PLACES: Final = 3
_KV_FORMATS: Final = (
    (torch.float32, "f32"),
    (torch.float64, "f64"),
    (torch.bfloat16, "bf16"),
    (torch.float16, "f16"),
    (torch.int8, "q8"),
)


# -- windows -------------------------------------------------------------------------------------------------------


def window(subject: Subject) -> Tried:
    """In one layer of windows of W tokens, token p - W changes nothing at p; p - W + 1 does."""
    found = _windows(subject.model)
    if not found:
        raise NotTried("no layer has a window")
    near = {w: index for w, index in found.items() if w + 1 <= subject.longest}
    if not near:
        least = min(found)
        what = f"the shortest window, of {least} tokens, ends beyond {subject.longest} tokens"
        raise NotTried(f"{what}; ask for --lengths {least + 1}")
    count = 0
    for size, index in near.items():
        one = _one_layer(subject.model, index)
        for how in ("one call", "token by token", "chunks"):
            reached = 0
            last = subject.longest - 1
            places = sorted({last, *(p for p in (size, (size + last) // 2) if p < last)})
            for p in places if subject.small else places[-1:]:
                split = {"one call": [p + 1], "token by token": [1] * (p + 1), "chunks": cut(p + 1, max(1, size - 1))}
                where = f"layer {index}, window of {size}, {how}, token {p}"
                base = _last(subject, one, split[how], p)
                for outside in sorted({p - size, 0, (p - size) // 2}):
                    if not torch.equal(_last(subject, one, split[how], p, outside), base):
                        raise Broken(f"{where}: token {outside}, which is {p - outside} before, changes its logits")
                    count += 1
                # The edge is visible unless its weight vanishes in every place that was tried.
                reached += not torch.equal(_last(subject, one, split[how], p, p - size + 1), base)
                count += 1
            if not reached:
                raise Broken(f"layer {index}, window of {size}, {how}: the window's first token changes no logits")
    sizes = ", ".join(str(w) for w in near)
    far = sorted(set(found) - set(near))
    beyond = f"; not reached: windows of {', '.join(map(str, far))}" if far else ""
    return Tried(f"windows of {sizes} tokens, in one call, in chunks, token by token{beyond}", count)


def _windows(model: Model) -> dict[int, int]:
    """Size of each window -> the first layer that has it and keeps keys and values of its own."""
    found: dict[int, int] = {}
    for index, layer in enumerate(model.blueprint.layers):
        mixer = layer.mixer
        if isinstance(mixer, Attention) and mixer.window is not None and mixer.kv_source is None:
            found.setdefault(mixer.window, index)
    return found


def _one_layer(model: Model, index: int) -> Model:
    """The model without its other layers: what comes before the first and after the last stays."""
    ends = [place for place, step in enumerate(model.steps) if isinstance(step, EndLayer)]
    starts = [model.first_layer, *(end + 1 for end in ends)]
    one = copy(model)
    one.steps = (
        *model.steps[: model.first_layer],
        *model.steps[starts[index] : ends[index] + 1],
        *model.steps[ends[-1] + 1 :],
    )
    return one


def _last(subject: Subject, model: Model, split: list[int], p: int, changed: int | None = None) -> Tensor:
    """Logits of token p, with another token in place `changed`."""
    tokens = list(subject.tokens(p + 1))
    if changed is not None:
        tokens[changed] = (tokens[changed] + 1) % model.blueprint.vocabulary
    session, at, logits = model.session(), 0, torch.empty(0)
    try:
        for size in split:
            logits = model.run([Span(session, tuple(tokens[at : at + size]))])[0]
            at += size
    finally:
        session.close()
    return logits


# -- bytes ---------------------------------------------------------------------------------------------------------


def held(subject: Subject) -> Tried:
    """The state a session keeps has the bytes the account predicts, category by category."""
    model = subject.model
    kv = next((name for dtype, name in _KV_FORMATS if dtype == model.pool.dtype), None)
    if kv is None:
        raise NotTried(f"the account has no format for keys and values of {model.pool.dtype}")
    lengths = sorted({*subject.lengths, *_near(subject)} if subject.small else subject.lengths)
    before = model.pool.held()
    seen: set[str] = set()
    for length in lengths:
        session = model.session()
        try:
            model.run([Span(session, subject.tokens(length))], want="none")
            account = memory(model.blueprint, length, kv_format=kv)
            predicted = {name: line.reserved_bytes for name, line in account.categories.items() if line.reserved_bytes}
            found = {name: count for name, count in session.held().items() if count}
            grown = {name: count - before.get(name, 0) for name, count in model.pool.held().items()}
        finally:
            session.close()
        if found != predicted:
            raise Broken(f"{length} tokens: the session holds {found}, the account says {predicted}")
        if {name: count for name, count in grown.items() if count} != predicted:
            raise Broken(f"{length} tokens: the pool gave out {grown}, the account says {predicted}")
        if model.pool.held() != before:
            raise Broken(f"{length} tokens: after closing the pool holds {model.pool.held()}, expected {before}")
        seen.update(predicted)
    return Tried(f"{len(lengths)} lengths to {lengths[-1]} tokens: {', '.join(sorted(seen))}", len(lengths))


def _near(subject: Subject) -> Iterator[int]:
    for edge in (SLAB, *edges(subject.model.blueprint)):
        for length in (edge - 1, edge, edge + 1, edge + SLACK - 1, edge + SLACK, edge + SLACK + 1):
            if 0 < length <= subject.longest:
                yield length


# -- going back and forking ----------------------------------------------------------------------------------------


def back(subject: Subject) -> Tried:
    """Going back and forking: what follows has the bits of a session that never went elsewhere."""
    length = subject.longest
    if length + _AFTER > subject.model.blueprint.max_context:
        length -= _AFTER
    if length < 1:
        raise NotTried("the context holds too few tokens")
    tokens, follow = subject.tokens(length), subject.tokens(_AFTER, 30)
    backs = sorted({0, 1, 2, 5, 21, 31, 32, 33, SLACK, length} if subject.small else {1, 5, 32})
    went = refused = 0
    for steps in (n for n in backs if n <= length):
        position = length - steps
        session = subject.model.session(returns=True)
        try:
            for size in cut(length, max(1, BASE_STEP // 2)):
                piece = tokens[session.position : session.position + size]
                subject.model.run([Span(session, piece)], want="none")
            if not subject.model.can_rollback(session, position):
                # Windows and values promise the last tokens only; see `Session`.
                if steps <= SLACK - BASE_STEP:
                    raise Broken(f"{length} tokens: going back {steps} is refused")
                refused += 1
                continue
            subject.model.rollback(session, position)
            if session.position != position:
                raise Broken(f"{length} tokens: going back {steps} ends at {session.position}, expected {position}")
            _continues(subject, session, tokens[:position], follow, f"back from {length} to {position} tokens")
            went += 1
        finally:
            session.close()
    forks = _forks(subject, tokens, follow)
    far = f", {refused} too far back" if refused else ""
    return Tried(f"back to {went} positions{far}; {forks} forks", went + forks)


def _continues(
    subject: Subject, session: Session, before: tuple[int, ...], follow: tuple[int, ...], where: str
) -> None:
    found = subject.model.run([Span(session, follow)], want="all")[0]
    cold = subject.run(before + follow, (len(before) + len(follow),))
    require_equal(found, cold[len(before) :], where)


def _forks(subject: Subject, tokens: tuple[int, ...], follow: tuple[int, ...]) -> int:
    """Both branches of a fork go on as if alone, whichever is first."""
    model, length = subject.model, len(tokens)
    other = subject.tokens(len(follow), 31)
    session = model.session()
    try:
        model.run([Span(session, tokens)], want="none")
        for number, (one, two) in enumerate(((follow, other), (other, follow))):
            if session.position + len(follow) > model.blueprint.max_context:
                return number
            done = tuple(session.tokens)
            fork = session.fork()
            try:
                _continues(subject, fork, done, one, f"fork at {length} tokens")
                _continues(subject, session, done, two, f"{length} tokens, after a fork went on")
                rest = tuple(fork.tokens)
                if len(rest) + len(follow) <= model.blueprint.max_context:
                    _continues(subject, fork, rest, two, f"fork at {length} tokens, after the other went on")
            finally:
                fork.close()
        return 2
    finally:
        session.close()

"""What measurements need: the speed of memory, and a state of any length without the work of computing it."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.state import SLAB
from plait.errors import ContextExceeded, UsageError, fault
from plait.runtime.kernels import built
from plait.runtime.model import CALL_ROWS, Model
from plait.runtime.session import Session, Span

__all__ = ["READ_BYTES", "Memory", "filled"]

READ_BYTES: Final = 2**30
"""Bytes read to measure a machine's memory: more than a processor's caches hold."""

_PASSES: Final = 3


class Memory:
    """An area of memory that is read to see how fast that goes, with the threads in use.

    Reading is measured more than once, since machines that are shared change by the minute.
    """

    def __init__(self, nbytes: int = READ_BYTES) -> None:
        """UsageError: less than a line of memory."""
        if nbytes < 64:
            raise UsageError(fault("memory to read", expected="at least 64 bytes", found=nbytes))
        # Written, so that every page is there.
        self._words = torch.ones(nbytes // 8, dtype=torch.int64)

    def bandwidth(self, passes: int = _PASSES) -> float:
        """Bytes read per second: the fastest of some passes."""
        best = min(_seconds(self._words) for _ in range(passes))
        return self._words.numel() * 8 / best


def _seconds(words: Tensor) -> float:
    start = perf_counter()
    if built():
        from plait.runtime._native import fold

        fold(words.data_ptr(), words.numel())
    else:
        words.sum()
    return perf_counter() - start


@torch.inference_mode()
def filled(model: Model, length: int, *, token: int = 0) -> Session:
    """A session at position `length` whose state was not computed: the state of the first slab, again and again.

    Decoding goes on from it at the speed it would have; what comes out means nothing. ContextExceeded: too long.
    """
    if length > model.blueprint.max_context:
        raise ContextExceeded(needed=length, limit=model.blueprint.max_context)
    session = model.session()
    first = min(length, SLAB)
    if first:
        model.run([Span(session, (token,) * first)], want="none")
    patterns = [run.slabs[0].data.clone() for run in session.runs if run.slabs]
    while session.position < length:
        count = min(CALL_ROWS, length - session.position)
        had = [run.first + len(run.slabs) for run in session.runs]
        session.prepare(count)
        for run, before, pattern in zip(session.runs, had, patterns, strict=True):
            for slab in run.slabs[before - run.first :]:
                slab.data.copy_(pattern)
        for value in session.values:
            if value.next is not None and value.now is not None:
                value.next.data.copy_(value.now.data)
        session.advance((token,) * count)
    if length % SLAB:
        for run in session.runs:
            run.slabs[-1].clear_from(length % SLAB)
    return session

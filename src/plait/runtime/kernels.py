"""The native kernels of the CPU, where the package was built with them.

They are chosen once a process: the best level this machine has. The environment variable `PLAIT_KERNELS` names another
one (`off`: torch computes; see `levels`), for tests and measurements. Tensors go over as addresses; what a kernel needs
of type and layout is checked by the op that calls it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from plait.errors import UsageError, fault

if TYPE_CHECKING:
    from plait.runtime._native import Native

__all__ = ["BLOCK_FORMATS", "VARIABLE", "built", "chosen", "levels", "native", "takes", "trim", "watching"]

VARIABLE: Final = "PLAIT_KERNELS"

BLOCK_FORMATS: Final = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
"""Formats of blocks the kernels read, in the order of their numbers for them (native/blocks.hpp)."""

# What stands in for the kernels while somebody watches which of them are called.
_WATCHED: Final[ContextVar[Any]] = ContextVar("watched", default=None)


@cache
def built() -> bool:
    """The package has its native part."""
    try:
        import plait.runtime._native  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def levels() -> tuple[str, ...]:
    """Levels this machine can run, the plainest first; none where the package was built without kernels."""
    if not built():
        return ()
    from plait.runtime._native import levels as found

    return tuple(found())


def native() -> Native | None:
    """The kernels in use, None: torch computes. UsageError: the environment names a level that is not here."""
    return _WATCHED.get() or chosen()


@cache
def chosen() -> Native | None:
    """`native`, chosen once a process."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "off" or (not wanted and not levels()):
        return None
    if wanted and wanted not in levels():
        expected = "one of " + ", ".join(("off", *levels()))
        raise UsageError(fault(f"the environment variable {VARIABLE}", expected=expected, found=repr(wanted)))
    from plait.runtime._native import Native

    return Native(wanted or levels()[-1])


def trim() -> None:
    """Give memory that was freed back to the system, where the C library would keep it and the native part is built."""
    if built():
        from plait.runtime._native import trim as trim_heap

        trim_heap()


class _Watched:
    """Kernels that note the name of each that is asked for."""

    def __init__(self, kernels: Native, called: list[str]) -> None:
        self._kernels = kernels
        self._called = called

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kernels, name)
        if callable(found):
            self._called.append(name)
        return found


@contextmanager
def watching() -> Iterator[list[str]]:
    """The names of the kernels that this thread asks for meanwhile, in order; programs ask for theirs unseen."""
    called: list[str] = []
    kernels = chosen()
    token = _WATCHED.set(None if kernels is None else _Watched(kernels, called))
    try:
        yield called
    finally:
        _WATCHED.reset(token)


def takes(x: Tensor) -> bool:
    """A tensor the kernels read: float32 on the CPU, elements of a row side by side."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.stride(-1) == 1

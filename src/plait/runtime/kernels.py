"""The native kernels of the CPU, where the package was built with them.

They are chosen once a process: the best level this machine has. The environment variable `PLAIT_KERNELS` names another
one (`off`: torch computes; see `levels`), for tests and measurements. Tensors go over as addresses; what a kernel needs
of type and layout is checked by the op that calls it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from plait.errors import UsageError, fault

if TYPE_CHECKING:
    from plait.runtime._native import Native

__all__ = ["VARIABLE", "built", "levels", "native", "takes"]

VARIABLE: Final = "PLAIT_KERNELS"


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


@cache
def native() -> Native | None:
    """The kernels in use, None: torch computes. UsageError: the environment names a level that is not here."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "off" or (not wanted and not levels()):
        return None
    if wanted and wanted not in levels():
        expected = "one of " + ", ".join(("off", *levels()))
        raise UsageError(fault(f"the environment variable {VARIABLE}", expected=expected, found=repr(wanted)))
    from plait.runtime._native import Native

    return Native(wanted or levels()[-1])


def takes(x: Tensor) -> bool:
    """A tensor the kernels read: float32 on the CPU, elements of a row side by side."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.stride(-1) == 1

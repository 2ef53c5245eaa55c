"""How many threads compute: a physical core each, of those this process may use.

The libraries that make threads read `OMP_NUM_THREADS` once, when they are loaded, and it holds for every thread that
calls them. So it is set before torch is imported; this module imports neither torch nor numpy.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from plait.errors import UsageError, fault

__all__ = ["VARIABLE", "physical_cores", "use_physical_cores", "use_threads"]

VARIABLE: Final = "OMP_NUM_THREADS"
_SYSTEM: Final = Path("/sys")
_PROCESS: Final = Path("/proc/self/cgroup")


def physical_cores(system: Path = _SYSTEM, groups: Path = _PROCESS) -> int:
    """Physical cores this process may use, at least 1: by its affinity, and by the quota of its control groups.

    Hardware threads of one core count once. Where the system does not say which share a core, each counts.
    """
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_core(system, cpu) for cpu in allowed}
    quota = _quota(system / "fs/cgroup", groups)
    return max(1, len(cores) if quota is None else min(len(cores), int(quota)))


def _core(system: Path, cpu: int) -> str:
    """What all hardware threads of a core have in common."""
    try:
        return (system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip() or str(cpu)
    except OSError:
        return str(cpu)


def _quota(root: Path, groups: Path) -> float | None:
    """Cores' worth of time the control groups allow, the least of a group and those around it; None: no limit."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        below = root / "cpu" if controllers else root
        inside = Path(path.strip("/"))
        # In a container the group's own place is the root, whatever path it has outside.
        for place in (below / inside, *(below / part for part in inside.parents), below):
            found.append(_limit(place))
    limits = [limit for limit in found if limit is not None]
    return min(limits) if limits else None


def _limit(place: Path) -> float | None:
    """The limit of one group, in either version of control groups."""
    try:
        words = (place / "cpu.max").read_text().split()
    except OSError:
        try:
            words = [(place / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]
        except OSError:
            return None
    try:
        quota, period = map(float, words)
    except ValueError:  # `max`
        return None
    return quota / period if quota > 0 and period > 0 else None


def use_physical_cores() -> None:
    """Have a thread for each physical core, unless the environment or an earlier import of torch has decided."""
    if "torch" not in sys.modules:
        os.environ.setdefault(VARIABLE, str(physical_cores()))


def use_threads(count: int) -> None:
    """Have `count` threads: from the start where torch is not imported yet, else in the thread that calls this.

    UsageError: not a positive number.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(fault("threads", expected="a positive number", found=repr(count)))
    os.environ[VARIABLE] = str(count)
    # Otherwise torch's library makes it no more than there are cores.
    os.environ["MKL_DYNAMIC"] = "FALSE"
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(count)

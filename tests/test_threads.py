"""How many threads compute: by affinity, shared cores and quotas; and what goes before that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plait
from plait.errors import UsageError
from plait.runtime.threads import VARIABLE, physical_cores, use_threads


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A made-up machine of 4 cores with two hardware threads each: (its files, a function that grants CPUs)."""
    for cpu in range(8):
        place = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    (tmp_path / "groups").write_text("0::/\n")

    def granted(cpus):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cpus), raising=False)

    granted(range(8))
    return tmp_path, granted


def _cores(place):
    return physical_cores(place, place / "groups")


def test_hardware_threads_of_a_core_count_once(machine):
    place, granted = machine
    assert _cores(place) == 4
    granted([0, 4])
    assert _cores(place) == 1
    granted([0, 1, 5])
    assert _cores(place) == 2


def test_unknown_cores_count_each(machine):
    place, granted = machine
    granted([100, 101, 102])
    assert _cores(place) == 3


@pytest.mark.parametrize(
    ("text", "expected"), [("max 100000", 4), ("300000 100000", 3), ("250000 100000", 2), ("50000 100000", 1)]
)
def test_quota_of_a_control_group(machine, text, expected):
    place, _ = machine
    (place / "groups").write_text("1:cpuset:/\n0::/some/inner\n")
    around = place / "fs/cgroup/some"
    (around / "inner").mkdir(parents=True)
    (around / "inner/cpu.max").write_text("max 100000\n")
    (around / "cpu.max").write_text(text + "\n")
    assert _cores(place) == expected


def test_quota_of_the_first_version_of_control_groups(machine):
    place, _ = machine
    (place / "groups").write_text("4:cpu,cpuacct:/docker/abc\n3:memory:/\n")
    root = place / "fs/cgroup/cpu"
    root.mkdir(parents=True)
    (root / "cpu.cfs_quota_us").write_text("200000\n")
    (root / "cpu.cfs_period_us").write_text("100000\n")
    assert _cores(place) == 2
    (root / "cpu.cfs_quota_us").write_text("-1\n")
    assert _cores(place) == 4


def test_this_machine():
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)


_SHOW = (
    "import plait.runtime; from plait.runtime.threads import use_threads; {before}import torch; "
    "first = torch.get_num_threads(); {after}print(first, torch.get_num_threads())"
)


def _begin(before="", after="", **environment):
    kept = {k: v for k, v in os.environ.items() if k not in (VARIABLE, "MKL_NUM_THREADS", "MKL_DYNAMIC")}
    kept["PYTHONPATH"] = str(Path(plait.__file__).parents[1])
    program = [sys.executable, "-c", _SHOW.format(before=before, after=after)]
    return subprocess.Popen(program, env=kept | environment, stdout=subprocess.PIPE, text=True)


def test_the_environment_goes_before_the_default_and_a_request_before_both():
    plain = _begin()
    named = _begin(after="use_threads(5); ", OMP_NUM_THREADS="1")
    asked = _begin(before="use_threads(5); ", OMP_NUM_THREADS="1")
    found = [tuple(map(int, process.communicate()[0].split())) for process in (plain, named, asked)]
    cores = physical_cores()
    assert found == [(cores, cores), (1, 5), (5, 5)]


@pytest.mark.parametrize("count", [0, -1, True, 1.0])
def test_what_is_no_number_of_threads_is_refused(count):
    before, named = torch.get_num_threads(), os.environ.get(VARIABLE)
    with pytest.raises(UsageError, match="threads: expected a positive number"):
        use_threads(count)
    assert (torch.get_num_threads(), os.environ.get(VARIABLE)) == (before, named)

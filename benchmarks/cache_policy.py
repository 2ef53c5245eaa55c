"""What the prefix store reuses of agents' traces, by placement, order of eviction, model and budget.

    python benchmarks/cache_policy.py

Runs on the integers of tests/cache_oracle.py, needs no weights and takes some minutes; the figures are the same on
every machine. A figure is the share of the ideal over all traces of tests/cache_traces.py: the longest beginning a
prompt shares with any earlier text, all but its last token. `ample`: everything stays; `1/3`: each trace gets a third
of the bytes it fills with the placement in use, when everything stays. `snapshots`: bytes at the end, over all traces.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cache_oracle import shape
from cache_traces import TRACES, Outcome, run

from plait.cache import Kind, Placement, Shape

KIB: Final = 1 << 10
MIB: Final = 1 << 20

# Bytes of a token's rows by class, and of a snapshot.
MODELS: Final[tuple[tuple[str, Shape, tuple[int, ...], int], ...]] = (
    ("full rows", shape(rows=1), (12 * KIB,), 0),
    ("Spark-X2.5-4B", shape((512,), rows=1), (36 * KIB, 108 * KIB), 0),
    ("Gemma 3 4B", shape((1024,), rows=1), (20 * KIB, 116 * KIB), 0),
    ("Qwen3.5-0.8B", shape(rows=1, snapshots=1), (12 * KIB,), 19_503_513),
    ("Qwen3.5-35B-A3B", shape(rows=1, snapshots=1), (20 * KIB,), 65_850_573),
)


def kinds(*names: Kind) -> frozenset[Kind]:
    return frozenset(names)


USED: Final = Placement()
PLACEMENTS: Final[tuple[tuple[str, Placement, bool], ...]] = (
    ("reply fork", Placement(kinds("reply", "fork")), False),
    ("reply fork prompt", Placement(kinds("reply", "fork", "prompt")), False),
    ("reply fork prompt grid", Placement(kinds("reply", "fork", "prompt", "grid")), False),
    ("all but reply", Placement(USED.kinds - {"reply"}), False),
    ("all but prompt", Placement(USED.kinds - {"prompt"}), False),
    ("all", USED, False),
    ("all + grid", Placement(USED.kinds | {"grid"}), False),
    ("all, template's marks", USED, True),
    ("all, one queue", replace(USED, first=kinds(), last=kinds()), False),
    ("all, replies stay longer", replace(USED, first=kinds("ladder", "grid")), False),
    ("all, replies go alone", replace(USED, first=kinds("reply")), False),
    ("marks, one queue", replace(USED, first=kinds(), last=kinds()), True),
    ("marks, replies longer", replace(USED, first=kinds("ladder", "grid")), True),
)
PARTS: Final = (2, 3, 5, 8)


def share(outcomes: list[Outcome]) -> str:
    return f"{sum(o.reused for o in outcomes) / sum(o.ideal for o in outcomes):8.3f}"


def main() -> None:
    traces = [trace() for trace in TRACES.values()]
    parts = "".join(f"{f'1/{part}':>8}" for part in PARTS)
    for name, model, rows, snapshot in MODELS:
        every = partial(run, model=model, row_bytes=rows, snapshot_bytes=snapshot)
        full = [every(trace, placement=USED).stats.bytes for trace in traces]
        print(f"\n{name:28}{'ample':>8}{parts}{'snapshots MiB':>15}{'all MiB':>9}")
        for label, placement, marked in PLACEMENTS:
            one = partial(every, placement=placement, marked=marked)
            ample = [one(trace) for trace in traces]
            line = share(ample)
            for part in PARTS:
                line += share([one(trace, budget=room // part) for trace, room in zip(traces, full, strict=True)])
            snapshots = sum(o.stats.snapshot_bytes for o in ample) / MIB
            print(f"{label:28}{line}{snapshots:15,.0f}{sum(o.stats.bytes for o in ample) / MIB:9,.0f}", flush=True)


if __name__ == "__main__":
    main()

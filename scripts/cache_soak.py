"""Random requests through the prefix store, each answer held against a model that has no store.

    python scripts/cache_soak.py --count 100000 --seed 1     so many requests over all mixes of laws and budgets
    python scripts/cache_soak.py --seed 1 --case 417         one case again

A case is a function of seed and number: a mix of laws, a budget, a placement and 50 requests with random calls, marks
and replies, on the integers of tests/cache_oracle.py. Exit status 1 where an answer differs or an invariant breaks.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cache_oracle import MIXES, random_requests, shape

from plait.cache import KINDS, Placement, Shape, Stats

REQUESTS: Final = 50


def mix(random: Random) -> tuple[str, Shape]:
    """One of the named mixes, or a random one."""
    if random.random() < 0.5:
        name = random.choice(sorted(MIXES))
        return name, MIXES[name]
    windows = tuple(random.randint(1, 14) for _ in range(random.choice((0, 0, 1, 2, 3))))
    rows, snapshots = random.randint(0, 2), random.randint(0, 2)
    rows = rows if windows or snapshots else 1
    return f"rows {rows}, windows {windows}, snapshots {snapshots}", shape(windows, rows=rows, snapshots=snapshots)


def case(seed: int, number: int) -> tuple[str, Stats]:
    """Run one case. Raises what is wrong."""
    random = Random(f"{seed}:{number}")
    name, model = mix(random)
    budget = random.choice((None, 5000, 2000, 1000, 500, 200, 0))
    kinds = frozenset(kind for kind in KINDS if random.random() < 0.7)
    placement = Placement(kinds, grid=random.randint(1, 20), spacing=random.choice((None, 1, 3, 9)))
    length = random.choice((6, 20, 60))
    store = random_requests(model, REQUESTS, budget, random.randrange(2**32), placement=placement, length=length)
    return f"{name}; budget {budget}; {', '.join(sorted(kinds))}", store.stats()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="requests, rounded up to whole cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    if options.case is not None:
        print(*case(options.seed, options.case), sep="\n")
        return 0
    totals: Counter[str] = Counter()
    failed = []
    start = time.monotonic()
    for number in range(-(-options.count // REQUESTS)):
        try:
            _, stats = case(options.seed, number)
        except Exception:
            traceback.print_exc()
            failed.append(number)
            continue
        totals["requests"] += stats.lookups
        totals["prompt tokens"] += stats.prompt_tokens
        totals["reused"] += stats.reused
        totals["evictions"] += stats.evicted_windows + stats.evicted_pages + stats.evicted_anchors
        totals["window slabs that came back"] += stats.healed
    for what, count in totals.items():
        print(f"{what:28}{count:>12,}")
    print(f"{'cases that failed':28}{len(failed):>12,}   {failed[:10] or ''}   {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

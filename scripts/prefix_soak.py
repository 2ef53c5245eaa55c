"""Requests without end through one engine: warm is cold, the store stays sound, memory stays flat.

    python scripts/prefix_soak.py                      10,000 requests on a tiny model of each mix of laws
    python scripts/prefix_soak.py --count 500 --model gemma3 --seed 7

Each model has a store that holds a few prompts only. A request forks from an earlier one, repeats it, goes on, or has
nothing in common; some are broken off, some carry marks, some keep a conversation open. Exit status 1 where a warm
answer is not the cold one, an invariant breaks, something stays held at the end, or resident memory grew between the
first and the last quarter.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import tiny
import torch
from generating import SPARK

import plait
from plait.cache.anchors import Mark
from plait.engine.engine import Conversation, Engine
from plait.engine.events import Result

MODELS: Final = ("spark", "gemma3", "gemma3n", "gemma4_12b", "qwen3_5", "mimo_v2_flash", "deepseek_v32")
LONGEST: Final = 300
KNOWN: Final = 12
OPEN: Final = 2
MIB: Final = 2**20
# Growth of the median from the first quarter to the last that an allocator may show.
GROWTH: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class Soaked:
    """What one model's requests came to; `faults` is empty where all is well."""

    model: str
    requests: int
    reused: int
    prompt_tokens: int
    compared: int
    evicted: int
    growth: int
    seconds: float
    faults: tuple[str, ...]


def resident() -> int | None:
    """Bytes of this process that no file backs, None where the system does not tell."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("RssAnon")), None)


def engine_of(name: str, directory: Path) -> Engine:
    """A tiny random model with a store for about three prompts."""
    place = SPARK if name == "spark" else tiny.save(name, directory / name)
    probe = plait.load(place, cache=0)
    return plait.load(place, cache=2 * probe.model.pool.most(LONGEST, LONGEST))


class Soak:
    """Random requests to one engine, a function of the seed."""

    def __init__(self, engine: Engine, seed: int, every: int) -> None:
        self.engine = engine
        self.random = Random(seed)
        self.every = every
        self.known: list[list[int]] = [[]]
        self.open: list[Conversation] = []
        self.compared = 0
        self.faults: list[str] = []

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(self.engine.blueprint.vocabulary) for _ in range(count)]

    def prompt(self) -> list[int]:
        base = self.random.choice(self.known)
        cut = self.random.choice((len(base), self.random.randint(0, len(base)), 0))
        made = base[:cut] + self.tokens(self.random.choice((0, 1, 3, 20, 63, 64, 100)))
        return made[:LONGEST] or self.tokens(1)

    def request(self, number: int) -> None:
        """One request, and what is to be checked after it."""
        prompt = self.prompt()
        marks = [Mark(self.random.randint(1, len(prompt)), "turn") for _ in range(self.random.randint(0, 2))]
        compare = number % self.every == 0
        if self.random.random() < 0.1:
            self.converse(prompt)
        elif self.random.random() < 0.1:
            events = self.engine.generate(prompt, max_tokens=8, ignore_eos=True, marks=marks)
            for _ in range(self.random.randint(1, 3)):
                next(events, None)
            events.close()
        else:
            *_, result = self.engine.generate(
                prompt, max_tokens=self.random.randint(1, 4), ignore_eos=True, marks=marks
            )
            assert isinstance(result, Result)
            if compare:
                self.hold(number, [*prompt, *result.tokens], result.tokens)
            self.remember([*prompt, *result.tokens])
        if compare:
            self.engine.prefixes.store.check()

    def remember(self, tokens: list[int]) -> None:
        self.known.append(tokens)
        del self.known[1:-KNOWN]

    def converse(self, prompt: list[int]) -> None:
        """A sequence that stays open for a while, forks and goes back."""
        talk = self.engine.session(prompt)
        self.open.append(talk)
        if self.random.random() < 0.5:
            fork = talk.fork()
            fork.append(self.tokens(self.random.randint(1, 20)))
            self.open.append(fork)
        elif len(prompt) > 2 and talk.can_rollback(len(prompt) - 1):
            talk.rollback(len(prompt) - 1)
        while len(self.open) > OPEN:
            self.open.pop(0).close()

    def hold(self, number: int, tokens: list[int], generated: Sequence[int]) -> None:
        """The warm answer against a cold one."""
        self.compared += 1
        cold = self.engine.logits(tokens)
        wanted = cold[-len(generated) - 1 : -1].argmax(-1).tolist()
        talk = self.engine.session(tokens)
        if wanted != list(generated) or not torch.equal(talk.logits, cold[-1]):
            self.faults.append(f"request {number}: the warm answer to {len(tokens)} tokens is not the cold one")
        talk.close()

    def end(self) -> None:
        """Everything is given back."""
        while self.open:
            self.open.pop().close()
        self.engine.prefixes.store.check()
        self.engine.clear_cache()
        held = {name: count for name, count in self.engine.model.pool.held().items() if count}
        if held:
            self.faults.append(f"bytes stay held: {held}")


def soak(name: str, engine: Engine, count: int, seed: int, every: int) -> Soaked:
    """`count` requests to one model, every `every`th compared and checked."""
    start = time.monotonic()
    run = Soak(engine, seed, every)
    sizes: list[int] = []
    for number in range(count):
        run.request(number)
        size = resident()
        if size is not None:
            sizes.append(size)
    stats = engine.prefixes.stats()
    run.end()
    quarter = len(sizes) // 4
    growth = int(median(sizes[-quarter:]) - median(sizes[:quarter])) if quarter else 0
    if growth > GROWTH:
        run.faults.append(f"resident memory grew by {growth / MIB:.1f} MiB")
    if not run.compared:
        run.faults.append("nothing was compared")
    evicted = stats.evicted_pages + stats.evicted_anchors + stats.evicted_windows
    seconds = time.monotonic() - start
    return Soaked(
        name, count, stats.reused, stats.prompt_tokens, run.compared, evicted, growth, seconds, tuple(run.faults)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="requests to each model (%(default)s)")
    parser.add_argument("--every", type=int, default=20, help="compare and check every Nth (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all, one after the other")
    options = parser.parse_args(arguments)
    if options.count < 1 or options.every < 1:
        parser.error("--count and --every must be at least 1")
    failed = False
    for name in options.model or MODELS:
        with tempfile.TemporaryDirectory() as directory:
            found = soak(name, engine_of(name, Path(directory)), options.count, options.seed, options.every)
        parts = (
            f"{name:16}{found.requests:>8,} requests",
            f"{found.reused / found.prompt_tokens:.0%} of the prompts reused",
            f"{found.compared:,} compared",
            f"{found.evicted:,} evicted",
            f"{found.growth / MIB:+.1f} MiB",
            f"{found.seconds:.0f} s",
        )
        print(", ".join(parts), flush=True)
        for fault in found.faults:
            print(f"  {fault}", file=sys.stderr)
        failed = failed or bool(found.faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the prefix store saves where prompts share their beginning, and what it costs where none does, in one run.

    .venv/bin/python benchmarks/prefix.py [--model PATH] [--shared 2048,8192] [--dtype float32|bfloat16] [--json]

For each number of shared tokens: seconds to the first token of a prompt that nothing is known of, and of a second one
that begins alike and ends in `--tail` other tokens. Both come from one process and one engine; cold and warm take
turns. For traffic that has nothing in common: seconds spent in the store as a share of the prefill.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import plait
from plait.blueprint.catalog import DEMO
from plait.engine.engine import Engine
from plait.engine.events import Result

WARM_UP = 64
# What requests ask of the store, each once or more.
CALLS = ("match", "restore", "plan", "commit", "settle")


@dataclass(frozen=True, slots=True)
class Shared:
    """Medians over all passes; `ratio` = cold / warm."""

    shared: int
    reused: int
    cold_seconds: float
    warm_seconds: float
    ratio: float
    store_bytes: int


@dataclass(frozen=True, slots=True)
class Unique:
    """Of prompts with nothing in common: seconds of all prefills, those of them in the store, and evictions."""

    prompts: int
    tokens: int
    prefill_seconds: float
    store_seconds: float
    share: float
    evicted: int


def tokens_of(generator: random.Random, vocabulary: int, count: int) -> list[int]:
    """Arbitrary tokens, without the control tokens at the beginning of a vocabulary."""
    return [generator.randrange(min(1000, vocabulary // 2), vocabulary) for _ in range(count)]


def first_token(engine: Engine, tokens: list[int]) -> Result:
    *_, result = engine.generate(tokens, max_tokens=1, ignore_eos=True)
    assert isinstance(result, Result)
    return result


def measure_shared(engine: Engine, count: int, tail: int, passes: int) -> Shared:
    """A beginning of `count` tokens: `passes` times a prompt without it known, then two with it."""
    vocabulary = engine.blueprint.vocabulary
    generator = random.Random(count)
    beginning = tokens_of(generator, vocabulary, count)
    cold, warm, reused, held = [], [], 0, 0
    for _ in range(passes):
        engine.clear_cache()
        cold.append(first_token(engine, beginning + tokens_of(generator, vocabulary, tail)).timing.prompt_seconds)
        # Where layers are recurrent, the second sighting of a branch makes the anchor that the third one uses.
        first_token(engine, beginning + tokens_of(generator, vocabulary, tail))
        again = first_token(engine, beginning + tokens_of(generator, vocabulary, tail))
        warm.append(again.timing.prompt_seconds)
        reused = again.usage.reused
        stats = engine.prefixes.stats()
        held = stats.bytes + stats.lent_bytes
    return Shared(count, reused, median(cold), median(warm), median(cold) / median(warm), held)


def timed(engine: Engine, spent: list[float]) -> Callable[[], None]:
    """Adds the seconds of every call of the store to `spent`; returns what undoes it. Calls in calls count once."""
    store: Any = engine.prefixes.store
    depth = 0

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            start = perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                depth -= 1
                if not depth:
                    spent.append(perf_counter() - start)

        return measured

    for name in CALLS:
        setattr(store, name, wrap(getattr(store, name)))

    def undo() -> None:
        for name in CALLS:
            delattr(store, name)

    return undo


def measure_unique(engine: Engine, prompts: int, count: int) -> Unique:
    """Prompts of `count` tokens that have nothing in common, under a budget that three of them fill."""
    engine.clear_cache()
    budget = engine.prefixes.store.budget
    engine.prefixes.make_room(3 * engine.model.pool.most(count, count))
    generator = random.Random(1)
    before = engine.prefixes.stats()
    spent: list[float] = []
    undo = timed(engine, spent)
    try:
        seconds = sum(
            first_token(engine, tokens_of(generator, engine.blueprint.vocabulary, count)).timing.prompt_seconds
            for _ in range(prompts)
        )
    finally:
        undo()
    after = engine.prefixes.stats()
    engine.prefixes.make_room(budget)
    evicted = sum(
        getattr(after, name) - getattr(before, name) for name in ("evicted_pages", "evicted_anchors", "evicted_windows")
    )
    return Unique(prompts, count, seconds, sum(spent), sum(spent) / seconds, evicted)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the prefix store saves, and what it costs.")
    parser.add_argument("--model", default=DEMO, help="catalogue name, directory or .gguf file (%(default)s)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--shared", default="2048,8192", metavar="N,N,...", help="shared tokens (%(default)s)")
    parser.add_argument("--tail", type=int, default=64, help="tokens that differ (%(default)s)")
    parser.add_argument("--passes", type=int, default=3, help="passes of each (%(default)s)")
    parser.add_argument("--unique", type=int, default=8, help="prompts with nothing in common (%(default)s)")
    parser.add_argument("--unique-tokens", type=int, default=1024, help="tokens of each (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    try:
        lengths = [int(part) for part in options.shared.split(",")]
    except ValueError:
        parser.error(f"--shared: expected whole numbers, found {options.shared!r}")
    for name in ("tail", "passes", "unique", "unique_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if min(lengths) < 1:
        parser.error("--shared must be at least 1")
    engine = plait.load(options.model, dtype=options.dtype)
    longest = max(*lengths, options.unique_tokens - options.tail) + options.tail
    if longest >= engine.blueprint.max_context:
        parser.error(f"{longest} tokens are more than the model's {engine.blueprint.max_context}")
    engine.prefixes.make_room(4 * engine.model.pool.most(longest, longest))
    first_token(engine, tokens_of(random.Random(0), engine.blueprint.vocabulary, WARM_UP))
    shared = []
    for count in lengths:
        print(f"{count} shared tokens", file=sys.stderr)
        shared.append(measure_shared(engine, count, options.tail, options.passes))
    print("unique prompts", file=sys.stderr)
    unique = measure_unique(engine, options.unique, options.unique_tokens)
    if options.json:
        print(json.dumps({"model": options.model, "shared": [asdict(one) for one in shared], "unique": asdict(unique)}))
        return
    from plait.cli.common import print_table
    from plait.units import binary_bytes

    print_table(
        [
            (
                f"{one.shared:,}",
                f"{one.reused:,}",
                f"{one.cold_seconds:.3f}",
                f"{one.warm_seconds:.3f}",
                f"{one.ratio:.1f}",
                binary_bytes(one.store_bytes),
            )
            for one in shared
        ],
        title=f"{engine.blueprint.name} as {options.dtype}: seconds to the first token, {options.tail} tokens differ",
        header=("shared", "reused", "cold", "warm", "cold / warm", "store holds"),
        right=range(6),
    )
    print(
        f"{unique.prompts} prompts of {unique.tokens:,} tokens with nothing in common: "
        f"{unique.store_seconds * 1000:.1f} ms in the store, {unique.share:.2%} of {unique.prefill_seconds:.2f} s of "
        f"prefill, {unique.evicted} evictions"
    )


if __name__ == "__main__":
    main()

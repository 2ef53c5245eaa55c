"""The engine under work: sequences together, time to the first token under load, prompt lookup, choosing tokens.

    .venv/bin/python benchmarks/engine.py [--model PATH] [--dtype ...] [--only together|load|lookup|choosing] [--json]

together  tokens per second of 1, 2, 4, 8 sequences that decode side by side, and the ratio to one alone
load      while so many sequences decode, new prompts arrive one after the other: seconds to their first token beside
          those with nothing else to do, and the gaps between tokens of the sequences that decode
lookup    a file of source code is written out again: tokens per second with and without drafts from the prompt, in
          turns; both texts must be equal
choosing  milliseconds to choose a token from the model's own logits, by several settings, beside the reference, which
          takes the whole row in float64 (its candidates alone; ours with the draw and the log probability); medians
          over the positions of a text
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from json import decoder
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Final

import plait
from plait.blueprint.catalog import DEMO
from plait.engine.engine import Engine
from plait.engine.events import Prefill, Result, Token
from plait.engine.sampling import Sampler, Sampling, candidates

BETWEEN: Final = "\n\n# The same file once more, unchanged:\n\n"
BEGINNING: Final = 200  # characters of it that are given


def tokens_of(generator: random.Random, vocabulary: int, count: int) -> list[int]:
    """Arbitrary tokens, without the control tokens at the beginning of a vocabulary."""
    return [generator.randrange(min(1000, vocabulary // 2), vocabulary) for _ in range(count)]


class Watched(threading.Thread):
    """A request whose events are taken as they come; when each token came."""

    def __init__(self, engine: Engine, prompt: Sequence[int], steps: int) -> None:
        super().__init__()
        self.began = perf_counter()
        self.ticket = engine.submit(prompt, max_tokens=steps, ignore_eos=True)
        self.came: list[float] = []
        self.prefilled = threading.Event()
        self.result: Result | None = None
        self.start()

    def run(self) -> None:
        for event in self.ticket:
            if isinstance(event, Token):
                self.came.append(perf_counter())
                self.prefilled.set()
            elif isinstance(event, Result):
                self.result = event
            elif not isinstance(event, Prefill):
                continue

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.came[0] - self.began


def together(engine: Engine, options: argparse.Namespace) -> list[dict[str, float]]:
    """Tokens per second while all of so many sequences decode, medians over the passes."""
    generator = random.Random(0)
    vocabulary = engine.blueprint.vocabulary
    rates: dict[int, list[float]] = {count: [] for count in options.sequences}
    for _ in range(options.passes):
        for count in options.sequences:
            requests = [
                Watched(engine, tokens_of(generator, vocabulary, options.prompt), options.steps) for _ in range(count)
            ]
            for request in requests:
                request.join()
            start = max(request.came[0] for request in requests)
            stop = min(request.came[-1] for request in requests)
            done = sum(start < at <= stop for request in requests for at in request.came)
            rates[count].append(done / (stop - start))
    alone = median(rates[options.sequences[0]])
    return [
        {"sequences": count, "tokens_per_second": median(found), "ratio": median(found) / alone}
        for count, found in rates.items()
    ]


def under_load(engine: Engine, options: argparse.Namespace) -> dict[str, float]:
    """Seconds to the first token of prompts with and without others that decode, and the gaps these have."""
    generator = random.Random(1)
    vocabulary = engine.blueprint.vocabulary

    def arrive() -> float:
        request = Watched(engine, tokens_of(generator, vocabulary, options.arriving), 1)
        request.join()
        return request.first

    idle = [arrive() for _ in range(options.passes * 3)]
    decoding = [
        Watched(engine, tokens_of(generator, vocabulary, 32), engine.blueprint.max_context // 2)
        for _ in range(options.background)
    ]
    for request in decoding:
        request.prefilled.wait()
    began = perf_counter()
    loaded = [arrive() for _ in range(options.passes * 3)]
    ended = perf_counter()
    for request in decoding:
        request.ticket.cancel()
        request.join()
    gaps = [b - a for r in decoding for a, b in zip(r.came, r.came[1:], strict=False) if began <= a and b <= ended]
    return {
        "decoding": options.background,
        "arriving_tokens": options.arriving,
        "first_token_idle_seconds": median(idle),
        "first_token_loaded_seconds": median(loaded),
        "first_token_loaded_worst_seconds": max(loaded),
        "gap_median_seconds": median(gaps),
        "gap_p99_seconds": quantiles(gaps, n=100)[98],
        "gap_worst_seconds": max(gaps),
    }


def lookup(engine: Engine, options: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of greedy decoding with and without drafts, medians over the passes."""
    source = Path(decoder.__file__).read_text(encoding="utf-8")[: options.source]
    prompt = engine.tokenizer.encode(source + BETWEEN + source[:BEGINNING])
    rates: dict[int, list[float]] = {0: [], options.drafts: []}
    results: dict[int, Result] = {}
    for turn in range(options.passes):
        for drafts in sorted(rates, reverse=bool(turn % 2)):
            *_, result = engine.generate(prompt, max_tokens=options.steps * 4, ignore_eos=True, speculate=drafts)
            assert isinstance(result, Result)
            rates[drafts].append((len(result.tokens) - 1) / result.timing.decode_seconds)
            results[drafts] = result
    usage = results[options.drafts].usage
    if results[0].tokens != results[options.drafts].tokens:
        raise SystemExit("the texts with and without drafts differ")
    return {
        "prompt_tokens": len(prompt),
        "plain_tokens_per_second": median(rates[0]),
        "drafted_tokens_per_second": median(rates[options.drafts]),
        "ratio": median(rates[options.drafts]) / median(rates[0]),
        "drafted": usage.drafted,
        "accepted": usage.accepted,
    }


CHOICES: Final = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_p=0.95),
    Sampling(temperature=1.0, top_k=64, top_p=0.95),
    Sampling(temperature=0.7, min_p=0.05),
    Sampling(temperature=0.7, top_p=0.95, repetition_penalty=1.1),
)


def choosing(engine: Engine, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds a token; `counts` are those of the text so far."""
    source = Path(decoder.__file__).read_text(encoding="utf-8")[: options.source // 16]
    tokens = engine.tokenizer.encode(source)
    rows, counts = engine.logits(tokens), Counter(tokens)
    found = []
    for sampling in CHOICES:
        sampler = Sampler(sampling, seed=0)
        ours, reference = [], []
        for position, row in enumerate(rows):
            began = perf_counter()
            sampler.choose(row, position, counts)
            chosen = perf_counter()
            candidates(row.double().numpy(), sampling, counts)
            ours.append(chosen - began)
            reference.append(perf_counter() - chosen)
        asked = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
        given = {name: value for name, value in asked.items() if value != getattr(Sampling(), name)}
        found.append(
            {
                "settings": given,
                "milliseconds": 1e3 * median(ours),
                "reference_milliseconds": 1e3 * median(reference),
                "ratio": median(reference) / median(ours),
            }
        )
    return found


PARTS: Final[dict[str, Callable[[Engine, argparse.Namespace], Any]]] = {
    "together": together,
    "load": under_load,
    "lookup": lookup,
    "choosing": choosing,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--dtype", default=None, help="as of `plait generate`; what it takes by itself if not given")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--sequences", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt of `together`")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--background", type=int, default=4, help="sequences that decode under `load`")
    parser.add_argument("--arriving", type=int, default=512, help="tokens of the prompts that arrive")
    parser.add_argument("--source", type=int, default=4000, help="characters of source code of `lookup`")
    parser.add_argument("--drafts", type=int, default=8, help="tokens guessed at most")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    settings = {} if options.dtype is None else {"dtype": options.dtype}
    with plait.load(options.model, cache=0, **settings) as engine:
        *_, _ = engine.generate([1] * 8, max_tokens=4, ignore_eos=True)
        found = {name: part(engine, options) for name, part in PARTS.items() if name in (options.only or PARTS)}
    if options.json:
        json.dump(found, sys.stdout, indent=2)
        print()
        return
    for row in found.get("together", []):
        print(
            f"{row['sequences']:2} sequences: {row['tokens_per_second']:7.1f} tokens/s, {row['ratio']:.2f} of one alone"
        )
    for row in found.get("choosing", []):
        settings = ", ".join(f"{name} {value}" for name, value in row["settings"].items()) or "greedy"
        by_reference = f"{row['reference_milliseconds']:.2f} by the reference, {row['ratio']:.1f}"
        print(f"choosing: {settings}: {row['milliseconds']:.2f} ms, {by_reference}")
    for name in ("load", "lookup"):
        for key, value in found.get(name, {}).items():
            print(
                f"{name}: {key.replace('_', ' ')}: {value:.3f}"
                if isinstance(value, float)
                else f"{name}: {key.replace('_', ' ')}: {value}"
            )


if __name__ == "__main__":
    main()

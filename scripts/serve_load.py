"""Clients at work on a server of a real model: what goes wrong, who waits how long, what memory it takes.

    .venv/bin/python scripts/serve_load.py [--model NAME] [--clients 32] [--seconds 60] [--memory 4GiB] [--json]

Starts `plait serve`, lets so many clients of the official Python package ask it for streamed completions of random
lengths, some of which they leave in the middle, and ends it. Exit status 1: an answer other than 200 and 429, a client
without an answer, more memory than the cap, an unhealthy server or one that does not end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Any, Final
from urllib.request import urlopen

import openai

from plait.blueprint.catalog import DEMO
from plait.units import parse_bytes

LEAVING: Final = 0.02  # of the pieces of an answer, those after which its reader leaves


@dataclass
class Seen:
    """What clients met. `answers` by client, `firsts` seconds to the first piece of each answer."""

    outcomes: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    firsts: list[float] = field(default_factory=list)


async def ask(client: openai.AsyncOpenAI, model: str, number: int, until: float, seen: Seen) -> None:
    """One client: one request after the other."""
    chance = random.Random(number)
    while monotonic() < until:
        began = monotonic()
        prompt = "The quick brown fox " * chance.randint(1, 30) + str(number)
        try:
            stream = await client.completions.create(
                model=model, prompt=prompt, max_tokens=chance.randint(1, 24), stream=True
            )
            first = None
            async for _ in stream:
                if first is None:
                    first = monotonic() - began
                    seen.firsts.append(first)
                if chance.random() < LEAVING:
                    await stream.close()
                    seen.outcomes["left"] += 1
                    break
            else:
                seen.outcomes["answered"] += 1
            seen.answers[number] += 1
        except openai.RateLimitError as error:
            seen.outcomes["full"] += 1
            await asyncio.sleep(float(error.response.headers["retry-after"]))
        except openai.OpenAIError as error:
            seen.outcomes[f"failed: {error}"[:200]] += 1
            await asyncio.sleep(0.2)


async def work(url: str, clients: int, seconds: float) -> Seen:
    """All clients side by side."""
    seen = Seen()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        model = (await client.models.list()).data[0].id
        until = monotonic() + seconds
        await asyncio.gather(*(ask(client, model, number, until, seen) for number in range(clients)))
    return seen


def metrics(url: str) -> dict[str, float]:
    """Bytes of weights, state and store, as the server counts them."""
    text = urlopen(f"{url}/metrics").read().decode()
    found = re.findall(r"^(plait_memory_bytes\{[^}]*\}) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--memory", default="4GiB", help="the server's cap")
    parser.add_argument("--queue", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    command = [sys.executable, "-m", "plait", "serve", options.model, "--port", "0"]
    command += ["--memory", options.memory, "--queue", str(options.queue)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        lines = [server.stdout.readline()]
        address = re.search(r"http://\S+", lines[0])
        if address is None:
            raise SystemExit(f"the server said {lines[0]!r}")
        url = address[0].rstrip("/.,").removesuffix("/v1")
        seen = asyncio.run(work(url, options.clients, options.seconds))
        health = urlopen(f"{url}/health").status
        held = metrics(url)
    finally:
        server.terminate()
        status = server.wait(60)
    firsts = sorted(seen.firsts)
    found: dict[str, Any] = {
        "outcomes": dict(seen.outcomes),
        "answers_per_client": [min(seen.answers[n] for n in range(options.clients)), max(seen.answers.values())],
        "first_piece_seconds": {"median": median(firsts), "p95": firsts[int(len(firsts) * 0.95)], "worst": firsts[-1]},
        "memory_bytes": held,
        "health": health,
        "exit_status": status,
    }
    print(json.dumps(found, indent=None if options.json else 2))
    wrong = [outcome for outcome in seen.outcomes if outcome.startswith("failed")]
    over = sum(held.values()) > parse_bytes(options.memory)
    return int(bool(wrong) or found["answers_per_client"][0] == 0 or over or health != 200 or status != 0)


if __name__ == "__main__":
    sys.exit(main())

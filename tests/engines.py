"""Tiny engines for tests of requests in company, and short ways to ask them."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import contextmanager

import tiny

import plait
from plait.engine.events import Result, Timing, Token
from plait.engine.sampling import Sampling

# Rows, windows, recurrent states beside rows and a mixture, latents with an indexer.
FAMILIES = ("qwen3", "gemma3", "qwen3_next", "deepseek_v32")

SAMPLINGS = (
    Sampling(seed=4),
    Sampling(temperature=1.3, seed=5),
    Sampling(temperature=0.8, top_k=30, top_p=0.9, min_p=0.01, seed=6),
    Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, seed=7),
)


class Engines:
    """One checkpoint for each family, and as many engines of it as are wanted; all are closed at the end."""

    def __init__(self, make_directory):
        self._make = make_directory
        self._directories = {}
        self._open = []

    def __call__(self, name, **options):
        if name not in self._directories:
            self._directories[name] = tiny.save(name, self._make(name))
        engine = plait.load(self._directories[name], **{"cache": 0, **options})
        self._open.append(engine)
        return engine

    def close(self):
        for engine in self._open:
            engine.close()


def wish(number, **changes):
    """(prompt, options) of a request: lengths, sampling, logprobs and limits differ with `number`."""
    length = (1, 70, 150, 23, 64, 129, 5, 200)[number % 8]
    options = {
        "max_tokens": 8 + 3 * (number % 5),
        "ignore_eos": True,
        "sampling": SAMPLINGS[number % len(SAMPLINGS)],
        "logprobs": number % 3,
    }
    return tiny.tokens(length, seed=100 + number), {**options, **changes}


def facts(events):
    """What must not depend on company: tokens with texts and logprobs, and the result but for times and reuse."""
    *before, result = events
    assert isinstance(result, Result)
    usage = dataclasses.replace(result.usage, reused=0, drafted=0, accepted=0)
    result = dataclasses.replace(result, timing=Timing(0.0, 0.0), cache=None, usage=usage)
    return [event for event in before if isinstance(event, Token)], result


def ask(engine, prompt, options):
    return list(engine.submit(prompt, **options))


def idle(engine):
    """Nothing is left of any request."""
    engine.schedule.call(lambda: None)
    stats = engine.stats()
    return (
        (stats["queued"], stats["running"], stats["sequence_bytes"], stats["sessions"]) == (0, 0, 0, 0)
        and engine.schedule.queue.inside == 0
        and engine.cap.promised == 0
    )


@contextmanager
def busy(engine):
    """The engine's thread is held up as long as this lasts."""
    gate, there = threading.Event(), threading.Event()

    def hold():
        there.set()
        gate.wait()

    thread = threading.Thread(target=lambda: engine.schedule.call(hold))
    thread.start()
    there.wait()
    try:
        yield
    finally:
        gate.set()
        thread.join()

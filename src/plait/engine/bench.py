"""How fast a model runs here: prefill and decode, beside what reading its bytes would allow.

Every measured pass is a call of the model as `generate` makes it, the choice of a token included. Contexts are filled
with a state that was not computed (`runtime.measure.filled`), which is as far to read as any other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Final, Literal

import torch

from plait.account.flops import flops
from plait.account.speed import decode_traffic, file_weights, format_weights
from plait.blueprint.source import Source
from plait.blueprint.tensors import inventory
from plait.engine.engine import Engine
from plait.engine.sampling import Sampler, Sampling
from plait.errors import ContextExceeded, UsageError, fault
from plait.runtime.measure import READ_BYTES, Memory, filled
from plait.runtime.model import Model
from plait.runtime.session import Session, Span

__all__ = ["Bench", "Speed", "Work", "bench", "weight_sizes"]

_FORMATS: Final[Mapping[object, str]] = MappingProxyType(
    {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int8: "q8"}
)
# Steps before the measured ones, so that weights and code are where they will be.
_WARM: Final = 2


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured: at each context a prefill of `prompt` tokens and `decode` steps, `repeat` times.

    prompt, decode  0: not measured
    batch           sequences that decode together; a prefill is of one
    memory          bytes that are read to measure the memory

    UsageError: numbers that make no measurement.
    """

    prompt: int = 512
    decode: int = 32
    contexts: tuple[int, ...] = (0,)
    batch: int = 1
    repeat: int = 3
    memory: int = READ_BYTES

    def __post_init__(self) -> None:
        for name, least in (("prompt", 0), ("decode", 0), ("batch", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise UsageError(fault(name, expected=f"a number of at least {least}", found=getattr(self, name)))
        if not self.contexts or min(self.contexts) < 0:
            raise UsageError(fault("contexts", expected="numbers of tokens, at least one", found=self.contexts))
        if not self.prompt and not self.decode:
            raise UsageError("nothing to measure: prompt and decode are both 0")

    def check(self, limit: int) -> None:
        """ContextExceeded: the longest context and what is measured there are over a model's limit."""
        needed = max(self.contexts) + max(self.prompt, self.decode + _WARM if self.decode else 0)
        if needed > limit:
            raise ContextExceeded(needed=needed, limit=limit, advice="measure at a shorter context")


@dataclass(frozen=True, slots=True)
class Speed:
    """One phase at one context.

    tokens           that one pass processes, of all sequences
    seconds          of each pass
    bytes_per_step   decode: what one step must read and write: weights once, the state of every sequence
    bound            decode: tokens per second if memory alone set the pace; prefill: None
    flops            floating-point operations of one pass, by `plait flops`
    """

    phase: Literal["prefill", "decode"]
    context: int
    batch: int
    tokens: int
    seconds: tuple[float, ...]
    bytes_per_step: int | None
    bound: float | None
    flops: int

    @property
    def tokens_per_second(self) -> float:
        """The median of the passes."""
        return self.tokens / median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Tokens per second of the slowest and of the fastest pass."""
        return self.tokens / max(self.seconds), self.tokens / min(self.seconds)

    @property
    def flops_per_second(self) -> float:
        """Of the median pass."""
        return self.flops / median(self.seconds)


@dataclass(frozen=True, slots=True)
class Bench:
    """What was measured.

    bandwidth  bytes the memory gave per second, measured between the passes: median, least, most
    threads    that compute
    forms      how many products each form serves
    """

    speeds: tuple[Speed, ...]
    bandwidth: float
    bandwidth_spread: tuple[float, float]
    threads: int
    weight_bytes: int
    forms: Mapping[str, int]


def weight_sizes(source: Source, model: Model) -> Mapping[str, int]:
    """Bytes of each role in the type the weights are used in: of those that stay blocks, the blocks.

    Of tables, whose rows stay in the file, the file's where weights are used as stored.
    """
    blueprint, numbers = source.blueprint, model.numbers
    sizes = {**format_weights(blueprint, _FORMATS[numbers.weights]), **model.kept}
    if numbers.stored:
        for item in inventory(blueprint):
            if item.use == "embedding" and not (item.role == "embedding" and blueprint.head.tied):
                sizes[item.role] = file_weights(source)[item.role]
    return MappingProxyType(sizes)


def bench(engine: Engine, source: Source, work: Work, progress: Callable[[str], None] | None = None) -> Bench:
    """Measure a loaded model. `progress` is called with what begins. ContextExceeded: see `Work.check`."""
    work.check(engine.blueprint.max_context)
    engine.model.rooms.settle()
    memory = Memory(work.memory)
    rates = [memory.bandwidth()]
    drawn = _tokens(engine.blueprint.vocabulary, work.prompt)
    found: list[tuple[Literal["prefill", "decode"], int, list[float]]] = []
    for context in work.contexts:
        base = filled(engine.model, context)
        try:
            if work.prompt:
                _say(progress, f"prefill of {work.prompt} at context {context}")
                _prefill(engine, base, drawn[: min(work.prompt, 16)])
                seconds = []
                for _ in range(work.repeat):
                    seconds.append(_prefill(engine, base, drawn))
                    rates.append(memory.bandwidth())
                found.append(("prefill", context, seconds))
            if work.decode:
                _say(progress, f"{work.decode} decode steps at context {context}")
                seconds = []
                for _ in range(work.repeat):
                    seconds.append(_decode(engine, base, work.batch, work.decode))
                    rates.append(memory.bandwidth())
                found.append(("decode", context, seconds))
        finally:
            base.close()
    rate = median(rates)
    sizes = weight_sizes(source, engine.model)
    return Bench(
        tuple(_speed(engine, work, sizes, rate, *one) for one in found),
        rate,
        (min(rates), max(rates)),
        torch.get_num_threads(),
        engine.model.weight_bytes,
        MappingProxyType(dict(engine.model.forms)),
    )


def _speed(
    engine: Engine,
    work: Work,
    sizes: Mapping[str, int],
    rate: float,
    phase: Literal["prefill", "decode"],
    context: int,
    seconds: list[float],
) -> Speed:
    blueprint = engine.blueprint
    if phase == "prefill":
        whole = flops(blueprint, context + work.prompt).prefill.total
        before = flops(blueprint, context).prefill.total if context else 0
        return Speed(phase, context, 1, work.prompt, tuple(seconds), None, None, whole - before)
    # A pass sees contexts that grow: that of its middle stands for all.
    middle = context + _WARM + (work.decode + 1) // 2
    form = _FORMATS[engine.model.numbers.kv]
    moved = decode_traffic(blueprint, middle, sizes, batch=work.batch, kv_format=form).total_bytes
    step = flops(blueprint, middle, batch=work.batch).decode.total
    tokens = work.batch * work.decode
    return Speed(
        phase, context, work.batch, tokens, tuple(seconds), moved, work.batch * rate / moved, step * work.decode
    )


def _say(progress: Callable[[str], None] | None, text: str) -> None:
    if progress is not None:
        progress(text)


def _tokens(vocabulary: int, count: int) -> tuple[int, ...]:
    """The same arbitrary tokens for every run."""
    generator = random.Random(0)
    return tuple(generator.randrange(vocabulary) for _ in range(count))


@torch.inference_mode()
def _prefill(engine: Engine, base: Session, tokens: tuple[int, ...]) -> float:
    """Seconds from a prompt to the first token."""
    session = base.fork()
    sampler = Sampler(Sampling())
    try:
        start = perf_counter()
        logits = engine.model.run([Span(session, tokens)])[0]
        sampler.choose(logits[0], session.position, Counter())
        return perf_counter() - start
    finally:
        session.close()


@torch.inference_mode()
def _decode(engine: Engine, base: Session, batch: int, steps: int) -> float:
    """Seconds of `steps` steps of `batch` sequences together."""
    sessions = [base.fork() for _ in range(batch)]
    sampler = Sampler(Sampling())
    vocabulary = engine.blueprint.vocabulary
    chosen: Sequence[int] = [index % vocabulary for index in range(batch)]
    counts: Counter[int] = Counter()
    start = perf_counter()
    try:
        for step in range(_WARM + steps):
            if step == _WARM:
                start = perf_counter()
            spans = [Span(session, (token,)) for session, token in zip(sessions, chosen, strict=True)]
            rows = engine.model.run(spans)
            chosen = [
                sampler.choose(row[0], session.position, counts).token
                for row, session in zip(rows, sessions, strict=True)
            ]
        return perf_counter() - start
    finally:
        for session in sessions:
            session.close()

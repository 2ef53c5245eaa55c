"""`plait.load`: from what a user names to an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from plait.blueprint.source import Source, open_model
from plait.dtypes import Format
from plait.engine.chat.read import Templates, read_templates, templates_from_gguf
from plait.engine.engine import MOST, QUEUE, SEQUENCES, Engine
from plait.engine.packages import packaged_weights
from plait.engine.plan import MemoryPlan, memory_plan, refuse_weights
from plait.engine.request import DRAFT, integer
from plait.engine.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf
from plait.errors import TokenizerError, UnsupportedError, UsageError, fault
from plait.runtime.kernels import trim
from plait.runtime.model import Model, Numbers
from plait.runtime.ops.linear_blocks import InputBits
from plait.runtime.weight_plan import formats_of, weight_plan
from plait.runtime.weights import Weights, open_weights
from plait.units import parse_bytes

__all__ = ["CACHE", "DTYPES", "KV_DTYPES", "STORED", "Opened", "default_numbers", "load", "opened"]

CACHE: Final = "2GiB"
# Weights stay as their file holds them; those in blocks of integers meet integers of so many bits.
STORED: Final = "stored"
_STORED: Final[Mapping[str, InputBits]] = MappingProxyType({STORED: 16, "stored8": 8})

DTYPES: Final = MappingProxyType(
    {
        "float32": torch.float32,
        "f32": torch.float32,
        "bfloat16": torch.bfloat16,
        "bf16": torch.bfloat16,
        "float16": torch.float16,
        "f16": torch.float16,
        "float64": torch.float64,
        "f64": torch.float64,
    }
)


# Keys and values may be blocks of codes as well, which torch.int8 stands for.
KV_DTYPES: Final = MappingProxyType({**DTYPES, "int8": torch.int8, "q8": torch.int8})


def _dtype(value: str | torch.dtype, what: str, *others: str, known: Mapping[str, torch.dtype] = DTYPES) -> torch.dtype:
    if isinstance(value, torch.dtype):
        if value in known.values():
            return value
    elif isinstance(value, str) and value in known:
        return known[value]
    raise UsageError(fault(what, expected="one of " + ", ".join((*others, *known)), found=repr(value)))


def _device(value: str | torch.device) -> torch.device:
    try:
        device = torch.device(value)
        torch.zeros(1, device=device).item()  # a device that computes no values, such as `meta`, fails here
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            fault("device", expected="a device torch can use here", found=f"{value!r} ({reason})")
        ) from error
    return device


def _located(source: Source) -> Source:
    """The source with its weights: a catalogue entry is replaced by the file its package carries.

    UnsupportedError: a model of the hub. UsageError: a config alone.
    """
    if source.hub is not None:
        of = source.hub.id
        here = f"its {Path(of.file).name}" if of.file is not None else "its directory"
        advice = f"download the repository {of.repo} and name {here}"
        raise UnsupportedError(fault("this version does not download weights", file=str(of), advice=advice))
    if source.kind == "catalogue":
        assert source.entry is not None
        return open_model(packaged_weights(source.entry))
    if source.kind == "config":
        assert source.path is not None
        if source.path.name == "config.json":
            return open_model(source.path.parent)
        raise UsageError(f"{source.path}: a config has no weights; name the directory that holds both")
    return source


def _tokenizer(source: Source) -> Tokenizer:
    if source.header is not None:
        return tokenizer_from_gguf(source.header)
    assert source.path is not None
    return load_tokenizer(source.path)


def _bytes(value: int | str, what: str, least: int) -> int:
    count = parse_bytes(value) if isinstance(value, str) else value
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        expected = "a positive number of bytes" if least else "a number of bytes, or 0"
        raise UsageError(fault(what, expected=expected, found=repr(value)))
    return count


def _named(weights: Weights) -> tuple[str, ...]:
    """What tells these weights from others: their files, sizes and times of change."""
    stats = [(path, path.stat()) for path in weights.files]
    return tuple(f"{path.resolve()}:{found.st_size}:{found.st_mtime_ns}" for path, found in stats)


def _templates(source: Source) -> Templates:
    if source.header is not None:
        return templates_from_gguf(source.header)
    assert source.path is not None
    return read_templates(source.path)


@dataclass(frozen=True)
class Opened:
    """A model that was found and understood; of its weights nothing has been read.

    Tokenizer and templates are read when they are first asked for; what is wrong with them is kept in their place.

    cap    bytes of weights and all state, None: no cap
    cache  bytes of state of earlier prompts
    queue, sequences, speculate   as for `load`
    own_templates  chat templates that take the place of the model's, None: none do
    """

    source: Source
    numbers: Numbers
    device: torch.device
    cap: int | None
    cache: int
    queue: int = QUEUE
    sequences: int = SEQUENCES
    speculate: int = 0
    own_templates: Templates | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer | TokenizerError:
        """The model's."""
        try:
            return _tokenizer(self.source)
        except TokenizerError as error:
            return error

    @cached_property
    def templates(self) -> Templates | TokenizerError:
        """Of chats."""
        if self.own_templates is not None:
            return self.own_templates
        try:
            return _templates(self.source)
        except TokenizerError as error:
            return error

    def tokens(self, prompt: str, *, markup: bool = True) -> list[int]:
        """Token ids of a prompt, as `Engine.generate` makes them. TokenizerError: there is no tokenizer."""
        if isinstance(self.tokenizer, TokenizerError):
            raise self.tokenizer
        return self.tokenizer.encode_markup(prompt) if markup else self.tokenizer.encode(prompt)

    def plan(self, length: int) -> MemoryPlan | None:
        """Memory of a sequence of `length` tokens under the cap; None where there is no cap.

        PlaitError: it does not fit.
        """
        if self.cap is None:
            return None
        blueprint = self.source.blueprint
        length = max(1, min(length, blueprint.max_context))
        return memory_plan(
            blueprint,
            self.numbers,
            self.device,
            length=length,
            cap=self.cap,
            cache=self.cache,
            formats=self._formats(),
        )

    def _formats(self) -> Mapping[str, Format]:
        """How the files store weights that may be kept so: headers are read, no weight is."""
        return formats_of(open_weights(self.source)) if self.numbers.stored else {}

    def engine(self, progress: Callable[[int, int], None] | None = None) -> Engine:
        """Read the weights. PlaitError: they are over the cap; then none is read."""
        blueprint = self.source.blueprint
        if self.cap is not None:
            needed = weight_plan(blueprint, self.numbers, self.device, self._formats()).prepared
            refuse_weights(blueprint, needed, self.numbers.words, self.cap)
        weights = open_weights(self.source)
        built = Model(blueprint, weights, self.numbers, self.device, progress, later=True)
        # Where nobody has asked for them they are read while threads pack the weights.
        tokenizer, templates = self.tokenizer, self.templates
        # Building a tokenizer frees tens of MB in small pieces; they would stay with this process beside the weights.
        trim()
        built.ready()
        left = None if self.cap is None else built.pool.store_room(self.cap - built.weight_bytes)
        room = self.cache if left is None else min(self.cache, left)
        return Engine(
            built,
            tokenizer,
            self.cap,
            cache=room,
            weights=_named(weights),
            templates=templates,
            queue=self.queue,
            sequences=self.sequences,
            speculate=self.speculate,
        )


def default_numbers() -> Numbers:
    """The types `load` runs a model in where it is not told others."""
    return Numbers(torch.float32, torch.float32, stored=True)


def opened(
    model: str | Path,
    *,
    dtype: str | torch.dtype = STORED,
    kv_dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    memory: int | str | None = None,
    cache: int | str = CACHE,
    queue: int = QUEUE,
    sequences: int = SEQUENCES,
    speculate: int = 0,
) -> Opened:
    """Find MODEL and read its description. The options are those of `load`."""
    bits = _STORED.get(dtype) if isinstance(dtype, str) else None
    weights_dtype = _dtype(dtype, "dtype", *_STORED) if bits is None else torch.float32
    kv = weights_dtype if kv_dtype is None else _dtype(kv_dtype, "kv_dtype", known=KV_DTYPES)
    numbers = Numbers(weights_dtype, kv) if bits is None else Numbers(weights_dtype, kv, True, bits)
    place = _device(device)
    cap = None if memory is None else _bytes(memory, "memory", 1)
    budget = _bytes(cache, "cache", 0)
    queue = integer(queue, "queue", 0, MOST)
    sequences = integer(sequences, "sequences", 1, MOST)
    speculate = integer(speculate, "speculate", 0, DRAFT + 1)
    source = _located(open_model(model))
    return Opened(source, numbers, place, cap, budget, queue, sequences, speculate)


def load(
    model: str | Path,
    *,
    dtype: str | torch.dtype = STORED,
    kv_dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    memory: int | str | None = None,
    cache: int | str = CACHE,
    queue: int = QUEUE,
    sequences: int = SEQUENCES,
    speculate: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """Open MODEL, read its weights, build the engine.

    model     catalogue name, directory or .gguf file; the weights of a hub id are not downloaded
    dtype     "stored": weights keep the size they have in their files where there are kernels for that: blocks of
              integers, whose inputs become integers of 16 bits with a scale for each 32 (see
              `runtime.ops.linear_blocks`), bf16 and f16 with inputs as they are, packed once beside the file's map;
              others are expanded to float32. "stored8": the same with integers of 8 bits, as other runtimes have
              them: long prompts are read faster, and logits are no longer those of float32; what meets 16-bit weights,
              or keys and values in bf16, may be rounded to their type then. Or the type all are
              expanded to and used in: float32 (exact for every format read here), float64, bfloat16 or float16 (half
              the memory; products round their inputs and outputs to it, attention's beside bf16 rows too)
    kv_dtype  type keys and values are stored in: those of dtype, or int8 (also q8): blocks of 32 codes of 8 bits with
              a float16 scale; None: the same as dtype, with "stored" float32
    memory    cap in bytes (or "8GiB") on weights and all state; None: no cap
    cache     bytes (or "1GiB") of state of earlier prompts kept for later ones that begin alike; 0: none. Under a cap
              it gives way to what is asked for
    queue     requests that may wait beside those that run; more are refused (QueueFull)
    sequences requests that run together at most
    speculate guess up to so many tokens ahead where a text repeats itself, for requests that do not say; 0: not
    progress  called with (layers done, layers) while weights are read

    A model without a usable tokenizer loads all the same; what needs text then raises TokenizerError.
    """
    found = opened(
        model,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
        memory=memory,
        cache=cache,
        queue=queue,
        sequences=sequences,
        speculate=speculate,
    )
    return found.engine(progress)

"""A request, checked before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from plait.cache.anchors import Mark
from plait.engine.sampling import Sampling
from plait.engine.stops import StopStrings
from plait.engine.tokenizer import TextStream
from plait.errors import ContextExceeded, UsageError, fault

if TYPE_CHECKING:
    from plait.engine.engine import Engine

__all__ = ["DRAFT", "Options", "Request", "integer"]

# The longest draft: what windows keep behind what resuming needs covers going back that far, with room.
DRAFT: Final = 32


def integer(value: object, what: str, low: int, high: int) -> int:
    """`value` as it is. UsageError: no integer in [low, high)."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise UsageError(fault(what, expected=f"an integer in [{low}, {high})", found=repr(value)))
    return value


class Options(TypedDict, total=False):
    """What a request may say beside its prompt.

    sampling    None: greedy
    max_tokens  None: up to the end of the context
    stop        strings that end the text; they are not part of it
    markup      control tokens written out in a text prompt become control tokens; False: they stay text
    ignore_eos  end-of-text tokens do not end the generation
    marks       positions of the prompt up to which later ones will share it (`plait.cache.Mark`)
    logprobs    tell so many of the most probable tokens with each one; None is the same as 0
    speculate   guess up to so many tokens ahead where the text repeats itself; it changes the speed and nothing else.
                None: as the engine was loaded
    """

    sampling: Sampling | None
    max_tokens: int | None
    stop: str | Sequence[str]
    markup: bool
    ignore_eos: bool
    marks: Sequence[Mark]
    logprobs: int | None
    speculate: int | None


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request.

    limit      how many tokens may be generated
    stream     makes the text of the tokens; None where there is no tokenizer
    marks      positions of the prompt that later ones will share, for the prefix store
    top        how many alternatives to tell with each token
    speculate  how many tokens to guess ahead at most
    ended      called on the engine's thread with the tokens generated, however it ends
    """

    tokens: tuple[int, ...]
    sampling: Sampling
    limit: int
    stop: tuple[str, ...]
    eos: frozenset[int]
    stream: Callable[[], TextStream] | None
    marks: tuple[Mark, ...] = ()
    top: int = 0
    speculate: int = 0
    ended: Callable[[tuple[int, ...]], None] | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and answer at most."""
        return len(self.tokens) + self.limit

    @staticmethod
    def of(
        engine: Engine,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        markup: bool = True,
        ignore_eos: bool = False,
        marks: Sequence[Mark] = (),
        logprobs: int | None = None,
        speculate: int | None = None,
        ended: Callable[[tuple[int, ...]], None] | None = None,
    ) -> Request:
        """Check everything before any work is done. See `Options`."""
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1
        ):
            raise UsageError(fault("max_tokens", expected="a positive integer", found=repr(max_tokens)))
        if sampling is not None and not isinstance(sampling, Sampling):
            raise UsageError(fault("sampling", expected="a Sampling", found=repr(sampling)))
        if not isinstance(stop, str | Sequence) or isinstance(stop, bytes):
            raise UsageError(fault("stop", expected="a string or several", found=repr(stop)))
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        for index, item in enumerate(stops):
            if not isinstance(item, str):
                raise UsageError(fault(f"stop string {index}", expected="text", found=repr(item)))
        StopStrings(stops)
        vocabulary = engine.blueprint.vocabulary
        top = 0 if logprobs is None else integer(logprobs, "logprobs", 0, vocabulary + 1)
        ahead = engine.speculate if speculate is None else integer(speculate, "speculate", 0, DRAFT + 1)
        # Stop strings are looked for in the text; token ids alone are enough for the rest.
        tokenizer = engine.tokenizer if isinstance(prompt, str) or stops or engine.has_tokenizer else None
        if isinstance(prompt, str):
            assert tokenizer is not None
            if not prompt:
                raise UsageError("the prompt is empty; write at least one character")
            tokens = engine.checked(tokenizer.encode_markup(prompt) if markup else tokenizer.encode(prompt))
        else:
            tokens = engine.checked(prompt)
        context = engine.blueprint.max_context
        if len(tokens) >= context:
            raise ContextExceeded(needed=len(tokens) + 1, limit=context, advice="one place is needed for the answer")
        room = context - len(tokens)
        limit = room if max_tokens is None else min(max_tokens, room)
        ends = () if ignore_eos else tokenizer.eos if tokenizer is not None else engine.blueprint.tokens.eos
        return Request(
            tokens,
            Sampling() if sampling is None else sampling,
            limit,
            stops,
            frozenset(ends),
            # The text goes on where the prompt ends, so a space that it begins with is part of it.
            None if tokenizer is None else lambda: tokenizer.stream(start=False),
            tuple(marks),
            top,
            ahead,
            ended,
        )

"""What a generation yields: typed events, ending in a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plait.cache.report import Report

__all__ = ["Event", "FinishReason", "Prefill", "Result", "Tail", "Timing", "Token", "Usage"]

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are processed."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token.

    position  its index in the sequence
    text      text that is now final: never half a character, never the beginning of a stop string; may be empty
    logprob   natural log of the model's own probability of the token, before penalties and temperature
    top       the most probable tokens with their logprobs, as many as were asked for, the most probable first; of
              equal ones the lower id
    """

    id: int
    position: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Tail:
    """Text that was held back and is final now that generation has ended."""

    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt, tokens generated, prompt tokens taken from earlier work.

    drafted, accepted  tokens that were guessed, and those of them that the model chose too
    """

    prompt: int
    completion: int
    reused: int
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of waiting, from there until the first token was chosen, and from there to the last."""

    prompt_seconds: float
    decode_seconds: float
    queued_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a generation. `text` is the sum of all events' texts.

    finish_reason  `stop`: an end-of-text token or a stop string; `length`: `max_tokens` or the context is full;
                    `cancelled`: nobody wanted more of it
    stop           the stop string that ended it, None otherwise
    seed           the seed that was used; the same seed and request give the same tokens
    cache          what of the prompt was known: common, resume, lost, reason, the anchors on its way
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    usage: Usage
    timing: Timing
    seed: int
    cache: Report


Event = Prefill | Token | Tail | Result

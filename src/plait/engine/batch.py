"""What one step of the engine computes: the next tokens of those that decode, and some of the prompts."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Final

from plait.engine.sequence import Sequence
from plait.runtime.model import CALL_ROWS, Want
from plait.runtime.session import Span

__all__ = ["BESIDE", "Part", "compose"]

# Prompt tokens of a step beside which others decode: enough that products are about as fast as with more, few enough
# that those who read a text see it go on.
BESIDE: Final = 128


@dataclass(frozen=True, slots=True)
class Part:
    """A sequence's share of a step. `prompt`: its tokens are some of the prompt."""

    sequence: Sequence
    span: Span
    want: Want
    prompt: bool


def compose(sequences: Many[Sequence], turn: int) -> list[list[Part]]:
    """The parts of a step, in calls of at most `CALL_ROWS` rows: those run whole or not at all.

    Every sequence that decodes has one. The rest of the rows goes to prompts, and where they are not enough for all,
    with each `turn` another prompt is the first.
    """
    parts = [Part(sequence, *sequence.span(0), prompt=False) for sequence in sequences if not sequence.in_prompt]
    prompts = [sequence for sequence in sequences if sequence.in_prompt]
    rows = sum(len(part.span.tokens) for part in parts)
    room = max(1, min(BESIDE, CALL_ROWS - rows)) if parts else CALL_ROWS
    first = turn % len(prompts) if prompts else 0
    for sequence in (*prompts[first:], *prompts[:first]):
        if room > 0:
            part = Part(sequence, *sequence.span(room), prompt=True)
            parts.append(part)
            room -= len(part.span.tokens)
    return _calls(parts)


def _calls(parts: Many[Part]) -> list[list[Part]]:
    calls: list[list[Part]] = []
    room = 0
    for part in parts:
        rows = len(part.span.tokens)
        if rows > room:
            calls.append([])
            room = CALL_ROWS
        calls[-1].append(part)
        room -= rows
    return calls

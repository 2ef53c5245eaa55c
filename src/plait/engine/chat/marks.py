"""Positions of a prompt that later requests of the same chat will share, found by rendering the template again.

Never guessed from special tokens: what the next request shares is what two renderings have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from plait.cache import Mark
from plait.engine.chat.accepts import said
from plait.engine.chat.traced import Traced
from plait.errors import PlaitError

if TYPE_CHECKING:
    from plait.engine.chat.format import Rendering

__all__ = ["common", "marks_of"]

# Two messages that share no beginning, and an answer; none begins with what a template writes.
_ONE: Final = "Probe."
_OTHER: Final = "another"


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    count = min(len(one), len(other))
    return next((place for place in range(count) if one[place] != other[place]), count)


def marks_of(request: Rendering, tokens: Sequence[int], encoded: Callable[[Traced], Sequence[int]]) -> tuple[Mark, ...]:
    """`system` and `turn` of a prompt of `tokens`; a mark that the template does not let be found is left out.

    There are two turns: up to the last message of the user, which may be written anew, and up to the answer.
    """
    system = _system(request, tokens, encoded)
    found = {_edited(request, tokens, encoded), _turn(request, tokens, encoded)}
    turns = sorted(turn for turn in found if turn and turn != system)
    return (*((Mark(system, "system"),) if system else ()), *(Mark(turn, "turn") for turn in turns))


def _shared(
    request: Rendering,
    messages: Sequence[Mapping[str, Any]],
    tokens: Sequence[int],
    encoded: Callable[[Traced], Sequence[int]],
) -> int | None:
    try:
        return common(tokens, encoded(request.text(messages)))
    except PlaitError:
        return None


def _system(request: Rendering, tokens: Sequence[int], encoded: Callable[[Traced], Sequence[int]]) -> int | None:
    """End of what comes before the first message that is no instruction: system text and tools."""
    head = 0
    while head < len(request.messages) and request.messages[head]["role"] in ("system", "developer"):
        head += 1
    found = [
        _shared(request, [*request.messages[:head], said("user", _content(request, text))], tokens, encoded)
        for text in (_ONE, _OTHER)
    ]
    known = [position for position in found if position is not None]
    return min(known) if len(known) == len(found) else None


def _edited(request: Rendering, tokens: Sequence[int], encoded: Callable[[Traced], Sequence[int]]) -> int | None:
    """End of what stays when the last message of the user is another one."""
    users = [place for place, message in enumerate(request.messages) if message["role"] == "user"]
    if not users:
        return None
    before = request.messages[: users[-1]]
    found = [
        _shared(request, [*before, said("user", _content(request, text))], tokens, encoded) for text in (_ONE, _OTHER)
    ]
    known = [position for position in found if position is not None]
    return min(known) if len(known) == len(found) else None


def _turn(request: Rendering, tokens: Sequence[int], encoded: Callable[[Traced], Sequence[int]]) -> int | None:
    """End of what stays when an answer was given and the next message comes."""
    for more in (
        [said("assistant", _content(request, _ONE)), said("user", _content(request, _OTHER))],
        [said("assistant", _content(request, _ONE))],
    ):
        found = _shared(request, [*request.messages, *more], tokens, encoded)
        if found is not None:
            return found
    return None


def _content(request: Rendering, text: str) -> object:
    """`text` in the form that the request's own messages have."""
    in_parts = any(isinstance(message.get("content"), list) for message in request.messages)
    return [{"type": "text", "text": text}] if in_parts else text

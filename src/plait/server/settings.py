"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BODY_BYTES", "Settings"]

BODY_BYTES: Final = 32 << 20  # a million token ids as JSON are about 7 MB, as text about 5 MB


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server presents its engine.

    name              what requests call the model
    created           when it was loaded, seconds since 1970
    choices           answers that one request may ask for
    api_key           what requests to /v1 must bring; None: nothing
    cors_origins      web pages from these origins may call; `*`: all
    max_tokens        what an answer may have whose request does not say; None: what the API says, which is 16 for
                      completions and the rest of the context for chats
    share             tokens of prompt and answer for chats that do not say, where memory is capped; None: no cap
    places            files and directories of the model: answers say the model's name instead
    body_bytes        length of a request's body
    body_seconds      how long a body may take to arrive
    stall_seconds     /health fails where there is work and the engine makes no step for so long
    quiet_seconds     a stream in which nothing happens gets a comment so often
    """

    name: str
    created: int
    choices: int
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_tokens: int | None = None
    share: int | None = None
    places: tuple[str, ...] = ()
    body_bytes: int = BODY_BYTES
    body_seconds: float = 60.0
    stall_seconds: float = 120.0
    quiet_seconds: float = 10.0

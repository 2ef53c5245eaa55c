"""Every error Plait raises on purpose.

    PlaitError                      exit status 1: something failed
    ├── UserError                   exit status 2: what was asked or given cannot be used
    │   ├── UsageError              an argument, option or request field
    │   │   └── ContextExceeded     more tokens than the model's context holds
    │   ├── ModelNotFound           MODEL names nothing that can be read
    │   ├── ConfigError             a config.json or a GGUF metadata key
    │   ├── FileFormatError         a file that is not what its name says, or is cut short
    │   ├── WeightsError            tensors missing, extra or misshaped
    │   ├── TokenizerError          a tokenizer that is missing or cannot be read
    │   └── UnsupportedError        understood, but this version cannot do it
    ├── MissingExtra                a part of Plait that is not installed
    └── QueueFull                   too many requests at once; later there is room again

A message says, as far as it applies: which file, which key or tensor, what was expected, what was
found, and what to do. `fault` writes one in that order.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "ConfigError",
    "ContextExceeded",
    "FileFormatError",
    "MissingExtra",
    "ModelNotFound",
    "PlaitError",
    "QueueFull",
    "TokenizerError",
    "UnsupportedError",
    "UsageError",
    "UserError",
    "WeightsError",
    "fault",
]


class PlaitError(Exception):
    """Base of all errors raised on purpose; `exit_status` is what the command line ends with."""

    exit_status = 1


class UserError(PlaitError):
    """What was asked or given cannot be used; nothing was changed."""

    exit_status = 2


class UsageError(UserError):
    """An argument, option or request field is wrong."""


class ContextExceeded(UsageError):
    """A sequence would be longer than the model's context."""

    def __init__(self, *, needed: int, limit: int, advice: str = "shorten the prompt") -> None:
        super().__init__(f"context exceeded: {needed} tokens needed, the limit is {limit}; {advice}")
        self.needed = needed
        self.limit = limit


class ModelNotFound(UserError):
    """MODEL names no catalogue entry, directory or file."""


class ConfigError(UserError):
    """A config.json or GGUF metadata key is missing, contradictory or of the wrong kind."""


class FileFormatError(UserError):
    """A file is malformed or cut short."""


class WeightsError(UserError):
    """Tensors of a checkpoint are missing, unexpected or misshaped."""


class TokenizerError(UserError):
    """A tokenizer is missing or cannot be read."""


class UnsupportedError(UserError):
    """The model or file is understood, but this version of Plait cannot do what was asked."""


class MissingExtra(PlaitError):
    """An optional part of Plait is not installed."""

    def __init__(self, package: str, arguments: str) -> None:
        """`arguments`: what to give to `pip install`."""
        super().__init__(f"the Python package {package!r} is not installed; run: pip install {arguments}")
        self.package = package


class QueueFull(PlaitError):
    """An engine has as many requests waiting as it takes; `retry_after`: seconds until one more may be taken."""

    def __init__(self, *, waiting: int, retry_after: float) -> None:
        advice = f"try again in {retry_after:.1f} s"
        super().__init__(fault("the queue is full", found=f"{waiting} requests waiting", advice=advice))
        self.retry_after = retry_after


def fault(
    what: str,
    *,
    file: str | Path | None = None,
    expected: object = None,
    found: object = None,
    advice: str | None = None,
) -> str:
    """One line: `file: what: expected X, found Y; advice`."""
    text = f"{file}: {what}" if file is not None else what
    details = []
    if expected is not None:
        details.append(f"expected {expected}")
    if found is not None:
        details.append(f"found {found}")
    if details:
        text += ": " + ", ".join(details)
    if advice is not None:
        text += f"; {advice}"
    return text

"""The engine's figures at one moment, as the server tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from plait.cache.report import Stats
from plait.engine.engine import Engine

__all__ = ["Snapshot", "snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """steps         of the engine since it was made
    idle_seconds  since the last of them
    held          bytes by category, the weights among them
    """

    queued: int
    running: int
    steps: int
    idle_seconds: float
    held: Mapping[str, int]
    cache_bytes: int
    cache_budget: int
    reused: int
    lost: int


def snapshot(engine: Engine) -> Snapshot:
    """The figures now; answers at once, whatever the engine does."""
    found = cast("Mapping[str, Any]", engine.stats())
    cache: Stats = found["cache"]
    return Snapshot(
        queued=found["queued"],
        running=found["running"],
        steps=found["steps"],
        idle_seconds=found["idle_seconds"],
        held={"weights": found["weight_bytes"], **found["held"]},
        cache_bytes=cache.bytes,
        cache_budget=cache.budget,
        reused=cache.reused,
        lost=cache.lost,
    )

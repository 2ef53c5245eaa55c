"""How long a sequence may get under a memory cap if it is to leave room for others."""

from __future__ import annotations

from plait.engine.engine import Engine

__all__ = ["share"]


def share(engine: Engine, cap: int, sequences: int) -> int:
    """Tokens of each of `sequences` that fit beside each other under `cap` bytes; at least 1, at most the context."""
    room = max(0, cap - engine.model.weight_bytes) // sequences
    fits, too_long = 1, engine.blueprint.max_context + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if engine.cap.most(middle) <= room:
            fits = middle
        else:
            too_long = middle
    return fits

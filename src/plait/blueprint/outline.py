"""What can be said of a model whose family is not known: an outline of its layers, never a blueprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from plait.blueprint.spec import Evidence

__all__ = ["Kind", "Outline", "OutlineLayer"]

Kind = Literal["full", "window", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class OutlineLayer:
    """What one layer keeps of each token, as far as the keys tell.

    kind  `full`: keys and values of every token; `window`: of the last `window`; `none`: no keys and values;
          `unknown`: the keys do not tell
    word  the file's own word for the layer, empty where it has none
    """

    kind: Kind
    word: str
    heads: int | None
    kv_heads: int | None
    qk_dim: int | None
    v_dim: int | None
    window: int | None


@dataclass(frozen=True, slots=True)
class Outline:
    """What the keys of a model tell whose family is not known. None: not stated.

    family    the file's own word
    width     of the feed-forward layers, the largest where they differ
    evidence  field to the key it was read from
    notes     what was assumed, one sentence each
    doubts    why keys and values are not known; none: they are
    """

    family: str
    hidden: int | None
    vocabulary: int | None
    max_context: int | None
    width: int | None
    experts: int | None
    active_experts: int | None
    layers: tuple[OutlineLayer, ...]
    evidence: Mapping[str, Evidence]
    notes: tuple[str, ...]
    doubts: tuple[str, ...]

"""How a container stores a model: which tensors hold which roles, and what has to be done to them.

A family file states a `Layout` per container; the weight reader of the runtime and the writer of random checkpoints
both follow it, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["ONE_ROOT", "Binding", "Ignored", "Layout", "MinusOne", "PermutedRows", "Transform"]


@dataclass(frozen=True, slots=True)
class MinusOne:
    """The container stores w + 1 (GGUF norms of Gemma 2 and 3); 1 is taken off after reading, in float32."""


@dataclass(frozen=True, slots=True)
class PermutedRows:
    """Rows of each of `heads` heads are stored for adjacent-pair rotation: (i, j) where the model has (j, i),
    with j in {0, 1} the half and i the pair (GGUF files of the llama architecture)."""

    heads: int


Transform = MinusOne | PermutedRows


@dataclass(frozen=True, slots=True)
class Binding:
    """Tensors `names`, joined along their first axis, are the roles `roles`, joined along theirs.

    Names are format strings over the words of a root, `{body}layers.0.mlp.up_proj.weight`.
    """

    roles: tuple[str, ...]
    names: tuple[str, ...]
    transform: Transform | None = None


@dataclass(frozen=True, slots=True)
class Ignored:
    """Tensors whose whole name matches the regular expression are in files and not in the graph."""

    pattern: str
    reason: str


ONE_ROOT: Final[tuple[Mapping[str, str], ...]] = (MappingProxyType({}),)


@dataclass(frozen=True, slots=True)
class Layout:
    """All bindings of one container; `roots` are the alternative prefixes published files use."""

    bindings: tuple[Binding, ...]
    roots: tuple[Mapping[str, str], ...] = ONE_ROOT
    ignored: tuple[Ignored, ...] = ()

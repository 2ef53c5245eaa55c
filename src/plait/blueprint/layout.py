"""How a container stores a model: which tensors hold which roles, and what has to be done to them.

A family file states a `Layout` per container; the weight reader of the runtime and the writer of random checkpoints
both follow it, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

__all__ = [
    "ONE_ROOT",
    "AbsorbedKeys",
    "Binding",
    "Chained",
    "GroupedRows",
    "Ignored",
    "Layout",
    "MinusOne",
    "NegatedExp",
    "PermutedRows",
    "Step",
    "TiledHeads",
    "Transform",
    "resolved",
]


@dataclass(frozen=True, slots=True)
class MinusOne:
    """The container stores w + 1 (GGUF norms of Gemma 2 and 3); 1 is taken off after reading, in float32."""


@dataclass(frozen=True, slots=True)
class PermutedRows:
    """Rows of each of `heads` heads are stored for adjacent-pair rotation: (i, j) where the model has (j, i),
    with j in {0, 1} the half and i the pair (GGUF files of the llama architecture)."""

    heads: int


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows of several matrices are stored group by group. A row is what all axes but the last number.

    Joined, the roles are sections of `sections` rows. The container holds, for each of `groups` groups, the group's
    share of every section in turn: query and gate head by head, or fused gate and up projections expert by expert.
    """

    groups: int
    sections: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TiledHeads:
    """Value heads of a Gated DeltaNet are stored tiled: head j * key_heads + i of the container is head
    i * repeats + j of the model, which puts the value heads of one key head side by side (GGUF, Qwen3.5).

    The heads share the rows from `start` on evenly (or the columns); rows before it are the model's.
    """

    key_heads: int
    repeats: int
    start: int = 0
    axis: Literal["rows", "columns"] = "rows"


@dataclass(frozen=True, slots=True)
class NegatedExp:
    """The container stores -exp(w) (GGUF, the decay of a Gated DeltaNet); w = log(-stored), in float32."""


@dataclass(frozen=True, slots=True)
class AbsorbedKeys:
    """Two tensors hold the expansion of a latent, head by head: keys [heads, rank, key_dim], turned for absorbing them
    into the queries, and values [heads, value_dim, rank]. The role has for each of `heads` heads `key_dim` rows that
    make keys, then `value_dim` rows that make values (GGUF, latent attention).
    """

    heads: int
    key_dim: int
    value_dim: int


Step = MinusOne | PermutedRows | GroupedRows | TiledHeads | NegatedExp | AbsorbedKeys


@dataclass(frozen=True, slots=True)
class Chained:
    """Several transforms, to be undone in this order after reading."""

    steps: tuple[Step, ...]


Transform = Step | Chained


@dataclass(frozen=True, slots=True)
class Binding:
    """Tensors `names`, joined along their first axis, are the roles `roles`, joined along theirs.

    Names are format strings over the words of a root, `{body}layers.0.mlp.up_proj.weight`. Axes of length 1, and the
    axis of the experts where each lies in a tensor of its own, are the container's: what counts is rows and columns.

    axes  of the one tensor, where they are not those of the roles joined
    """

    roles: tuple[str, ...]
    names: tuple[str, ...]
    transform: Transform | None = None
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ignored:
    """Tensors whose whole name matches the regular expression are in files and not in the graph.

    mtp  they are multi-token-prediction layers, which the blueprint describes and the account counts
    """

    pattern: str
    reason: str
    mtp: bool = False


ONE_ROOT: Final[tuple[Mapping[str, str], ...]] = (MappingProxyType({}),)


@dataclass(frozen=True, slots=True)
class Layout:
    """All bindings of one container; `roots` are the alternative prefixes published files use.

    variants  other ways in which files store some of the roles, each the bindings of one set of roles: `resolved`
              puts one in place of the usual bindings of its roles where the file has its tensors instead
    """

    bindings: tuple[Binding, ...]
    roots: tuple[Mapping[str, str], ...] = ONE_ROOT
    ignored: tuple[Ignored, ...] = ()
    variants: tuple[tuple[Binding, ...], ...] = ()


def resolved(layout: Layout, stored: Collection[str]) -> tuple[Binding, ...]:
    """The bindings that fit the names `stored`, with whole names: the best root, and variants where the file has them.

    The root is the one under which most names exist, the first of equals. A variant is taken only where all of its
    tensors exist and some of the usual ones do not, so a damaged file is held against the usual form.
    """

    def under(root: Mapping[str, str], bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        return tuple(replace(b, names=tuple(name.format(**root) for name in b.names)) for b in bindings)

    def present(bindings: tuple[Binding, ...]) -> int:
        return sum(name in stored for binding in bindings for name in binding.names)

    chosen: tuple[Binding, ...] = ()
    most = -1
    for root in layout.roots:
        usual = under(root, layout.bindings)
        variants = tuple(under(root, variant) for variant in layout.variants)
        found = present(usual) + sum(map(present, variants))
        if found > most:
            most, chosen = found, _replaced(usual, variants, stored)
    return chosen


def _replaced(
    usual: tuple[Binding, ...], variants: tuple[tuple[Binding, ...], ...], stored: Collection[str]
) -> tuple[Binding, ...]:
    def complete(bindings: tuple[Binding, ...]) -> bool:
        return all(name in stored for binding in bindings for name in binding.names)

    by_role = {role: i for i, binding in enumerate(usual) for role in binding.roles}
    places: list[tuple[Binding, ...]] = [(binding,) for binding in usual]
    for variant in variants:
        indices = sorted({by_role[role] for binding in variant for role in binding.roles})
        if complete(variant) and not complete(tuple(usual[i] for i in indices)):
            for i in indices:
                places[i] = ()
            places[indices[0]] = variant
    return tuple(binding for place in places for binding in place)

"""A model under verification, with the tokens it is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.spec import Attention, Blueprint, LatentAttention
from plait.blueprint.state import SLAB
from plait.runtime.model import Model
from plait.runtime.session import Span

__all__ = ["Subject", "cut", "default_lengths", "edges"]

_EXTRA: Final = 5


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, the lengths of prompts it is asked about, ascending, and the seed of their tokens.

    small  a random model that was made for this; False: somebody's, where checks are kept short
    """

    model: Model
    lengths: tuple[int, ...]
    seed: int
    small: bool
    _whole: dict[int, Tensor] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        return self.lengths[-1]

    def tokens(self, count: int, stream: int = 0) -> tuple[int, ...]:
        """Random token ids: the first `count` of a stream of them, all of which depend on the seed."""
        random = Random(f"{self.seed} {stream}")
        return tuple(random.randrange(self.model.blueprint.vocabulary) for _ in range(count))

    def run(self, tokens: Sequence[int], split: Iterable[int]) -> Tensor:
        """Logits after each token [n, vocabulary], the tokens cut into calls of the lengths `split`."""
        session = self.model.session()
        parts, at = [], 0
        try:
            for size in split:
                parts.extend(self.model.run([Span(session, tuple(tokens[at : at + size]))], want="all"))
                at += size
        finally:
            session.close()
        return torch.cat(parts)

    def whole(self, length: int) -> Tensor:
        """Logits after each of the first `length` tokens, in one call; kept, as most checks compare with them."""
        if length not in self._whole:
            self._whole[length] = self.run(self.tokens(length), (length,))
        return self._whole[length]


def cut(length: int, size: int) -> list[int]:
    """`length` tokens in calls of `size`, the last with what is left."""
    return [min(size, length - at) for at in range(0, length, size)]


def edges(blueprint: Blueprint) -> tuple[int, ...]:
    """Numbers of tokens at which something ends in this model: its windows, and what an indexer chooses."""
    found: set[int] = set()
    for layer in blueprint.layers:
        mixer = layer.mixer
        if isinstance(mixer, Attention) and mixer.window is not None:
            found.add(mixer.window)
        elif isinstance(mixer, LatentAttention) and mixer.indexer is not None:
            found.add(mixer.indexer.top_k)
    return tuple(sorted(found))


def default_lengths(blueprint: Blueprint, *, small: bool) -> tuple[int, ...]:
    """Lengths around slabs, and beyond several windows and choices where those are short; see `--lengths`."""
    if not small:
        return tuple(n for n in (1, SLAB + 1, 2 * SLAB + _EXTRA) if n <= blueprint.max_context)
    reach = max((edge for edge in edges(blueprint) if edge <= SLAB), default=0)
    wanted = (1, SLAB + 1, 2 * SLAB + 3 * reach + _EXTRA)
    return tuple(n for n in wanted if n <= blueprint.max_context) or (blueprint.max_context,)

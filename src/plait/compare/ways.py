"""How a model saves keys and values: each way in plain words, with the factor it contributes.

The measure is the same model with full multi-head attention: every layer keeps K and V of every token for each of its
query heads, in its own head sizes (a Gated DeltaNet in those of the model's full attention). From there the ways are
applied one after the other, in the order of `WAYS`, each to a blueprint that differs from the one before in that way
alone, and both ends are counted by `account.memory`. So the product of the factors is the bytes of the measure over
those of the model, and the sum of what is saved is their difference, exactly.

A factor is a function of the context. It depends on the order too, where ways meet in one layer; it is below 1 where a
way costs, as a fixed state does at short contexts and an indexer's keys do everywhere. Reading is counted by
`account.speed`: the bytes of state that a decode step reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal

from plait.account.memory import format_weights, memory
from plait.account.speed import decode_traffic
from plait.blueprint.pattern import layer_kind, layer_numbers
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet, LatentAttention, Layer, Mixer
from plait.compare.words import over_layers

__all__ = ["WAYS", "Saving", "Way", "Ways", "ways"]

Way = Literal[
    "linear_layers", "windows", "shared_layers", "fewer_kv_heads", "keys_are_values", "latent", "sparse_reading"
]


@dataclass(frozen=True, slots=True)
class Saving:
    """One way of one model.

    words           what it is, one sentence
    stored          bytes of state before over after
    read            the same of the bytes of state a decode step reads
    saved_bytes     bytes of state before less after; negative where the way costs
    """

    way: Way
    words: str
    stored: Fraction
    read: Fraction
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class Ways:
    """All ways of one model at one context, for one sequence.

    full_bytes    state of the same model with full multi-head attention
    state_bytes   state of the model: `account.memory`'s need
    full_layers   layers that keep every token, of `layers`
    """

    context: int
    kv_format: str
    full_bytes: int
    state_bytes: int
    full_layers: int
    layers: int
    savings: tuple[Saving, ...]

    @property
    def stored(self) -> Fraction:
        """Bytes of full multi-head attention over those of the model: the product of all factors."""
        return Fraction(self.full_bytes, self.state_bytes)


def _heads_of(blueprint: Blueprint) -> Attention | None:
    """The attention whose head sizes a linear layer is measured with: a full layer's, else a window's."""
    mixers = [layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention)]
    return next((m for m in mixers if m.window is None), mixers[0] if mixers else None)


def _plain(heads: int, qk_dim: int, v_dim: int) -> Attention:
    return Attention(heads=heads, kv_heads=heads, qk_dim=qk_dim, v_dim=v_dim, scale=1.0)


def _with(mixer: Mixer, on: frozenset[Way], own: Attention | None) -> Mixer:
    """A mixer that saves in the ways that are `on`, and in no other."""
    match mixer:
        case GatedDeltaNet():
            if "linear_layers" in on:
                return mixer
            if own is None:
                return _plain(mixer.value_heads, mixer.key_dim, mixer.value_dim)
            return _plain(own.heads, own.qk_dim, own.v_dim)
        case LatentAttention():
            if "latent" not in on:
                return _plain(mixer.heads, mixer.nope_dim + mixer.rope_dim, mixer.v_dim)
            return mixer if "sparse_reading" in on else replace(mixer, indexer=None)
        case Attention():
            return replace(
                mixer,
                window=mixer.window if "windows" in on else None,
                kv_source=mixer.kv_source if "shared_layers" in on else None,
                kv_heads=mixer.kv_heads if "fewer_kv_heads" in on else mixer.heads,
                keys_are_values=mixer.keys_are_values and "keys_are_values" in on,
            )


def _count(blueprint: Blueprint, there: Callable[[Layer], bool]) -> str:
    found = [i for i, layer in enumerate(blueprint.layers) if there(layer)]
    if len(found) == len(blueprint.layers):
        return "every layer" if len(found) > 1 else "the one layer"
    return f"{len(found)} of {len(blueprint.layers)} layers ({layer_numbers(found)})"


def _linear(blueprint: Blueprint) -> str:
    where = _count(blueprint, lambda layer: isinstance(layer.mixer, GatedDeltaNet))
    return f"Fewer full layers: a Gated DeltaNet in {where}, whose state has a fixed size and no rows."


def _windows(blueprint: Blueprint) -> str:
    def text(layer: Layer) -> str | None:
        mixer = layer.mixer
        return None if not isinstance(mixer, Attention) or mixer.window is None else f"{mixer.window:,}"

    where = _count(blueprint, lambda layer: text(layer) is not None)
    return f"Fewer full layers: windows of {over_layers(blueprint, text)} tokens in {where}, and no rows before them."


def _shared_layers(blueprint: Blueprint) -> str:
    where = _count(blueprint, lambda layer: isinstance(layer.mixer, Attention) and layer.mixer.kv_source is not None)
    return f"Shared layers: no own keys and values in {where}; those of an earlier layer are read."


def _fewer_kv_heads(blueprint: Blueprint) -> str:
    def text(layer: Layer) -> str | None:
        mixer = layer.mixer
        if not isinstance(mixer, Attention):
            return None
        if mixer.kv_heads == mixer.heads:
            return f"{mixer.heads} KV heads for as many query heads"
        return f"{mixer.kv_heads} KV head{'' if mixer.kv_heads == 1 else 's'} for {mixer.heads} query heads"

    return f"Fewer heads: {over_layers(blueprint, text)}."


def _keys_are_values(blueprint: Blueprint) -> str:
    where = _count(blueprint, lambda layer: isinstance(layer.mixer, Attention) and layer.mixer.keys_are_values)
    return f"Keys are values: one vector per KV head and the rotated part of the key, not K and V, in {where}."


def _latent(blueprint: Blueprint) -> str:
    def text(layer: Layer) -> str | None:
        mixer = layer.mixer
        if not isinstance(mixer, LatentAttention):
            return None
        return f"one latent of {mixer.kv_rank} and one rotated key of {mixer.rope_dim} serve all {mixer.heads} heads"

    return f"Latent: {over_layers(blueprint, text)}."


def _sparse(blueprint: Blueprint) -> str:
    def text(layer: Layer) -> str | None:
        mixer = layer.mixer
        if not isinstance(mixer, LatentAttention) or mixer.indexer is None:
            return None
        return f"{mixer.indexer.top_k:,}"

    return (
        f"Sparse reading: an indexer picks the {over_layers(blueprint, text)} rows a token reads. That saves reading, "
        "not storing: all rows stay, and the indexer's keys come on top."
    )


_WORDS: Final[Mapping[Way, Callable[[Blueprint], str]]] = MappingProxyType(
    {
        "linear_layers": _linear,
        "windows": _windows,
        "shared_layers": _shared_layers,
        "fewer_kv_heads": _fewer_kv_heads,
        "keys_are_values": _keys_are_values,
        "latent": _latent,
        "sparse_reading": _sparse,
    }
)
WAYS: Final[tuple[Way, ...]] = tuple(_WORDS)
"""The ways in the order in which they are applied."""


def _stages(blueprint: Blueprint) -> Sequence[tuple[Way | None, Blueprint]]:
    """The model with full multi-head attention, and after each way that changes it."""
    own = _heads_of(blueprint)
    stages: list[tuple[Way | None, Blueprint]] = []
    for i in range(len(WAYS) + 1):
        on = frozenset(WAYS[:i])
        layers = tuple(replace(layer, mixer=_with(layer.mixer, on, own)) for layer in blueprint.layers)
        made = replace(blueprint, layers=layers)
        if not stages or made != stages[-1][1]:
            stages.append((WAYS[i - 1] if i else None, made))
    assert stages[-1][1] == blueprint
    return stages


def ways(blueprint: Blueprint, context: int, *, kv_format: str = "bf16") -> Ways:
    """How a model saves keys and values at `context` tokens of one sequence, against full multi-head attention.

    UsageError: a context below 1 or a format of keys and values that is not known.
    """
    savings: list[Saving] = []
    stored: list[int] = []
    read: list[int] = []
    for way, stage in _stages(blueprint):
        stored.append(memory(stage, context, kv_format=kv_format, weights=0).total_bytes)
        sizes = format_weights(stage, "bf16")
        read.append(decode_traffic(stage, context, sizes, kv_format=kv_format).state_read_bytes)
        if way is not None:
            words, saved = _WORDS[way](blueprint), stored[-2] - stored[-1]
            savings.append(Saving(way, words, Fraction(stored[-2], stored[-1]), Fraction(read[-2], read[-1]), saved))
    full = sum(layer_kind(layer) in ("full", "latent") for layer in blueprint.layers)
    return Ways(context, kv_format, stored[0], stored[-1], full, len(blueprint.layers), tuple(savings))

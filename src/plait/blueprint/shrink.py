"""A config made small for tests: the same family, layer pattern and settings, sizes that run in milliseconds.

Each rule is one entry of a table: the key, and its value in the small config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose, lcm
from types import MappingProxyType
from typing import Any, Final

from plait.blueprint.check import not_run
from plait.blueprint.source import from_config
from plait.blueprint.spec import Attention, Blueprint, Layer
from plait.errors import UnsupportedError, fault

__all__ = ["tiny"]

_VOCABULARY: Final = 512
_WINDOW: Final = 8
_HIDDEN: Final = 64
_BLOCK: Final = 32  # rows are multiples of it, so that the 32-element block formats can store them
_MOST_LAYERS: Final = 8
_HEAD_DIMS: Final = (16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of the small model; `kept` are the layers of the large one that it keeps."""

    kept: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    windowed: bool

    @property
    def width(self) -> int:
        """Of the feed-forward, unlike every other size, so that a mixed-up axis shows."""
        return self.hidden + _BLOCK


# Keys that fix a size: written whether or not the config has them, as a family's default may be large.
_SIZES: Final[Mapping[str, Callable[[_Sizes], int]]] = MappingProxyType(
    {
        "hidden_size": lambda s: s.hidden,
        "intermediate_size": lambda s: s.width,
        "num_hidden_layers": lambda s: len(s.kept),
        "num_attention_heads": lambda s: s.heads,
        "num_key_value_heads": lambda s: s.kv_heads,
        "head_dim": lambda s: s.head_dim,
        "vocab_size": lambda s: s.vocabulary,
    }
)

# Keys that are changed where they stand, from their value.
_CHANGED: Final[Mapping[str, Callable[[Any, _Sizes], object]]] = MappingProxyType(
    {
        "layer_types": lambda value, s: [value[i] for i in s.kept],
        "max_window_layers": lambda value, s: sum(i < value for i in s.kept),
        "sliding_window": lambda value, s: min(value, _WINDOW),
        "sliding_window_size": lambda value, s: min(value, _WINDOW),
    }
)

_VISION: Final[Mapping[str, int]] = MappingProxyType(
    {
        "hidden_size": 32,
        "image_size": 56,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "patch_size": 14,
    }
)
# Sizes of vision towers of another kind: beside the keys above they would contradict or outgrow them.
_OTHER_VISION: Final = ("depth", "embed_dim", "num_heads", "out_hidden_size")
_IMAGE_TOKENS: Final = 4

_SCALE_KEY: Final = "query_pre_attn_scalar"


def tiny(config: Mapping[str, object]) -> dict[str, object]:
    """The keys of `config` with small sizes, at any depth; all other keys as they are.

    Kept: one or two periods of the layer pattern (of a pattern without a period, one layer of each run), query heads
    per KV head, the share of a head that is rotated, how the query scale follows from the sizes. Token ids beyond the
    small vocabulary move to its end. ConfigError, UnsupportedError: a config that cannot be read. UnsupportedError: a
    model with parts that are not run, for whose sizes there are no rules; a vision tower of unknown sizes.
    """
    blueprint, _ = from_config(config, file="config")
    missing = not_run(blueprint)
    if missing:
        what = f"{blueprint.family}: this version has no rules for a small config with {', '.join(missing)}"
        raise UnsupportedError(fault(what, advice="only models that it runs are made small"))
    sizes = _sizes(blueprint)
    moved = _moved_tokens(config, sizes.vocabulary)
    small = _tokens_moved(config, moved)
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        small["text_config"] = _text(_tokens_moved(nested, moved), sizes)
    else:
        small = _text(small, sizes)
    vision = config.get("vision_config")
    if isinstance(vision, Mapping):
        strange = next((key for key in _OTHER_VISION if key in vision), None)
        if strange is not None:
            what = f"{blueprint.family}: this version has no rules for a small vision tower with the key {strange!r}"
            raise UnsupportedError(fault(what, expected="sizes under " + ", ".join(_VISION)))
        small["vision_config"] = {**vision, **_VISION}
        small["mm_tokens_per_image"] = _IMAGE_TOKENS
    return _with_scale(small, blueprint)


def _attention(blueprint: Blueprint) -> Attention:
    for layer in blueprint.layers:
        if isinstance(layer.mixer, Attention):
            return layer.mixer
    raise UnsupportedError(fault("a model without attention layers", expected="at least one to take sizes from"))


def _sizes(blueprint: Blueprint) -> _Sizes:
    mixer = _attention(blueprint)
    group = mixer.heads // mixer.kv_heads
    kv_heads = 2 if mixer.kv_heads > 1 and group <= 4 else 1
    heads = group * kv_heads
    head_dim = next(
        (dim for dim in _HEAD_DIMS if heads * dim % _BLOCK == 0 and _rotates(blueprint, mixer.qk_dim, dim)), None
    )
    if head_dim is None:
        raise UnsupportedError(
            fault("the share of a head that is rotated", expected="one that a small head can have", found=mixer.rope)
        )
    if mixer.heads * mixer.qk_dim == blueprint.hidden:
        hidden = heads * head_dim
    else:
        step = lcm(_BLOCK, heads)
        hidden = -(-_HIDDEN // step) * step
    windowed = any(isinstance(layer.mixer, Attention) and layer.mixer.window is not None for layer in blueprint.layers)
    return _Sizes(
        kept=_kept(blueprint.layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        vocabulary=min(blueprint.vocabulary, _VOCABULARY),
        windowed=windowed,
    )


def _rotates(blueprint: Blueprint, before: int, after: int) -> bool:
    """A head of `after` dims rotates the same share of its dims as one of `before`, in whole pairs."""
    pairs = {m.rope.pairs for layer in blueprint.layers if isinstance(m := layer.mixer, Attention) and m.rope}
    return all(count * after % before == 0 for count in pairs)


def _kept(layers: Sequence[Layer]) -> tuple[int, ...]:
    """Layers to keep: two periods of the pattern, one where two are too many; without a period, one of each run."""
    count = len(layers)
    period = next(p for p in range(1, count + 1) if all(layers[i] == layers[i % p] for i in range(p, count)))
    if period > _MOST_LAYERS:
        runs = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(layers)) if a != b)]
        return tuple(runs[:_MOST_LAYERS])
    return tuple(range(min(count, 2 * period if 2 * period <= _MOST_LAYERS else period)))


def _text(config: Mapping[str, object], sizes: _Sizes) -> dict[str, object]:
    small = dict(config)
    for key, size in _SIZES.items():
        small[key] = size(sizes)
    for key, change in _CHANGED.items():
        if small.get(key) is not None:
            small[key] = change(small[key], sizes)
    if sizes.windowed and not any(small.get(key) is not None for key in ("sliding_window", "sliding_window_size")):
        small["sliding_window"] = _WINDOW
    return small


def _token_keys(config: Mapping[str, object]) -> Iterator[str]:
    return (key for key in config if key.endswith(("_token_id", "_token_index")))


def _ids(value: object) -> list[int]:
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


def _moved_tokens(config: Mapping[str, object], vocabulary: int) -> dict[int, int]:
    """Where each token id beyond the vocabulary goes: the last ids of it that nothing else has."""
    sections = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    ids = {token for section in sections for key in _token_keys(section) for token in _ids(section[key])}
    free = (token for token in reversed(range(vocabulary)) if token not in ids)
    return dict(zip(sorted(token for token in ids if token >= vocabulary), free, strict=False))


def _tokens_moved(config: Mapping[str, object], moved: Mapping[int, int]) -> dict[str, object]:
    small = dict(config)
    for key in _token_keys(config):
        value = config[key]
        if isinstance(value, list | tuple):
            small[key] = [moved.get(item, item) for item in value]
        elif isinstance(value, int):
            small[key] = moved.get(value, value)
    return small


def _with_scale(small: dict[str, object], large: Blueprint) -> dict[str, object]:
    """The small config with the key of the query scale, where that has one: the same function of the sizes."""
    blueprint, _ = from_config(small, file="config")
    mixer, before = _attention(blueprint), _attention(large)
    scalar = before.scale**-2
    if isclose(scalar, before.qk_dim):
        wanted: float = mixer.qk_dim
    elif isclose(scalar, large.hidden / before.heads):
        wanted = blueprint.hidden / mixer.heads
    else:
        wanted = scalar * mixer.qk_dim / before.qk_dim
    if isclose(mixer.scale, wanted**-0.5):
        return small
    nested = small.get("text_config")
    key = {_SCALE_KEY: int(wanted) if float(wanted).is_integer() else wanted}
    if isinstance(nested, Mapping):
        return {**small, "text_config": {**nested, **key}}
    return {**small, **key}

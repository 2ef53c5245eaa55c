"""Sizes of a small config: what each key that is a size becomes, from its value in the large one.

Heads shrink by one ratio and head sizes by another, so that groups of query heads, rotated shares and the sizes of
several kinds of layers keep their proportions. All other sizes are fixed numbers, unlike each other where they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from types import MappingProxyType
from typing import Any, Final

from plait.blueprint.spec import Attention, Blueprint, Both, GatedDeltaNet, LatentAttention, Mixture
from plait.errors import UnsupportedError, fault

__all__ = ["BLOCK", "WINDOW", "Sizes", "changed_size", "sizes_of"]

BLOCK: Final = 32  # rows are multiples of it, so that the 32-element block formats can store them
WINDOW: Final = 8
_VOCABULARY: Final = 512
_HIDDEN: Final = 64
_MOST_HIDDEN: Final = 128
_HEAD_DIMS: Final = (16, 32, 64, 128, 24, 48, 96, 192)
_LATENT_HEADS: Final = 4
_LATENT_ROPE: Final = 16
_KV_RANK: Final = 32
_Q_RANK: Final = 96
_TOP_K: Final = 16
_GROUPS: Final = 4
_EXPERTS: Final = 8
_ACTIVE: Final = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the small model.

    kept     layers of the large model that it keeps
    heads    ratio of head counts, small to large
    dims     ratio of head sizes
    latent   sizes are those of latent attention, where no ratio holds: nope_dim, v_dim
    pairs    rotated pairs whose split among axes some key says
    """

    kept: tuple[int, ...]
    hidden: int
    vocabulary: int
    heads: Fraction
    dims: Fraction
    latent: tuple[int, int] | None
    pairs: int
    repeats: int
    experts: int
    groups: int
    kept_groups: int

    @property
    def width(self) -> int:
        """Of the feed-forward, unlike every other size, so that a mixed-up axis shows."""
        return self.hidden + BLOCK


def _attentions(blueprint: Blueprint) -> list[Attention]:
    return [layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention)]


def _mixture(blueprint: Blueprint) -> Mixture | None:
    for layer in blueprint.layers:
        part = layer.feed_forward
        if isinstance(part, Both):
            return part.mixture
        if isinstance(part, Mixture):
            return part
    return None


def sizes_of(blueprint: Blueprint, kept: tuple[int, ...]) -> Sizes:
    """The sizes; UnsupportedError: no small head rotates the same share, or there is no attention to shrink."""
    attentions = _attentions(blueprint)
    latent = next((layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, LatentAttention)), None)
    if attentions:
        heads, dims = _ratios(attentions)
        first = attentions[0]
        count = int(first.heads * heads)
        step = lcm(BLOCK, count)
        whole = int(first.heads * first.qk_dim * heads * dims)
        square = first.heads * first.qk_dim == blueprint.hidden and whole <= _MOST_HIDDEN
        hidden = whole if square else -(-_HIDDEN // step) * step
    elif latent is not None:
        heads, dims, hidden = Fraction(_LATENT_HEADS, latent.heads), Fraction(_LATENT_ROPE, latent.rope_dim), _HIDDEN
    else:
        raise UnsupportedError(fault("a model without attention layers", expected="at least one to take sizes from"))
    mixture = _mixture(blueprint)
    groups = 1 if mixture is None or mixture.router.groups == 1 else _GROUPS
    all_kept = mixture is None or mixture.router.kept_groups == mixture.router.groups
    return Sizes(
        kept=kept,
        hidden=hidden,
        vocabulary=min(blueprint.vocabulary, _VOCABULARY),
        heads=heads,
        dims=dims,
        latent=None if latent is None else (_scaled(latent.nope_dim, dims), _scaled(latent.v_dim, dims)),
        pairs=next((int(m.rope.pairs * dims) for m in attentions if m.rope and m.rope.axes), 0),
        repeats=next(
            (m.value_heads // m.key_heads for x in blueprint.layers if isinstance(m := x.mixer, GatedDeltaNet)), 1
        ),
        experts=_EXPERTS,
        groups=groups,
        kept_groups=groups if all_kept else groups // 2,
    )


def _scaled(size: int, ratio: Fraction) -> int:
    """The size times the ratio, rounded up to a multiple of a small one that blocks can be filled with."""
    return max(_LATENT_ROPE, -(-int(size * ratio) // _LATENT_ROPE) * _LATENT_ROPE)


def _ratios(attentions: list[Attention]) -> tuple[Fraction, Fraction]:
    """Of head counts and of head sizes."""
    first = attentions[0]
    shapes = {(m.heads, m.kv_heads) for m in attentions}
    group = lcm(*(first.heads // gcd(first.heads, kv * first.heads // heads) for heads, kv in shapes))
    several = len(shapes) == 1 and first.kv_heads > 1 and group <= 4
    heads = Fraction(2 * group if several else group, first.heads)
    for dim in _HEAD_DIMS:
        ratio = Fraction(dim, first.qk_dim)
        if all(_fits(mixer, heads, ratio) for mixer in attentions):
            return heads, ratio
    found = first.rope
    raise UnsupportedError(
        fault("the share of a head that is rotated", expected="one that a small head can have", found=found)
    )


def _fits(mixer: Attention, heads: Fraction, dims: Fraction) -> bool:
    """Counts stay whole, rows fill blocks, each head rotates the same share in whole pairs, with one for each axis."""
    whole = [mixer.heads * heads, mixer.kv_heads * heads, mixer.qk_dim * dims, mixer.v_dim * dims]
    if mixer.rope is not None:
        pairs = mixer.rope.pairs * dims
        whole.append(pairs)
        if mixer.rope.axes is not None and pairs < len(mixer.rope.axes):
            return False
    if any(count.denominator != 1 for count in whole):
        return False
    return all(int(mixer.heads * heads * size * dims) % BLOCK == 0 for size in (mixer.qk_dim, mixer.v_dim))


# -- keys ------------------------------------------------------------------------------------------------------------


def _heads(value: int, sizes: Sizes) -> int:
    return int(value * sizes.heads)


def _dims(value: int, sizes: Sizes) -> int:
    return int(value * sizes.dims)


def _layers(value: int, sizes: Sizes) -> int:
    """A number of leading layers."""
    return sum(i < value for i in sizes.kept)


def _width(value: Any, sizes: Sizes) -> object:
    """One width, or one a layer, which keep their order: the least is the usual one, the others are half more."""
    if not isinstance(value, list | tuple):
        return sizes.width
    return [sizes.width if value[i] == min(value) else sizes.width + BLOCK for i in sizes.kept]


def _frequency(value: Any, sizes: Sizes) -> object:
    """`moe_layer_freq` is a period, or a number for each layer."""
    return [value[i] for i in sizes.kept] if isinstance(value, list | tuple) else value


def _listed(value: Any, sizes: Sizes) -> object:
    """One item, or letter, for each layer."""
    items = [value[i] for i in sizes.kept]
    return "".join(items) if isinstance(value, str) else items


def _sections(value: Any, sizes: Sizes) -> object:
    """Pairs split among axes in proportion, what is left over from the first axis on."""
    parts = [part * sizes.pairs // sum(value) for part in value]
    rest = sizes.pairs - sum(parts)
    return [part + (i < rest) for i, part in enumerate(parts)]


def _table_rows(value: int, sizes: Sizes) -> int:
    """Rows of the table of per-layer embeddings are fewer than the vocabulary where they were."""
    return min(value, sizes.vocabulary)


_CHANGED: Final[Mapping[str, Callable[[Any, Sizes], object]]] = MappingProxyType(
    {
        "hidden_size": lambda v, s: s.hidden,
        "intermediate_size": _width,
        "num_hidden_layers": lambda v, s: len(s.kept),
        "vocab_size": lambda v, s: s.vocabulary,
        "vocab_size_per_layer_input": _table_rows,
        "hidden_size_per_layer_input": lambda v, s: min(v, BLOCK),
        "laurel_rank": lambda v, s: min(v, BLOCK),
        # attention
        "num_attention_heads": _heads,
        "num_key_value_heads": _heads,
        "num_global_key_value_heads": _heads,
        "swa_num_attention_heads": _heads,
        "swa_num_key_value_heads": _heads,
        "head_dim": _dims,
        "global_head_dim": _dims,
        "swa_head_dim": _dims,
        "swa_v_head_dim": _dims,
        "v_head_dim": lambda v, s: _dims(v, s) if s.latent is None else s.latent[1],
        "rotary_dim": _dims,
        "sliding_window": lambda v, s: min(v, WINDOW),
        "sliding_window_size": lambda v, s: min(v, WINDOW),
        # latent attention
        "q_lora_rank": lambda v, s: _Q_RANK,
        "kv_lora_rank": lambda v, s: _KV_RANK,
        "qk_nope_head_dim": lambda v, s: v if s.latent is None else s.latent[0],
        "qk_rope_head_dim": _dims,
        "qk_head_dim": lambda v, s: v if s.latent is None else s.latent[0] + _LATENT_ROPE,
        "index_head_dim": lambda v, s: 2 * _LATENT_ROPE,
        "index_n_heads": lambda v, s: _LATENT_HEADS,
        "index_topk": lambda v, s: min(v, _TOP_K),
        # Gated DeltaNet
        "linear_key_head_dim": lambda v, s: BLOCK // 2,
        "linear_value_head_dim": lambda v, s: BLOCK,
        "linear_num_key_heads": lambda v, s: 2,
        "linear_num_value_heads": lambda v, s: 2 * s.repeats,
        # mixtures of experts
        "num_experts": lambda v, s: s.experts,
        "n_routed_experts": lambda v, s: s.experts,
        "num_local_experts": lambda v, s: s.experts,
        "num_experts_per_tok": lambda v, s: min(v, _ACTIVE),
        "top_k_experts": lambda v, s: min(v, _ACTIVE),
        "moe_intermediate_size": lambda v, s: BLOCK,
        "expert_intermediate_size": lambda v, s: BLOCK,
        "shared_expert_intermediate_size": lambda v, s: 3 * BLOCK,
        "n_group": lambda v, s: s.groups,
        "topk_group": lambda v, s: s.kept_groups,
        # layers
        "first_k_dense_replace": _layers,
        "max_window_layers": _layers,
        "mlp_only_layers": lambda v, s: [s.kept.index(i) for i in v if i in s.kept],
        "moe_layer_freq": _frequency,
        "mrope_section": _sections,
        **dict.fromkeys(
            (
                "activation_sparsity_pattern",
                "attn_type_list",
                "hybrid_layer_pattern",
                "index_topk_pattern",
                "indexer_types",
                "layer_types",
                "mlp_layer_types",
            ),
            _listed,
        ),
    }
)


def changed_size(key: str, value: Any, sizes: Sizes) -> Iterator[object]:
    """The small value of a key, nothing where it is no size or stands for none (null, 0)."""
    change = _CHANGED.get(key)
    if change is not None and value is not None and not (isinstance(value, int) and value == 0):
        yield change(value, sizes)

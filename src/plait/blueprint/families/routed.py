"""Mixtures of experts chosen by sigmoid scores plus a bias, as DeepSeek-V3 introduced them; several families have them.

The bias takes part in the choice only. The weights of the chosen experts are their unbiased scores, divided by their
sum where the config says so, times a factor (https://arxiv.org/abs/2412.19437, section 2.1.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.layout import Binding, Ignored, Layout
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import Blueprint, Both, Mixture, Router, SharedExperts
from plait.blueprint.spec_feed_forward import Activation

__all__ = [
    "ROUTED_NAMES",
    "MixtureDefaults",
    "mlp_kinds",
    "must_equal",
    "per_expert",
    "prediction_layers",
    "read_mixture",
    "sparse_layers",
]

# In names of tensors: the number of the expert.
_EXPERT: Final = "*"

_SIGMOID: Final = MappingProxyType({"sigmoid": True})
_BIASED: Final = MappingProxyType({"noaux_tc": True})
_KINDS: Final = MappingProxyType({"dense": False, "sparse": True})

# Role below `layers.N.` -> name below `layers.N.` in published files, which hold each expert apart.
ROUTED_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "feed_forward.router": "mlp.gate.weight",
        "feed_forward.router_bias": "mlp.gate.e_score_correction_bias",
        "feed_forward.experts.gate": "mlp.experts.*.gate_proj.weight",
        "feed_forward.experts.up": "mlp.experts.*.up_proj.weight",
        "feed_forward.experts.down": "mlp.experts.*.down_proj.weight",
        "feed_forward.shared.gate": "mlp.shared_experts.gate_proj.weight",
        "feed_forward.shared.up": "mlp.shared_experts.up_proj.weight",
        "feed_forward.shared.down": "mlp.shared_experts.down_proj.weight",
    }
)


@dataclass(frozen=True, slots=True)
class MixtureDefaults:
    """What a family's config class assumes for keys that are absent."""

    experts: int
    active: int
    width: int
    shared: int
    scale: float
    groups: int
    kept_groups: int


def must_equal(config: ConfigReader, key: str, value: int, of: str) -> None:
    """A key that repeats what other keys say; ConfigError naming both where it says something else."""
    if config.given(key) and config.integer(key, minimum=0) != value:
        found = config.integer(key, minimum=0)
        raise config.error(key, expected=f"{value}, by {of!r}", found=found, advice="the keys disagree")
    config.use(key)


def read_mixture(config: ConfigReader, activation: Activation, defaults: MixtureDefaults) -> Mixture:
    """The mixture that the keys of DeepSeek-V3 describe; a null `routed_scaling_factor` means 1.

    ConfigError: another scoring function or way of choosing than sigmoid with a selection bias.
    """
    config.irrelevant("ep_size", "output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux")
    config.choice("scoring_func", among=_SIGMOID, field="router.scores", default="sigmoid")
    biased = config.choice("topk_method", among=_BIASED, field="router.selection_bias", default="noaux_tc")
    width = config.integer("moe_intermediate_size", field="experts.width", default=defaults.width)
    count = config.optional_integer("n_shared_experts", field="experts.shared", default=defaults.shared, minimum=0)
    scale = config.optional_number("routed_scaling_factor", field="router.scale", default=defaults.scale)
    return Mixture(
        experts=config.integer(
            "n_routed_experts", "num_local_experts", "num_experts", field="experts.count", default=defaults.experts
        ),
        active=config.integer("num_experts_per_tok", field="experts.active", default=defaults.active),
        width=width,
        activation=activation,
        router=Router(
            "sigmoid",
            renormalise=config.boolean("norm_topk_prob", field="router.renormalise", default=True),
            scale=1.0 if scale is None else scale,
            selection_bias=biased,
            groups=config.integer("n_group", field="router.groups", default=defaults.groups),
            kept_groups=config.integer("topk_group", field="router.kept_groups", default=defaults.kept_groups),
        ),
        shared=SharedExperts(count, count * width, gated=False) if count else None,
    )


def sparse_layers(config: ConfigReader, count: int, dense: int, *, listed: bool) -> tuple[bool, ...]:
    """For each layer whether it is a mixture: every `moe_layer_freq`-th one from `first_k_dense_replace` on.

    dense   what the family's config class assumes for `first_k_dense_replace`
    listed  the family also has the list `mlp_layer_types`, which decides where it stands
    """
    first = config.integer("first_k_dense_replace", field="layers.dense", default=dense, minimum=0)
    every = config.integer("moe_layer_freq", field="layers.sparse_period", default=1)
    by_rule = tuple(i >= first and i % every == 0 for i in range(count))
    given = config.words("mlp_layer_types", field="layers.feed_forward", length=count) if listed else None
    if given is None:
        config.record("layers.feed_forward", "derived", config.dotted("first_k_dense_replace"), first)
        return by_rule
    kinds = mlp_kinds(config, given)
    # transformers writes the default of `first_k_dense_replace` beside any list: only another value states something.
    if kinds != by_rule and first != dense:
        raise config.error(
            "first_k_dense_replace",
            expected=f"what {config.dotted('mlp_layer_types')!r} says",
            found=first,
            advice="the two keys disagree",
        )
    return kinds


def mlp_kinds(config: ConfigReader, words: tuple[str, ...]) -> tuple[bool, ...]:
    """`mlp_layer_types` as booleans, True for a mixture."""
    for index, word in enumerate(words):
        if word not in _KINDS:
            raise config.error("mlp_layer_types", expected="dense or sparse", found=f"{word!r} at layer {index}")
    return tuple(_KINDS[word] for word in words)


def _experts(blueprint: Blueprint, index: int) -> int:
    part = blueprint.layers[index].feed_forward
    mixture = part.mixture if isinstance(part, Both) else part
    assert isinstance(mixture, Mixture)
    return mixture.experts


def per_expert(layout: Layout, blueprint: Blueprint) -> Layout:
    """The layout with one tensor per expert for each name that has `*` in the place of the expert's number."""

    def bindings() -> Iterator[Binding]:
        for binding in layout.bindings:
            if any(_EXPERT in name for name in binding.names):
                (name,), index = binding.names, int(binding.roles[0].split(".")[1])
                names = tuple(name.replace(_EXPERT, str(i)) for i in range(_experts(blueprint, index)))
                yield replace(binding, names=names)
            else:
                yield binding

    return replace(layout, bindings=tuple(bindings()))


def prediction_layers(layout: Layout, blueprint: Blueprint, prefix: str = r"(model\.)?layers\.") -> Layout:
    """The layout of files that number their multi-token-prediction layers on from the model's last."""
    if blueprint.mtp is None or not blueprint.mtp.layers:
        return layout
    count = len(blueprint.layers)
    numbers = "|".join(str(count + i) for i in range(len(blueprint.mtp.layers)))
    found = Ignored(rf"{prefix}({numbers})\..*", "multi-token-prediction layers", mtp=True)
    return replace(layout, ignored=(*layout.ignored, found))

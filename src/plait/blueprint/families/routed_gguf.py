"""Mixtures of experts in GGUF files: keys, names of tensors, and the prediction blocks behind a model's last.

The format is llama.cpp's; names are those of the `gguf` package 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from plait.blueprint.families.routed import prediction_layers
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Gated,
    LatentAttention,
    Layer,
    Mixture,
    MultiTokenPrediction,
    Router,
    SharedExperts,
)
from plait.errors import UnsupportedError, fault

__all__ = [
    "ROUTED_GGUF_NAMES",
    "blocks",
    "mixture_keys",
    "predictions",
    "read_gguf_mixture",
    "trunk_keys",
    "with_predictions",
]

# Numbers of `expert_gating_func`, and back.
_SCORES: Final[Mapping[int, Literal["softmax", "sigmoid"]]] = MappingProxyType({1: "softmax", 2: "sigmoid"})
_NUMBERS: Final = MappingProxyType({word: number for number, word in _SCORES.items()})

ROUTED_GGUF_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "feed_forward.router": "ffn_gate_inp.weight",
        "feed_forward.router_bias": "exp_probs_b.bias",
        "feed_forward.experts.gate": "ffn_gate_exps.weight",
        "feed_forward.experts.up": "ffn_up_exps.weight",
        "feed_forward.experts.down": "ffn_down_exps.weight",
        "feed_forward.shared.gate": "ffn_gate_shexp.weight",
        "feed_forward.shared.up": "ffn_up_shexp.weight",
        "feed_forward.shared.down": "ffn_down_shexp.weight",
    }
)


def blocks(meta: ConfigReader) -> tuple[int, int]:
    """(layers of the model, multi-token-prediction layers behind them): `block_count` counts both."""
    total = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    extra = meta.integer("nextn_predict_layers", field="mtp.layers", default=0, minimum=0)
    if extra >= total:
        raise meta.error("nextn_predict_layers", expected=f"less than the block_count {total}", found=extra)
    return total - extra, extra


def predictions(header: GGUFHeader, layer: Layer, count: int, extra: int) -> MultiTokenPrediction | None:
    """The prediction layers that follow `count` layers; their copies of embedding and head show in the tensors."""
    if not extra:
        return None
    first = f"blk.{count}.nextn."
    return MultiTokenPrediction(
        (layer,) * extra,
        copies_embedding=f"{first}embed_tokens.weight" in header.tensors,
        copies_head=f"{first}shared_head_head.weight" in header.tensors,
    )


def with_predictions(layout: Layout, blueprint: Blueprint) -> Layout:
    """The layout of a file that may hold prediction blocks."""
    return prediction_layers(layout, blueprint, r"blk\.")


def read_gguf_mixture(
    meta: ConfigReader,
    header: GGUFHeader,
    *,
    block: int,
    default_scores: int,
    renormalise: bool | None = None,
) -> Mixture:
    """The mixture of block number `block`, the first that has one.

    default_scores  `expert_gating_func` where the key is absent
    renormalise     what the architecture's graph does whatever the metadata say; None: the key decides

    UnsupportedError: softmax scores in groups (DeepSeek-V2), whose groups are scored by their one best expert.
    """
    number = meta.integer("expert_gating_func", field="router.scores", default=default_scores, minimum=0)
    if number not in _SCORES:
        raise meta.error("expert_gating_func", expected="1 (softmax) or 2 (sigmoid)", found=number)
    scores = _SCORES[number]
    groups = meta.integer("expert_group_count", field="router.groups", default=1)
    if groups > 1 and scores != "sigmoid":
        found = f"{groups} with {scores} scores"
        raise UnsupportedError(
            fault(f"key {meta.dotted('expert_group_count')!r}", file=meta.file, expected="1", found=found)
        )
    if renormalise is None:
        renormalise = meta.boolean("expert_weights_norm", field="router.renormalise", default=False)
    else:
        meta.use("expert_weights_norm")
        meta.record("router.renormalise", "convention", "in every file of this architecture", renormalise)
    bias = f"blk.{block}.exp_probs_b.bias" in header.tensors if header.tensors else scores == "sigmoid"
    meta.record("router.selection_bias", "derived", f"blk.{block}.exp_probs_b.bias", bias)
    meta.record("feed_forward.activation", "convention", "silu in every file of this architecture", "silu")
    width = meta.integer("expert_feed_forward_length", field="experts.width")
    shared = meta.integer("expert_shared_count", field="experts.shared", default=0, minimum=0)
    return Mixture(
        experts=meta.integer("expert_count", field="experts.count"),
        active=meta.integer("expert_used_count", field="experts.active"),
        width=width,
        activation="silu",
        router=Router(
            scores,
            renormalise=renormalise,
            scale=meta.number("expert_weights_scale", field="router.scale", default=1.0),
            selection_bias=bias,
            groups=groups,
            kept_groups=meta.integer("expert_group_used_count", field="router.kept_groups", default=1),
        ),
        shared=SharedExperts(shared, shared * width, gated=False) if shared else None,
    )


def mixture_keys(mixture: Mixture) -> dict[str, object]:
    """The keys of a mixture."""
    router = mixture.router
    keys: dict[str, object] = {
        "expert_count": mixture.experts,
        "expert_used_count": mixture.active,
        "expert_feed_forward_length": mixture.width,
        "expert_gating_func": _NUMBERS[router.scores],
        "expert_weights_scale": router.scale,
        "expert_weights_norm": router.renormalise,
        "expert_group_count": router.groups,
        "expert_group_used_count": router.kept_groups,
    }
    if mixture.shared is not None:
        keys["expert_shared_count"] = mixture.shared.count
    return keys


def trunk_keys(blueprint: Blueprint) -> dict[str, object]:
    """Sizes, feed-forward parts and the norms' eps of a model of leading dense layers and mixtures behind them.

    Dense layers behind mixtures have no key, which the writer notices when it reads back. UnsupportedError: a model
    of other parts, or without a mixture.
    """
    parts = [layer.feed_forward for layer in blueprint.layers]
    dense = next((part for part in parts if isinstance(part, Gated)), None)
    mixture = next((part for part in parts if isinstance(part, Mixture)), None)
    mixer = blueprint.layers[0].mixer
    if mixture is None or not isinstance(mixer, Attention | LatentAttention):
        raise UnsupportedError(
            fault("GGUF metadata", expected="attention and a mixture of experts", found="a model of other parts")
        )
    return {
        "vocab_size": blueprint.vocabulary,
        "context_length": blueprint.max_context,
        "embedding_length": blueprint.hidden,
        "block_count": len(blueprint.layers),
        "feed_forward_length": dense.width if dense is not None else mixture.width,
        "leading_dense_block_count": next(i for i, part in enumerate(parts) if isinstance(part, Mixture)),
        "attention.head_count": mixer.heads,
        "attention.layer_norm_rms_epsilon": blueprint.final_norm.eps,
        **mixture_keys(mixture),
    }


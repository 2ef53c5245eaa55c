"""GGUF metadata that several families write: the inverse of what `parse_gguf` reads.

Keys come without the architecture's prefix. A value is an int (u32), a float (f32), a bool, a string, or a list of
them.
"""

from __future__ import annotations

from plait.blueprint.spec import Attention, Blueprint, Gated, LinearScaling, Rope
from plait.errors import UnsupportedError, fault

__all__ = ["attention_of", "linear_scaling", "shared_keys", "softcap_keys", "window_keys"]


def attention_of(blueprint: Blueprint, *, window: bool) -> Attention | None:
    """The mixer of the first layer that has a window, or that has none; None where no layer is of that kind."""
    for layer in blueprint.layers:
        if isinstance(layer.mixer, Attention) and (layer.mixer.window is not None) == window:
            return layer.mixer
    return None


def shared_keys(blueprint: Blueprint) -> dict[str, object]:
    """Sizes and the norms' eps of a model of attention and dense layers. UnsupportedError: any other model."""
    layer = blueprint.layers[0]
    mixer, part = layer.mixer, layer.feed_forward
    if not isinstance(mixer, Attention) or not isinstance(part, Gated):
        found = f"{type(mixer).__name__} and {type(part).__name__}"
        raise UnsupportedError(fault("GGUF metadata", expected="attention and a dense feed-forward", found=found))
    return {
        "vocab_size": blueprint.vocabulary,
        "context_length": blueprint.max_context,
        "embedding_length": blueprint.hidden,
        "block_count": len(blueprint.layers),
        "feed_forward_length": part.width,
        "attention.head_count": mixer.heads,
        "attention.head_count_kv": mixer.kv_heads,
        "attention.key_length": mixer.qk_dim,
        "attention.value_length": mixer.v_dim,
        "attention.layer_norm_rms_epsilon": blueprint.final_norm.eps,
    }


def linear_scaling(rope: Rope | None) -> dict[str, object]:
    """The keys of linear scaling. Other scalings have no keys here, which the writer notices when it reads back."""
    if rope is None or not isinstance(rope.scaling, LinearScaling):
        return {}
    return {"rope.scaling.type": "linear", "rope.scaling.factor": rope.scaling.factor}


def window_keys(blueprint: Blueprint, *, pattern: bool) -> dict[str, object]:
    """The window's size; with `pattern` also which layers have one. Nothing where no layer has."""
    sliding = attention_of(blueprint, window=True)
    if sliding is None or sliding.window is None:
        return {}
    keys: dict[str, object] = {"attention.sliding_window": sliding.window}
    if pattern:
        keys["attention.sliding_window_pattern"] = [
            isinstance(layer.mixer, Attention) and layer.mixer.window is not None for layer in blueprint.layers
        ]
    return keys


def softcap_keys(blueprint: Blueprint) -> dict[str, object]:
    """The softcaps the model has."""
    mixer = blueprint.layers[0].mixer
    caps = {
        "attn_logit_softcapping": mixer.softcap if isinstance(mixer, Attention) else None,
        "final_logit_softcapping": blueprint.head.softcap,
    }
    return {key: cap for key, cap in caps.items() if cap is not None}

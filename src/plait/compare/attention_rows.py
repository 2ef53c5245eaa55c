"""The rows of a comparison that speak of token mixers and positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from plait.blueprint.pattern import LayerKind, layer_kind, layer_numbers, period
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet, LatentAttention, Layer, Norm
from plait.compare.dimension import Dimension, under
from plait.compare.words import NONE, joined, number, over_layers, root, rope_text

__all__ = ["ATTENTION", "LAYERS", "POSITIONS"]


def _numbers_of(blueprint: Blueprint, *kinds: LayerKind) -> list[int]:
    return [i for i, layer in enumerate(blueprint.layers) if layer_kind(layer) in kinds]


def _full(blueprint: Blueprint) -> str:
    found = _numbers_of(blueprint, "full", "latent")
    if len(found) == len(blueprint.layers):
        return f"all {len(found)}"
    return f"{len(found)}: {layer_numbers(found)}" if found else NONE


def _cheap(blueprint: Blueprint) -> str:
    def kind(layer: Layer) -> str | None:
        mixer = layer.mixer
        if isinstance(mixer, GatedDeltaNet):
            return f"Gated DeltaNet, state {mixer.value_heads} x {mixer.key_dim} x {mixer.value_dim}"
        if isinstance(mixer, Attention) and mixer.window is not None:
            return f"window {mixer.window:,}"
        return None

    count = len(_numbers_of(blueprint, "window", "delta"))
    return f"{count} x {over_layers(blueprint, kind)}" if count else NONE


def _softmax(text: Callable[[Attention], str]) -> Callable[[Blueprint], str]:
    """A row about softmax attention, windowed or not."""

    def row(blueprint: Blueprint) -> str:
        return over_layers(blueprint, lambda layer: text(layer.mixer) if isinstance(layer.mixer, Attention) else None)

    return row


def _delta(mixer: GatedDeltaNet) -> str:
    return (
        f"{mixer.key_heads} key heads, {mixer.value_heads} value heads, convolution of {mixer.conv_kernel} taps, "
        f"{mixer.activation} gate"
    )


def _of_delta(blueprint: Blueprint) -> str:
    return over_layers(blueprint, lambda layer: _delta(layer.mixer) if isinstance(layer.mixer, GatedDeltaNet) else None)


def _heads(blueprint: Blueprint) -> str:
    return over_layers(
        blueprint, lambda layer: None if isinstance(layer.mixer, GatedDeltaNet) else number(layer.mixer.heads)
    )


def _kv_heads(layer: Layer) -> str | None:
    if isinstance(layer.mixer, LatentAttention):
        return "one latent for all"
    return number(layer.mixer.kv_heads) if isinstance(layer.mixer, Attention) else None


def _head_size(layer: Layer) -> str | None:
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        return f"{mixer.nope_dim} + {mixer.rope_dim} rotated, value {mixer.v_dim}"
    if isinstance(mixer, GatedDeltaNet):
        return None
    return str(mixer.qk_dim) if mixer.v_dim == mixer.qk_dim else f"{mixer.qk_dim}, value {mixer.v_dim}"


def _latent(layer: Layer) -> str | None:
    mixer = layer.mixer
    if not isinstance(mixer, LatentAttention):
        return None
    queries = "queries direct" if mixer.q_rank is None else f"queries through rank {mixer.q_rank:,}"
    return f"latent {mixer.kv_rank:,}, {queries}"


def _indexer(layer: Layer) -> str | None:
    mixer = layer.mixer
    if not isinstance(mixer, LatentAttention):
        return None
    found = mixer.indexer
    if found is None:
        return NONE
    text = f"the best {found.top_k:,} keys, by {found.heads} heads x {found.dim}"
    return text if found.source is None else f"{text}, choice of layer {found.source}"


def _gate(mixer: Attention) -> str:
    gate = mixer.gate
    if gate is None:
        return NONE
    return f"{gate.activation} per {gate.per}{' of each head' if gate.per == 'element' else ''}" + (
        ", with bias" if gate.bias else ""
    )


def _qk_norm(mixer: Attention) -> str:
    if mixer.qk_norm is None:
        return NONE
    return "over each head" if mixer.qk_norm.over == "head" else "over all heads at once"


def _v_norm(norm: Norm | None) -> str:
    if norm is None:
        return NONE
    return "with weight" if norm.weight else "without weight"


def _scale(layer: Layer) -> str | None:
    return None if isinstance(layer.mixer, GatedDeltaNet) else root(layer.mixer.scale)


def _bias(layer: Layer) -> str | None:
    mixer = layer.mixer
    if isinstance(mixer, GatedDeltaNet):
        return None
    if isinstance(mixer, LatentAttention):
        return "yes" if mixer.bias else NONE
    return joined(["q/k/v" if mixer.qkv_bias else "", "output" if mixer.output_bias else ""])


def _position(kind: LayerKind) -> Callable[[Blueprint], str]:
    def text(layer: Layer) -> str | None:
        mixer = layer.mixer
        if layer_kind(layer) != kind or isinstance(mixer, GatedDeltaNet):
            return None
        return rope_text(mixer.rope, mixer.rope_dim if isinstance(mixer, LatentAttention) else mixer.qk_dim)

    return lambda blueprint: over_layers(blueprint, text)


_SOFTMAX: Final = ("full", "window")

LAYERS: Final = (
    Dimension("layers", "Layers", "Number of layers", lambda b: number(len(b.layers)), (), ("layers",)),
    Dimension(
        "pattern",
        "Layers",
        "Pattern",
        lambda b: period([layer_kind(layer) for layer in b.layers]),
        ("mixers",),
        ("layers", "layers.kind"),
    ),
    Dimension("full_layers", "Layers", "Full layers (from 0)", _full, (), ("layers", "layers.kind")),
    Dimension(
        "cheap_layers",
        "Layers",
        "Cheap layers",
        _cheap,
        ("window.window", *under(("delta",), "value_heads", "key_dim", "value_dim")),
        ("attention.window", "attention.window.on", "delta.value_heads", "delta.key_dim", "delta.value_dim"),
    ),
    Dimension("hidden", "Layers", "Hidden size", lambda b: number(b.hidden), ("hidden",), ("hidden",)),
)

ATTENTION: Final = (
    Dimension(
        "heads",
        "Attention",
        "Query heads",
        _heads,
        under((*_SOFTMAX, "latent"), "heads"),
        under((*_SOFTMAX, "attention"), "heads"),
    ),
    Dimension(
        "kv_heads",
        "Attention",
        "KV heads",
        lambda b: over_layers(b, _kv_heads),
        under(_SOFTMAX, "kv_heads"),
        under((*_SOFTMAX, "attention"), "kv_heads"),
    ),
    Dimension(
        "head_size",
        "Attention",
        "Head size",
        lambda b: over_layers(b, _head_size),
        (*under(_SOFTMAX, "qk_dim", "v_dim"), *under(("latent",), "nope_dim", "rope_dim", "v_dim")),
        under((*_SOFTMAX, "attention"), "qk_dim", "v_dim", "nope_dim", "rope_dim"),
    ),
    Dimension(
        "latent",
        "Attention",
        "Latent attention",
        lambda b: over_layers(b, _latent),
        under(("latent",), "kv_rank", "q_rank"),
        under(("attention",), "kv_rank", "q_rank"),
    ),
    Dimension(
        "indexer",
        "Attention",
        "Sparse reading",
        lambda b: over_layers(b, _indexer),
        ("latent.indexer", *under(("latent.indexer",), "heads", "dim", "top_k", "source")),
        under(("indexer",), "heads", "dim", "top_k", "kinds"),
    ),
    Dimension(
        "shared_kv",
        "Attention",
        "Shared keys and values",
        _softmax(lambda m: NONE if m.kv_source is None else f"those of layer {m.kv_source}"),
        under(_SOFTMAX, "kv_source"),
        ("attention.kv_source",),
    ),
    Dimension(
        "keys_are_values",
        "Attention",
        "Keys are values",
        _softmax(lambda m: "yes" if m.keys_are_values else "no"),
        under(_SOFTMAX, "keys_are_values"),
        ("attention.keys_are_values",),
    ),
    Dimension(
        "gate",
        "Attention",
        "Output gate",
        _softmax(_gate),
        under(_SOFTMAX, "gate", "gate.per", "gate.activation", "gate.bias"),
        ("attention.gate", "attention.gate.activation"),
    ),
    Dimension(
        "qk_norm",
        "Attention",
        "Query/key norm",
        _softmax(_qk_norm),
        under(_SOFTMAX, "qk_norm", "qk_norm.over"),
        ("attention.qk_norm", "attention.qk_norm.over"),
    ),
    Dimension(
        "v_norm",
        "Attention",
        "Value norm",
        _softmax(lambda m: _v_norm(m.v_norm)),
        under(_SOFTMAX, "v_norm", "v_norm.weight"),
        ("attention.v_norm",),
    ),
    Dimension(
        "scale",
        "Attention",
        "Score scale",
        lambda b: over_layers(b, _scale),
        under((*_SOFTMAX, "latent"), "scale"),
        ("attention.scale",),
    ),
    Dimension(
        "softcap",
        "Attention",
        "Score softcap",
        _softmax(lambda m: NONE if m.softcap is None else number(m.softcap)),
        under(_SOFTMAX, "softcap"),
        ("attention.softcap",),
    ),
    Dimension(
        "sinks",
        "Attention",
        "Sinks",
        _softmax(lambda m: "one per head" if m.sinks else NONE),
        under(_SOFTMAX, "sinks"),
        under(_SOFTMAX, "sinks"),
    ),
    Dimension(
        "value_scale",
        "Attention",
        "Value scale",
        _softmax(lambda m: NONE if m.value_scale == 1 else number(m.value_scale)),
        under(_SOFTMAX, "value_scale"),
        ("attention.value_scale",),
    ),
    Dimension(
        "attention_bias",
        "Attention",
        "Biases",
        lambda b: over_layers(b, _bias),
        (*under(_SOFTMAX, "qkv_bias", "output_bias"), "latent.bias"),
        ("attention.bias",),
    ),
    Dimension(
        "images",
        "Attention",
        "Tokens of one image see each other",
        _softmax(lambda m: "yes" if m.bidirectional_images else "no"),
        under(_SOFTMAX, "bidirectional_images"),
        ("attention.bidirectional_images",),
    ),
    Dimension(
        "delta",
        "Attention",
        "Gated DeltaNet",
        _of_delta,
        under(("delta",), "key_heads", "conv_kernel", "activation"),
        under(("delta",), "key_heads", "conv_kernel", "gate"),
    ),
)


def _positions(kind: LayerKind, label: str) -> Dimension:
    scaling = (
        *("factor", "original_context", "beta_fast", "beta_slow", "attention_factor", "softmax_scale", "truncate"),
        *("low_frequency_factor", "high_frequency_factor"),
    )
    own = (
        *("rope", "rope.theta", "rope.pairs", "rope.divisor", "rope.pairing", "rope.distance", "rope.start"),
        *("rope.axes", "rope.interleaved_axes", "rope.scaling"),
    )
    return Dimension(
        f"positions.{kind}",
        "Positions",
        label,
        _position(kind),
        (*under((kind,), *own), *under((f"{kind}.rope.scaling",), *scaling)),
        (f"{kind}.rope.*", "rope.*"),
    )


POSITIONS: Final = (
    _positions("full", "RoPE of full layers"),
    _positions("window", "RoPE of windows"),
    _positions("latent", "RoPE of latent layers"),
)

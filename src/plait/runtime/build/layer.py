"""Steps of one layer: its mixer and its feed-forward part, each with its norms, added to the stream."""

from __future__ import annotations

from plait.blueprint.spec import Attention, Both, Gated, GatedDeltaNet, LatentAttention, Layer, Mixture
from plait.runtime.build.attention import add_attention
from plait.runtime.build.builder import Builder
from plait.runtime.build.delta import add_delta
from plait.runtime.build.feed import add_gated
from plait.runtime.build.latent import add_latent
from plait.runtime.build.mixture import add_both, add_mixture
from plait.runtime.build.per_layer import add_input, add_scalar
from plait.runtime.build.streams import add_augment, add_correct, add_laurel, add_predict
from plait.runtime.steps.call import EndLayer

__all__ = ["add_layer"]


def add_layer(build: Builder, index: int, layer: Layer) -> None:
    """h += post(mixer(norm(h))); h += post(feed_forward(norm(h))); then the layer's own input and scalar.

    With alternating updates h is a layer's active stream: predicted before it, all streams are corrected after it.
    """
    role = f"layers.{index}"
    altup, inputs = build.blueprint.altup, build.blueprint.per_layer_embeddings
    modalities = None if altup is None else add_predict(build, index, altup)
    build.normalise("h", "x", f"{role}.mixer_norm", layer.mixer_norm)
    if layer.laurel_rank is not None:
        add_laurel(build, index, layer.mixer_norm)
    _mixer(build, index, layer)
    build.join(f"{role}.mixer_post_norm", layer.mixer_post_norm)
    if layer.laurel_rank is not None:
        add_augment(build)
    build.normalise("h", "x", f"{role}.feed_forward_norm", layer.feed_forward_norm)
    _feed_forward(build, index, layer)
    build.join(f"{role}.feed_forward_post_norm", layer.feed_forward_post_norm)
    if altup is not None and modalities is not None:
        add_correct(build, index, altup, modalities)
    if layer.per_layer_input and inputs is not None:
        add_input(build, index, inputs)
    if layer.scalar:
        add_scalar(build, index)
    build.add(EndLayer("h" if altup is None else "streams"))


def _mixer(build: Builder, index: int, layer: Layer) -> None:
    """y = mixer(x)."""
    match layer.mixer:
        case Attention() as mixer:
            add_attention(build, index, mixer)
        case GatedDeltaNet() as mixer:
            add_delta(build, index, mixer)
        case LatentAttention() as mixer:
            add_latent(build, index, mixer)


def _feed_forward(build: Builder, index: int, layer: Layer) -> None:
    """y = feed_forward(x)."""
    match layer.feed_forward:
        case Gated() as part:
            add_gated(build, f"layers.{index}.feed_forward", part)
        case Mixture() as part:
            add_mixture(build, f"layers.{index}.feed_forward", part)
        case Both() as part:
            add_both(build, f"layers.{index}.feed_forward", part)

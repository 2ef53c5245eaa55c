"""Steps of one layer: its mixer and its feed-forward part, each with its norms, added to the stream."""

from __future__ import annotations

from plait.blueprint.spec import Attention, Gated, Layer
from plait.errors import UnsupportedError
from plait.runtime.build.attention import add_attention
from plait.runtime.build.builder import Builder
from plait.runtime.build.feed import add_gated
from plait.runtime.steps.call import EndLayer

__all__ = ["add_layer"]


def add_layer(build: Builder, index: int, layer: Layer) -> None:
    """h += post(mixer(norm(h))); h += post(feed_forward(norm(h)))."""
    role = f"layers.{index}"
    build.normalise("h", "x", f"{role}.mixer_norm", layer.mixer_norm)
    _mixer(build, index, layer)
    build.join(f"{role}.mixer_post_norm", layer.mixer_post_norm)
    build.normalise("h", "x", f"{role}.feed_forward_norm", layer.feed_forward_norm)
    _feed_forward(build, index, layer)
    build.join(f"{role}.feed_forward_post_norm", layer.feed_forward_post_norm)
    build.add(EndLayer())


def _mixer(build: Builder, index: int, layer: Layer) -> None:
    """y = mixer(x)."""
    match layer.mixer:
        case Attention() as mixer:
            add_attention(build, index, mixer)
        case other:
            raise UnsupportedError(f"layer {index}: this version does not run {type(other).__name__}")


def _feed_forward(build: Builder, index: int, layer: Layer) -> None:
    """y = feed_forward(x)."""
    match layer.feed_forward:
        case Gated() as part:
            add_gated(build, f"layers.{index}.feed_forward", part)
        case other:
            raise UnsupportedError(f"layer {index}: this version does not run {type(other).__name__}")

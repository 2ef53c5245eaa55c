"""Layers of the conformer audio encoder of Gemma 3n and Gemma 4, as counted tensors.

Half a feed-forward, attention with relative positions over blocks, a light convolution, half a feed-forward.
Reference: transformers 5.24, Gemma3nAudioConformerBlock and Gemma4AudioLayer; https://arxiv.org/abs/2303.01037.
"""

from __future__ import annotations

from plait.blueprint.spec import TowerTensor

__all__ = ["conformer_layers"]


def conformer_layers(hidden: int, heads: int, kernel: int, layers: int) -> tuple[TowerTensor, ...]:
    """`layers` layers of `hidden`, with `heads` heads and a depthwise convolution of `kernel` taps."""
    head_dim = hidden // heads
    inner = heads * head_dim
    return (
        # Before and after each of two feed-forwards and the attention, two of the convolution, one at the end.
        TowerTensor("layers.{}.norms", (hidden,), 9 * layers),
        TowerTensor("layers.{}.feed_forward.up", (4 * hidden, hidden), 2 * layers),
        TowerTensor("layers.{}.feed_forward.down", (hidden, 4 * hidden), 2 * layers),
        # Queries, keys, values and the keys of relative positions.
        TowerTensor("layers.{}.attention.in", (inner, hidden), 4 * layers),
        TowerTensor("layers.{}.attention.out", (hidden, hidden), layers),
        TowerTensor("layers.{}.attention.scale", (head_dim,), layers),
        TowerTensor("layers.{}.convolution.in", (2 * hidden, hidden), layers),
        TowerTensor("layers.{}.convolution.depthwise", (hidden, 1, kernel), layers),
        TowerTensor("layers.{}.convolution.out", (hidden, hidden), layers),
    )

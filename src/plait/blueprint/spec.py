"""The words a model is described with: frozen, hashable, comparable.

Sizes are counts of elements; `window` counts the current token (query p sees keys p-W+1 .. p); layer
numbers start at 0. The parts of a blueprint are in `spec_mixers` (attention and its kin) and
`spec_feed_forward`; this module puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from plait.blueprint.spec_feed_forward import Both, FeedForward, Gated, Mixture, Router, SharedExperts
from plait.blueprint.spec_mixers import (
    Attention,
    FactorScaling,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    LinearScaling,
    Llama3Scaling,
    Mixer,
    Norm,
    OutputGate,
    QKNorm,
    Rope,
    RopeScaling,
    YarnScaling,
)

__all__ = [
    "AltUp",
    "Attention",
    "Blueprint",
    "Both",
    "Embedding",
    "Evidence",
    "FactorScaling",
    "FeedForward",
    "Gated",
    "GatedDeltaNet",
    "Head",
    "Indexer",
    "LatentAttention",
    "Layer",
    "LinearScaling",
    "Llama3Scaling",
    "Mixer",
    "Mixture",
    "MultiTokenPrediction",
    "Norm",
    "OutputGate",
    "PerLayerEmbeddings",
    "QKNorm",
    "Quantization",
    "Rope",
    "RopeScaling",
    "Router",
    "SharedExperts",
    "SpecialTokens",
    "Tower",
    "TowerTensor",
    "YarnScaling",
]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a field's value comes from.

    origin  `key`: read from `key`; `default`: `key` is absent and the family's documented default holds;
            `convention`: the container does not store the fact, its format fixes it; `derived`: computed
            from other keys
    key     the key (dotted where nested), or the rule for conventions and derived values
    value   the value as read or assumed
    """

    origin: Literal["key", "default", "convention", "derived"]
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token embedding [vocabulary, hidden]; rows are multiplied by `scale`.

    `rounded_scale`: the scale is first rounded to the type the weights are used in (all Gemmas).
    """

    scale: float = 1.0
    rounded_scale: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """Output head [vocabulary, hidden]; `tied`: the embedding matrix itself. softcap c: c * tanh(x / c)."""

    tied: bool
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class PerLayerEmbeddings:
    """Per-layer embeddings (Gemma 3n, Gemma 4 E): a table [vocabulary, layers * dim] and a projection.

    input of layer i = (table row * token_scale + norm(projection(embedding) * projection_scale)) * combine_scale
    """

    vocabulary: int
    dim: int
    activation: str
    token_scale: float
    projection_scale: float
    combine_scale: float
    norm: Norm


@dataclass(frozen=True, slots=True)
class AltUp:
    """Alternating updates (Gemma 3n): `streams` copies of the residual stream, `active` is computed on.

    https://arxiv.org/abs/2301.13310
    """

    streams: int
    active: int
    coefficient_clip: float | None
    scale_corrected: bool
    router_norm: Norm


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: h += post(mixer(norm(h))); h += post(ffn(norm(h))); norms that are None are absent.

    per_layer_input  adds the layer's per-layer embedding after the feed-forward
    laurel_rank      rank of a learned augmented residual beside the mixer (Gemma 3n)
    scalar           the stream is multiplied by one stored number at the end of the layer (Gemma 4)
    """

    mixer: Mixer
    feed_forward: FeedForward
    mixer_norm: Norm
    feed_forward_norm: Norm
    mixer_post_norm: Norm | None = None
    feed_forward_post_norm: Norm | None = None
    per_layer_input: bool = False
    laurel_rank: int | None = None
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class MultiTokenPrediction:
    """Multi-token-prediction layers that follow the model in its file; never part of the graph that is run.

    copies_embedding, copies_head  each layer stores its own copy of the embedding or head
    one_projection                 the layers share the projection into them and the norms around it (Qwen)
    """

    layers: tuple[Layer, ...]
    copies_embedding: bool
    copies_head: bool
    one_projection: bool = False


@dataclass(frozen=True, slots=True)
class TowerTensor:
    """`copies` tensors of `shape`; `{}` in `name` stands for the running number. Buffers are no parameters.

    embedder  joins the encoder to the text model and is counted as a part of its own (Gemma 3n)
    """

    name: str
    shape: tuple[int, ...]
    copies: int = 1
    buffer: bool = False
    embedder: bool = False


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision or audio encoder with what joins it to the text model, as counted tensors."""

    kind: Literal["vision", "audio"]
    description: str
    tensors: tuple[TowerTensor, ...]

    @property
    def parameters(self) -> int:
        """Elements of all weights, buffers left out."""
        total = 0
        for tensor in self.tensors:
            if not tensor.buffer:
                size = tensor.copies
                for n in tensor.shape:
                    size *= n
                total += size
        return total


@dataclass(frozen=True, slots=True)
class Quantization:
    """Quantization the file declares: element format, block of one scale, roles (or dotted parts) left whole."""

    method: str
    format: str
    block: tuple[int, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids the config names; the tokenizer's own files have the last word."""

    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None


@dataclass(frozen=True, slots=True)
class Blueprint:
    """One model. `name`, `tokens`, `stored_format` and `evidence` describe the source and stay outside equality."""

    family: str
    vocabulary: int
    hidden: int
    max_context: int
    embedding: Embedding
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Head
    per_layer_embeddings: PerLayerEmbeddings | None = None
    altup: AltUp | None = None
    mtp: MultiTokenPrediction | None = None
    towers: tuple[Tower, ...] = ()
    quantization: Quantization | None = None
    name: str = field(default="", compare=False)
    tokens: SpecialTokens = field(default=SpecialTokens(), compare=False)
    stored_format: str = field(default="bf16", compare=False)
    evidence: Mapping[str, Evidence] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, hash=False, repr=False
    )

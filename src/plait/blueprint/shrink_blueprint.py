"""A blueprint made small, with the sizes `shrink.tiny` gives a config: for models of which no config is at hand."""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import Final

from plait.blueprint.check import check
from plait.blueprint.shrink import layer_choices, layer_words
from plait.blueprint.shrink_sizes import BLOCK, WINDOW, Sizes, changed_size, sizes_of
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Both,
    FactorScaling,
    FeedForward,
    Gated,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    Mixer,
    Mixture,
    PerLayerEmbeddings,
    Rope,
)
from plait.errors import UnsupportedError, UserError, fault

__all__ = ["tiny_blueprint"]

_SHARED_WIDTH: Final = 3 * BLOCK  # of shared experts whose width is a size of its own


def tiny_blueprint(blueprint: Blueprint) -> Blueprint:
    """The text part of `blueprint` with small sizes: the same kinds of layers and settings, a few layers.

    UnsupportedError: no small model has the same kinds of layers.
    """
    layers = tuple(layer_words(layer) for layer in blueprint.layers)
    wrong = fault("another pattern", expected="one that a few layers show", found=f"{len(layers)} layers")
    for kept in layer_choices(layers):
        try:
            made = check(_Small(blueprint, sizes_of(blueprint, kept)).blueprint(), "small model")
        except UserError as error:
            wrong = str(error)
            continue
        if [layer_words(layer) for layer in made.layers] == [layers[i] for i in kept]:
            return made
    raise UnsupportedError(f"{blueprint.name}: this version has no rules for a small model of this one: {wrong}")


class _Small:
    """The parts of one large blueprint, made small."""

    def __init__(self, large: Blueprint, sizes: Sizes) -> None:
        self.large = large
        self.sizes = sizes

    def size(self, key: str, value: int) -> int:
        """The small value of a size, by the config key that states it."""
        found = next(changed_size(key, value, self.sizes), value)
        assert isinstance(found, int)
        return found

    def blueprint(self) -> Blueprint:
        large, hidden = self.large, self.sizes.hidden
        # Factors that follow from the width of the stream do so in the small model too.
        scale = hidden**0.5 if isclose(large.embedding.scale, large.hidden**0.5) else large.embedding.scale
        table = large.per_layer_embeddings
        return replace(
            large,
            vocabulary=self.sizes.vocabulary,
            hidden=hidden,
            embedding=replace(large.embedding, scale=scale),
            layers=tuple(self.layer(i) for i in self.sizes.kept),
            per_layer_embeddings=None if table is None else self.table(table),
            mtp=None,
            towers=(),
            quantization=None,
            name=f"{large.name}-tiny",
        )

    def layer(self, index: int) -> Layer:
        layer = self.large.layers[index]
        rank = layer.laurel_rank
        return replace(
            layer,
            mixer=self.mixer(index, layer.mixer),
            feed_forward=self.feed_forward(layer.feed_forward),
            laurel_rank=None if rank is None else self.size("laurel_rank", rank),
        )

    def table(self, table: PerLayerEmbeddings) -> PerLayerEmbeddings:
        large, dim = self.large, self.size("hidden_size_per_layer_input", table.dim)
        token = dim**0.5 if isclose(table.token_scale, table.dim**0.5) else table.token_scale
        projected = isclose(table.projection_scale, large.hidden**-0.5)
        return replace(
            table,
            vocabulary=self.size("vocab_size_per_layer_input", table.vocabulary),
            dim=dim,
            token_scale=token,
            projection_scale=self.sizes.hidden**-0.5 if projected else table.projection_scale,
        )

    # -- mixers ----------------------------------------------------------------------------------------------------

    def mixer(self, index: int, mixer: Mixer) -> Mixer:
        match mixer:
            case Attention():
                return self.attention(index, mixer)
            case LatentAttention():
                return self.latent(index, mixer)
            case GatedDeltaNet():
                return replace(
                    mixer,
                    key_heads=self.size("linear_num_key_heads", mixer.key_heads),
                    value_heads=self.size("linear_num_value_heads", mixer.value_heads),
                    key_dim=self.size("linear_key_head_dim", mixer.key_dim),
                    value_dim=self.size("linear_value_head_dim", mixer.value_dim),
                )

    def attention(self, index: int, mixer: Attention) -> Attention:
        heads, qk_dim = self.size("num_attention_heads", mixer.heads), self.size("head_dim", mixer.qk_dim)
        return replace(
            mixer,
            heads=heads,
            kv_heads=self.size("num_key_value_heads", mixer.kv_heads),
            qk_dim=qk_dim,
            v_dim=int(mixer.v_dim * self.sizes.dims),
            scale=self.scale(mixer, heads, qk_dim),
            window=None if mixer.window is None else min(mixer.window, WINDOW),
            rope=None if mixer.rope is None else self.rope(mixer.rope),
            kv_source=None if mixer.kv_source is None else self.source(index, mixer.kv_source),
        )

    def scale(self, mixer: Attention, heads: int, qk_dim: int) -> float:
        scalar = mixer.scale**-2
        if isclose(mixer.scale, 1.0):
            return mixer.scale
        if isclose(scalar, self.large.hidden / mixer.heads) and not isclose(scalar, mixer.qk_dim):
            scalar = self.sizes.hidden / heads
        else:
            scalar = scalar * qk_dim / mixer.qk_dim
        return float(scalar**-0.5)

    def latent(self, index: int, mixer: LatentAttention) -> LatentAttention:
        assert self.sizes.latent is not None
        nope_dim, v_dim = self.sizes.latent
        rope_dim = self.size("qk_rope_head_dim", mixer.rope_dim)
        before = mixer.nope_dim + mixer.rope_dim
        return replace(
            mixer,
            heads=self.size("num_attention_heads", mixer.heads),
            q_rank=None if mixer.q_rank is None else self.size("q_lora_rank", mixer.q_rank),
            kv_rank=self.size("kv_lora_rank", mixer.kv_rank),
            nope_dim=nope_dim,
            rope_dim=rope_dim,
            v_dim=v_dim,
            scale=mixer.scale * (before / (nope_dim + rope_dim)) ** 0.5,
            rope=self.rope(mixer.rope),
            indexer=None if mixer.indexer is None else self.indexer(index, mixer.indexer),
        )

    def indexer(self, index: int, indexer: Indexer) -> Indexer:
        return replace(
            indexer,
            heads=self.size("index_n_heads", indexer.heads),
            dim=self.size("index_head_dim", indexer.dim),
            top_k=self.size("index_topk", indexer.top_k),
            rope=self.rope(indexer.rope),
            source=None if indexer.source is None else self.source(index, indexer.source),
        )

    def source(self, index: int, source: int) -> int:
        """The layer of the small model that stands for the layer `source`, which layer `index` reads."""
        words = layer_words(self.large.layers[source].mixer)
        earlier = [i for i in self.sizes.kept if i < index and layer_words(self.large.layers[i].mixer) == words]
        if not earlier:
            raise UnsupportedError(fault(f"layer {index}", expected="a layer to share with that is kept", found="none"))
        return self.sizes.kept.index(source if source in earlier else earlier[-1])

    def rope(self, rope: Rope) -> Rope:
        dims = self.sizes.dims
        pairs, scaling = int(rope.pairs * dims), rope.scaling
        if isinstance(scaling, FactorScaling):
            step = len(scaling.factors) / pairs
            scaling = FactorScaling(tuple(scaling.factors[int(i * step)] for i in range(pairs)))
        axes = None if rope.axes is None else next(changed_size("mrope_section", rope.axes, self.sizes))
        return replace(
            rope,
            pairs=pairs,
            divisor=int(rope.divisor * dims),
            distance=rope.distance if rope.pairing == "adjacent" else int(rope.distance * dims),
            start=int(rope.start * dims),
            scaling=scaling,
            axes=tuple(axes) if isinstance(axes, list) else None,
        )

    # -- feed-forward parts ----------------------------------------------------------------------------------------

    def feed_forward(self, part: FeedForward) -> FeedForward:
        match part:
            case Gated():
                return self.gated(part)
            case Mixture():
                return self.mixture(part)
            case Both():
                return replace(part, dense=self.gated(part.dense), mixture=self.mixture(part.mixture))

    def gated(self, part: Gated) -> Gated:
        """The least width of the model is the usual one, others are wider."""
        least = min(found.width for layer in self.large.layers for found in _gated(layer.feed_forward))
        width = self.sizes.width
        if part.width != least:
            # A width that is twice the other is a rule in some families, and stays so.
            width = 2 * width if part.width == 2 * least else width + BLOCK
        return replace(part, width=width)

    def mixture(self, part: Mixture) -> Mixture:
        router, shared = part.router, part.shared
        factor = router.input_factor
        if isclose(factor, self.large.hidden**-0.5):
            factor = self.sizes.hidden**-0.5
        width = self.size("moe_intermediate_size", part.width)
        if shared is not None:
            joined = shared.width == shared.count * part.width and not shared.gated
            shared = replace(shared, width=shared.count * width if joined else _SHARED_WIDTH)
        return replace(
            part,
            experts=self.size("num_experts", part.experts),
            active=self.size("num_experts_per_tok", part.active),
            width=width,
            router=replace(
                router, input_factor=factor, groups=self.sizes.groups, kept_groups=self.sizes.kept_groups
            ),
            shared=shared,
        )


def _gated(part: FeedForward) -> tuple[Gated, ...]:
    return (part,) if isinstance(part, Gated) else (part.dense,) if isinstance(part, Both) else ()

"""Blueprints put together by hand from published config values, for kinds of layers no family here reads yet."""

from __future__ import annotations

from dataclasses import replace

from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Embedding,
    Gated,
    GatedDeltaNet,
    Head,
    Indexer,
    LatentAttention,
    Layer,
    Mixture,
    MultiTokenPrediction,
    Norm,
    Quantization,
    Rope,
    Router,
    SharedExperts,
)

NORM = Norm(1e-6)


def small(*layers: Layer, **changes: object) -> Blueprint:
    """A blueprint of the given layers with hidden size 64 and 300 tokens."""
    base = Blueprint(
        family="none",
        vocabulary=300,
        hidden=64,
        max_context=4096,
        embedding=Embedding(),
        layers=layers,
        final_norm=NORM,
        head=Head(tied=True),
    )
    return replace(base, **changes)


def layer(mixer: Attention | LatentAttention | GatedDeltaNet, width: int = 96) -> Layer:
    """A plain layer around a mixer."""
    return Layer(mixer=mixer, feed_forward=Gated(width, "silu"), mixer_norm=NORM, feed_forward_norm=NORM)


def deepseek_v32() -> Blueprint:
    """DeepSeek-V3.2, from the values of its published config.json."""
    rope = Rope(10_000.0, 32, 64, pairing="adjacent", distance=1)
    mixer = LatentAttention(
        heads=128,
        q_rank=1536,
        kv_rank=512,
        nope_dim=128,
        rope_dim=64,
        v_dim=128,
        scale=192**-0.5,
        rope=rope,
        latent_norm=NORM,
        indexer=Indexer(64, 128, 2048, rope, Norm(1e-6, bias=True, kind="layer")),
    )
    router = Router("sigmoid", True, scale=2.5, selection_bias=True, groups=8, kept_groups=4)
    mixture = Mixture(256, 8, 2048, "silu", router, SharedExperts(1, 2048, gated=False))
    dense = Layer(mixer=mixer, feed_forward=Gated(18_432, "silu"), mixer_norm=NORM, feed_forward_norm=NORM)
    sparse = replace(dense, feed_forward=mixture)
    return Blueprint(
        family="deepseek_v32",
        vocabulary=129_280,
        hidden=7168,
        max_context=163_840,
        embedding=Embedding(),
        layers=(dense,) * 3 + (sparse,) * 58,
        final_norm=NORM,
        head=Head(tied=False),
        mtp=MultiTokenPrediction((sparse,), copies_embedding=True, copies_head=True),
        quantization=Quantization("fp8", "f8_e4m3", (128, 128), excluded=("indexer.weights",)),
    )

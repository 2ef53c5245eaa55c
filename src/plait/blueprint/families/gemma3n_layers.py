"""What the two readers of Gemma 3n, config.json and GGUF, build alike."""

from __future__ import annotations

from collections.abc import Sequence

from plait.blueprint.spec import Attention, Gated, Layer, Norm, QKNorm, Rope

__all__ = ["attention", "layers_of"]


def attention(*, heads: int, kv_heads: int, head_dim: int, rope: Rope, eps: float, bias: bool) -> Attention:
    """A full layer's attention: scale 1, as the norms of queries and keys carry it; values normed without a weight."""
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=1.0,
        rope=rope,
        qk_norm=QKNorm(Norm(eps)),
        v_norm=Norm(eps, weight=False),
        qkv_bias=bias,
        output_bias=bias,
    )


def layers_of(mixers: Sequence[Attention], dense: Sequence[Gated], eps: float, rank: int) -> tuple[Layer, ...]:
    """Layers with sandwich norms, a learned augmented residual of `rank` and an input of their own."""
    norm = Norm(eps)
    return tuple(
        Layer(
            mixer=mixer,
            feed_forward=gated,
            mixer_norm=norm,
            mixer_post_norm=norm,
            feed_forward_norm=norm,
            feed_forward_post_norm=norm,
            per_layer_input=True,
            laurel_rank=rank,
        )
        for mixer, gated in zip(mixers, dense, strict=True)
    )

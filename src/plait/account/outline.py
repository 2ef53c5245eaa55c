"""Memory of a model whose family is not known, from what its keys say of each layer's keys and values.

What a layer keeps per token is a question of data: how many KV heads of which size, over which window. Where the keys
tell it for every layer, the figures are those of the same laws as for known families; where they do not, none is given.
"""

from __future__ import annotations

from plait.account.headers import headers_of
from plait.account.memory import Largest, MemoryAccount, largest_context, memory
from plait.blueprint.outline import Outline, OutlineLayer
from plait.blueprint.source import Sketch
from plait.blueprint.spec import Attention, Blueprint, Embedding, Gated, Head, Layer, Norm
from plait.errors import UnsupportedError, UsageError, fault

__all__ = ["outline_largest", "outline_memory", "outline_weights"]


def outline_weights(sketch: Sketch) -> int | None:
    """Bytes of all tensors of the model's files; None where only a config is at hand."""
    headers = headers_of(sketch)
    return None if headers is None else headers.nbytes


def outline_memory(
    sketch: Sketch, context: int, *, batch: int = 1, kv_format: str = "bf16", weights: int | None = None
) -> MemoryAccount:
    """Memory of `batch` sequences of `context` tokens: keys and values alone.

    weights  bytes of the weights; None: not known, and `weights_bytes` is 0

    UnsupportedError: the keys do not tell what every layer keeps.
    """
    kept = _kept(sketch)
    return memory(kept, context, batch=batch, kv_format=kv_format, weights=0 if weights is None else weights)


def outline_largest(
    sketch: Sketch, budget: int, *, weights: int | None, batch: int = 1, kv_format: str = "bf16"
) -> Largest:
    """The largest context that fits `budget` bytes beside the weights; UsageError where their bytes are not known."""
    if weights is None:
        raise UsageError(f"{sketch.name}: a budget needs the bytes of the weights, and only a config was named")
    if sketch.outline.max_context is None:
        raise UsageError(f"{sketch.name}: a budget needs the model's largest context, which no key states")
    return largest_context(_kept(sketch), budget, batch=batch, kv_format=kv_format, weights=weights)


def _kept(sketch: Sketch) -> Blueprint:
    """A stand-in that holds the layers with keys and values and nothing else; only its state laws are looked at."""
    outline = sketch.outline
    if outline.doubts:
        raise UnsupportedError(
            fault(
                f"the family {outline.family!r} is not known, and its keys do not tell what every layer keeps",
                file=sketch.path if sketch.path is not None else sketch.name,
                found="; ".join(outline.doubts),
                advice="`plait inspect` shows what they tell",
            )
        )
    return _blueprint(outline, tuple(_layer(item) for item in outline.layers if item.kind in ("full", "window")))


def _layer(item: OutlineLayer) -> Layer:
    assert item.kv_heads is not None
    assert item.qk_dim is not None
    assert item.v_dim is not None
    norm = Norm(1.0)
    mixer = Attention(
        heads=item.kv_heads,
        kv_heads=item.kv_heads,
        qk_dim=item.qk_dim,
        v_dim=item.v_dim,
        scale=1.0,
        window=item.window,
    )
    return Layer(mixer, Gated(1, "silu"), norm, norm)


def _blueprint(outline: Outline, layers: tuple[Layer, ...]) -> Blueprint:
    return Blueprint(
        family=outline.family,
        vocabulary=1,
        hidden=1,
        max_context=outline.max_context if outline.max_context is not None else 1,
        embedding=Embedding(),
        layers=layers,
        final_norm=Norm(1.0),
        head=Head(tied=True),
    )

"""Memory of a model whose family is not known, from what its keys say of each layer's keys and values.

What a layer keeps per token is a question of data: how many KV heads of which size, over which window. Where the keys
tell it for every layer, the figures are those of the same laws as for known families; where they do not, none is given.
"""

from __future__ import annotations

from plait.account.headers import headers_of
from plait.account.memory import Largest, MemoryAccount, largest_of_laws, memory_of_laws
from plait.blueprint.outline import OutlineLayer
from plait.blueprint.source import Sketch
from plait.blueprint.state import LayerLaw, Part, Rows, WindowRows
from plait.errors import UnsupportedError, UsageError, fault

__all__ = ["outline_largest", "outline_laws", "outline_memory", "outline_weights"]


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
    return memory_of_laws(
        outline_laws(sketch),
        context,
        max_context=sketch.outline.max_context,
        weights=0 if weights is None else weights,
        batch=batch,
        kv_format=kv_format,
    )


def outline_largest(
    sketch: Sketch, budget: int, *, weights: int | None, batch: int = 1, kv_format: str = "bf16"
) -> Largest:
    """The largest context that fits `budget` bytes beside the weights; UsageError where their bytes are not known."""
    if weights is None:
        raise UsageError(f"{sketch.name}: a budget needs the bytes of the weights, and only a config was named")
    longest = sketch.outline.max_context
    if longest is None:
        raise UsageError(f"{sketch.name}: a budget needs the model's largest context, which no key states")
    return largest_of_laws(
        outline_laws(sketch), budget, max_context=longest, weights=weights, batch=batch, kv_format=kv_format
    )


def outline_laws(sketch: Sketch) -> tuple[LayerLaw, ...]:
    """The laws of the layers with keys and values; the others keep none, as far as the keys tell.

    UnsupportedError: the keys do not tell what every layer keeps.
    """
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
    return tuple(_law(i, item) for i, item in enumerate(outline.layers) if item.kind in ("full", "window"))


def _law(index: int, item: OutlineLayer) -> LayerLaw:
    assert item.kv_heads is not None
    assert item.qk_dim is not None
    assert item.v_dim is not None
    parts = (Part("key", item.kv_heads, item.qk_dim), Part("value", item.kv_heads, item.v_dim))
    if item.window is None:
        return LayerLaw(index, "rows", Rows(parts))
    return LayerLaw(index, "windows", WindowRows(item.window, parts))

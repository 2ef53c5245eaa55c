"""MiMo-V2-Flash in GGUF files (architecture `mimo2`).

KV heads and windows are arrays over all blocks, prediction blocks included. A file is taken at its word: converters
write the published `sliding_window`, 128, where the reference code sees 129 tokens. Which layers are mixtures or have
sinks shows in the tensors alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import gguf_bindings, gguf_rope_scaling, gguf_vocabulary
from plait.blueprint.families.gguf_keys import attention_of, linear_scaling
from plait.blueprint.families.mimo_parts import VALUE_SCALE, predicting
from plait.blueprint.families.routed_gguf import (
    ROUTED_GGUF_NAMES,
    blocks,
    read_gguf_mixture,
    trunk_keys,
    with_predictions,
)
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Attention, Blueprint, Embedding, Gated, Head, Layer, Norm, Rope
from plait.errors import UnsupportedError, fault

__all__ = ["gguf_layout", "gguf_metadata", "parse_gguf"]

_SIGMOID: Final = 2
_FULL_THETA: Final = 5_000_000.0
_WINDOW_THETA: Final = 10_000.0
_NAMES: Final[Mapping[str, str]] = MappingProxyType({**ROUTED_GGUF_NAMES, "attention.sinks": "attn_sinks.weight"})


def _windows(meta: ConfigReader, header: GGUFHeader, total: int) -> tuple[bool, ...]:
    """For each block whether it has a window; converters write 0 and 1, others booleans."""
    key = "attention.sliding_window_pattern"
    stored = header.metadata.get(meta.dotted(key))
    found: tuple[bool, ...] | None = None
    if isinstance(stored, tuple) and any(isinstance(value, bool) for value in stored):
        found = meta.booleans(key, field="layers.kind", length=total)
    elif isinstance(stored, tuple):
        numbers = meta.integers(key, field="layers.kind", length=total) or ()
        found = tuple(number != 0 for number in numbers)
    if found is None:
        raise meta.error(key, expected="for each block whether it has a window", found="no array")
    return found


def _sparse(meta: ConfigReader, header: GGUFHeader, count: int) -> tuple[bool, ...]:
    """For each layer whether it is a mixture: whether it has a router."""
    if not header.tensors:
        meta.record("layers.feed_forward", "convention", "the first layer is dense", 1)
        return tuple(i > 0 for i in range(count))
    meta.record("layers.feed_forward", "derived", "blk.N.ffn_gate_inp.weight", "layers with a router")
    return tuple(f"blk.{i}.ffn_gate_inp.weight" in header.tensors for i in range(count))


def _with_sinks(header: GGUFHeader, mixer: Attention, index: int) -> Attention:
    if not header.tensors:
        return replace(mixer, sinks=mixer.window is not None)
    return replace(mixer, sinks=f"blk.{index}.attn_sinks.weight" in header.tensors)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata."""
    count, extra = blocks(meta)
    total = count + extra
    windows = _windows(meta, header, total)
    kv_heads = meta.integers("attention.head_count_kv", field="attention.kv_heads", length=total, minimum=1)
    if kv_heads is None:
        raise meta.error("attention.head_count_kv", expected="the KV heads of each block", found="nothing")
    qk_dim = meta.integer("attention.key_length", field="attention.qk_dim")
    rotated = meta.integer("rope.dimension_count", field="rope.rotated", minimum=2)
    scaling = gguf_rope_scaling(meta, header)
    pairs = (rotated + 1) // 2
    full_rope = Rope(
        meta.number("rope.freq_base", field="full.rope.theta", default=_FULL_THETA),
        pairs,
        rotated,
        distance=pairs,
        scaling=scaling,
    )
    window_theta = meta.number("rope.freq_base_swa", field="window.rope.theta", default=_WINDOW_THETA)
    window = meta.integer("attention.sliding_window", field="attention.window")
    full = Attention(
        heads=meta.integer("attention.head_count", field="attention.heads"),
        kv_heads=kv_heads[0],
        qk_dim=qk_dim,
        v_dim=meta.integer("attention.value_length", field="attention.v_dim"),
        scale=qk_dim**-0.5,
        rope=full_rope,
        # Older files lack the key; the one published model needs the value.
        value_scale=meta.number("attention.value_scale", field="attention.value_scale", default=VALUE_SCALE),
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
    )
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"))
    dense = Gated(meta.integer("feed_forward_length", field="feed_forward.width"), "silu")
    sparse = _sparse(meta, header, count)
    mixture = read_gguf_mixture(
        meta,
        header,
        block=sparse.index(True) if True in sparse else count - 1,
        default_scores=_SIGMOID,
        renormalise=True,
    )

    def mixer(index: int) -> Attention:
        own = replace(full, kv_heads=kv_heads[index])
        if windows[index]:
            own = replace(own, window=window, rope=replace(full_rope, theta=window_theta))
        return _with_sinks(header, own, index)

    return Blueprint(
        family="mimo_v2_flash",
        vocabulary=gguf_vocabulary(meta, header),
        hidden=meta.integer("embedding_length", field="hidden"),
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(),
        layers=tuple(Layer(mixer(i), mixture if sparse[i] else dense, norm, norm) for i in range(count)),
        final_norm=norm,
        head=Head(tied=bool(header.tensors) and "output.weight" not in header.tensors),
        mtp=predicting(mixer(count), dense, norm, extra) if extra else None,
    )


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    mixers = [layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention)]
    full, sliding = (attention_of(blueprint, window=window) for window in (False, True))
    if sliding is None or sliding.window is None or full is None or full.rope is None or sliding.rope is None:
        raise UnsupportedError(fault("GGUF metadata", expected="windows and full layers", found="one kind alone"))
    keys = {
        **trunk_keys(blueprint),
        "attention.head_count_kv": [mixer.kv_heads for mixer in mixers],
        "attention.key_length": full.qk_dim,
        "attention.value_length": full.v_dim,
        "attention.value_scale": full.value_scale,
        "attention.sliding_window": sliding.window,
        "attention.sliding_window_pattern": [mixer.window is not None for mixer in mixers],
        "rope.dimension_count": full.rope.divisor,
        "rope.freq_base": full.rope.theta,
        "rope.freq_base_swa": sliding.rope.theta,
        **linear_scaling(full.rope),
    }
    # Dense layers are those without a router: the format has no key for them.
    del keys["leading_dense_block_count"]
    return keys


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return with_predictions(gguf_bindings(blueprint, _NAMES), blueprint)

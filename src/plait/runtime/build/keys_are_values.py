"""Steps of softmax attention where keys are values."""

from __future__ import annotations

import torch
from torch import Tensor

from plait.blueprint.spec import Attention
from plait.errors import UnsupportedError
from plait.runtime.build.builder import Builder
from plait.runtime.ops.keys_are_values import Folding
from plait.runtime.steps.attend import HeadNorms
from plait.runtime.steps.keys_are_values import AttendValues

__all__ = ["add_attend_values"]


def add_attend_values(build: Builder, index: int, mixer: Attention) -> None:
    """y = attention of `qk` of layer `index`, without its output projection.

    The weight of the keys' norm goes with the rows: it is that of the layer which stores them.
    """
    layer = index if mixer.kv_source is None else mixer.kv_source
    source = build.blueprint.layers[layer].mixer
    assert isinstance(source, Attention)
    dim = mixer.qk_dim
    folding = Folding.of(source.rope, _weight(build, layer, "key", source))
    parts = ((folding.rotated.numel(), folding.rope), (dim, folding.fold))
    dims = tuple(size for size, there in parts if there is not None)
    build.add(
        AttendValues(
            held=build.rows(layer),
            stores=mixer.kv_source is None,
            heads=mixer.heads,
            rope=mixer.rope,
            table=build.table(mixer.rope) if mixer.rope is not None else None,
            norms=_norms(build, index, mixer),
            folding=folding,
            v_scale=source.value_scale,
            sinks=build.vector(f"layers.{index}.attention.sinks") if mixer.sinks else None,
            window=mixer.window,
            cap=mixer.softcap,
            one_by_one=build.one_by_one(mixer.heads, mixer.kv_heads, dims, dim),
        )
    )


def _norms(build: Builder, index: int, mixer: Attention) -> HeadNorms:
    """The norm of the queries, times the scale of the scores, and the bare one that makes values of keys."""
    weight = (_weight(build, index, "query", mixer) * mixer.scale).expand(mixer.heads, -1)
    if mixer.kv_source is None:
        weight = torch.cat((weight, torch.ones_like(weight[:1]).expand(mixer.kv_heads, -1)))
    assert mixer.qk_norm is not None
    return HeadNorms(weight.contiguous(), mixer.qk_norm.norm.eps, "head")


def _weight(build: Builder, layer: int, which: str, mixer: Attention) -> Tensor:
    """The weight [dim] of a layer's norm of queries or keys."""
    norm = None if mixer.qk_norm is None else mixer.qk_norm.norm
    weight = None if norm is None else build.norm(f"layers.{layer}.attention.{which}_norm", norm)
    if weight is None:
        raise UnsupportedError(f"{build.blueprint.name}: norms of queries and keys without weights")
    return weight

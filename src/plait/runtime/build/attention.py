"""Steps of softmax attention."""

from __future__ import annotations

import torch
from torch import Tensor

from plait.blueprint.spec import Attention
from plait.errors import UnsupportedError
from plait.runtime.build.builder import Builder
from plait.runtime.build.keys_are_values import add_attend_values
from plait.runtime.steps.attend import Attend, GateHeads, HeadNorms
from plait.runtime.steps.stream import Project

__all__ = ["add_attention"]


def add_attention(build: Builder, index: int, mixer: Attention) -> None:
    """y = attention(x) of layer `index`, its output projection included."""
    role = f"layers.{index}.attention"
    _project(build, role, mixer)
    source = build.blueprint.layers[index if mixer.kv_source is None else mixer.kv_source].mixer
    if isinstance(source, Attention) and source.keys_are_values:
        add_attend_values(build, index, mixer)
    else:
        _attend(build, index, mixer)
    if mixer.gate is not None:
        build.add(GateHeads(mixer.gate.activation, mixer.heads))
    build.add(Project("y", build.linear([f"{role}.output"]), build.biases([f"{role}.output_bias"]), (("y", 0, None),)))


def _attend(build: Builder, index: int, mixer: Attention) -> None:
    """y = attention of queries, keys and values."""
    role = f"layers.{index}.attention"
    layer = index if mixer.kv_source is None else mixer.kv_source
    norms = _head_norms(build, role, mixer)
    build.add(
        Attend(
            held=build.rows(layer),
            stores=mixer.kv_source is None,
            heads=mixer.heads,
            rope=mixer.rope,
            table=build.table(mixer.rope) if mixer.rope is not None else None,
            norms=norms,
            scale=1.0 if norms is not None else mixer.scale,
            v_eps=mixer.v_norm.eps if mixer.v_norm is not None else None,
            v_scale=mixer.value_scale,
            sinks=build.vector(f"{role}.sinks") if mixer.sinks else None,
            window=mixer.window,
            cap=mixer.softcap,
            one_by_one=build.one_by_one(mixer.heads, mixer.kv_heads, (mixer.qk_dim,), mixer.v_dim),
        )
    )


def _project(build: Builder, role: str, mixer: Attention) -> None:
    """Queries, keys, values and gate of x in one product; no values where keys are values."""
    own = mixer.kv_source is None
    values = own and not mixer.keys_are_values
    keys = mixer.kv_heads if own else 0
    names = [f"{role}.query", *([f"{role}.key"] if own else []), *([f"{role}.value"] if values else [])]
    heads = mixer.heads + keys
    targets: list[tuple[str, int, int | None]] = [("qk", heads * mixer.qk_dim, heads)]
    if values:
        targets.append(("v", keys * mixer.v_dim, keys))
    bias = build.biases([f"{name}_bias" for name in names])
    if mixer.gate is not None:
        rows = mixer.heads if mixer.gate.per == "head" else mixer.heads * mixer.v_dim
        gate = build.biases([f"{role}.gate_bias"])
        if bias is not None or gate is not None:
            bias = build.zeros(sum(width for _, width, _ in targets)) if bias is None else bias
            bias = torch.cat((bias, build.zeros(rows) if gate is None else gate))
        names.append(f"{role}.gate")
        targets.append(("g", rows, None))
    build.add(Project("x", build.linear(names), bias, tuple(targets)))


def _head_norms(build: Builder, role: str, mixer: Attention) -> HeadNorms | None:
    """Norms of queries (times the scale of the scores) and of keys, a row of the weight for each head."""
    if mixer.qk_norm is None:
        return None
    norm, over = mixer.qk_norm.norm, mixer.qk_norm.over

    def rows(which: str, heads: int) -> Tensor:
        weight = build.norm(f"{role}.{which}_norm", norm)
        if weight is None:
            raise UnsupportedError(f"{build.blueprint.name}: norms of queries and keys without weights")
        return weight.view(heads, -1) if over == "all" else weight.expand(heads, -1)

    query = rows("query", mixer.heads) * mixer.scale
    weight = torch.cat((query, rows("key", mixer.kv_heads))) if mixer.kv_source is None else query
    return HeadNorms(weight, norm.eps, over)

"""Steps of latent attention, with or without an indexer that chooses keys."""

from __future__ import annotations

import torch
from torch import Tensor

from plait.blueprint.spec import Indexer, LatentAttention, YarnScaling
from plait.runtime.build.builder import Builder
from plait.runtime.ops.indexer import keeps_bits
from plait.runtime.ops.latent import PerHead
from plait.runtime.steps.indexer import Choose
from plait.runtime.steps.latent import AttendLatent
from plait.runtime.steps.stream import Project

__all__ = ["add_latent"]

# What a product with one input makes: for the role of each weight (register, columns, heads or None) of its parts.
_Wanted = dict[str, tuple[tuple[str, int, int | None], ...]]


def add_latent(build: Builder, index: int, mixer: LatentAttention) -> None:
    """y = latent attention(x) of layer `index`, its output projection included."""
    role = f"layers.{index}.attention"
    _project(build, role, mixer)
    chosen = None
    if mixer.indexer is not None:
        chosen = _chosen(index if mixer.indexer.source is None else mixer.indexer.source)
        if mixer.indexer.source is None:
            _choose(build, role, index, mixer.indexer)
    scaling = mixer.rope.scaling
    fold, unfold = _halves(build, role, mixer)
    build.add(
        AttendLatent(
            held=build.rows(index),
            nope_dim=mixer.nope_dim,
            rope=mixer.rope,
            table=build.table(mixer.rope),
            scale=mixer.scale * (scaling.softmax_scale if isinstance(scaling, YarnScaling) else 1.0),
            fold=fold,
            unfold=unfold,
            chosen=chosen,
            last=not any(chosen == _shared(build, later) for later in range(index + 1, len(build.blueprint.layers))),
            one_by_one=build.one_by_one(mixer.heads, 1, (mixer.kv_rank, mixer.rope_dim), mixer.kv_rank),
        )
    )
    build.add(Project("y", build.linear([f"{role}.output"]), build.biases([f"{role}.output_bias"]), (("y", 0, None),)))


def _chosen(layer: int) -> str:
    """The register of a layer's choice."""
    return f"chosen.{layer}"


def _shared(build: Builder, index: int) -> str | None:
    """The register of the choice that layer `index` takes from an earlier one."""
    mixer = build.blueprint.layers[index].mixer
    indexer = mixer.indexer if isinstance(mixer, LatentAttention) else None
    return None if indexer is None or indexer.source is None else _chosen(indexer.source)


def _project(build: Builder, role: str, mixer: LatentAttention) -> None:
    """Queries `q`, latents `l`, keys to be rotated `r`, and what an own indexer needs: `iq`, `ik`, `iw`."""
    width, rank = mixer.nope_dim + mixer.rope_dim, mixer.q_rank
    own = mixer.indexer if mixer.indexer is not None and mixer.indexer.source is None else None
    name = f"{role}.query" if rank is None else f"{role}.query_up"
    queries: _Wanted = {name: (("q", mixer.heads * width, mixer.heads),)}
    keys: _Wanted = {f"{role}.key_value_down": (("l", mixer.kv_rank, None), ("r", mixer.rope_dim, None))}
    if own is not None:
        queries[f"{role}.indexer.query"] = (("iq", own.heads * own.dim, own.heads),)
        keys[f"{role}.indexer.key"] = (("ik", own.dim, None),)
        keys[f"{role}.indexer.weights"] = (("iw", own.heads, None),)
    if rank is None:
        _product(build, "x", queries | keys)
    else:
        _product(build, "x", {f"{role}.query_down": (("ql", rank, None),)} | keys)
        build.normalise("ql", "ql", f"{role}.query_latent_norm", mixer.latent_norm)
        _product(build, "ql", queries)
    build.normalise("l", "l", f"{role}.key_value_norm", mixer.latent_norm)


def _product(build: Builder, source: str, wanted: _Wanted) -> None:
    """One product with all the weights that one input meets."""
    targets = tuple(target for parts in wanted.values() for target in parts)
    build.add(Project(source, build.linear(list(wanted)), _bias(build, wanted), targets))


def _bias(build: Builder, wanted: _Wanted) -> Tensor | None:
    """The biases of all columns, zeros for weights that have none; None where no weight has one."""
    names = {f"{role}_bias": sum(columns for _, columns, _ in parts) for role, parts in wanted.items()}
    if not any(map(build.has, names)):
        return None
    return torch.cat([build.vector(name) if build.has(name) else build.zeros(n) for name, n in names.items()])


def _choose(build: Builder, role: str, index: int, indexer: Indexer) -> None:
    """The choice of keys of a layer with an indexer of its own.

    The reference multiplies q . k by dim^-0.5 before the relu and the heads' weights by heads^-0.5: both are positive,
    so that one factor on the weights does the same.
    """
    build.normalise("ik", "ik", f"{role}.indexer.key_norm", indexer.key_norm)
    build.add(
        Choose(
            held=build.index_keys(index),
            target=_chosen(index),
            top_k=indexer.top_k,
            rope=indexer.rope,
            table=build.table(indexer.rope),
            factor=(indexer.heads * indexer.dim) ** -0.5,
            one_by_one=not keeps_bits(indexer.heads, indexer.dim),
        )
    )


def _halves(build: Builder, role: str, mixer: LatentAttention) -> tuple[PerHead, PerHead]:
    """The up-projection of keys turned round, to fold queries, and that of values, each a product per head."""
    up = build.weights.dense(f"{role}.key_value_up", build.numbers.weights).view(mixer.heads, -1, mixer.kv_rank)
    keys, values = up[:, : mixer.nope_dim], up[:, mixer.nope_dim :]
    return PerHead(build.stack(part.T for part in keys)), PerHead(build.stack(values))

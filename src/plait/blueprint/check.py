"""Consistency of a blueprint: what no config may say, whatever its family."""

from __future__ import annotations

from plait.blueprint.read.config import MAX_LAYERS
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Both,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mixture,
    Rope,
)
from plait.errors import ConfigError, fault

__all__ = ["check", "not_run"]


def _rope_fits(rope: Rope, dims: int) -> bool:
    last = rope.pairs - 1 if rope.pairs else 0
    if rope.pairing == "half":
        return rope.pairs <= rope.distance and rope.start + last + rope.distance < dims
    return rope.start + 2 * rope.pairs <= dims


def _indexer_faults(index: int, mixer: LatentAttention, blueprint: Blueprint) -> list[tuple[str, object, object]]:
    indexer = mixer.indexer
    if indexer is None:
        return []
    faults: list[tuple[str, object, object]] = []
    if not _rope_fits(indexer.rope, indexer.dim):
        faults.append(("rotated dims of the indexer", f"at most {indexer.dim}", indexer.rope.rotated))
    if indexer.source is not None:
        source = blueprint.layers[indexer.source].mixer if 0 <= indexer.source < index else None
        own = source.indexer if isinstance(source, LatentAttention) else None
        if own is None or own.source is not None:
            faults.append(("source of a shared choice", "an earlier layer with an own indexer", indexer.source))
    return faults


def _mixer_faults(index: int, layer: Layer, blueprint: Blueprint) -> list[tuple[str, object, object]]:
    mixer = layer.mixer
    faults: list[tuple[str, object, object]] = []
    if isinstance(mixer, Attention):
        if mixer.kv_heads < 1:
            faults.append(("KV heads", "at least 1", mixer.kv_heads))
        elif mixer.heads % mixer.kv_heads:
            faults.append(("heads", f"a multiple of {mixer.kv_heads} KV heads", mixer.heads))
        if mixer.window is not None and mixer.window < 1:
            faults.append(("window", "at least 1", mixer.window))
        if mixer.rope is not None and not _rope_fits(mixer.rope, mixer.qk_dim):
            faults.append(("rotated dims", f"at most the head size {mixer.qk_dim}", mixer.rope.rotated))
        if mixer.keys_are_values and mixer.qk_dim != mixer.v_dim:
            faults.append(("value size", f"{mixer.qk_dim}, as keys are values", mixer.v_dim))
        if mixer.kv_source is not None:
            if not 0 <= mixer.kv_source < index:
                faults.append(("source of shared keys and values", "an earlier layer", mixer.kv_source))
            else:
                source = blueprint.layers[mixer.kv_source].mixer
                if not isinstance(source, Attention) or (source.kv_heads, source.qk_dim, source.v_dim) != (
                    mixer.kv_heads,
                    mixer.qk_dim,
                    mixer.v_dim,
                ):
                    faults.append(("source of shared keys and values", "a layer of the same shape", mixer.kv_source))
    elif isinstance(mixer, LatentAttention):
        if not _rope_fits(mixer.rope, mixer.rope_dim):
            faults.append(("rotated dims", f"at most {mixer.rope_dim}", mixer.rope.rotated))
        faults += _indexer_faults(index, mixer, blueprint)
    elif isinstance(mixer, GatedDeltaNet) and mixer.key_heads < 1:
        faults.append(("key heads", "at least 1", mixer.key_heads))
    elif isinstance(mixer, GatedDeltaNet) and mixer.value_heads % mixer.key_heads:
        faults.append(("value heads", f"a multiple of {mixer.key_heads} key heads", mixer.value_heads))
    part = layer.feed_forward
    mixture = part.mixture if isinstance(part, Both) else part if isinstance(part, Mixture) else None
    if mixture is not None:
        if mixture.active > mixture.experts:
            faults.append(("active experts", f"at most {mixture.experts}", mixture.active))
        if mixture.router.groups < 1 or mixture.experts % mixture.router.groups:
            faults.append(("experts", f"a multiple of {mixture.router.groups} groups", mixture.experts))
        elif mixture.router.kept_groups > mixture.router.groups:
            faults.append(("kept groups of experts", f"at most {mixture.router.groups}", mixture.router.kept_groups))
        elif mixture.active > mixture.experts // mixture.router.groups * mixture.router.kept_groups:
            kept = mixture.experts // mixture.router.groups * mixture.router.kept_groups
            faults.append(("active experts", f"at most the {kept} of the kept groups", mixture.active))
    return faults


def check(blueprint: Blueprint, file: str) -> Blueprint:
    """The blueprint itself, or a ConfigError that names the layer and the contradiction."""
    if not blueprint.layers:
        raise ConfigError(fault("no layers", file=file, expected="at least one layer"))
    # Each becomes tensors: a damaged count must not fill the memory.
    counts = {
        "multi-token-prediction layers": 0 if blueprint.mtp is None else len(blueprint.mtp.layers),
        "AltUp streams": 0 if blueprint.altup is None else blueprint.altup.streams,
    }
    for what, count in counts.items():
        if count > MAX_LAYERS:
            raise ConfigError(fault(what, file=file, expected=f"at most {MAX_LAYERS}", found=count))
    for index, layer in enumerate(blueprint.layers):
        for what, expected, found in _mixer_faults(index, layer, blueprint):
            raise ConfigError(fault(f"layer {index}: {what}", file=file, expected=expected, found=found))
    return blueprint


def _folds(layer: Layer, blueprint: Blueprint) -> bool:
    """Keys that are values are one normed vector: its norm as a key is that as a value, times a weight."""
    mixer = layer.mixer
    if not isinstance(mixer, Attention):
        return True
    source = mixer if mixer.kv_source is None else blueprint.layers[mixer.kv_source].mixer
    if not isinstance(source, Attention) or not source.keys_are_values:
        return True
    qk_norm, v_norm = mixer.qk_norm, mixer.v_norm
    return (
        qk_norm is not None
        and qk_norm.over == "head"
        and qk_norm.norm.weight
        and (qk_norm.norm.kind, qk_norm.norm.bias) == ("rms", False)
        and v_norm is not None
        and v_norm.eps == qk_norm.norm.eps
    )


def not_run(blueprint: Blueprint) -> tuple[str, ...]:
    """Kinds of parts of the text model that this version describes and counts but does not run; none: it runs."""
    found = []
    for layer in blueprint.layers:
        if not _folds(layer, blueprint):
            found.append("keys that are values, of other norms than a head's")
        if layer.scalar and blueprint.altup is not None:
            found.append("layer scalars of several streams")
    return tuple(dict.fromkeys(found))

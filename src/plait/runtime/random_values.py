"""Random values of a model's weights: each a function of the seed and the role alone, whatever file they go to."""

from __future__ import annotations

import hashlib
from math import prod
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.spec import Attention, Blueprint, Both, GatedDeltaNet, LatentAttention, Norm
from plait.blueprint.tensors import Tensor as Wanted

__all__ = ["neutral", "random_values"]

# Vectors are multiples of this, so that a container that stores w + 1 stores it exactly.
_STEP: Final = 2.0**-12
_SPREAD: Final = 0.1


def random_values(blueprint: Blueprint, tensor: Wanted, seed: int) -> Tensor:
    """Values of one tensor, float32 [shape].

    Matrices (and the embedding): N(0, 1 / columns), so that activations and logits stay near 1 in size. Norms:
    0.1 N(0, 1) around the weight that multiplies by 1, so that a wrong offset shows. Other vectors: 0.1 N(0, 1).
    """
    digest = hashlib.sha256(f"{seed}\0{tensor.role}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    values = torch.randn(prod(tensor.shape), generator=generator, dtype=torch.float32).reshape(tensor.shape)
    if not tensor.vector:
        return values.mul_(tensor.shape[-1] ** -0.5)
    values = values.mul_(_SPREAD / _STEP).round_().mul_(_STEP)
    return values.add_(neutral(blueprint, tensor.role)) if tensor.use == "norm" else values


def neutral(blueprint: Blueprint, role: str) -> float:
    """The weight with which the norm `role` multiplies by 1; 0 for a norm's bias."""
    if role.endswith("_bias"):
        return 0.0
    return 1.0 - _norm(blueprint, role).offset


def _norm(blueprint: Blueprint, role: str) -> Norm:
    if not role.startswith("layers."):
        table = blueprint.per_layer_embeddings
        return _found(role, blueprint.final_norm if role == "final_norm" else None if table is None else table.norm)
    _, index, below = role.split(".", 2)
    layer = blueprint.layers[int(index)]
    mixer, part = layer.mixer, layer.feed_forward
    head, _, last = below.rpartition(".")
    match head, last:
        case "", name:
            return _found(role, getattr(layer, name))
        case "attention", "query_norm" | "key_norm" if isinstance(mixer, Attention) and mixer.qk_norm is not None:
            return mixer.qk_norm.norm
        case "attention", _ if isinstance(mixer, LatentAttention):
            return mixer.latent_norm
        case "attention.indexer", _ if isinstance(mixer, LatentAttention) and mixer.indexer is not None:
            return mixer.indexer.key_norm
        case "delta", _ if isinstance(mixer, GatedDeltaNet):
            return mixer.output_norm
        case "feed_forward", name if isinstance(part, Both):
            return _found(role, getattr(part, name))
        case "per_layer_input", _ if blueprint.per_layer_embeddings is not None:
            return blueprint.per_layer_embeddings.norm
        case "laurel", _:
            return layer.mixer_norm
        case "altup", _ if blueprint.altup is not None:
            return blueprint.altup.router_norm
    return _found(role, None)


def _found(role: str, norm: object) -> Norm:
    if not isinstance(norm, Norm):
        raise ValueError(f"no norm has the role {role}")
    return norm

"""Random values of a model's weights: each a function of the seed and the role alone, whatever file they go to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from math import prod
from typing import Final

import torch
from torch import Tensor

from plait.blueprint.fit import columns_of, rows_of
from plait.blueprint.spec import Attention, Blueprint, Both, GatedDeltaNet, LatentAttention, Norm
from plait.blueprint.tensors import Tensor as Wanted

__all__ = ["neutral", "random_expert", "random_rows", "random_values"]

# Vectors are multiples of this, so that a container that stores w + 1 stores it exactly.
_STEP: Final = 2.0**-12
_SPREAD: Final = 0.1
# Elements drawn at a time; a multiple of 16 rows is, too, where torch's stream of normal numbers may be cut.
_PIECE: Final = 4 * 2**20
_ALIGNED: Final = 16

# Factors are drawn around 1, so that a stream neither dies nor grows from layer to layer.
_FACTORS: Final = (".scalar", ".expert_scale", ".router_scale", ".correct_scale")
# A decay of exp(w) * softplus(.) a token: a state that remembers some ten tokens. Where |w| >= 1, a container that
# stores -exp(w) in float32 gives w back bit for bit.
_DECAY: Final = ".decay_log"
_DECAY_AROUND: Final = -2.0
_DECAY_MOST: Final = -1.0


def random_values(blueprint: Blueprint, tensor: Wanted, seed: int) -> Tensor:
    """Values of one tensor, float32 [shape].

    Matrices (and the embedding): N(0, 1 / columns), so that activations and logits stay near 1 in size. Norms:
    0.1 N(0, 1) around the weight that multiplies by 1, so that a wrong offset shows; factors alike around 1; logarithms
    of a decay around -2. Other vectors: 0.1 N(0, 1). Each expert of a stack has a stream of its own.
    """
    return torch.cat(list(random_rows(blueprint, tensor, seed))).reshape(tensor.shape)


def random_rows(blueprint: Blueprint, tensor: Wanted, seed: int) -> Iterator[Tensor]:
    """The values of `random_values` from the first row to the last, in pieces [n, columns]; of a stack, its experts."""
    if len(tensor.shape) > 2:
        for index in range(tensor.shape[0]):
            yield random_expert(blueprint, tensor, seed, index)
        return
    generator = _generator(f"{seed}\0{tensor.role}")
    rows, columns = rows_of(tensor.shape), columns_of(tensor.shape)
    step = max(_PIECE // columns // _ALIGNED, 1) * _ALIGNED
    for start in range(0, rows, step):
        yield _drawn(blueprint, tensor, (min(step, rows - start), columns), generator)


def random_expert(blueprint: Blueprint, tensor: Wanted, seed: int, index: int) -> Tensor:
    """Element `index` of a stack [experts, ..., columns] as rows [n, columns], float32."""
    shape = (prod(tensor.shape[1:-1]), tensor.shape[-1])
    return _drawn(blueprint, tensor, shape, _generator(f"{seed}\0{tensor.role}\0{index}"))


def _generator(text: str) -> torch.Generator:
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def _drawn(blueprint: Blueprint, tensor: Wanted, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    values = torch.randn(prod(shape), generator=generator, dtype=torch.float32).reshape(shape)
    if not tensor.vector:
        return values.mul_(shape[-1] ** -0.5)
    values = values.mul_(_SPREAD / _STEP).round_().mul_(_STEP)
    if tensor.use == "norm":
        return values.add_(neutral(blueprint, tensor.role))
    if tensor.role.endswith(_DECAY):
        return values.add_(_DECAY_AROUND).clamp_(max=_DECAY_MOST)
    return values.add_(1.0) if tensor.role.endswith(_FACTORS) else values


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

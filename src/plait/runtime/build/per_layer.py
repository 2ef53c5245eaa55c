"""Steps of per-layer embeddings and layer scalars."""

from __future__ import annotations

import torch

from plait.blueprint.spec import PerLayerEmbeddings
from plait.errors import UnsupportedError
from plait.runtime.build.builder import Builder
from plait.runtime.steps.per_layer import AddInput, Inputs, Scale

__all__ = ["add_input", "add_inputs", "add_scalar"]


def add_inputs(build: Builder, part: PerLayerEmbeddings) -> None:
    """inputs of all layers, of the embedding in `h`. The table stays in its file: it is never read as a whole."""
    table = build.weights.packed("per_layer_embedding")
    if table is None:
        raise UnsupportedError(f"{build.blueprint.name}: the per-layer embedding is not stored as one tensor")
    scale = part.token_scale
    if build.blueprint.embedding.rounded_scale:
        scale = torch.tensor(scale, dtype=torch.float64).to(build.numbers.weights).item()
    build.add(
        Inputs(
            table=table,
            dim=part.dim,
            stored=build.numbers.weights,
            token_scale=scale,
            projection=build.linear(["per_layer_projection"]),
            projection_scale=part.projection_scale,
            combine_scale=part.combine_scale,
            weight=build.norm("per_layer_norm", part.norm),
            eps=part.norm.eps,
        )
    )


def add_input(build: Builder, index: int, part: PerLayerEmbeddings) -> None:
    """The layer's own input, added to h; of several streams to all but the first."""
    role = f"layers.{index}.per_layer_input"
    altup = build.blueprint.altup
    scaled = altup is not None and altup.scale_corrected
    build.add(
        AddInput(
            layer=index,
            activation=part.activation,
            gate=build.linear([f"{role}.gate"]),
            projection=build.linear([f"{role}.projection"]),
            weight=build.norm(f"{role}.norm", part.norm),
            eps=part.norm.eps,
            active=altup.active if altup is not None else None,
            factor=build.vector(f"layers.{index}.altup.correct_scale") if scaled else None,
        )
    )


def add_scalar(build: Builder, index: int) -> None:
    """h times the layer's scalar."""
    build.add(Scale(build.vector(f"layers.{index}.scalar")))

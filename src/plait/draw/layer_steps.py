"""One layer as blocks: the mixer, the feed-forward, and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass

from plait.blueprint.spec import AltUp, Attention, Blueprint, GatedDeltaNet, LatentAttention, Layer, PerLayerEmbeddings
from plait.blueprint.state import LayerLaw, laws
from plait.blueprint.tensors import Tensor, inventory
from plait.draw.layer_attention import attention, attention_lanes
from plait.draw.layer_delta import DELTA_LANES, delta
from plait.draw.layer_feed_forward import feed_forward, feed_forward_lanes
from plait.draw.layer_graph import Block, Grid, number
from plait.draw.layer_latent import latent, latent_lanes
from plait.draw.theme import feed_forward_role, mixer_role
from plait.draw.words import Lang

__all__ = ["LayerSteps", "Model", "layer_steps", "model_of"]


@dataclass(frozen=True, slots=True)
class Model:
    """A blueprint with its tensors and laws by layer, made once for all layers."""

    blueprint: Blueprint
    tensors: tuple[tuple[Tensor, ...], ...]
    laws: tuple[tuple[LayerLaw, ...], ...]


@dataclass(frozen=True, slots=True)
class LayerSteps:
    """The inside of one layer.

    blocks      bottom to top
    parameters  elements of its tensors, buffers left out
    active      of these, what one token uses
    streams     residual streams side by side; None: there is one
    """

    index: int
    blocks: tuple[Block, ...]
    parameters: int
    active: int
    streams: int | None


def model_of(blueprint: Blueprint) -> Model:
    """Tensors and laws of every layer."""
    count = len(blueprint.layers)
    tensors: list[list[Tensor]] = [[] for _ in range(count)]
    for tensor in inventory(blueprint):
        root, _, rest = tensor.role.partition(".")
        if root == "layers":
            tensors[int(rest.partition(".")[0])].append(tensor)
    found: list[list[LayerLaw]] = [[] for _ in range(count)]
    for law in laws(blueprint):
        found[law.layer].append(law)
    return Model(blueprint, tuple(map(tuple, tensors)), tuple(map(tuple, found)))


def layer_steps(model: Model, index: int, lang: Lang) -> LayerSteps:
    """The steps of layer `index`; every tensor of the inventory stands in exactly one of them."""
    blueprint = model.blueprint
    layer = blueprint.layers[index]
    by_role = {tensor.role: tensor for tensor in model.tensors[index]}
    prefix = f"layers.{index}"
    grids: list[Grid] = []

    def grid() -> Grid:
        grids.append(Grid(prefix, by_role, lang))
        return grids[-1]

    blocks = []
    if blueprint.altup is not None:
        blocks.append(_predict(grid(), blueprint.altup, blueprint.hidden))
    blocks.append(_mixer(grid(), layer, model.laws[index]))
    blocks.append(_feed_forward(grid(), layer))
    if blueprint.altup is not None:
        blocks.append(_correct(grid(), blueprint.altup))
    if layer.per_layer_input and blueprint.per_layer_embeddings is not None:
        blocks.append(_per_layer(grid(), blueprint.per_layer_embeddings, blueprint.altup))
    if layer.scalar:
        blocks.append(_scalar(grid()))
    taken = [tensor.role for part in grids for tensor in part.taken]
    if sorted(taken) != sorted(by_role):
        raise AssertionError(f"tensors drawn other than once: {sorted(set(taken) ^ set(by_role))}")
    weights = [tensor for tensor in by_role.values() if not tensor.buffer]
    active = sum(tensor.elements * tensor.per_token[0] // tensor.per_token[1] for tensor in weights)
    streams = None if blueprint.altup is None else blueprint.altup.streams
    return LayerSteps(index, tuple(blocks), sum(tensor.elements for tensor in weights), active, streams)


def _mixer(grid: Grid, layer: Layer, found: tuple[LayerLaw, ...]) -> Block:
    mixer = layer.mixer
    match mixer:
        case Attention():
            lanes = attention_lanes(mixer)
        case LatentAttention():
            lanes = latent_lanes(mixer)
        case GatedDeltaNet():
            lanes = DELTA_LANES
    total = lanes if layer.laurel_rank is None else lanes + 1
    grid.norm("mixer_norm", 0, total, layer.mixer_norm, "mixer_norm")
    match mixer:
        case Attention():
            attention(grid, mixer, found)
        case LatentAttention():
            latent(grid, mixer, found)
        case GatedDeltaNet():
            delta(grid, mixer)
    if layer.mixer_post_norm is not None:
        grid.norm("mixer_post_norm", 0, lanes, layer.mixer_post_norm, "mixer_post_norm")
    if layer.laurel_rank is None:
        grid.add(total)
    else:
        _laurel(grid, layer, lanes, layer.laurel_rank)
    role = mixer_role(mixer)
    return grid.block("mixer", grid.kind(role), role, total, residual=True)


def _laurel(grid: Grid, layer: Layer, lane: int, rank: int) -> None:
    """A learned augmented residual (https://arxiv.org/abs/2411.07501) beside the mixer, in a lane of its own."""
    left = grid.tensors(_="laurel.left")
    title = grid.say("laurel_left")
    grid.put("laurel_left", lane, lane + 1, title, *left, grid.fact("laurel_rank", rank=number(rank)), look="matrix")
    right = grid.tensors(_="laurel.right")
    grid.put("laurel_right", lane, lane + 1, grid.say("laurel_right"), *right, look="matrix")
    plus = grid.fact("laurel_plus")
    grid.norm("laurel_norm", lane, lane + 1, layer.mixer_norm, "laurel.norm", plus)
    key = "laurel_sum" if isinstance(layer.mixer, Attention | LatentAttention) else "laurel_sum_delta"
    grid.put("merge", 0, lane + 1, grid.say(key), look="merge")


def _feed_forward(grid: Grid, layer: Layer) -> Block:
    part = layer.feed_forward
    lanes = feed_forward_lanes(part)
    feed_forward(grid, part, layer.feed_forward_norm)
    if layer.feed_forward_post_norm is not None:
        grid.norm("feed_forward_post_norm", 0, lanes, layer.feed_forward_post_norm, "feed_forward_post_norm")
    grid.add(lanes)
    role = feed_forward_role(part)
    return grid.block("feed_forward", grid.kind(role), role, lanes, residual=True)


def _per_layer(grid: Grid, table: PerLayerEmbeddings, altup: AltUp | None) -> Block:
    lines = list(grid.tensors(_="per_layer_input.gate"))
    if altup is not None:
        key = "per_layer_active" if altup.scale_corrected else "per_layer_active_plain"
        lines.append(grid.fact(key, active=altup.active))
    grid.put("per_layer_gate", 0, 1, grid.say("per_layer_gate"), *lines, look="matrix")
    made = grid.fact(
        "per_layer_made",
        token=number(table.token_scale),
        projection=number(table.projection_scale),
        combine=number(table.combine_scale),
    )
    lines = [grid.fact("per_layer_source_fact", dim=number(table.dim)), made]
    grid.put("per_layer_source", 1, 2, grid.say("per_layer_source"), *lines, look="source", fed=False)
    grid.put("per_layer_product", 0, 2, grid.activation(table.activation), grid.fact("per_layer_product"))
    lines = list(grid.tensors(_="per_layer_input.projection"))
    grid.put("per_layer_projection", 0, 2, grid.say("per_layer_projection"), *lines, look="matrix")
    grid.norm("per_layer_norm", 0, 2, table.norm, "per_layer_input.norm")
    # The first stream gets nothing, whichever is active.
    last = 0 if altup is None else altup.streams - 1
    key = "none" if last < 1 else "one" if last == 1 else "many"
    grid.add(2, title="+" if altup is None else grid.say(f"per_layer_streams_{key}", last=last))
    return grid.block("per_layer", grid.say("per_layer"), None, 2, residual=True)


def _predict(grid: Grid, altup: AltUp, hidden: int) -> Block:
    """Prediction of all streams from the active one's modalities (https://arxiv.org/abs/2301.13310)."""
    lines = [
        *grid.tensors(router="altup.router", prediction="altup.prediction"),
        *grid.norm_lines(altup.router_norm, "altup.router_norm"),
        grid.fact("altup_mix", hidden=number(hidden)),
        grid.fact("altup_predict_fact", streams=altup.streams, active=altup.active),
    ]
    if altup.coefficient_clip is not None:
        lines.append(grid.fact("altup_clip", clip=number(altup.coefficient_clip)))
    grid.put("predict", 0, 1, grid.say("altup_predict"), *lines, look="matrix")
    return grid.block("predict", "", None, 1, wide=True)


def _correct(grid: Grid, altup: AltUp) -> Block:
    lines = [
        *grid.tensors(correction="altup.correction", correct_scale="altup.correct_scale"),
        grid.fact("altup_correct_fact", streams=altup.streams, active=altup.active),
    ]
    if altup.scale_corrected:
        lines.append(grid.fact("altup_scale", active=altup.active))
    grid.put("correct", 0, 1, grid.say("altup_correct"), *lines, look="matrix")
    return grid.block("correct", "", None, 1, wide=True)


def _scalar(grid: Grid) -> Block:
    lines = grid.tensors(_="scalar")
    grid.put("scalar", 0, 1, grid.say("scalar"), *lines, grid.fact("scalar_fact"))
    return grid.block("scalar", "", None, 1)

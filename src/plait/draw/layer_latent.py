"""The steps of latent attention, with or without an indexer that chooses keys."""

from __future__ import annotations

from dataclasses import dataclass

from plait.blueprint.spec import Indexer, LatentAttention
from plait.blueprint.state import LayerLaw
from plait.draw.layer_attention import kept_lines
from plait.draw.layer_graph import Grid, Line, number
from plait.draw.layer_rope import product, rope_lines, rope_title

__all__ = ["latent", "latent_lanes"]


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Where things flow: the indexer's three lanes or its one (another layer's choice) come first."""

    index: int
    query: int

    @property
    def rope_key(self) -> int:
        return self.query + 1

    @property
    def key(self) -> int:
        return self.query + 2

    @property
    def value(self) -> int:
        return self.query + 3

    @property
    def stop(self) -> int:
        return self.query + 4

    @property
    def index_query(self) -> int:
        return self.query - 1


def _lanes(mixer: LatentAttention) -> _Lanes:
    if mixer.indexer is None:
        return _Lanes(0, 0)
    return _Lanes(0, 3 if mixer.indexer.source is None else 1)


def latent_lanes(mixer: LatentAttention) -> int:
    """Lanes it takes."""
    return _lanes(mixer).stop


def latent(grid: Grid, mixer: LatentAttention, laws: tuple[LayerLaw, ...]) -> None:
    """From the normed stream to the output projection."""
    lanes = _lanes(mixer)
    own = mixer.indexer if mixer.indexer is not None and mixer.indexer.source is None else None
    _queries(grid, mixer, lanes, own)
    weights = grid.tensors(_="attention.key_value_down", bias="attention.key_value_down_bias")
    parts = grid.fact("latent_parts", rank=number(mixer.kv_rank), rope=number(mixer.rope_dim))
    title = grid.say("latent_down")
    grid.put("key_value_down", lanes.rope_key, lanes.stop, title, *weights, parts, look="matrix")
    grid.norm("key_value_norm", lanes.key, lanes.stop, mixer.latent_norm, "attention.key_value_norm")
    whole = mixer.nope_dim + mixer.rope_dim
    last = grid.fact("rope_last", rope=number(mixer.rope_dim), dims=number(whole))
    lines = rope_lines(grid, mixer.rope, mixer.rope_dim)
    apart = (lanes.query, lanes.rope_key)
    grid.put("rope", lanes.query, lanes.key, rope_title(grid, mixer.rope), last, *lines, across=apart)
    kept = next(law for law in laws if law.category == "rows")
    lines = kept_lines(grid, kept)
    grid.put(
        "kept", lanes.rope_key, lanes.stop, grid.say("kept"), *lines, keeps=True, across=(lanes.rope_key, lanes.key)
    )
    sizes = [
        grid.fact("latent_keys", heads=number(mixer.heads), dim=number(mixer.nope_dim)),
        grid.fact("latent_values", heads=number(mixer.heads), dim=number(mixer.v_dim)),
        grid.fact("absorbed"),
    ]
    weights = grid.tensors(_="attention.key_value_up")
    apart = (lanes.key, lanes.value)
    title = grid.say("latent_up")
    grid.put("key_value_up", lanes.key, lanes.stop, title, *weights, *sizes, look="matrix", across=apart)
    if mixer.indexer is not None:
        _choice(grid, mixer.indexer, lanes)
    _attend(grid, mixer, lanes)
    weights = grid.tensors(_="attention.output", bias="attention.output_bias")
    heads = grid.fact("heads_from", heads=number(mixer.heads), dim=number(mixer.v_dim))
    grid.put("output", 0, lanes.stop, grid.say("output_projection"), *weights, heads, look="matrix")


def _queries(grid: Grid, mixer: LatentAttention, lanes: _Lanes, own: Indexer | None) -> None:
    query = lanes.query
    first = query if own is None else lanes.index_query
    parts = [
        grid.fact("heads_of", heads=number(mixer.heads), dim=number(mixer.nope_dim + mixer.rope_dim)),
        grid.fact("query_parts", nope=number(mixer.nope_dim), rope=number(mixer.rope_dim)),
    ]
    if mixer.q_rank is None:
        weights = grid.tensors(_="attention.query")
        grid.put("query", query, query + 1, grid.say("query_projection"), *weights, *parts, look="matrix")
    else:
        weights = grid.tensors(_="attention.query_down", bias="attention.query_down_bias")
        rank = grid.fact("rank", rank=number(mixer.q_rank))
        grid.put("query_down", first, query + 1, grid.say("query_down"), *weights, rank, look="matrix")
        grid.norm("query_latent_norm", first, query + 1, mixer.latent_norm, "attention.query_latent_norm")
        weights = grid.tensors(_="attention.query_up")
        grid.put("query_up", query, query + 1, grid.say("query_up"), *weights, *parts, look="matrix")
    if own is None:
        return
    heads = grid.fact("heads_of", heads=number(own.heads), dim=number(own.dim))
    weights = grid.tensors(_="attention.indexer.query")
    title = grid.say("index_query")
    grid.put("index_query", lanes.index_query, query, title, *weights, heads, look="matrix")
    weights = grid.tensors(_="attention.indexer.key")
    one = grid.fact("index_one_key", dim=number(own.dim))
    grid.put("index_key", lanes.index + 1, lanes.index + 2, grid.say("index_key"), *weights, one, look="matrix")
    weights = grid.tensors(_="attention.indexer.weights")
    title = grid.say("index_weights")
    each = grid.fact("index_weight_each", heads=number(own.heads))
    grid.put("index_weights", lanes.index, lanes.index + 1, title, *weights, each, look="matrix")
    key = lanes.index + 1
    grid.norm("index_key_norm", key, key + 1, own.key_norm, "attention.indexer.key_norm")


def _choice(grid: Grid, indexer: Indexer, lanes: _Lanes) -> None:
    """The keys to look at: chosen here, or by an earlier layer."""
    top = grid.fact("index_top", top=number(indexer.top_k))
    if indexer.source is not None:
        lines = [grid.fact("choice_of", layer=indexer.source), top, grid.fact("reused_nothing_kept")]
        grid.put("choice", lanes.index, lanes.query, grid.say("choice"), *lines, look="source", fed=False)
        return
    key = lanes.index + 1
    lines = list(rope_lines(grid, indexer.rope, indexer.dim))
    grid.put("index_rope", key, lanes.query, rope_title(grid, indexer.rope), *lines, across=(key, lanes.index_query))
    keeps = [
        Line(f"{grid.say('part_index_key')}\u00a01\u00a0×\u00a0{indexer.dim}"),
        grid.fact("kept_all"),
    ]
    grid.put("index_kept", key, key + 1, grid.say("kept"), *keeps, keeps=True)
    sum_of = grid.fact("index_sum", heads=number(indexer.heads))
    grid.put("index_scores", lanes.index, lanes.query, grid.say("index_scores"), sum_of)
    grid.put("index_top", lanes.index, lanes.query, grid.say("index_choice"), top)


def _attend(grid: Grid, mixer: LatentAttention, lanes: _Lanes) -> None:
    indexer = mixer.indexer
    seen = grid.fact("sees_all") if indexer is None else grid.fact("sees_chosen", top=number(indexer.top_k))
    one_key = grid.fact("latent_one_key")
    grid.put("scores", lanes.index, lanes.value, grid.say("scores"), product(mixer.scale, mixer.rope), seen, one_key)
    grid.put("softmax", lanes.index, lanes.value, grid.say("softmax"), grid.fact("softmax_keys"))
    grid.put("sum", lanes.index, lanes.stop, grid.say("weighted_sum"), grid.fact("weights_values"))

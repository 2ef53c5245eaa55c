"""The steps of feed-forward parts: gated layers, mixtures of experts, both side by side."""

from __future__ import annotations

from plait.blueprint.spec import Both, FeedForward, Gated, Mixture, Norm
from plait.draw.layer_graph import Grid, Line, number

__all__ = ["feed_forward", "feed_forward_lanes"]


def _mixture_lanes(mixture: Mixture) -> int:
    shared = mixture.shared
    return 2 if shared is None else 4 if shared.gated else 3


def feed_forward_lanes(part: FeedForward) -> int:
    """Lanes it takes."""
    match part:
        case Gated():
            return 2
        case Mixture():
            return _mixture_lanes(part)
        case Both():
            return 2 + _mixture_lanes(part.mixture)


def feed_forward(grid: Grid, part: FeedForward, norm: Norm) -> None:
    """From the stream, with the norm before it, to what the norm after it reads."""
    match part:
        case Gated():
            grid.norm("feed_forward_norm", 0, 2, norm, "feed_forward_norm")
            _gated(grid, part)
        case Mixture():
            lanes = _mixture_lanes(part)
            grid.norm("feed_forward_norm", 0, lanes, norm, "feed_forward_norm")
            if part.router.norm is not None:
                _router_norm(grid, part, 0)
            _mixture(grid, part, 0)
        case Both():
            _both(grid, part, norm)


def _both(grid: Grid, part: Both, norm: Norm) -> None:
    lanes = feed_forward_lanes(part)
    grid.norm("feed_forward_norm", 0, 2, norm, "feed_forward_norm")
    # A router with a norm of its own reads the stream, not what the experts read (Gemma 4 26B-A4B).
    first = 2
    if part.mixture.router.norm is not None:
        _router_norm(grid, part.mixture, 2)
        first = 3
    grid.norm("mixture_norm", first, lanes, part.mixture_norm, "feed_forward.mixture_norm")
    _gated(grid, part.dense)
    grid.norm("dense_post_norm", 0, 2, part.dense_post_norm, "feed_forward.dense_post_norm")
    _mixture(grid, part.mixture, 2)
    grid.norm("mixture_post_norm", 2, lanes, part.mixture_post_norm, "feed_forward.mixture_post_norm")
    grid.put("both", 0, lanes, grid.say("both_sum"), grid.fact("both_sum_fact"))


def _gated(grid: Grid, part: Gated) -> None:
    width = grid.fact("width", width=number(part.width))
    for lane, key in enumerate(("gate", "up")):
        weights = grid.tensors(_=f"feed_forward.{key}", bias=f"feed_forward.{key}_bias")
        grid.put(f"ff_{key}", lane, lane + 1, grid.say(f"ff_{key}"), *weights, width, look="matrix")
    if part.sparsity is not None:
        share = number(part.sparsity)
        grid.put("sparsity", 0, 1, grid.say("sparsity"), grid.fact("sparsity_fact", share=share))
    grid.put("product", 0, 2, grid.activation(part.activation), grid.fact("gate_up"))
    weights = grid.tensors(_="feed_forward.down", bias="feed_forward.down_bias")
    grid.put("ff_down", 0, 2, grid.say("ff_down"), *weights, look="matrix")


def _router_norm(grid: Grid, mixture: Mixture, lane: int) -> None:
    router = mixture.router
    assert router.norm is not None
    bare = Norm(router.norm.eps, weight=False, kind=router.norm.kind)
    facts = [*grid.tensors(scale="feed_forward.router_scale")]
    facts.append(grid.fact("router_factor", factor=number(router.input_factor)))
    grid.norm("router_norm", lane, lane + 1, bare, "feed_forward.router_norm", *facts)


def _router(grid: Grid, mixture: Mixture, lane: int) -> None:
    """Scores, choice and weights."""
    router, stop = mixture.router, lane + 1
    scores = grid.fact(f"router_{router.scores}", experts=number(mixture.experts))
    weights = grid.tensors(_="feed_forward.router")
    # Where the router's input has a norm, the factor stands with it.
    if router.norm is None and router.input_factor != 1.0:
        weights = (*weights, grid.fact("router_factor", factor=number(router.input_factor)))
    grid.put("router", lane, stop, grid.say("router"), *weights, scores, look="matrix")
    lines = []
    if router.selection_bias:
        lines += [*grid.tensors(bias="feed_forward.router_bias"), grid.fact("router_bias")]
    if router.groups > 1:
        lines.append(grid.fact("router_groups", kept=number(router.kept_groups), groups=number(router.groups)))
    lines.append(grid.fact("router_top", active=number(mixture.active), experts=number(mixture.experts)))
    grid.put("choice", lane, stop, grid.say("router_choice"), *lines)
    lines = [grid.fact("router_renormalised" if router.renormalise else "router_as_scored")]
    if router.scale != 1.0:
        lines.append(grid.fact("router_scale", scale=number(router.scale)))
    if router.expert_scale:
        lines += [*grid.tensors(expert_scale="feed_forward.expert_scale")]
    grid.put("weights", lane, stop, grid.say("router_weights"), *lines)


def _three(grid: Grid, prefix: str) -> tuple[Line, ...]:
    """Gate, up and down of one layer or of a stack of them."""
    return grid.tensors(gate=f"{prefix}.gate", up=f"{prefix}.up", down=f"{prefix}.down")


def _mixture(grid: Grid, mixture: Mixture, first: int) -> None:
    _router(grid, mixture, first)
    lines = _three(grid, "feed_forward.experts")
    formula = grid.fact("expert_formula", activation=grid.activation(mixture.activation))
    facts = [
        grid.fact("width", width=number(mixture.width)),
        formula,
        grid.fact("expert_sum", active=number(mixture.active)),
    ]
    title = grid.say("experts", experts=number(mixture.experts), active=number(mixture.active))
    row = grid.put("experts", first, first + 2, title, *lines, *facts, look="matrix", stack=True)
    shared = mixture.shared
    if shared is None:
        return
    lane, stop = first + 2, first + (4 if shared.gated else 3)
    if shared.gated:
        weights = grid.tensors(_="feed_forward.shared_gate")
        one = grid.fact("shared_gate_fact")
        grid.put("shared_gate", stop - 1, stop, grid.say("shared_gate"), *weights, one, look="matrix")
    lines = _three(grid, "feed_forward.shared")
    width = grid.fact("width", width=number(shared.width))
    title = grid.say("shared_experts", count=number(shared.count))
    grid.put("shared", lane, lane + 1, title, *lines, width, formula, look="matrix", row=row)
    if shared.gated:
        grid.put("shared_gated", lane, stop, grid.say("shared_times_gate"), grid.fact("shared_times_gate_fact"))
    grid.put("mixture_sum", first, stop, grid.say("mixture_sum"))

"""The router of a mixture of experts: which experts a token visits, and the weight of each.

    route_reference   token by token, as the definition reads   oracle
    route             all tokens of a call at once              keeps the contract: each row is chosen by itself
    native_route      the same by the kernels                   keeps the contract; `route` takes it where it can

Scores are a softmax over all experts (https://arxiv.org/abs/1701.06538) or a sigmoid of each; a selection bias and
limits by group as in DeepSeek-V3 (https://arxiv.org/abs/2412.19437, section 2.1.2). Of equal scores the lowest expert,
of equal groups the lowest group is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from plait.blueprint.spec import Router
from plait.runtime.kernels import native, takes
from plait.runtime.ops.exact import pointwise

if TYPE_CHECKING:
    from plait.runtime._native import Routing

__all__ = ["native_route", "native_routing", "route", "route_reference"]

# Added to the sum that weights are divided by, so that scores which all underflow give no NaN: 1e-20 in transformers'
# DeepseekV3TopkRouter and its kin. A softmax's sum is at least 1 / experts, which it does not change.
_TINY: Final = 1e-20
# A group's score is the sum of this many of its best scores.
_GROUP_BEST: Final = 2


def route_reference(
    logits: Tensor, active: int, router: Router, bias: Tensor | None = None, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """logits [n, experts] -> (experts [n, active] in ascending order, their weights [n, active]).

    bias     [experts], added to the scores for the choice only
    factors  [experts], on the weights in the end
    """
    scores = logits.softmax(-1) if router.scores == "softmax" else logits.sigmoid()
    wanted = (scores if bias is None else scores + bias).tolist()
    size = logits.shape[1] // router.groups
    chosen = []
    for row in wanted:
        groups = [sorted(row[at : at + size], reverse=True) for at in range(0, len(row), size)]
        best = sorted((-sum(group[:_GROUP_BEST]), number) for number, group in enumerate(groups))
        kept = {number for _, number in best[: router.kept_groups]}
        among = sorted((-score, expert) for expert, score in enumerate(row) if expert // size in kept)
        chosen.append(sorted(expert for _, expert in among[:active]))
    experts = torch.tensor(chosen, device=logits.device).view(-1, active)
    weights = scores.gather(1, experts)
    if router.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
    weights = weights * router.scale
    return experts, weights if factors is None else weights * factors[experts]


def route(
    logits: Tensor, active: int, router: Router, bias: Tensor | None = None, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same for all tokens of a call. Keeps the contract."""
    if native() is not None and takes(logits):
        return native_route(logits, active, router, bias, factors)
    scores = _softmax(logits) if router.scores == "softmax" else pointwise(torch.sigmoid, logits)
    wanted = scores if bias is None else scores + bias
    if router.kept_groups < router.groups:
        wanted = _in_kept_groups(wanted, router)
    experts = _best(wanted, active).sort(-1).values
    weights = scores.gather(1, experts)
    if router.renormalise:
        weights /= weights.sum(-1, keepdim=True) + _TINY
    if router.scale != 1.0:
        weights *= router.scale
    return experts, weights if factors is None else weights * factors[experts]


def native_route(
    logits: Tensor, active: int, router: Router, bias: Tensor | None = None, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same by the kernels, of float32 logits: scores, choice and weights of a row in one pass."""
    rows, experts = logits.shape
    chosen, weights = torch.empty(rows, active), torch.empty(rows, active)
    addresses = [0 if vector is None else vector.data_ptr() for vector in (bias, factors)]
    routing = native_routing(experts, active, router, addresses[0], addresses[1])
    routing(logits.data_ptr(), logits.stride(0), chosen.data_ptr(), weights.data_ptr(), rows)
    return chosen.long(), weights


def native_routing(experts: int, active: int, router: Router, bias: int, factors: int) -> Routing:
    """What the kernels know of a router; `bias`, `factors`: addresses of [experts], 0: there is none."""
    from plait.runtime._native import Routing

    kept = (router.groups, router.kept_groups)
    if not 1 <= active <= experts or not 1 <= kept[1] <= kept[0] or experts % kept[0]:
        raise ValueError(f"{active} of {experts} experts in {kept[1]} of {kept[0]} groups")
    return Routing(experts, active, *kept, router.scores == "softmax", router.renormalise, router.scale, bias, factors)


def _softmax(logits: Tensor) -> Tensor:
    weights = pointwise(torch.exp, logits - logits.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` best of each row, of equal ones the lowest; torch.topk promises no order among equals."""
    return scores.sort(stable=True, dim=-1, descending=True).indices[:, :count]


def _in_kept_groups(wanted: Tensor, router: Router) -> Tensor:
    """The scores of experts in the best groups, those of others below any score."""
    grouped = wanted.view(wanted.shape[0], router.groups, -1)
    best = grouped.topk(min(_GROUP_BEST, grouped.shape[2]), -1).values.sum(-1)
    out = torch.ones_like(best, dtype=torch.bool).scatter_(1, _best(best, router.kept_groups), value=False)
    return grouped.masked_fill(out[..., None], -torch.inf).flatten(1)

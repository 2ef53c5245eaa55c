"""Feed-forward parts: gated dense layers, mixtures of experts, and both in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plait.blueprint.spec_mixers import Norm

__all__ = ["Activation", "Both", "FeedForward", "Gated", "Mixture", "Router", "SharedExperts"]

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Gated:
    """down(act(gate(x)) * up(x)); `gelu` is the exact (erf) form.

    sparsity s: of gate(x) only what exceeds mean + std * quantile(s) of the row is kept (Gemma 3n).
    """

    width: int
    activation: Activation
    bias: bool = False
    sparsity: float | None = None


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses experts: scores over all experts, the best by score + bias (where there is one), weights from the scores.

    renormalise     the weights of the chosen are divided by their sum
    scale           factor on the weights after that
    selection_bias  a stored bias per expert that takes part in the choice only
    groups, kept_groups  experts lie in groups; only the best groups (sum of their two best) stay in the choice
    norm            bare norm of the router's input (Gemma 4), times a learned vector and `input_factor`
    expert_scale    a learned factor per expert on its weight (Gemma 4)
    """

    scores: Literal["softmax", "sigmoid"]
    renormalise: bool
    scale: float = 1.0
    selection_bias: bool = False
    groups: int = 1
    kept_groups: int = 1
    norm: Norm | None = None
    input_factor: float = 1.0
    expert_scale: bool = False


@dataclass(frozen=True, slots=True)
class SharedExperts:
    """Experts every token visits, as one gated layer of `width`; `gated`: times sigmoid of one number per token."""

    count: int
    width: int
    gated: bool


@dataclass(frozen=True, slots=True)
class Mixture:
    """Mixture of experts: `active` of `experts` gated layers of `width` per token."""

    experts: int
    active: int
    width: int
    activation: Activation
    router: Router
    shared: SharedExperts | None = None


@dataclass(frozen=True, slots=True)
class Both:
    """A dense layer and a mixture side by side (Gemma 4 26B-A4B).

    norm_dense(dense(x)) + norm_after(mixture(norm_before(input before the feed-forward norm)))
    """

    dense: Gated
    mixture: Mixture
    dense_post_norm: Norm
    mixture_norm: Norm
    mixture_post_norm: Norm


FeedForward = Gated | Mixture | Both

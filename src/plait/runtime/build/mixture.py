"""Steps of mixtures of experts, and of a dense layer beside a mixture."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from plait.blueprint.spec import Both, Gated, Mixture
from plait.runtime.build.builder import Builder
from plait.runtime.build.feed import add_gated
from plait.runtime.steps.mixture import Expert, GateRows, Mix, Route, Sum

__all__ = ["add_both", "add_mixture"]


def add_mixture(build: Builder, role: str, part: Mixture, *, routed_by: str = "x") -> None:
    """y = routed experts of x + shared experts of x, weights under `role`; `routed_by`: what the router reads."""
    _add_router(build, role, part, routed_by)
    if part.shared is not None:
        add_gated(build, f"{role}.shared", Gated(part.shared.width, part.activation))
        if part.shared.gated:
            build.add(GateRows(build.prepared(build.weights.dense(f"{role}.shared_gate", build.numbers.compute))))
    build.add(Mix(_experts(build, role, part), joins=part.shared is not None))


def add_both(build: Builder, role: str, part: Both) -> None:
    """y = norm(dense(x)) + norm(mixture(norm(h))); the router reads h, which is x before its norm."""
    add_gated(build, role, part.dense)
    build.normalise("y", "dense", f"{role}.dense_post_norm", part.dense_post_norm)
    build.normalise("h", "x", f"{role}.mixture_norm", part.mixture_norm)
    add_mixture(build, role, part.mixture, routed_by="h")
    build.normalise("y", "y", f"{role}.mixture_post_norm", part.mixture_post_norm)
    build.add(Sum("dense", "y"))


def _add_router(build: Builder, role: str, part: Mixture, source: str) -> None:
    router = part.router
    norm = None
    if router.norm is not None:
        norm = (build.vector(f"{role}.router_scale") * router.input_factor, router.norm.eps)
    build.add(
        Route(
            source,
            norm,
            # In the compute type whatever the experts are in: a rounded score may choose another expert.
            build.prepared(build.weights.dense(f"{role}.router", build.numbers.compute)),
            router,
            part.active,
            build.vector(f"{role}.router_bias") if router.selection_bias else None,
            build.vector(f"{role}.expert_scale") if router.expert_scale else None,
        )
    )


def _experts(build: Builder, role: str, part: Mixture) -> tuple[Expert, ...]:
    """All experts, read and prepared one after the other: no second copy of them is ever in memory."""

    names = [f"{role}.experts.{name}" for name in ("gate", "up", "down")]
    types = [build.used(names[:2])] * 2 + [build.used(names[2:])]

    def read(which: int, expert: int) -> Tensor:
        made = build.weights.dense_at(names[which], expert, types[which])
        if types[which] != build.numbers.weights:
            build.keep(names[which], made.numel() * made.element_size())
        return made

    def fused() -> Iterator[Tensor]:
        for expert in range(part.experts):
            yield torch.cat((read(0, expert), read(1, expert)))

    every = range(part.experts)
    if all(map(build.keeps, names[:2])):
        ins = tuple(build.blocks(names[:2], index=expert) for expert in every)
    else:
        ins = build.stack(fused())
    if build.keeps(names[2]):
        outs = tuple(build.blocks(names[2:], index=expert) for expert in every)
    else:
        outs = build.stack(read(2, expert) for expert in every)
    return tuple(Expert(part.activation, *both) for both in zip(ins, outs, strict=True))

"""Steps of alternating updates (AltUp) and of learned augmented residuals (LAuReL, https://arxiv.org/abs/2411.07501)."""

from __future__ import annotations

from plait.blueprint.spec import AltUp, Norm
from plait.runtime.build.builder import Builder
from plait.runtime.ops.linear import Linear
from plait.runtime.steps.mixture import Sum
from plait.runtime.steps.stream import Project
from plait.runtime.steps.streams import Augment, Correct, Merge, Modalities, Predict, Widen

__all__ = ["add_augment", "add_correct", "add_laurel", "add_predict", "add_widen", "merge"]


def add_widen(build: Builder, altup: AltUp) -> None:
    """streams = the embedding and its projections."""
    roles = [f"altup.projection.{i}" for i in range(1, altup.streams)]
    build.add(Widen(build.linear(roles) if roles else None))


def merge(build: Builder, altup: AltUp) -> Merge:
    """What makes one of all streams, of rows whose logits are wanted."""
    return Merge(tuple(build.linear([f"altup.unembedding.{i}"]) for i in range(1, altup.streams)))


def add_predict(build: Builder, index: int, altup: AltUp) -> Modalities:
    """streams = their predictions; h = the active one. Returns what `add_correct` needs too.

    `coefficient_clip` bounds the weights while they are trained, nothing here (transformers 5.24, Gemma3nTextAltUp).
    """
    role = f"layers.{index}.altup"
    norm = altup.router_norm
    modalities = Modalities(build.norm(f"{role}.router_norm", norm), norm.eps, _small(build, f"{role}.router"))
    build.add(Predict(altup.active, modalities, _small(build, f"{role}.prediction")))
    return modalities


def add_correct(build: Builder, index: int, altup: AltUp, modalities: Modalities) -> None:
    """streams = the predictions corrected by h."""
    build.add(Correct(altup.active, modalities, _small(build, f"layers.{index}.altup.correction")))


def add_laurel(build: Builder, index: int, norm: Norm) -> None:
    """laurel = x + norm(right(left(x)))."""
    role = f"layers.{index}.laurel"
    build.add(Project("x", build.linear([f"{role}.left"]), None, (("laurel", 0, None),)))
    build.add(Project("laurel", build.linear([f"{role}.right"]), None, (("laurel", 0, None),)))
    build.normalise("laurel", "laurel", f"{role}.norm", norm)
    build.add(Sum("x", "laurel"))


def add_augment(build: Builder) -> None:
    """h joined with the learned residual."""
    build.add(Augment())


def _small(build: Builder, role: str) -> Linear:
    """A product of few outputs, in the compute type whatever the large ones are in."""
    return build.prepared(build.weights.dense(role, build.numbers.compute))

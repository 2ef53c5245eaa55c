"""What `plait inspect --kernels` tells: the kernels of this machine, and the form every step of a model runs in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from plait.blueprint.source import Source
from plait.engine.sampling import Sampler, Sampling
from plait.runtime.build.builder import Numbers
from plait.runtime.forms import ProductForm, StepForm, product_forms, step_forms
from plait.runtime.kernels import built, levels, native, watching

__all__ = ["KernelReport", "kernel_report"]

_VOCABULARY = 32_768


@dataclass(frozen=True, slots=True)
class KernelReport:
    """Forms on this machine.

    built     the package has its native part
    level     of the kernels in use, None: torch computes
    levels    that this machine can run
    threads   that compute
    products  by where they are and how their weights are stored
    steps     all else, by kind
    """

    built: bool
    level: str | None
    levels: tuple[str, ...]
    threads: int
    products: tuple[ProductForm, ...]
    steps: tuple[StepForm, ...]


def kernel_report(source: Source, numbers: Numbers) -> KernelReport:
    """The report for a model; its weights are not read.

    UnsupportedError: this version cannot run it, or has no rules for a small model of its kinds of layers.
    """
    kernels = native()
    steps = (*step_forms(source.blueprint, numbers), *_choices())
    return KernelReport(
        built(),
        None if kernels is None else kernels.name,
        levels(),
        torch.get_num_threads(),
        product_forms(source, numbers),
        steps,
    )


def _choices() -> list[StepForm]:
    """How a token is chosen."""
    logits = torch.linspace(-4.0, 4.0, _VOCABULARY)
    ways = {
        "greedy choice": Sampling(),
        "sampling": Sampling(temperature=1.0, top_k=40, top_p=0.9, seed=0),
        "sampling without top-k": Sampling(temperature=1.0, top_p=0.9, seed=0),
    }
    made = []
    for name, sampling in ways.items():
        with watching() as called:
            Sampler(sampling).choose(logits, 0, Counter())
        made.append(StepForm(name, 1, 0, tuple(dict.fromkeys(called))))
    return made

"""All checks, one after the other, and the small model they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

import torch

from plait.blueprint.source import open_model
from plait.blueprint.spec import Blueprint
from plait.errors import PlaitError, UnsupportedError
from plait.runtime.checkpoint import write_random
from plait.runtime.model import Model, Numbers
from plait.runtime.verify.calls import company, failure, finite, splits
from plait.runtime.verify.check import Broken, Check, NotTried, Tried, require_equal
from plait.runtime.verify.state import back, held, window
from plait.runtime.verify.subject import Subject
from plait.runtime.weight_source import RandomWeights
from plait.runtime.weights import open_weights

__all__ = ["CLAIMS", "verify_model", "verify_small"]

_CPU: Final = torch.device("cpu")

CLAIMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "splits": "any split of the tokens into calls gives equal bits",
        "company": "a sequence in company has the bits it has alone",
        "window": "a window ends where it should",
        "state": "the state kept is the state predicted, byte for byte",
        "back": "going back and forking leave no trace",
        "failure": "a failed call changes nothing",
        "finite": "no row is fully masked, all logits are finite",
        "containers": "safetensors and GGUF of one seed give equal bits",
    }
)
"""Name of each check -> the invariant, in the order they are made."""

_MADE: Final[Mapping[str, Callable[[Subject], Tried]]] = MappingProxyType(
    {
        "splits": splits,
        "company": company,
        "window": window,
        "state": held,
        "back": back,
        "failure": failure,
        "finite": finite,
    }
)


def verify_model(subject: Subject) -> Iterator[Check]:
    """Every check of a model that is at hand, each as soon as it is made."""
    yield from _of_model(subject)
    yield Check("containers", CLAIMS["containers"], "not tried", "the weights are those of one container", 0)


def _of_model(subject: Subject) -> Iterator[Check]:
    for name, check in _MADE.items():
        yield _checked(name, partial(check, subject))


def verify_small(
    blueprint: Blueprint,
    config: Mapping[str, object] | None,
    lengths: tuple[int, ...],
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Check]:
    """Every check of a random model of `blueprint`, which should be small: it is held in memory and written to disk.

    config   the keys of the config.json that says `blueprint`, None where there is none
    lengths  of prompts, ascending
    """
    model = Model(blueprint, RandomWeights(blueprint, seed), Numbers(dtype, dtype), _CPU)
    subject = Subject(model, lengths, seed, small=True)
    yield from _of_model(subject)
    yield _checked("containers", partial(_containers, subject, config))


def _checked(name: str, check: Callable[[], Tried]) -> Check:
    claim = CLAIMS[name]
    try:
        tried = check()
    except NotTried as reason:
        return Check(name, claim, "not tried", str(reason), 0)
    except Broken as error:
        return Check(name, claim, "fails", "stopped at the first difference", 0, str(error))
    except (PlaitError, RuntimeError, ValueError, LookupError) as error:
        # What runs must not fail: an invariant that cannot be looked at does not hold.
        return Check(name, claim, "fails", "stopped by an error", 0, f"{type(error).__name__}: {error}")
    return Check(name, claim, "holds", tried.what, tried.count)


def _containers(subject: Subject, config: Mapping[str, object] | None) -> Tried:
    """The same seed in memory, in a directory of safetensors files and in a GGUF file."""
    blueprint, numbers = subject.model.blueprint, subject.model.numbers
    length = subject.longest
    compared, missing = [], []
    for gguf in (False, True):
        container = "GGUF" if gguf else "safetensors"
        if not gguf and config is None:
            missing.append("safetensors, as a GGUF file has no config to write beside them")
            continue
        with TemporaryDirectory(prefix="plait-verify-") as place:
            try:
                written = write_random(blueprint, config or {}, Path(place) / "model", seed=subject.seed, gguf=gguf)
            except UnsupportedError as error:
                missing.append(f"{container} ({error})")
                continue
            source = open_model(written.path)
            read = Model(source.blueprint, open_weights(source), numbers, _CPU)
            other = Subject(read, subject.lengths, subject.seed, small=True)
            require_equal(other.whole(length), subject.whole(length), f"{length} tokens, weights from {container}")
            compared.append(container)
    if not compared:
        raise NotTried("; ".join(missing))
    left = f"; not tried: {', '.join(missing)}" if missing else ""
    both = " and from ".join(compared)
    return Tried(f"{length} tokens, weights from {both} against those in memory{left}", len(compared))

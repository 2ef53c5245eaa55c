"""A blueprint made small is the blueprint of its config made small."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from math import isclose

import pytest

from plait.blueprint.catalog import entry, names
from plait.blueprint.shrink import tiny
from plait.blueprint.shrink_blueprint import tiny_blueprint
from plait.blueprint.source import from_config


def differences(path: str, one: object, two: object) -> list[str]:
    """Where two parts of blueprints differ, factors compared as floats."""
    if is_dataclass(one) and type(one) is type(two):
        named = (f.name for f in fields(one) if f.compare)
        return [d for name in named for d in differences(f"{path}.{name}", getattr(one, name), getattr(two, name))]
    if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
        return [d for i, pair in enumerate(zip(one, two, strict=True)) for d in differences(f"{path}[{i}]", *pair)]
    same = isclose(one, two) if isinstance(one, float) and isinstance(two, float) else one == two
    return [] if same else [f"{path}: {one} {two}"]


@pytest.mark.parametrize("name", names())
def test_the_small_config_says_the_same(name: str) -> None:
    found = entry(name)
    assert found is not None
    large, _ = from_config(found.config, file="large")
    wanted, _ = from_config(tiny(found.config), file="small")
    seen = differences("", replace(wanted, towers=(), mtp=None, quantization=None), tiny_blueprint(large))
    # Keys that two families spell their own way: a window without the current token, experts' width as the layers'.
    own = {"mimo_v2_flash": ".window: 9 8", "minimax_m2": ".width: 128 32"}.get(large.family, "nowhere")
    assert [difference for difference in seen if not difference.endswith(own)] == []
    assert bool(seen) == (own != "nowhere")

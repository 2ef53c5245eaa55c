"""What Qwen files declare about their quantization: the method, the block of one scale, the modules left whole.

Reference: transformers 5.24, quantizers/quantizer_finegrained_fp8.py. The published lists name every norm and router
of every layer, and modules of the vision tower; only those count here whose matrices would else be quantised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from plait.blueprint.layout import Layout
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import Blueprint, Quantization

__all__ = ["declared_quantization"]

_FORMATS: Final = MappingProxyType({"e4m3": "f8_e4m3", "e5m2": "f8_e5m2"})
_LISTS: Final = ("modules_to_not_convert", "ignored_layers")
# What stands before the name of a module in the files of text models and of models with a tower.
_ROOT: Final = re.compile(r"^(model\.language_model\.|language_model\.model\.|model\.)")
_BESIDE: Final = re.compile(r"(model\.)?visual(\..*)?|mtp\.(fc|norm|pre_fc_norm_\w+)")
_PREDICTION: Final = re.compile(r"mtp\.layers\.(\d+)\.(.+)")
_EXPERT: Final = re.compile(r".*\.experts\.\d+(\..+)?")
_LAYER: Final = re.compile(r"layers\.\d+\.(.+)")


def _modules(layout: Layout) -> Mapping[str, frozenset[str]]:
    """Roles below each dotted name, without its root: `layers.0`, `layers.0.mlp`, `layers.0.mlp.gate`, ..."""
    found: dict[str, set[str]] = {}
    for binding in layout.bindings:
        for name in binding.names:
            parts = name.replace("{body}", "").replace("{head}", "").removesuffix(".weight").split(".")
            for length in range(1, len(parts) + 1):
                found.setdefault(".".join(parts[:length]), set()).update(binding.roles)
    return {name: frozenset(roles) for name, roles in found.items()}


def _whole(section: ConfigReader, modules: Mapping[str, frozenset[str]], key: str) -> Iterator[str]:
    for module in section.words(key, field="quantization.excluded") or ():
        if _BESIDE.fullmatch(module):
            continue
        if _EXPERT.fullmatch(module):
            raise section.error(key, expected="the experts of a layer all together or not at all", found=repr(module))
        name = _ROOT.sub("", module)
        if (match := _PREDICTION.fullmatch(name)) is not None:
            ending = re.compile(rf"layers\.\d+\.{re.escape(match[2])}")
            alike = next((other for other in modules if ending.fullmatch(other)), "")
            yield from (re.sub(r"^layers\.\d+", f"mtp.{match[1]}", role) for role in modules.get(alike, ()))
        elif name in modules:
            yield from modules[name]
        else:
            roles = {role for other, each in modules.items() if other.endswith(f".{name}") for role in each}
            if not roles:
                raise section.error(key, expected="modules of this family", found=repr(module))
            yield from roles


def _shortened(roles: frozenset[str], every: frozenset[str]) -> Iterator[str]:
    """The roles, one that all layers having it leave whole without the layers' numbers."""
    below: dict[str, set[str]] = {}
    for role in every:
        if (match := _LAYER.fullmatch(role)) is not None:
            below.setdefault(match[1], set()).add(role)
    for role in sorted(roles):
        match = _LAYER.fullmatch(role)
        yield match[1] if match is not None and below[match[1]] <= roles else role


def declared_quantization(
    config: ConfigReader, blueprint: Blueprint, layout: Callable[[Blueprint], Layout]
) -> Blueprint:
    """The blueprint with the quantization of `quantization_config`, where it stands."""
    section = config.section("quantization_config")
    if section is None:
        return blueprint
    method = section.text("quant_method", field="quantization.method")
    if method != "fp8":
        # Keys of other methods stay unknown, and coverage says so.
        return replace(blueprint, quantization=Quantization(method, method))
    section.irrelevant("activation_scheme", "act_per_tensor", "weight_per_tensor", "scale_fmt")
    block = section.integers("weight_block_size", field="quantization.block", length=2, minimum=1)
    made = Quantization(
        method, section.choice("fmt", among=_FORMATS, field="quantization.format", default="e4m3"), block or ()
    )
    modules = _modules(layout(replace(blueprint, quantization=made)))
    every = frozenset(role for roles in modules.values() for role in roles)
    roles = frozenset(role for key in _LISTS for role in _whole(section, modules, key))
    excluded = tuple(dict.fromkeys(_shortened(roles, every)))
    return replace(blueprint, quantization=replace(made, excluded=excluded))

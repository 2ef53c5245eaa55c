"""`quantization_config` of checkpoints whose matrices are FP8 with one scale per block (DeepSeek-V3 and others).

https://arxiv.org/abs/2412.19437, section 3.3; reference: transformers 5.24, quantizers/quantizer_finegrained_fp8.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import Quantization

__all__ = ["read_quantization"]

_FORMATS: Final = MappingProxyType(
    {"e4m3": "f8_e4m3", "float8_e4m3fn": "f8_e4m3", "e5m2": "f8_e5m2", "float8_e5m2": "f8_e5m2"}
)
_TOP: Final = MappingProxyType(
    {"head": "lm_head.weight", "embedding": "embed_tokens.weight", "final_norm": "norm.weight"}
)
_IN_LAYER: Final = re.compile(r"(?:model\.)?layers\.(\d+)\.(.+)")


def _roles(module: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """Roles of the matrices of a module, named in full or by some of its parts; biases are never quantised."""
    return tuple(
        role
        for role, name in (*names.items(), *_TOP.items())
        if f".{module}." in f".{name.removesuffix('.weight')}." and not name.endswith(".bias")
    )


def _whole(section: ConfigReader, key: str, names: Mapping[str, str], layers: int) -> Iterator[str]:
    """Roles that the modules under `key` keep unquantised; a role of all layers stands without a number."""
    places: dict[str, set[int]] = {}
    for module in section.words(key, field="quantization.excluded") or ():
        match = _IN_LAYER.fullmatch(module)
        roles = _roles(module if match is None else match[2], names)
        if not roles:
            raise section.error(key, expected="modules of this family", found=repr(module))
        if match is None:
            yield from roles
        else:
            for role in roles:
                places.setdefault(role, set()).add(int(match[1]))
    for role, numbers in places.items():
        if numbers == set(range(layers)):
            yield role
        else:
            yield from (f"layers.{number}.{role}" for number in sorted(numbers))


def read_quantization(
    config: ConfigReader, names: Mapping[str, str], layers: int, *, whole: tuple[str, ...] = ()
) -> Quantization | None:
    """The declared quantization, None where there is none.

    names   role below `layers.N.` -> name below it, by which excluded modules are found
    whole   roles that published files keep unquantised though the config does not say so
    """
    section = config.section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method", field="quantization.method")
    if method != "fp8":
        # Keys of other methods stay unknown, and coverage says so.
        return Quantization(method, section.text("format", "fmt", field="quantization.format", default=method))
    section.irrelevant("activation_scheme", "packed_modules_mapping", "scale_fmt")
    block = section.integers("weight_block_size", field="quantization.block", length=2, minimum=1)
    excluded = [
        role for key in ("modules_to_not_convert", "ignored_layers") for role in _whole(section, key, names, layers)
    ]
    if whole:
        config.record("quantization.whole", "convention", "kept unquantised in published files", whole)
    return Quantization(
        method,
        section.choice("fmt", among=_FORMATS, field="quantization.format", default="e4m3"),
        block or (),
        tuple(dict.fromkeys((*excluded, *whole))),
    )

"""One module a family: config keys to blueprint, roles to names of tensors. Never forward code."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, Protocol, cast

from plait.blueprint.layout import Layout
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Blueprint

__all__ = ["ARCHITECTURES", "MODEL_TYPES", "Family", "family"]


class Family(Protocol):
    """What a family's module offers."""

    @staticmethod
    def parse(config: ConfigReader) -> Blueprint:
        """Blueprint of a config.json."""

    @staticmethod
    def layout(blueprint: Blueprint) -> Layout:
        """How safetensors files store the model."""

    @staticmethod
    def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
        """Blueprint of GGUF metadata; keys come without the architecture's prefix."""

    @staticmethod
    def gguf_layout(blueprint: Blueprint) -> Layout:
        """How GGUF files store the model."""

    @staticmethod
    def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
        """Keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""


# `model_type` of a config.json -> family
MODEL_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gemma2": "gemma2",
        "gemma3": "gemma3",
        "gemma3_text": "gemma3",
        "llama": "llama",
        "qwen3": "qwen3",
        "spark2_5": "spark2_5",
    }
)

# `general.architecture` of a GGUF file -> family
ARCHITECTURES: Final[Mapping[str, str]] = MappingProxyType(
    {"gemma2": "gemma2", "gemma3": "gemma3", "llama": "llama", "qwen3": "qwen3", "spark2_5": "spark2_5"}
)


def family(name: str) -> Family:
    """The module of a family of `MODEL_TYPES` or `ARCHITECTURES`, imported on first use."""
    return cast("Family", import_module(f"{__name__}.{name}"))

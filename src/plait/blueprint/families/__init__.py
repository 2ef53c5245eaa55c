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
    """What a family's module offers.

    REFERENCE  the code its behaviour can be checked against: project and version, file, class
    """

    REFERENCE: str

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
        "deepseek_v3": "deepseek_v3",
        "deepseek_v32": "deepseek_v32",
        "gemma2": "gemma2",
        "gemma3": "gemma3",
        "gemma3_text": "gemma3",
        "gemma3n": "gemma3n",
        "gemma3n_text": "gemma3n",
        "gemma4": "gemma4",
        "gemma4_text": "gemma4",
        "gemma4_unified": "gemma4_unified",
        "gemma4_unified_text": "gemma4_unified",
        "glm4_moe": "glm4_moe",
        "glm_moe_dsa": "glm_moe_dsa",
        "llama": "llama",
        "mimo_v2_flash": "mimo_v2_flash",
        "minimax": "minimax_m2",
        "minimax_m2": "minimax_m2",
        "qwen3": "qwen3",
        "qwen3_5": "qwen3_5",
        "qwen3_5_moe": "qwen3_5_moe",
        "qwen3_5_moe_text": "qwen3_5_moe",
        "qwen3_5_text": "qwen3_5",
        "qwen3_moe": "qwen3_moe",
        "qwen3_next": "qwen3_next",
        "spark2_5": "spark2_5",
    }
)

# `general.architecture` of a GGUF file -> family
ARCHITECTURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "deepseek2": "deepseek_v3",
        "gemma2": "gemma2",
        "gemma3": "gemma3",
        "gemma3n": "gemma3n",
        "gemma4": "gemma4",
        "glm-dsa": "glm_moe_dsa",
        "glm4moe": "glm4_moe",
        "llama": "llama",
        "mimo2": "mimo_v2_flash",
        "minimax-m2": "minimax_m2",
        "qwen3": "qwen3",
        "qwen35": "qwen3_5",
        "qwen35moe": "qwen3_5_moe",
        "qwen3moe": "qwen3_moe",
        "qwen3next": "qwen3_next",
        "spark2_5": "spark2_5",
    }
)


def family(name: str) -> Family:
    """The module of a family of `MODEL_TYPES` or `ARCHITECTURES`, imported on first use."""
    return cast("Family", import_module(f"{__name__}.{name}"))

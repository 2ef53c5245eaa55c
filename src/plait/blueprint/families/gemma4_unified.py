"""Gemma 4 12B: the text model of Gemma 4 with images and sound projected into it directly, without encoders.

Patches of 48 x 48 pixels pass one linear layer between LayerNorms and get positions from a table; frames of 640
samples of sound pass one linear layer.

Reference: transformers 5.24, models/gemma4_unified/modeling_gemma4_unified.py, Gemma4UnifiedForConditionalGeneration.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plait.blueprint.families import gemma4
from plait.blueprint.families.common import ignore_common
from plait.blueprint.families.gemma_shared import inner_and_outer
from plait.blueprint.layout import Layout
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Blueprint, Tower, TowerTensor

__all__ = ["REFERENCE", "gguf_layout", "gguf_metadata", "layout", "parse", "parse_gguf"]

REFERENCE: Final = (
    "transformers 5.24 models/gemma4_unified/modeling_gemma4_unified.py Gemma4UnifiedForConditionalGeneration"
)

_DEFAULTS: Final = gemma4.Defaults(max_context=262_144, window=1024, images="vision", plain=True)


def parse(config: ConfigReader) -> Blueprint:
    """A blueprint from `gemma4_unified_text` (text alone) or `gemma4_unified`; its family is `gemma4`."""
    inner, outer = inner_and_outer(config)
    blueprint = gemma4.text(inner, outer, _DEFAULTS)
    if inner is outer:
        return blueprint
    config.irrelevant(*gemma4.TOKENS)
    vision, audio = config.section("vision_config"), config.section("audio_config")
    towers = (
        *((_patches(vision, blueprint.hidden),) if vision is not None else ()),
        *((_frames(audio, blueprint.hidden),) if audio is not None else ()),
    )
    return replace(blueprint, towers=towers)


def _patches(vision: ConfigReader, text_hidden: int) -> Tower:
    """The embedder of image patches of a `gemma4_unified_vision` config."""
    ignore_common(vision)
    vision.use("model_type")
    vision.irrelevant("dtype", "torch_dtype", "rms_norm_eps")
    vision.optional_integer("num_soft_tokens", field="vision.tokens_per_image")
    patch = vision.integer("patch_size", default=16) * vision.integer("pooling_kernel_size", default=3)
    vision.record("vision.patch_size", "derived", "patch_size * pooling_kernel_size", patch)
    if vision.integer("model_patch_size", default=patch) != patch:
        raise vision.error(
            "model_patch_size",
            expected=f"patch_size * pooling_kernel_size, {patch}",
            found=vision.integer("model_patch_size"),
        )
    hidden = vision.integer("mm_embed_dim", field="vision.hidden", default=3840)
    positions = vision.integer("mm_posemb_size", field="vision.positions", default=1120)
    if vision.integer("output_proj_dims", default=3840) != hidden:
        raise vision.error(
            "output_proj_dims",
            expected=f"mm_embed_dim, {hidden}, which is what is projected",
            found=vision.integer("output_proj_dims", default=3840),
        )
    pixels = 3 * patch * patch
    tensors = (
        TowerTensor("patch_norm", (pixels,)),
        TowerTensor("patch_norm_bias", (pixels,)),
        TowerTensor("patch_embedding", (hidden, pixels)),
        TowerTensor("patch_embedding_bias", (hidden,)),
        TowerTensor("embedding_norm", (hidden,)),
        TowerTensor("embedding_norm_bias", (hidden,)),
        TowerTensor("position_embedding", (positions, 2, hidden)),
        TowerTensor("position_norm", (hidden,)),
        TowerTensor("position_norm_bias", (hidden,)),
        TowerTensor("projector.weight", (text_hidden, hidden)),
    )
    return Tower("vision", f"no encoder: patches of {patch}x{patch} pixels projected to {hidden}", tensors)


def _frames(audio: ConfigReader, text_hidden: int) -> Tower:
    """The projection of sound of a `gemma4_unified_audio` config; four of its keys spell one size."""
    ignore_common(audio)
    audio.use("model_type")
    audio.irrelevant("dtype", "torch_dtype", "rms_norm_eps")
    samples = audio.integer(
        "audio_embed_dim",
        "audio_samples_per_token",
        "hidden_size",
        "output_proj_dims",
        field="audio.samples_per_token",
        default=640,
    )
    tensors = (TowerTensor("projector.weight", (text_hidden, samples)),)
    return Tower("audio", f"no encoder: frames of {samples} samples projected", tensors)


def layout(blueprint: Blueprint) -> Layout:
    """Names in safetensors files."""
    return gemma4.layout(blueprint)


def parse_gguf(meta: ConfigReader, header: GGUFHeader) -> Blueprint:
    """A blueprint from GGUF metadata; files of this model are of the `gemma4` architecture."""
    return gemma4.parse_gguf(meta, header)


def gguf_layout(blueprint: Blueprint) -> Layout:
    """Names in GGUF files."""
    return gemma4.gguf_layout(blueprint)


def gguf_metadata(blueprint: Blueprint) -> dict[str, object]:
    """The GGUF keys, without the architecture's prefix, from which `parse_gguf` reads the blueprint back."""
    return gemma4.gguf_metadata(blueprint)

"""What else a small config changes: sections of towers, token ids, the modules a quantization leaves whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

__all__ = ["moved_tokens", "small_audio", "small_quantization", "small_vision", "tokens_moved"]

_HIDDEN: Final = 32
_BLOCK: Final = 32

# Sizes of vision towers by key. Patches and how they are pooled stay: positions and tokens follow from them.
_VISION: Final[Mapping[str, int]] = MappingProxyType(
    {
        "depth": 2,
        "head_dim": 16,
        "hidden_size": _HIDDEN,
        "image_size": 56,
        "intermediate_size": 2 * _HIDDEN,
        "mm_posemb_size": 64,
        "num_attention_heads": 2,
        "num_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_position_embeddings": 16,
        "position_embedding_size": 64,
    }
)
# Sizes that are those of the text model.
_JOINED: Final = ("mm_embed_dim", "out_hidden_size", "output_proj_dims")
_SIGLIP: Final[Mapping[str, int]] = MappingProxyType(
    {
        "hidden_size": _HIDDEN,
        "image_size": 56,
        "intermediate_size": 2 * _HIDDEN,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "patch_size": 14,
    }
)
_AUDIO: Final[Mapping[str, object]] = MappingProxyType(
    {
        "audio_embed_dim": _HIDDEN,
        "audio_samples_per_token": _HIDDEN,
        "conf_num_attention_heads": 2,
        "conf_num_hidden_layers": 2,
        "hidden_size": _HIDDEN,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "output_proj_dims": _HIDDEN,
        "sscp_conv_channel_size": [8, 8],
        "subsampling_conv_channels": [8, 8],
    }
)
_LISTS: Final = ("modules_to_not_convert", "ignored_layers")
_LAYER: Final = re.compile(r"((?:.*\.)?layers\.)(\d+)(\..*)?")


def small_vision(section: Mapping[str, object], hidden: int, *, patches: bool) -> dict[str, object]:
    """A vision tower's section with small sizes; one fixed network stays as it is.

    patches  the tower takes an image of one size apart (SigLIP): all of its sizes are written, whatever stands there
    """
    if "architecture" in section:
        return dict(section)
    known = {**_VISION, **dict.fromkeys(_JOINED, hidden)}
    small = {key: known.get(key, value) for key, value in section.items()}
    return {**small, **_SIGLIP} if patches else small


def small_audio(section: Mapping[str, object]) -> dict[str, object]:
    """An audio tower's section with small sizes."""
    return {key: _AUDIO.get(key, value) for key, value in section.items()}


def small_quantization(section: Mapping[str, object], kept: Sequence[int], layers: int) -> dict[str, object]:
    """The declared quantization with small blocks; modules of dropped layers go, those of others are renumbered.

    Layers of multi-token prediction are numbered on from the last of the `layers` of the large model.
    """

    def renumbered(module: object) -> Iterator[object]:
        match = _LAYER.fullmatch(module) if isinstance(module, str) else None
        if match is None:
            yield module
            return
        number = int(match[2])
        if number >= layers:
            yield f"{match[1]}{len(kept) + number - layers}{match[3] or ''}"
        elif number in kept:
            yield f"{match[1]}{kept.index(number)}{match[3] or ''}"

    small = dict(section)
    for key in _LISTS:
        value = section.get(key)
        if isinstance(value, list | tuple):
            small[key] = [name for module in value for name in renumbered(module)]
    block = section.get("weight_block_size")
    if isinstance(block, list | tuple) and all(isinstance(n, int) for n in block):
        small["weight_block_size"] = [min(n, _BLOCK) for n in block]
    return small


# -- token ids -------------------------------------------------------------------------------------------------------


def _token_keys(config: Mapping[str, object]) -> Iterator[str]:
    return (key for key in config if key.endswith(("_token_id", "_token_index")))


def _ids(value: object) -> list[int]:
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


def moved_tokens(config: Mapping[str, object], vocabulary: int) -> dict[int, int]:
    """Where each token id beyond the vocabulary goes: the last ids of it that nothing else has."""
    sections = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    ids = {token for section in sections for key in _token_keys(section) for token in _ids(section[key])}
    free = (token for token in reversed(range(vocabulary)) if token not in ids)
    return dict(zip(sorted(token for token in ids if token >= vocabulary), free, strict=False))


def tokens_moved(config: Mapping[str, object], moved: Mapping[int, int]) -> dict[str, object]:
    """The keys with their token ids moved."""
    small = dict(config)
    for key in _token_keys(config):
        value = config[key]
        if isinstance(value, list | tuple):
            small[key] = [moved.get(item, item) for item in value]
        elif isinstance(value, int):
            small[key] = moved.get(value, value)
    return small

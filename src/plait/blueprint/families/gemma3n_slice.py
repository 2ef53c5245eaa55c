"""What a config.json of Gemma 3n says of a slice of the model, and the slices that are published."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import FULL, SLIDING
from plait.blueprint.spec import Attention, Blueprint, Gated

__all__ = ["PUBLISHED", "sliced_keys"]

PUBLISHED: Final[Mapping[str, tuple[tuple[int, ...], int]]] = MappingProxyType({"E2B": ((20, 21, 22, 23, 24), 8192)})
"""Layers that are dropped from E4B, and the width of those that stay (Google's gemma3n-slicing-configs)."""


def sliced_keys(config: Mapping[str, object], blueprint: Blueprint) -> dict[str, object]:
    """The keys of a model of which `blueprint` is a slice, as those of the slice."""
    dense, mixers = [], []
    for layer in blueprint.layers:
        assert isinstance(layer.feed_forward, Gated)
        assert isinstance(layer.mixer, Attention)
        dense.append(layer.feed_forward)
        mixers.append(layer.mixer)
    lists: dict[str, object] = {
        "num_hidden_layers": len(blueprint.layers),
        "intermediate_size": [part.width for part in dense],
        "layer_types": [FULL if mixer.window is None else SLIDING for mixer in mixers],
        # Its default depends on the number of layers.
        "activation_sparsity_pattern": [part.sparsity or 0.0 for part in dense],
        "num_kv_shared_layers": sum(mixer.kv_source is not None for mixer in mixers),
    }
    text = config.get("text_config")
    if isinstance(text, Mapping):
        return {**config, "text_config": {**text, **lists}}
    return {**config, **lists}

"""What the config reader and the GGUF reader of MiMo-V2-Flash share."""

from __future__ import annotations

from typing import Final

from plait.blueprint.spec import Attention, Gated, Layer, MultiTokenPrediction, Norm

__all__ = ["PREDICTIONS", "VALUE_SCALE", "predicting"]

PREDICTIONS: Final = 3
# Class default, and the value of the published config.
VALUE_SCALE: Final = 0.707


def predicting(window: Attention, dense: Gated, norm: Norm, count: int) -> MultiTokenPrediction | None:
    """Prediction layers: windows with a dense feed-forward, which use the model's own embedding and head."""
    if not count:
        return None
    layer = Layer(window, dense, norm, norm)
    return MultiTokenPrediction((layer,) * count, copies_embedding=False, copies_head=False)

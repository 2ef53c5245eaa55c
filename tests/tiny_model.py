"""What a tiny random model of a transformers family is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Tiny:
    """Class names in `transformers`, settings of the config, and around what its vectors are drawn.

    neutral  weight of a norm that multiplies by 1
    around   for vectors whose name contains a key: what their values are drawn around instead
    window   longest window, None: no layer has one
    """

    config: str
    model: str
    settings: Mapping[str, object]
    neutral: float = 1.0
    around: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    window: int | None = None

    def centre(self, name: str) -> float:
        """Around what the vector `name` is drawn."""
        for part, value in self.around.items():
            if part in name:
                return value
        return 0.0 if "bias" in name else self.neutral

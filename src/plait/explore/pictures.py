"""The pictures of a model, packed for the page: every theme and language, one stream.

The four versions of a picture differ in few places, so together they take little more room than one. The page unpacks a
model's pictures when they are looked at (`DecompressionStream`, which browsers have since 2023).
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from typing import Final, Literal

from plait.account.parameters import ParameterAccount
from plait.blueprint.spec import Blueprint
from plait.draw.diagram import scene_svg
from plait.draw.layer import layers_svg
from plait.draw.layout import scene_of

__all__ = ["LANGUAGES", "pictures"]

_THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
LANGUAGES: Final[tuple[Literal["en", "zh"], ...]] = ("en", "zh")


def pictures(blueprint: Blueprint, account: ParameterAccount) -> str:
    """{"model": {"light.en": SVG, ...}, "layers": {...}} as JSON, compressed (RFC 1950) and in base64.

    account  the parameters that the picture of the model states: those the page has
    """
    versions = [(theme, lang) for lang in LANGUAGES for theme in _THEMES]
    scenes = {lang: scene_of(blueprint, lang=lang, account=account) for lang in LANGUAGES}
    made = {
        "model": {f"{t}.{lang}": scene_svg(scenes[lang], theme=t, lang=lang) for t, lang in versions},
        "layers": {f"{t}.{lang}": layers_svg(blueprint, theme=t, lang=lang) for t, lang in versions},
    }
    return b64encode(zlib.compress(json.dumps(made, ensure_ascii=False).encode(), 9)).decode()

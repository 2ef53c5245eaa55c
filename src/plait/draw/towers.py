"""What a picture says of a tower: its description, word by word in the picture's language."""

from __future__ import annotations

import re
from typing import Final

from plait.blueprint.spec import Tower
from plait.draw.words import Lang

__all__ = ["tower_words"]

# The phrases that descriptions are made of, and each in Chinese; a name or a number stays as it is.
_PHRASES: Final = tuple(
    (re.compile(phrase), chinese)
    for phrase, chinese in (
        (r"conformer", r"Conformer"),
        (r"(\d+) layers of (\d+)", r"\1 层，宽度 \2"),
        (r"patches of (\S+)", r"图块 \1"),
        (r"patches of (\S+) merged (\S+)", r"图块 \1，按 \2 合并"),
        (r"(\S+) in patches of (\S+)", r"图像 \1，图块 \2"),
        (r"(\S+) pooled", r"按 \1 池化"),
        (r"MobileNet-V5 \(timm (\S+)\)", r"MobileNet-V5（timm \1）"),
        (r"(\d+) channels out", r"输出 \1 通道"),
        (r"no encoder: patches of (\S+) pixels projected to (\d+)", r"无编码器：\1 像素的图块投影到 \2 维"),
        (r"no encoder: frames of (\d+) samples projected", r"无编码器：每帧 \1 个采样点，直接投影"),
    )
)
_TIMES: Final = re.compile(r"(?<=\d)x(?=\d)")


def _chinese(phrase: str) -> str:
    for pattern, chinese in _PHRASES:
        found = pattern.fullmatch(phrase)
        if found is not None:
            return found.expand(chinese)
    return phrase


def tower_words(tower: Tower, lang: Lang) -> str:
    """Kind and sizes of a tower in `lang`; what follows a semicolon is about older files and is left out."""
    description = _TIMES.sub("×", tower.description.split(";")[0])
    return description if lang == "en" else "，".join(map(_chinese, description.split(", ")))

"""One type scale, and the width of text without a browser.

Widths are upper bounds over the fonts of `FAMILY`: for Latin the advances of DejaVu Sans, the widest of them (Helvetica
where a character is wider there), a whole em for East Asian wide characters, and more than an em for all others.
So what fits by this measure fits wherever the picture is shown.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = [
    "BODY",
    "FAMILY",
    "HEADING",
    "LABEL",
    "SCALE",
    "SMALL",
    "SMALLEST",
    "TITLE",
    "Style",
    "fits",
    "shorten",
    "width",
    "wrap",
]

FAMILY: Final = (
    "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', "
    "sans-serif"
)
ELLIPSIS: Final = "…"


@dataclass(frozen=True, slots=True)
class Style:
    """A step of the scale: size and line height in px, weight 400 or 700."""

    size: int
    line: int
    bold: bool = False


TITLE: Final = Style(22, 30, bold=True)
HEADING: Final = Style(15, 20, bold=True)
LABEL: Final = Style(13, 18, bold=True)
BODY: Final = Style(13, 18)
SMALL: Final = Style(11, 15)
SCALE: Final = (TITLE, HEADING, LABEL, BODY, SMALL)
SMALLEST: Final = SMALL.size

# Thousandths of an em for the characters from U+0020 to U+007E; with the kerning where a pair stands further apart.
_REGULAR: Final = (
    318, 401, 474, 838, 637, 951, 780, 278, 391, 391, 500, 838, 318, 361, 318, 392, 637, 637, 637, 637, 637, 637, 637,
    637, 637, 637, 337, 337, 838, 838, 838, 556, 1015, 711, 687, 722, 771, 667, 611, 778, 752, 295, 535, 667, 558, 863,
    749, 788, 667, 788, 722, 667, 611, 732, 685, 989, 686, 667, 686, 391, 392, 391, 838, 559, 606, 613, 635, 550, 635,
    616, 353, 635, 634, 278, 278, 580, 284, 975, 634, 612, 635, 635, 412, 521, 393, 634, 592, 818, 592, 592, 525, 637,
    337, 637, 838,
)  # fmt: skip
_BOLD: Final = (
    349, 457, 574, 838, 696, 1002, 873, 325, 458, 458, 523, 838, 380, 416, 380, 387, 696, 696, 696, 696, 696, 696, 696,
    696, 696, 696, 400, 400, 838, 838, 838, 611, 1007, 774, 763, 734, 831, 684, 684, 821, 837, 373, 568, 775, 638, 996,
    837, 851, 733, 851, 771, 721, 705, 813, 774, 1104, 771, 725, 726, 458, 387, 458, 838, 567, 626, 675, 716, 593, 716,
    679, 436, 716, 712, 343, 343, 666, 343, 1042, 712, 688, 716, 716, 494, 596, 479, 712, 652, 924, 646, 652, 583, 712,
    366, 712, 838,
)  # fmt: skip
_OTHER: Final = 1100
_WIDE: Final = 1000
_FIRST: Final = 0x20
# Signs of our own texts that are narrower than an em in every font of the family; (regular, bold).
_SIGNS: Final = MappingProxyType(
    {
        "\u00a0": (318, 349),
        "·": (561, 592),
        "–": (556, 556),
        "−": (838, 838),
        "×": (838, 838),
        "α": (660, 688),
        "β": (639, 716),
        "θ": (612, 688),
        "σ": (634, 779),
        "²": (411, 438),
    }
)


# All characters that are known, regular and bold: texts are measured often.
_KNOWN: Final = tuple(
    MappingProxyType(
        {chr(_FIRST + i): thousandths for i, thousandths in enumerate(table)}
        | {sign: both[bold] for sign, both in _SIGNS.items()}
    )
    for bold, table in enumerate((_REGULAR, _BOLD))
)


def _unknown(character: str) -> int:
    return _WIDE if unicodedata.east_asian_width(character) in "WF" else _OTHER


def width(text: str, style: Style) -> float:
    """Px that `text` takes at most in `style`."""
    known = _KNOWN[style.bold]
    try:
        advances = sum([known[c] for c in text])
    except KeyError:
        advances = sum([known[c] if c in known else _unknown(c) for c in text])
    return advances * style.size / 1000


def fits(text: str, style: Style, room: float) -> bool:
    """Whether `text` takes at most `room` px."""
    return width(text, style) <= room


def shorten(text: str, style: Style, room: float) -> str:
    """`text`, cut with an ellipsis where it takes more than `room` px."""
    if fits(text, style, room):
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle].rstrip() + ELLIPSIS, style, room):
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + ELLIPSIS


def wrap(text: str, style: Style, room: float) -> tuple[str, ...]:
    """`text` in lines of at most `room` px, broken at spaces and between East Asian characters, long words cut."""
    lines: list[str] = []
    line = ""
    for word in _words(text):
        if not fits((line + word).strip(), style, room) and line.strip():
            lines.append(line.strip())
            line = ""
        line += word
        while not fits(line.strip(), style, room):
            cut = len(line) - 1
            while cut > 1 and not fits(line[:cut].strip(), style, room):
                cut -= 1
            if cut < 1:
                break
            lines.append(line[:cut].strip())
            line = line[cut:]
    if line.strip() or not lines:
        lines.append(line.strip())
    return tuple(lines)


def _words(text: str) -> list[str]:
    """Pieces a line may end after; a space stays with the word before it."""
    words: list[str] = []
    for character in text:
        glued = words and not words[-1].endswith(" ") and not _breaks(words[-1][-1], character)
        if glued or (words and character == " "):
            words[-1] += character
        else:
            words.append(character)
    return words


def _breaks(before: str, after: str) -> bool:
    wide = unicodedata.east_asian_width
    return (wide(before) in "WF" or wide(after) in "WF") and unicodedata.category(after)[0] != "P"

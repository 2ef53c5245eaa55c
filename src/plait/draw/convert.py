"""Pictures as PNG and PDF: the SVG typeset by the `typst` package, which comes with a renderer and fonts of its own.

Text stays text in a PDF. Where none of the fonts a picture names is installed, one that comes with the package stands
in; it has no Chinese characters, so pictures that have some need such a font.
"""

from __future__ import annotations

import unicodedata
from typing import Final, Literal

from plait.draw.svg import plain
from plait.errors import PlaitError, UsageError, fault

__all__ = ["FORMATS", "convert"]

FORMATS: Final = ("png", "pdf")
# A page of the size of its picture, and nothing that changes from run to run.
_PAGE: Final = b"""#set document(title: sys.inputs.title, date: none)
#set page(width: auto, height: auto, margin: 0pt)
#image(bytes(sys.inputs.picture), format: "svg", alt: sys.inputs.title)
"""
_PX_PER_INCH: Final = 96
_MOST_PIXELS: Final = 250_000_000
# What families of fonts with Chinese characters have in their names.
_CHINESE: Final = (
    "cjk",
    "deng",
    "fangsong",
    "han sans",
    "han serif",
    "heiti",
    "hiragino",
    "kaiti",
    "noto sans sc",
    "noto sans tc",
    "noto serif sc",
    "pingfang",
    "sarasa",
    "simhei",
    "simsun",
    "songti",
    "wenquanyi",
    "yahei",
    "zen hei",
)


def _has_wide(text: str) -> bool:
    return any(unicodedata.east_asian_width(character) in "WF" for character in text)


def convert(
    picture: str, form: Literal["png", "pdf"], *, title: str, width: float, height: float, scale: float = 1.0
) -> bytes:
    """The bytes of a PNG or PDF of an SVG of `width` by `height` px.

    scale  pixels of a PNG for each px of the picture; a PDF has none
    ModuleNotFoundError where the package `typst` is not installed; UsageError for a PNG of too many pixels;
    PlaitError where no font has the picture's characters, or the picture cannot be set.
    """
    import typst  # here, so that pictures in SVG need no package

    if form == "png" and width * height * scale * scale > _MOST_PIXELS:
        found = f"{width * scale:,.0f} × {height * scale:,.0f}"
        raise UsageError(
            fault("the picture is too large", expected=f"at most {_MOST_PIXELS:,} pixels", found=found)
            + "; choose a smaller scale, or .svg or .pdf"
        )
    if _has_wide(picture):
        families = [name.lower() for name in typst.Fonts().families()]
        if not any(part in name for name in families for part in _CHINESE):
            advice = "install one, for example Noto Sans CJK, or write .svg"
            raise PlaitError(fault("no font with Chinese characters is installed", advice=advice))
    try:
        made = typst.compile(
            _PAGE, format=form, ppi=_PX_PER_INCH * scale, sys_inputs={"picture": picture, "title": plain(title)}
        )
    except typst.TypstError as error:
        raise PlaitError(fault(f"the picture cannot be set as {form.upper()} ({error})")) from error
    assert isinstance(made, bytes)
    return made

"""Colours by role, light and dark.

Eight hues carry meaning and no others do: five kinds of token mixers, three kinds of feed-forward. They stay apart
under protanopia, deuteranopia and tritanopia, and each is at least 3:1 against the paper. A hue never speaks alone:
what it says stands in words on the box too. Text is `ink` or `muted`, at least 4.5:1 on whatever may lie under it
(WCAG 2.2, 1.4.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from plait.blueprint.spec import Attention, Both, FeedForward, Gated, GatedDeltaNet, LatentAttention, Mixer
from plait.errors import UsageError

__all__ = [
    "DARK",
    "FEED_FORWARDS",
    "LIGHT",
    "MIXERS",
    "THEMES",
    "Hue",
    "Role",
    "Theme",
    "ThemeName",
    "contrast",
    "feed_forward_role",
    "mixer_role",
    "theme_of",
]

ThemeName = Literal["light", "dark"]
MixerRole = Literal["attention", "window", "delta", "latent", "sparse"]
FeedForwardRole = Literal["dense", "mixture", "both"]
Role = MixerRole | FeedForwardRole

MIXERS: Final[tuple[MixerRole, ...]] = ("attention", "window", "delta", "latent", "sparse")
FEED_FORWARDS: Final[tuple[FeedForwardRole, ...]] = ("dense", "mixture", "both")


@dataclass(frozen=True, slots=True)
class Hue:
    """accent: stripes, borders, lines of charts; fill: areas that text stands on."""

    accent: str
    fill: str


@dataclass(frozen=True, slots=True)
class Theme:
    """One set of colours, `#rrggbb` each.

    paper    the page          panel  areas without a hue (embedding, head, fact panel)
    ink      text              muted  text that explains
    line     borders, arrows   frame  dashed frames, grids of charts
    """

    name: ThemeName
    paper: str
    panel: str
    ink: str
    muted: str
    line: str
    frame: str
    hues: Mapping[Role, Hue]

    def text_pairs(self) -> Iterator[tuple[str, str]]:
        """Every (text, background) that is drawn."""
        for under in (self.paper, self.panel, *(hue.fill for hue in self.hues.values())):
            yield self.ink, under
            yield self.muted, under

    @property
    def series(self) -> tuple[str, ...]:
        """Accents in the order lines of a chart take them."""
        order: tuple[Role, ...] = ("attention", "delta", "mixture", "latent", "both", "sparse", "window", "dense")
        return tuple(self.hues[role].accent for role in order)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _mixed(colour: str, paper: str, parts: int) -> str:
    """`parts` hundredths of a colour over the paper."""
    pairs = zip(_channels(colour), _channels(paper), strict=True)
    return "#" + "".join(f"{(a * parts + b * (100 - parts) + 50) // 100:02x}" for a, b in pairs)


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = (c / 255 for c in _channels(colour))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours `#rrggbb`, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _hues(accents: Mapping[Role, str], paper: str, parts: int) -> Mapping[Role, Hue]:
    return MappingProxyType({role: Hue(accent, _mixed(accent, paper, parts)) for role, accent in accents.items()})


_LIGHT_ACCENTS: Final[Mapping[Role, str]] = MappingProxyType(
    {
        "attention": "#0831ce",
        "window": "#1e92b6",
        "delta": "#ac5d32",
        "latent": "#b045e5",
        "sparse": "#a50267",
        "dense": "#78787a",
        "mixture": "#175601",
        "both": "#a79202",
    }
)
_DARK_ACCENTS: Final[Mapping[Role, str]] = MappingProxyType(
    {
        "attention": "#82a8ff",
        "window": "#1f99b8",
        "delta": "#f67412",
        "latent": "#aa47ed",
        "sparse": "#de237d",
        "dense": "#ababad",
        "mixture": "#3ceb9c",
        "both": "#e8b818",
    }
)

LIGHT: Final = Theme(
    name="light",
    paper="#ffffff",
    panel="#f3f5f8",
    ink="#14181f",
    muted="#4a5462",
    line="#6b7684",
    frame="#8a94a3",
    hues=_hues(_LIGHT_ACCENTS, "#ffffff", 16),
)
DARK: Final = Theme(
    name="dark",
    paper="#14171c",
    panel="#20252d",
    ink="#eef1f5",
    muted="#b4bdc9",
    line="#929dac",
    frame="#747f8e",
    hues=_hues(_DARK_ACCENTS, "#14171c", 26),
)
THEMES: Final[Mapping[str, Theme]] = MappingProxyType({"light": LIGHT, "dark": DARK})


def theme_of(name: str) -> Theme:
    """The theme called `name`; UsageError where there is none."""
    if name not in THEMES:
        raise UsageError(f"theme {name!r} is not known; choose one of {', '.join(THEMES)}")
    return THEMES[name]


def mixer_role(mixer: Mixer) -> MixerRole:
    """The hue of a token mixer; latent attention that an indexer chooses keys for is `sparse`."""
    match mixer:
        case Attention():
            return "attention" if mixer.window is None else "window"
        case LatentAttention():
            return "latent" if mixer.indexer is None else "sparse"
        case GatedDeltaNet():
            return "delta"


def feed_forward_role(part: FeedForward) -> FeedForwardRole:
    """The hue of a feed-forward part."""
    match part:
        case Gated():
            return "dense"
        case Both():
            return "both"
        case _:
            return "mixture"

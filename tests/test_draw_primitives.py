"""Colours, type, words and the SVG writer that all pictures share."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations
from math import dist
from string import Formatter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.draw import svg
from plait.draw.text import BODY, SCALE, SMALL, SMALLEST, TITLE, fits, shorten, width, wrap
from plait.draw.theme import FEED_FORWARDS, LIGHT, MIXERS, THEMES, Theme, contrast, theme_of
from plait.draw.words import LANGUAGES, WORDS, lang_of, word
from plait.errors import UsageError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
DEFICIENCIES = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "none": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}
# Distance in Oklab, where black and white are 1 apart and 0.02 is just noticeable.
APART = 0.08


def linear(colour: str) -> tuple[float, ...]:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def oklab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    """https://bottosson.github.io/posts/oklab/"""
    r, g, b = (min(1.0, max(0.0, c)) for c in rgb)
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def seen(colour: str, kind: str) -> tuple[float, float, float]:
    rgb = linear(colour)
    return oklab(tuple(sum(a * b for a, b in zip(row, rgb, strict=True)) for row in DEFICIENCIES[kind]))


@pytest.mark.parametrize("kind", DEFICIENCIES)
@pytest.mark.parametrize("theme", THEMES.values(), ids=str)
def test_hues_are_told_apart(theme: Theme, kind: str) -> None:
    for one, other in combinations(theme.hues, 2):
        assert dist(seen(theme.hues[one].accent, kind), seen(theme.hues[other].accent, kind)) > APART, (one, other)


@pytest.mark.parametrize("theme", THEMES.values(), ids=str)
def test_text_and_lines_stand_out(theme: Theme) -> None:
    pairs = list(theme.text_pairs())
    assert len(pairs) == 2 * (2 + len(theme.hues))
    for text, under in pairs:
        assert contrast(text, under) >= 4.5
    for colour in (*(hue.accent for hue in theme.hues.values()), theme.line, theme.frame):
        assert contrast(colour, theme.paper) >= 3


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)
    assert contrast("#123456", "#123456") == 1


@pytest.mark.parametrize("theme", THEMES.values(), ids=str)
def test_there_are_eight_hues(theme: Theme) -> None:
    assert set(theme.hues) == {*MIXERS, *FEED_FORWARDS} and len(theme.hues) == 8
    assert len({hue.accent for hue in theme.hues.values()}) == 8
    assert sorted(theme.series) == sorted(hue.accent for hue in theme.hues.values())
    assert all(re.fullmatch("#[0-9a-f]{6}", c) for hue in theme.hues.values() for c in (hue.accent, hue.fill))


def test_unknown_themes_and_languages_are_refused() -> None:
    with pytest.raises(UsageError, match=r"theme 'sepia' .* light, dark"):
        theme_of("sepia")
    with pytest.raises(UsageError, match=r"language 'fr' .* en, zh"):
        lang_of("fr")


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_every_word_is_there_in_every_language() -> None:
    for key, texts in WORDS.items():
        assert len(texts) == len(LANGUAGES) and all(texts), key
        assert len({frozenset(fields(text)) for text in texts}) == 1, key
    for role in (*MIXERS, *FEED_FORWARDS):
        assert word(role, "en") != word(role, "zh")


def test_a_missing_word_is_an_error() -> None:
    with pytest.raises(LookupError, match="no_such"):
        word("no_such", "en")
    with pytest.raises(KeyError):
        word("layer_one", "zh")
    assert word("layer_one", "en", i=3) == "layer 3"


def test_the_scale() -> None:
    assert min(style.size for style in SCALE) == SMALLEST == 11
    assert len({style.size for style in SCALE}) <= 5
    assert all(style.line > style.size for style in SCALE)


def test_widths_of_known_characters() -> None:
    assert width("窗口", BODY) == 2 * BODY.size
    assert width("００", BODY) == 2 * BODY.size
    assert width("0" * 10, SMALL) == pytest.approx(10 * 0.637 * 11)
    assert width("iiii", SMALL) < width("WWWW", SMALL)
    assert width("abc", TITLE) > width("abc", BODY)
    assert width("", BODY) == 0


@given(TEXTS, st.sampled_from(SCALE), st.floats(0, 400))
def test_shortened_text_fits(text: str, style, room: float) -> None:
    found = shorten(text, style, room)
    if fits(text, style, room):
        assert found == text
    else:
        assert found.endswith("…") and text.startswith(found[:-1])
        assert fits(found, style, room) or found == "…"


@given(TEXTS, st.sampled_from(SCALE), st.floats(40, 400))
def test_wrapped_lines_fit_and_lose_nothing(text: str, style, room: float) -> None:
    lines = wrap(text, style, room)
    assert lines and all(fits(line, style, room) for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_words_are_kept_whole_where_they_fit() -> None:
    assert wrap("one two three", BODY, width("one two", BODY)) == ("one two", "three")
    assert wrap("滑动窗口", BODY, 2 * BODY.size) == ("滑动", "窗口")


@given(TEXTS, TEXTS)
def test_any_text_makes_valid_xml(content: str, name: str) -> None:
    drawn = svg.document(
        10,
        10,
        svg.text(1, 2, content, BODY, "#000000", data_name=name),
        theme=LIGHT,
        title=content,
        description=name,
    )
    root = ET.fromstring(svg.render(drawn))
    barred = "\ufffe\uffff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    kept = "".join(c if c in "\t\n\r" or (ord(c) >= 32 and c not in barred) else "\ufffd" for c in content)
    assert (root[-1].text or "") == kept.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize(
    ("value", "wanted"), [(1, "1"), (1.0, "1"), (0.5, "0.5"), (1 / 3, "0.33"), (-0.001, "0"), (100.0, "100")]
)
def test_numbers_are_short(value: float, wanted: str) -> None:
    assert svg.number(value) == wanted


def test_an_arrow_ends_where_it_is_told() -> None:
    text = svg.render(svg.arrow([(0, 0), (0, 20), (30, 20)], stroke="#000000"))
    assert "M30 20L" in text
    with pytest.raises(ValueError, match="two different points"):
        svg.arrow([(1, 1), (1, 1)], stroke="#000000")

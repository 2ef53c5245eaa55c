"""Pictures of whole models as a browser shows them: text stays in its box and off other text, in both languages."""

from __future__ import annotations

from functools import cache
from html import escape

import pytest
from browser import OUTSIDE, OVERLAPPING, page

from plait.blueprint.catalog import names
from plait.blueprint.source import open_model
from plait.draw import diagram_svg
from plait.draw.text import FAMILY, SCALE, width
from plait.draw.words import LANGUAGES, Lang


@cache
def html(lang: Lang) -> str:
    """All models of the catalogue in one page."""
    pictures = (diagram_svg(open_model(name).blueprint, lang=lang) for name in names())
    return f"<!doctype html><meta charset='utf-8'><body>{''.join(pictures)}</body>"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_text_stays_in_its_box_and_apart(lang: Lang) -> None:
    with page(html(lang)) as view:
        assert view.evaluate("document.querySelectorAll('svg').length") == len(names())
        every = "[...document.querySelectorAll('svg')].map((svg) => [...svg.querySelectorAll('text')])"
        assert view.evaluate(f"{every}.every((texts) => texts.length > 30)")
        # The rectangle of an entry of the legend is its sign, not its box.
        boxed = every.replace("querySelectorAll('text')", "querySelectorAll('g:not([data-box=legend]) > text')")
        assert view.evaluate(f"{boxed}.flatMap({OUTSIDE})") == []
        assert view.evaluate(f"{every}.flatMap({OVERLAPPING})") == []
        # Nothing reaches out of a picture.
        leaving = f"""{every}.flat().filter((text) => {{
            const a = text.getBoundingClientRect(), b = text.closest("svg").getBoundingClientRect();
            return a.left < b.left || a.right > b.right || a.top < b.top || a.bottom > b.bottom;
        }}).map((text) => text.textContent)"""
        assert view.evaluate(leaving) == []


def test_our_measure_is_an_upper_bound() -> None:
    """The table of widths against what the browser's fonts take."""
    samples = [
        "Sliding-window attention",
        "16 heads, 4 KV · θ 5,000,000 × 1–9 σ β",
        "滑动窗口注意力，窗口 512",
        "e\u0301 \u2192 \u2026 \U0001f642",
        *(chr(i) * 20 for i in range(33, 127)),
    ]
    wanted = [(sample, style) for style in SCALE for sample in samples]
    lines = "".join(
        f'<text font-size="{style.size}" font-weight="{700 if style.bold else 400}">{escape(sample)}</text>'
        for sample, style in wanted
    )
    with page(f'<svg font-family="{FAMILY}">{lines}</svg>') as view:
        taken = view.evaluate("[...document.querySelectorAll('text')].map((text) => text.getComputedTextLength())")
    for found, (sample, style) in zip(taken, wanted, strict=True):
        assert 0 < found <= width(sample, style) + 0.05, (sample, style)

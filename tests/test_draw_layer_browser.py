"""Inside of layers as a browser shows them: text stays in its box and off other text, in both languages."""

from __future__ import annotations

import pytest
from browser import OUTSIDE, OVERLAPPING, page

from plait.blueprint.catalog import names
from plait.blueprint.source import open_model
from plait.draw.layer import layers_svg
from plait.draw.words import LANGUAGES, Lang


@pytest.mark.parametrize("lang", LANGUAGES)
def test_text_stays_in_its_box_and_apart(lang: Lang) -> None:
    pictures = [layers_svg(open_model(name).blueprint, lang=lang) for name in names()]
    html = f"<!doctype html><meta charset='utf-8'><body>{''.join(pictures)}</body>"
    with page(html) as view:
        every = "[...document.querySelectorAll('svg')].map((svg) => [...svg.querySelectorAll('text')])"
        assert view.evaluate(f"{every}.map((texts) => texts.length > 20)") == [True] * len(pictures)
        assert view.evaluate(f"{every}.flatMap({OUTSIDE})") == []
        assert view.evaluate(f"{every}.flatMap({OVERLAPPING})") == []
        # Every box with words has its rectangle beside them, or the first test would look at nothing.
        boxes = "[...document.querySelectorAll('g[data-cell]')].filter((box) => box.querySelector('text'))"
        assert view.evaluate(f"{boxes}.every((box) => box.querySelector(':scope > rect'))")

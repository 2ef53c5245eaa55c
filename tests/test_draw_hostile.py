"""Pictures of what nobody publishes: very long models, many kinds of layers, names that steer text, mixed files."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_pictures import NAMESPACE

from plait.account.parameters import parameters
from plait.blueprint.catalog import names
from plait.blueprint.source import open_model
from plait.blueprint.spec import Blueprint, Gated, Tower
from plait.draw import diagram_svg
from plait.draw.convert import convert
from plait.draw.diagram import Drawn
from plait.draw.layer import layers_svg
from plait.draw.layout import scene_of
from plait.draw.text import SMALL, width
from plait.draw.towers import tower_words
from plait.draw.trunk import NUMBERS, number_lines

WIDEST = 2816 + 64


def blueprint_of(name: str) -> Blueprint:
    return open_model(name).blueprint


def said(blueprint: Blueprint) -> list[str]:
    return [text.content for box in scene_of(blueprint).boxes for text in box.texts]


# Long models.


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30), st.booleans())
def test_lines_are_drawn_once_and_whole(stretches: list[tuple[int, int]], upright: bool) -> None:
    """Against a set of the unit pieces of a line."""
    drawn, known = Drawn(), set[int]()
    for start, length in stretches:
        ends = [(7.0, float(y)) if upright else (float(y), 7.0) for y in (start, start + length)]
        got: list[int] = []
        for a, b, c, d in drawn.fresh("kv", ends[1], ends[0]):
            low, high = (b, d) if upright else (a, c)
            assert low < high
            got += range(int(low), int(high))
        wanted = set(range(start, start + length)) - known
        assert sorted(got) == sorted(wanted)
        known |= wanted
    assert drawn.fresh("choice", (7, 0), (7, 5)) == [(7, 0, 7, 5)]


def test_numbers_of_many_layers_are_few_lines() -> None:
    indexes = range(0, 4000, 2)
    lines = number_lines(indexes, "en")
    assert lines[0].startswith("layers 0, 2, ") and lines[-1].endswith("…, 3998")
    assert len(lines) <= 6 and all(width(line, SMALL) <= NUMBERS for line in lines)
    shorter = number_lines(indexes[:70], "en")
    assert shorter[:-1] == lines[:-1]


def test_no_number_of_a_usual_pattern_is_left_out() -> None:
    lines = said(blueprint_of("spark-x2.5-4b"))
    assert "28–30, 32–34" in " ".join(lines) and not any("…" in line for line in lines)


# Many kinds of layers.


def every_layer_different(name: str, count: int) -> Blueprint:
    blueprint = blueprint_of(name)
    layers = []
    for i in range(count):
        layer = blueprint.layers[i % len(blueprint.layers)]
        assert isinstance(layer.feed_forward, Gated)
        layers.append(replace(layer, feed_forward=replace(layer.feed_forward, width=64 * (i + 1))))
    return replace(blueprint, layers=tuple(layers))


def panels(picture: str) -> list[tuple[float, float, str]]:
    found = []
    for node in ElementTree.fromstring(picture).iter(f"{NAMESPACE}g"):
        place = re.fullmatch(r"translate\((\S+) (\S+)\)", node.get("transform", ""))
        if place is not None and node.get("data-layers") is not None:
            found.append((float(place[1]), float(place[2]), node.get("data-layers", "")))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 5, 11])
def test_many_kinds_stand_in_rows(count: int) -> None:
    picture = layers_svg(every_layer_different("gemma-3-270m", count))
    wide = float(ElementTree.fromstring(picture).get("width", ""))
    found = panels(picture)
    assert wide <= WIDEST
    assert [numbers for _, _, numbers in found] == [str(i) for i in range(count)]
    # Left to right, then down.
    starts = [i for i in range(1, count) if found[i][0] <= found[i - 1][0]]
    assert len(starts) == -(-count // 4) - 1
    for i in range(1, count):
        if i in starts:
            assert found[i][1] > max(y for _, y, _ in found[:i])


def test_wide_layers_of_a_published_model_are_rows() -> None:
    picture = layers_svg(blueprint_of("gemma-3n-e2b"))
    assert float(ElementTree.fromstring(picture).get("width", "")) <= WIDEST
    columns = [x for x, _, _ in panels(picture)]
    assert len(columns) == 6
    assert columns[:3] == columns[3:]


# Names.


def test_names_turn_nothing_round() -> None:
    blueprint = replace(blueprint_of("smollm2-135m"), name="\u202eevil\u2066\x00\ud800")
    for picture in (diagram_svg(blueprint), layers_svg(blueprint)):
        assert not set("\u202e\u2066\x00\ud800") & set(picture)
        assert "\ufffdevil\ufffd\ufffd\ufffd" in picture


def test_a_title_that_is_no_text_is_set() -> None:
    pytest.importorskip("typst", reason="the package typst is not installed")
    picture = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    assert convert(picture, "pdf", title="bad\udcffname", width=9, height=9).startswith(b"%PDF-")


# Towers.

KEPT = {"ViT", "SigLIP", "Conformer", "MobileNet", "V", "timm", "mobilenetv", "m", "enc"}


@pytest.mark.parametrize("name", [name for name in names() if blueprint_of(name).towers])
def test_towers_speak_the_language_of_the_picture(name: str) -> None:
    for tower in blueprint_of(name).towers:
        english, chinese = tower_words(tower, "en"), tower_words(tower, "zh")
        assert set(re.findall(r"[A-Za-z]+", chinese)) <= KEPT, chinese
        assert re.findall(r"\d+", chinese) == re.findall(r"\d+", english)


def test_words_of_towers() -> None:
    tower = Tower("vision", "ViT, 16 layers of 768, patches of 16, 3x3 pooled; older files also hold 4 bounds", ())
    assert tower_words(tower, "en") == "ViT, 16 layers of 768, patches of 16, 3×3 pooled"
    assert tower_words(tower, "zh") == "ViT，16 层，宽度 768，图块 16，按 3×3 池化"
    assert tower_words(Tower("audio", "something new", ()), "zh") == "something new"


# Files.


@pytest.mark.parametrize(
    ("bits", "stored", "wanted"),
    [(None, "q8_0", "q8_0"), (8.5, "q8_0", "q8_0"), (5.74, "q8_0", "5.74 bits each"), (16.01, "bf16", "bf16")],
)
def test_mixed_formats_are_not_given_as_one(bits: float | None, stored: str, wanted: str) -> None:
    """A GGUF file may hold its embedding in one format and its layers in another."""
    blueprint = replace(blueprint_of("smollm2-135m"), stored_format=stored)
    account = parameters(blueprint)
    read = replace(account, used_bytes=None if bits is None else round(account.used * bits / 8))
    lines = [text.content for box in scene_of(blueprint, account=read).boxes for text in box.texts]
    assert lines[lines.index("weights stored in") + 1] == wanted

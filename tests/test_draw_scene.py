"""Pictures of whole models: what holds of boxes, texts and links for every model of the catalogue and any legal one."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_blueprints import blueprints

from plait.blueprint.catalog import names
from plait.blueprint.source import open_model
from plait.blueprint.spec import Blueprint
from plait.draw import diagram_svg
from plait.draw.facts import figure
from plait.draw.fold import Leaf, Node, Repeat, fold, leaves, ranges, source_of
from plait.draw.layout import scene_of
from plait.draw.scene import Box, Scene, Text
from plait.draw.text import SMALLEST
from plait.draw.theme import mixer_role
from plait.draw.words import LANGUAGES, Lang

SVG = "{http://www.w3.org/2000/svg}"
SOME = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
EDGE = 0.01


@cache
def blueprint_of(name: str) -> Blueprint:
    return open_model(name).blueprint


def apart(one: Box, other: Box) -> bool:
    return (
        one.right <= other.x + EDGE
        or other.right <= one.x + EDGE
        or one.bottom <= other.y + EDGE
        or other.bottom <= one.y + EDGE
    )


def within(inner: Box, outer: Box) -> bool:
    return (
        inner.x >= outer.x - EDGE
        and inner.right <= outer.right + EDGE
        and inner.y >= outer.y - EDGE
        and inner.bottom <= outer.bottom + EDGE
    )


def check_boxes(scene: Scene) -> None:
    page = Box(-1, "panel", 0, 0, scene.width, scene.height)
    for box in scene.boxes:
        outer = page if box.parent is None else scene.boxes[box.parent]
        assert within(box, outer), (box, outer)
        assert outer is page or outer.number < box.number
    siblings: dict[int | None, list[Box]] = {}
    for box in scene.boxes:
        siblings.setdefault(box.parent, []).append(box)
    for group in siblings.values():
        for one, other in combinations(group, 2):
            assert apart(one, other), (one, other)


def space_of(text: Text) -> Box:
    """What a line of text covers, from its tallest letters to its deepest."""
    top, bottom = text.y - 0.8 * text.style.size, text.y + 0.25 * text.style.size
    return Box(-1, "note", text.left, top, text.right - text.left, bottom - top)


def check_texts(scene: Scene) -> None:
    for box in scene.boxes:
        inner = [other for other in scene.boxes if other.parent == box.number]
        spaces = [space_of(text) for text in box.texts]
        assert all(text.style.size >= SMALLEST for text in box.texts)
        assert all(within(space, box) for space in spaces), box
        assert all(apart(space, other) for space in spaces for other in inner), box
        assert all(apart(one, other) for one, other in combinations(spaces, 2)), box


def on_edge(point: tuple[float, float], box: Box) -> bool:
    x, y = point
    inside = box.x - EDGE <= x <= box.right + EDGE and box.y - EDGE <= y <= box.bottom + EDGE
    return inside and (
        min(abs(x - box.x), abs(x - box.right)) < EDGE or min(abs(y - box.y), abs(y - box.bottom)) < EDGE
    )


def check_links(scene: Scene) -> None:
    solid = [box for box in scene.boxes if box.kind not in ("frame", "mixer", "feed_forward")]
    for link in scene.links:
        assert on_edge(link.points[0], scene.boxes[link.source]), link
        assert on_edge(link.points[-1], scene.boxes[link.target]), link
        for (x0, y0), (x1, y1) in pairwise(link.points):
            assert (x0 == x1) != (y0 == y1), link
            line = Box(-1, "note", min(x0, x1), min(y0, y1), abs(x1 - x0), abs(y1 - y0))
            assert all(apart(line, box) for box in solid), link


def check_layers(scene: Scene, blueprint: Blueprint) -> None:
    counted = Counter(index for box in scene.of("layer") for index in box.layers)
    assert counted == Counter(range(len(blueprint.layers)))
    for box in scene.of("layer"):
        repeats, outer = 1, box.parent
        while outer is not None:
            repeats, outer = repeats * scene.boxes[outer].times, scene.boxes[outer].parent
        assert repeats == len(box.layers)
        assert {mixer_role(blueprint.layers[i].mixer) for i in box.layers} == {box.role}


def check_reuse(scene: Scene, blueprint: Blueprint) -> None:
    """Every layer that reads another one has a link from the card that stands for it, and no others do."""
    card = {index: box.number for box in scene.of("layer") for index in box.layers}
    wanted = {
        (card[source], card[index])
        for index, layer in enumerate(blueprint.layers)
        if (source := source_of(layer)) is not None
    }
    assert {(link.source, link.target) for link in scene.links if link.kind in ("kv", "choice")} == wanted


def check_all(blueprint: Blueprint, lang: Lang) -> None:
    scene = scene_of(blueprint, lang=lang)
    check_boxes(scene)
    check_texts(scene)
    check_links(scene)
    check_layers(scene, blueprint)
    check_reuse(scene, blueprint)
    assert {box.width for box in scene.of("layer", "mtp_layer", "embedding", "head", "norm")} == {320}
    assert len(list(scene.of("mtp"))) == (blueprint.mtp is not None)
    assert len(list(scene.of("tower"))) == len(blueprint.towers)
    assert len(list(scene.of("table"))) == (blueprint.per_layer_embeddings is not None)
    assert len(list(scene.of("streams"))) == 2 * (blueprint.altup is not None)
    assert sum(link.kind == "tied" for link in scene.links) == blueprint.head.tied


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", names())
def test_catalogue_pictures_are_sound(name: str, lang: Lang) -> None:
    check_all(blueprint_of(name), lang)


@SOME
@given(blueprints(), st.sampled_from(LANGUAGES))
def test_any_picture_is_sound(blueprint: Blueprint, lang: Lang) -> None:
    check_all(blueprint, lang)


def numbers(text: str) -> list[int]:
    """`0-2,4` as 0, 1, 2, 4: the documented form, read on its own."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def check_svg(text: str, blueprint: Blueprint) -> None:
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    title, desc = root[0], root[1]
    assert title.tag == f"{SVG}title" and title.text and desc.tag == f"{SVG}desc" and desc.text
    cards = [node for node in root.iter(f"{SVG}g") if node.get("data-layers")]
    counted = Counter(index for card in cards for index in numbers(card.get("data-layers", "")))
    assert counted == Counter(range(len(blueprint.layers)))
    for card in cards:
        for index in numbers(card.get("data-layers", "")):
            assert card.get("data-kind") == mixer_role(blueprint.layers[index].mixer)
    assert not [node for node in root.iter() if node.get("id") or node.tag in (f"{SVG}style", f"{SVG}script")]
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", names())
def test_catalogue_svg(name: str, theme: str) -> None:
    blueprint = blueprint_of(name)
    text = diagram_svg(blueprint, theme="light" if theme == "light" else "dark")
    check_svg(text, blueprint)
    assert len(text.encode()) < 40_000


@SOME
@given(blueprints(), st.sampled_from(["light", "dark"]), st.sampled_from(LANGUAGES))
def test_any_svg_is_well_formed_and_the_same_again(blueprint: Blueprint, theme: str, lang: Lang) -> None:
    colours = "light" if theme == "light" else "dark"
    text = diagram_svg(blueprint, theme=colours, lang=lang)
    check_svg(text, blueprint)
    assert diagram_svg(blueprint, theme=colours, lang=lang) == text
    assert not re.search(r"[{}]|None|nan", text)


def test_pictures_can_be_laid_side_by_side() -> None:
    scenes = [scene_of(blueprint_of(name)) for name in names()]
    assert len({scene.width for scene in scenes}) == 1
    assert len({box.x for scene in scenes for box in scene.of("layer", "embedding", "head")}) == 1
    assert len({box.x for scene in scenes for box in scene.of("panel")}) == 1


# Folding.


def shape(nodes: tuple[Node, ...]) -> list[object]:
    """Repeats as (times, parts), leaves as their ranges."""
    return [
        (node.times, shape(node.parts)) if isinstance(node, Repeat) else ",".join(ranges(node.indexes))
        for node in nodes
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("qwen3-4b", [(36, ["0-35"])]),
        ("deepseek-v3", [(3, ["0-2"]), (58, ["3-60"])]),
        ("gemma-3-270m", [(3, [(5, ["0-4,6-10,12-16"]), "5,11,17"])]),
        (
            "spark-x2.5-4b",
            [(9, [(3, ["0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30,32-34"]), "3,7,11,15,19,23,27,31,35"])],
        ),
        # The tail reads keys and values of layers 13 and 14, and its feed-forward layers are twice as wide.
        (
            "gemma-4-e2b",
            [
                (3, [(4, ["0-3,5-8,10-13"]), "4,9,14"]),
                (4, [(4, ["15-18,20-23,25-28,30-33"]), "19,24,29,34"]),
            ],
        ),
        # The first layer is dense, the first period short.
        (
            "mimo-v2-flash",
            [
                "0",
                (4, ["1-4"]),
                "5",
                (7, [(5, ["6-10,12-16,18-22,24-28,30-34,36-40,42-46"]), "11,17,23,29,35,41,47"]),
            ],
        ),
    ],
)
def test_published_patterns(name: str, wanted: list[object]) -> None:
    assert shape(fold(blueprint_of(name).layers)) == wanted


def unfolded(nodes: tuple[Node, ...]) -> list[Leaf]:
    """Leaves in the order in which the frames say the layers run."""
    found: list[Leaf] = []
    for node in nodes:
        found += [node] if isinstance(node, Leaf) else unfolded(node.parts) * node.times
    return found


@SOME
@given(blueprints())
def test_unfolding_gives_the_layers_back(blueprint: Blueprint) -> None:
    nodes = fold(blueprint.layers)
    order = unfolded(nodes)
    assert len(order) == len(blueprint.layers)
    for index, leaf in enumerate(order):
        assert index in leaf.indexes
        if source_of(blueprint.layers[index]) is None:
            assert blueprint.layers[index] == leaf.layer


def test_long_models_without_order_are_drawn_too() -> None:
    """More runs than every cut is tried for: a scan folds what it can and loses no layer."""
    one, other = blueprint_of("gemma-3-270m").layers[:1][0], blueprint_of("gemma-3-270m").layers[5]
    bits = [bin(i).count("1") % 2 for i in range(400)]
    nodes = fold([one if bit else other for bit in bits] + [one, other] * 60)
    assert sorted(i for leaf in leaves(nodes) for i in leaf.indexes) == list(range(520))
    assert any(isinstance(node, Repeat) and node.times >= 50 for node in nodes)


# What a picture says.


def said(blueprint: Blueprint) -> list[str]:
    return [text.content for box in scene_of(blueprint).boxes for text in box.texts]


def test_facts_of_a_published_model() -> None:
    """36 layers, 36 GiB of full rows and 54 MiB of windows at 1,048,576 tokens."""
    lines = said(blueprint_of("spark-x2.5-4b"))
    for fact in ("window 512", "16 heads, 4 KV", "θ 5,000,000", "rotates 64 of 256", "gate per head (sigmoid)"):
        assert any(fact in line.split(" · ") for line in lines), fact
    rows = dict(pairwise(lines))
    assert rows["growth per token"] == "36 KiB"
    assert rows["windows (512)"] == "54 MiB"
    assert rows["at 1,048,576 tokens"] == "36.053 GiB"
    assert rows["used by the graph"] == "4.112B"
    assert rows["vocabulary"] == "131,072"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("gemma-4-e2b", ["reads K/V of layer 13", "reads K/V of layer 14", "table 262,144 × 35 × 256"]),
        ("gemma-3n-e2b", ["AltUp: into 4 streams", "LAuReL rank 64", "sparsity 0.95"]),
        ("gemma-4-26b-a4b", ["8 of 128 experts", "dense width 2,112", "keys are values"]),
        ("deepseek-v3.2", ["latent 512 + 64 rotated", "top 2,048 keys", "1 shared, width 2,048", "YaRN × 40"]),
        ("mimo-v2-flash", ["sinks", "values × 0.707", "head size 192, values 128", "3 equal layers"]),
        ("qwen3.5-4b", ["state 32 × 128 × 128", "convolution 4", "gate per element (sigmoid)"]),
        ("gemma-2-2b", ["softcap 30", "softcap 50"]),
    ],
)
def test_facts_of_kinds(name: str, facts: list[str]) -> None:
    found = {fact for line in said(blueprint_of(name)) for fact in line.split(" · ")}
    assert set(facts) <= found


def leaf_paths(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not is_dataclass(value):
        return [path] if type(value) in (int, float, bool) and path[-1] not in ("kv_source", "source") else []
    return [found for item in fields(value) for found in leaf_paths(getattr(value, item.name), (*path, item.name))]


def changed(value: Any, path: tuple[str, ...]) -> Any:
    """A copy of a dataclass that differs in the number or switch at `path`."""
    if not path:
        return not value if isinstance(value, bool) else value + 1
    return replace(value, **{path[0]: changed(getattr(value, path[0]), path[1:])})


@pytest.mark.parametrize("name", ["deepseek-v3.2", "gemma-3n-e2b", "gemma-4-26b-a4b", "qwen3.5-4b", "mimo-v2-flash"])
def test_layers_that_differ_never_look_the_same(name: str) -> None:
    """Whatever number or switch of one layer is changed, its card says so, beside one that was not changed."""
    layer = blueprint_of(name).layers[-2]
    if source_of(layer) is not None:
        layer = blueprint_of(name).layers[0]
    paths = leaf_paths(layer)
    assert len(paths) > 10
    for path in paths:
        both = replace(blueprint_of(name), layers=(layer, changed(layer, path)), mtp=None)
        scene = scene_of(both)
        cards = list(scene.of("layer"))
        assert len(cards) == 2, path
        one, other = (
            [t.content for box in scene.boxes if box.parent == card.number for t in box.texts] for card in cards
        )
        assert one != other, path


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (262_144, "262,144"),
        (1e6, "1,000,000"),
        (160_000.5, "160,000.5"),
        (48.98979, "48.99"),
        (0.5, "0.5"),
        (1e20, "1e+20"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_figures(value: float, wanted: str) -> None:
    assert figure(value) == wanted

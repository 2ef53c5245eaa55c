"""Inside one layer: published models, words of the blueprint, errors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args
from xml.etree import ElementTree

import pytest
from layer_pictures import NAMESPACE, check_panel, roles_in, roles_of, words_of

from plait.blueprint.catalog import names
from plait.blueprint.source import open_model
from plait.blueprint.spec import Blueprint
from plait.draw.layer import kinds, layer_svg, layers_svg
from plait.draw.layer_layout import layout
from plait.draw.layer_steps import layer_steps, model_of
from plait.draw.layer_words import LAYER_WORDS, say
from plait.draw.text import SMALLEST
from plait.draw.theme import ThemeName, contrast, theme_of
from plait.draw.words import LANGUAGES
from plait.errors import UsageError

CATALOGUE = names()


def blueprint_of(name: str) -> Blueprint:
    return open_model(name).blueprint


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_kind_of_layer_keeps_the_rules(name: str) -> None:
    blueprint = blueprint_of(name)
    model = model_of(blueprint)
    for lang in LANGUAGES:
        for group in kinds(blueprint):
            check_panel(layout(layer_steps(model, group[0], lang)))


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_word_or_number_is_cut(name: str) -> None:
    blueprint = blueprint_of(name)
    for group in kinds(blueprint):
        for box in layout(layer_steps(model_of(blueprint), group[0], "en")).boxes:
            shown = " ".join("".join(piece.text for piece in row) for row in box.rows)
            assert [line.text for line in box.cell.lines if line.text not in shown] == []
            assert box.cell.title in ("+", " ".join(box.titles))


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_tensor_of_a_layer_stands_in_its_picture_once(name: str) -> None:
    blueprint = blueprint_of(name)
    groups = kinds(blueprint)
    assert sorted(index for group in groups for index in group) == list(range(len(blueprint.layers)))
    together = roles_of(layers_svg(blueprint))
    for group in groups:
        expected = roles_in(blueprint, group[0])
        assert roles_of(layer_svg(blueprint, group[0])) == expected
        assert {role: together[role] for role in expected} == expected
    assert together.total() == sum(roles_in(blueprint, group[0]).total() for group in groups)


def test_kinds_are_told_apart_by_what_they_are() -> None:
    assert [len(kinds(blueprint_of(name))) for name in ("spark-x2.5-4b", "minimax-m2", "mimo-v2-flash")] == [2, 1, 3]
    svg = layers_svg(blueprint_of("mimo-v2-flash"))
    panels = re.findall(r'data-layers="([^"]*)"', svg)
    assert panels == ["0", "1-4,6-10,12-16,18-22,24-28,30-34,36-40,42-46", "5,11,17,23,29,35,41,47"]


# Published facts a reader looks for; numbers of parameters are sums of the matrices' published shapes.
FACTS = (
    ("spark-x2.5-4b", 3, "RoPE θ 5,000,000", "64 of 256 dims turn", "one number per head", "× sigmoid(gate)"),
    ("spark-x2.5-4b", 0, "window 512", "RoPE θ 10,000", "all 256 dims turn", "[16 × 2560]", "GELU"),
    ("qwen3-0.6b", 0, "15.73M parameters", "q·k × 0.088388", "in each head", "16 heads × 128", "8 KV heads × 128"),
    ("qwen3.5-0.8b", 3, "× (1 + w)", "one number per element", "axes 11 + 11 + 10, interleaved"),
    ("qwen3.5-35b-a3b", 0, "keeps S 32 × 128 × 128, float32", "4 taps per channel", "q × 0.088388", "β = sigmoid(b)"),
    ("qwen3.5-35b-a3b", 0, "256 experts, 8 per token", "softmax over 256 experts", "Shared gate", "[1 × 2048]"),
    ("gemma-2-2b", 0, "softcap 50", "window 4,096", "GELU (tanh)"),
    ("gemma-3-4b", 5, "linear scaling: positions ÷ 8", "tokens of one image see each other"),
    ("gemma-3n-e2b", 0, "z(0.95)", "rank 64", "÷ √2", "4 streams of 2,048", "+ to streams 1 to 3", "±120"),
    ("gemma-3n-e2b", 20, "those of layer 18", "nothing kept here"),
    ("gemma-4-12b", 5, "keys are values", "value 1 × 512", "rotated part of the key 1 × 128", "64 pairs (i, i + 256)"),
    ("gemma-4-12b", 5, "θ^(−2i/512)", "Layer scalar", "q·k × 1 "),
    ("gemma-4-26b-a4b", 0, "Dense + mixture", "per expert [128]", "× 0.018844", "128 experts, 8 per token"),
    ("gemma-4-e2b", 19, "those of layer 14", "Layer's embedding", "256 numbers of this token", "[12288 × 1536]"),
    ("mimo-v2-flash", 1, "sinks [64]", "window 129", "values × 0.707", "64 of 192 dims turn", "8 KV heads × 128"),
    ("minimax-m2", 0, "over all heads at once", "w [6144]", "bias in the choice only", "sigmoid for each of 256"),
    ("glm-4.5", 3, "bias [12288]", "× 2.5", "scores ÷ their sum", "Shared experts: 1"),
    ("deepseek-v3", 3, "the best 4 of 8 groups", "YaRN × 40 from 4,096", "× 1.8739", "latent 512 + rotated key 64"),
    ("deepseek-v3.2", 3, "the best 2,048 tokens", "sum over 64 heads", "one of 128 for all heads", "LayerNorm"),
    ("glm-5", 3, "sum over 32 heads", "can be absorbed", "576 numbers per token", "32 pairs (2i, 2i + 1)"),
)


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: f"{facts[0]}-{facts[1]}-{facts[2]}")
def test_published_facts_stand_in_the_picture(facts: tuple[str, int, str]) -> None:
    name, index, *expected = facts
    words = words_of(layer_svg(blueprint_of(name), index))
    assert [text for text in expected if text not in words] == []


@pytest.mark.parametrize("name", ["gemma-3n-e4b", "gemma-4-26b-a4b", "deepseek-v3.2", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_are_whole(name: str, theme: ThemeName) -> None:
    for lang in LANGUAGES:
        svg = layers_svg(blueprint_of(name), theme=theme, lang=lang)
        assert svg == layers_svg(blueprint_of(name), theme=theme, lang=lang), "the same bytes every time"
        root = ElementTree.fromstring(svg)
        assert [child.tag for child in root[:2]] == [f"{NAMESPACE}title", f"{NAMESPACE}desc"]
        assert root.get("lang") == lang and root.get("role") == "img"
        assert name in (root[0].text or "") and len(root[1].text or "") > 100
        assert not any(node.get("id") for node in root.iter())
        sizes = {int(node.get("font-size", "0")) for node in root.iter(f"{NAMESPACE}text")}
        assert min(sizes) >= SMALLEST
        found = theme_of(theme)
        texts = {node.get("fill") for tag in ("text", "tspan") for node in root.iter(NAMESPACE + tag)}
        assert texts - {None} <= {found.ink, found.muted}
        under = {node.get("fill") for node in root.iter(f"{NAMESPACE}rect")} - {"none", found.line}
        assert min(contrast(ink, paper) for ink in (found.ink, found.muted) for paper in under if paper) >= 4.5


def test_the_last_layer_leads_to_the_final_norm() -> None:
    blueprint = blueprint_of("smollm2-135m")
    assert "to the final norm" in words_of(layer_svg(blueprint, 29))
    assert "to the next layer" in words_of(layer_svg(blueprint, 0))
    assert "layer 29" in words_of(layer_svg(blueprint, 29))


@pytest.mark.parametrize("index", [-1, 36, True, 1.0, "0"])
def test_a_layer_that_is_not_there_is_a_usage_error(index: int) -> None:
    with pytest.raises(UsageError, match="from 0 to 35"):
        layer_svg(blueprint_of("spark-x2.5-4b"), index)


def test_unknown_themes_and_languages_are_usage_errors() -> None:
    blueprint = blueprint_of("smollm2-135m")
    with pytest.raises(UsageError, match="sepia"):
        layer_svg(blueprint, 0, theme="sepia")
    with pytest.raises(UsageError, match="fr"):
        layers_svg(blueprint, lang="fr")


def test_names_are_text_and_not_markup() -> None:
    blueprint = replace(blueprint_of("smollm2-135m"), name="<b>&\"'" + "long " * 100)
    root = ElementTree.fromstring(layer_svg(blueprint, 0))
    assert (root[0].text or "").startswith("<b>&\"'")


def test_both_languages_say_everything() -> None:
    for key, texts in LAYER_WORDS.items():
        assert len(texts) == len(LANGUAGES) and all(texts)
        fields = {tuple(sorted(set(re.findall(r"\{(\w+)\}", text)))) for text in texts[:1]}
        assert all(set(re.findall(r"\{(\w+)\}", text)) <= set(*fields) for text in texts), key
    with pytest.raises(LookupError, match="no word"):
        say("nothing", "en")
    assert get_args(ThemeName) == ("light", "dark")

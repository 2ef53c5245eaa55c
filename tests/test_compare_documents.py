"""What `plait compare` writes: tables, Markdown, one HTML file, JSON; and how it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser
import pytest

import plait
from plait.account.flops import flops
from plait.account.memory import memory
from plait.account.parameters import parameters
from plait.account.speed import Rates, bounds, format_weights
from plait.cli import main as cli
from plait.compare import compare, subject
from plait.compare.facts import facts
from plait.compare.figures import memory_series, speed_series
from plait.compare.render_html import page
from plait.compare.render_md import markdown
from plait.compare.report import BANDWIDTH, Comparison, Settings

PAIR = ("spark-x2.5-4b", "gemma-4-e4b")
EVIL = '<img src=x onerror=alert(1)> | `a` *b* [c](d) \u202e\x1b[31m & "quoted"'
VOID = frozenset({"meta", "br", "img", "wbr", "hr", "link", "input"})


@cache
def compared(*names: str, kv_format: str = "bf16", rates: Rates | None = None) -> Comparison:
    chosen = Settings(kv_format=kv_format, rates=Rates() if rates is None else rates)
    return compare([subject(plait.blueprint(name)) for name in names], chosen)


@cache
def written(*names: str) -> str:
    return page(compared(*names))


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in this process: (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli._status(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


class Document(HTMLParser):
    """Elements in order, and that every one is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


# Numbers.


@pytest.mark.parametrize("rates", [Rates(), Rates(flops=10**13), Rates(4 * 10**11, 10**12)])
def test_lines_of_the_charts_are_the_accounts_figures(rates: Rates) -> None:
    found = compared(*PAIR, kv_format="q8", rates=rates)
    used = Rates(BANDWIDTH) if rates == Rates() else rates
    for name, stored, fast in zip(PAIR, memory_series(found), speed_series(found), strict=True):
        blueprint = plait.blueprint(name)
        assert stored.label == fast.label == name
        assert stored.limit == fast.limit == blueprint.max_context
        contexts = [context for context, _ in stored.points]
        assert contexts == [context for context, _ in fast.points] == sorted(set(contexts))
        assert {1024, 4096, 131_072, 2**20} <= set(contexts)
        sizes = format_weights(blueprint)
        for (context, size), (_, rate) in zip(stored.points, fast.points, strict=True):
            assert size == memory(blueprint, context, kv_format="q8").total_bytes
            bound = bounds(blueprint, flops(blueprint, context), used, sizes=sizes, kv_format="q8")
            assert rate == bound.decode.tokens_per_second


def test_json_is_whole_and_its_figures_are_the_accounts() -> None:
    found = facts(compared(*PAIR))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [model["label"] for model in found["models"]] == list(PAIR)
    assert found["assumed_bandwidth"] is True
    assert found["bandwidth"] == 100 * 10**9
    for name, model in zip(PAIR, found["models"], strict=True):
        blueprint = plait.blueprint(name)
        account = parameters(blueprint)
        counted = model["parameters"]
        assert (counted["in_file"], counted["used"], counted["active"]) == (
            account.in_file,
            account.used,
            account.active,
        )
        assert counted["active_share"] == account.active / account.used
        assert [point["context"] for point in model["points"]] == found["contexts"]
        for point in model["points"]:
            assert point["total_bytes"] == memory(blueprint, point["context"]).total_bytes
            assert sum(item["need_bytes"] for item in point["categories"].values()) == point["total_bytes"]
    spark = found["models"][0]["points"][-1]
    assert spark["context"] == 2**20
    assert spark["total_bytes"] == 36 * 2**30 + 54 * 2**20
    assert all(len(row["cells"]) == len(PAIR) for row in found["rows"])
    gate = next(row for row in found["rows"] if row["key"] == "gate")
    assert gate["differs"] is True
    assert gate["cells"][0]["fields"]["full.gate.per"] == "head"
    shared = next(row for row in found["rows"] if row["key"] == "shared_kv")
    values = shared["cells"][1]["fields"]["full.kv_source"]
    assert [item["value"] for item in values] == [None, 23]
    assert values[1]["layers"] == [29, 35, 41]


def test_ways_in_json_multiply() -> None:
    for model in facts(compared("gemma-4-12b", "deepseek-v3.2", "qwen3.5-4b"))["models"]:
        found = model["ways"]
        product = 1.0
        for item in found["savings"]:
            product *= item["stored"]
        assert product == pytest.approx(found["factor"])
        assert sum(item["saved_bytes"] for item in found["savings"]) == found["full_bytes"] - found["state_bytes"]


# The page.


def test_the_page_is_well_formed_and_stands_alone() -> None:
    document = Document(written(*PAIR))
    tags = {tag for tag, _ in document.elements}
    assert not tags & {"script", "link", "iframe", "img", "object", "embed", "form", "base"}
    ids = [value for _, attributes in document.elements if (value := attributes.get("id")) is not None]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in document.elements if tag == "a"]
    assert links
    assert all(link is not None and link.removeprefix("#") in ids for link in links)
    for _, attributes in document.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        assert "xlink:href" not in attributes
    style = written(*PAIR).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme:dark" in style
    assert "@media print" in style
    assert style.count("{") == style.count("}")
    # Bytes depend on the models alone.
    assert page(compared(*PAIR)) == written(*PAIR)


def test_the_page_shows_every_part_in_the_order_of_the_models() -> None:
    names = ("gemma-4-e4b", "spark-x2.5-4b")
    document = Document(written(*names))
    columns = [attributes.get("data-label") for tag, attributes in document.elements if tag == "td"]
    shown = [label for label in columns if label is not None]
    assert shown == list(names) * (len(shown) // 2)
    charts = [attributes for _, attributes in document.elements if "data-series" in attributes]
    # Two charts, each for wide and narrow pages, in two themes.
    assert [attributes["data-series"] for attributes in charts] == list(names) * 8
    text = " ".join(document.texts)
    for words in ("9 x (3 window + 1 full)", "sigmoid per head", "36.053 GiB", "100 GB/s", "headwise_attn_output_gate"):
        assert words in text.replace("_ ", "_"), words
    figures = [attributes for _, attributes in document.elements if attributes.get("data-layers") is not None]
    assert figures
    assert {attributes["data-kind"] for attributes in figures} == {"attention", "window"}


def test_names_from_files_are_text() -> None:
    blueprint = replace(plait.blueprint("gemma-3-270m"), name=EVIL)
    found = compare([subject(blueprint), subject(plait.blueprint("gemma-3-1b"))])
    document = Document(page(found))
    assert "img" not in {tag for tag, _ in document.elements}
    assert found.labels[0] == EVIL
    text = markdown(found)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<img" not in text.replace("\\<", "")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {4}


def test_markdown_has_every_section_and_sound_tables() -> None:
    text = markdown(compared("spark-x2.5-4b", "spark-x2.5-1.7b", "qwen3.5-4b"))
    for words in (
        "# spark",
        "## What differs",
        "## Layer by layer",
        "## How keys",
        "## Parameters",
        "## Where it comes",
    ):
        assert words in text
    assert "4,112,079,360" in text
    assert "layers 28-35 of spark" in text
    width = None
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        assert width is None or cells is None or cells == width
        width = cells
    assert "<" not in text.replace("\\<", "")
    assert text.endswith("\n")


def test_the_page_in_a_browser() -> None:
    """Nothing is wider than a phone, one picture of each kind is shown, and it follows the reader's colours."""
    text = written(*PAIR)
    shown = """() => ["wide", "narrow"].map(kind => ["light", "dark"].map(theme =>
        [...document.querySelectorAll(`.${kind}.only-${theme}`)].filter(e => e.offsetHeight > 0).length))"""
    with browser.page(text, width=390, height=800) as view:
        assert view.evaluate("document.documentElement.scrollWidth") <= 390
        assert view.evaluate(shown) == [[0, 0], [2, 0]]
        assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        view.set_viewport_size({"width": 1280, "height": 900})
        assert view.evaluate("document.documentElement.scrollWidth") <= 1280
        assert view.evaluate(shown) == [[2, 0], [0, 0]]
        view.emulate_media(color_scheme="dark")
        assert view.evaluate(shown) == [[0, 2], [0, 0]]
        assert view.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        visible = "Array.from(document.querySelectorAll('svg text')).filter(t => t.getBoundingClientRect().width > 0)"
        charts = view.evaluate(f"({browser.OVERLAPPING})({visible}.filter(t => t.closest('#memory, #speed')))")
        assert charts == []
        view.emulate_media(media="print", color_scheme="dark")
        assert view.evaluate(shown)[0] == [2, 0]
        assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


# The command.


def test_the_command_writes_what_the_suffix_says(status: Any, tmp_path: Path) -> None:
    for suffix, start in ((".md", "# spark"), (".html", "<!DOCTYPE html>"), (".json", "{")):
        out = tmp_path / f"out{suffix}"
        out.write_text("old", encoding="utf-8")
        assert status("compare", *PAIR, "-o", str(out)) == (0, f"wrote {out}\n", "")
        assert out.read_text(encoding="utf-8").startswith(start)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json", "out.md"]
    code, text, _ = status("compare", *PAIR, "--json")
    assert code == 0
    assert json.loads(text) == json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert status("compare", *PAIR, "--format", "md", "-o", "-")[1] == (tmp_path / "out.md").read_text(encoding="utf-8")


def test_the_tables_say_the_differences_first(status: Any) -> None:
    code, text, err = status("compare", "spark-x2.5-4b", "qwen3.5-4b", "--context", "8k,1m", "--evidence")
    assert (code, err) == (0, "")
    assert text.index("Differs") < text.index("The same in all") < text.index("Parameters")
    line = next(line for line in text.splitlines() if line.startswith("Output gate "))
    assert re.split(r"\s{2,}", line) == ["Output gate", "sigmoid per head", "sigmoid per element of each head"]
    assert "36.053 GiB, 36 KiB a token" in text
    assert "with assumed 100 GB/s" in text
    assert "headwise_attn_output_gate" in text
    assert status("compare", "gemma-3-270m", "gemma-3-270m")[1].count("Nothing differs.") == 1


def test_rates_and_formats_change_the_figures(status: Any) -> None:
    options = ("--bandwidth", "1TB/s", "--flops", "20TFLOP/s", "--kv-dtype", "f32", "--weights-dtype", "q8_0")
    found = json.loads(status("compare", *PAIR, *options, "--context", "1m", "--json")[1])
    assert (found["bandwidth"], found["flops"], found["kv_dtype"], found["weights_dtype"]) == (
        10**12,
        2 * 10**13,
        "f32",
        "q8_0",
    )
    assert found["assumed_bandwidth"] is False
    model = found["models"][0]
    blueprint = plait.blueprint(PAIR[0])
    assert model["points"][0]["total_bytes"] == 2 * (36 * 2**30 + 54 * 2**20)
    assert model["weights_bytes"] == sum(format_weights(blueprint, "q8_0").values())
    assert model["ways"]["context"] == 2**20


def test_files_are_compared_as_they_are(status: Any, tmp_path: Path) -> None:
    """A config beside the catalogue's: the one key that was changed is the one difference."""
    from plait.blueprint.catalog import entry

    found = entry("qwen3-0.6b")
    assert found is not None
    (tmp_path / "config.json").write_text(json.dumps({**found.config, "intermediate_size": 3000}), encoding="utf-8")
    code, text, err = status("compare", "qwen3-0.6b", str(tmp_path), "--json")
    assert (code, err) == (0, "")
    data = json.loads(text)
    assert [row["key"] for row in data["rows"] if row["differs"]] == ["width"]
    (group,) = data["alignments"][0]["groups"]
    assert group["differences"] == [{"field": "dense.width", "first": 3072, "second": 3000}]
    assert len(group["pairs"]) == 28


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gemma-3-270m",), "2 to 8 models are compared, not 1"),
        (("gemma-3-270m",) * 9, "not 9"),
        (("gemma-3-270m", "no-such-model"), "no-such-model"),
        ((*PAIR, "-o", "out.txt"), "the suffix says no form"),
        ((*PAIR, "-o", "out.json", "--format", "md"), "give one"),
        ((*PAIR, "--json", "--format", "html"), "give one"),
        ((*PAIR, "--json", "--evidence"), "--evidence is for the tables"),
        ((*PAIR, "-o", "no-such-directory/out.md"), "no place for a file"),
        ((*PAIR, "--context", "0"), "at least 1 token"),
        ((*PAIR, "--context", "4k,,8k"), "is not understood"),
        ((*PAIR, "--bandwidth", "fast"), "is not understood"),
        ((*PAIR, "--kv-dtype", "q4_0"), "counts them in"),
        ((*PAIR, "--weights-dtype", "q99"), "is not known"),
    ],
)
def test_what_cannot_be_done_is_one_line(status: Any, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = status("compare", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert words in err


def test_a_model_of_an_unknown_family_is_refused(status: Any, tmp_path: Path) -> None:
    config = {"model_type": "mystery", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code, out, err = status("compare", "gemma-3-270m", str(tmp_path))
    assert (code, out) == (2, "")
    assert "the family 'mystery' is not known, so there is nothing to compare" in err
    assert len(err.splitlines()) == 1


def test_a_place_that_is_no_file_is_refused(status: Any, tmp_path: Path) -> None:
    place = tmp_path / "out.md"
    place.mkdir()
    code, _, err = status("compare", *PAIR, "-o", str(place))
    assert code == 2
    assert "cannot be replaced" in err

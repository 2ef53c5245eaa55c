"""The page in a real browser: its figures are the commands', and everything in it can be reached and passed on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from explore_site import catalogue_page, models

from plait.account.memory import largest_context, memory
from plait.blueprint.catalog import names
from plait.blueprint.source import open_model
from plait.cli import main as cli
from plait.draw.theme import DARK, LIGHT, Theme
from plait.explore import site
from plait.explore.forms import WEIGHTS
from plait.explore.page import page as page_of
from plait.units import binary_bytes, parse_bytes, parse_count

# (context, batch, key/value format, layout, weights, bandwidth, FLOP/s)
ASKED = (
    (1, 1, "bf16", "runtime", None, "50GB/s", "400GFLOP/s"),
    (1000, 3, "f32", "kv", "q8_0", "1.5TB/s", "1.2TFLOPS"),
    (131_072, 8, "q8", "runtime", "q4_k", "46.5GiB/s", "100TFLOP/s"),
    (1_048_577, 1, "f16", "kv", "f32", "1TB/s", "3PFLOP/s"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = chromium()
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = site.place(tmp_path_factory.mktemp("site"))
    site.write(catalogue_page(), path)
    return path.as_uri()


@contextmanager
def opened(browser: Any, address: str, width: int = 1440, height: int = 900, **options: Any) -> Iterator[Any]:
    """The page, which must say nothing on the console and ask for nothing but itself."""
    context = browser.new_context(viewport={"width": width, "height": height}, locale="en-US", **options)
    view = context.new_page()
    said: list[str] = []
    view.on("console", lambda message: said.append(message.text))
    view.on("pageerror", lambda error: said.append(str(error)))
    view.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    view.goto(address)
    view.wait_for_selector("main > *")
    try:
        yield view
    finally:
        context.close()
    assert said == []


def until(view: Any, condition: str) -> None:
    """Wait for a condition; the page's policy forbids the browser's own way, which makes code of text."""
    for _ in range(200):
        if view.evaluate(condition):
            return
        view.wait_for_timeout(25)
    pytest.fail(f"never: {condition}")


def exact(view: Any, model: str, field: str) -> str:
    found: str = view.get_attribute(f'tr[data-model="{model}"] [data-field={field}]', "data-exact")
    return found


def listed(view: Any) -> list[str]:
    found: list[str] = view.eval_on_selector_all("tr[data-model]", "rows => rows.map((row) => row.dataset.model)")
    return found


def _command(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli._status(words) == 0, words
    return json.loads(capsys.readouterr().out)


def test_figures_are_the_commands(browser: Any, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = """
    ([context, batch, kv, layout, weights, bandwidth, rate]) => {
      const text = (key, value) => (typeof value === "bigint" ? value.toString() : value);
      const { units, account } = plait;
      const asked = { context: BigInt(context), batch: BigInt(batch), kv, layout, weights: weights ?? "stored",
        bandwidth: units.parseBandwidth(bandwidth), flops: units.parseFlops(rate) };
      return JSON.stringify([...plait.models.values()].map((model) => ({ memory: account.memory(model, asked),
        flops: account.flops(model, asked), bounds: account.bounds(model, asked) })), text);
    }
    """
    with opened(browser, address) as view:
        found = [json.loads(view.evaluate(script, list(asked))) for asked in ASKED]
    for (context, batch, kv, layout, weights, bandwidth, rate), answers in zip(ASKED, found, strict=True):
        common = ("--context", str(context), "--batch", str(batch), "--kv-dtype", kv, "--json")
        machine = ("--bandwidth", bandwidth, "--flops", rate, *(("--weights-dtype", weights) if weights else ()))
        for name, answer in zip(models(), answers, strict=True):
            told = _command(capsys, "memory", name, *common, "--layout", layout)
            state = answer["memory"]
            assert int(state["total"]) == told["total_bytes"]
            assert int(state["reserved"]) == told["reserved_bytes"]
            assert int(state["perToken"]) == told["per_token_bytes"]
            if weights is None:
                assert int(state["weights"]) == told["weights_bytes"]
                assert int(state["table"]) == told["per_layer_table_bytes"]
            for kind in ("rows", "windows", "indexer"):
                need, reserved = (int(state["categories"][kind][key]) for key in ("need", "reserved"))
                assert told["categories"][kind] == {"need_bytes": need, "reserved_bytes": reserved}
            told = _command(capsys, "flops", name, *common, *machine)
            for phase in ("prefill", "decode"):
                work = answer["flops"][phase]
                assert int(work["total"]) == told[phase]["total"]
                assert {kind: int(n) for kind, n in work["kinds"].items()} == told[phase]["by_kind"]
                assert int(work["products"]) == told[phase]["products"]
                bound, moved = answer["bounds"][phase], answer["bounds"]["traffic"][phase]
                expected = told["bound"][phase]
                assert bound["tokensPerSecond"] == pytest.approx(expected["tokens_per_second"], rel=1e-9)
                assert bound["binds"] == expected["binds"]
                assert int(moved["read"]) == expected["bytes"]["state_read_bytes"]
                assert int(moved["written"]) == expected["bytes"]["state_written_bytes"]
                # Experts that several tokens share are an average, which the browser's power may round otherwise.
                assert int(moved["weights"]) == pytest.approx(expected["bytes"]["weights_bytes"], rel=1e-12)
            assert int(answer["flops"]["prefill"]["totalAllLogits"]) == told["prefill"]["total_all_logits"]


def test_weights_in_every_format(browser: Any, address: str) -> None:
    script = """(weights) => [...plait.models.values()].map((m) => [
      m.id, String(plait.account.memory(m, {context: 1n, batch: 1n, kv: "bf16", layout: "runtime", weights}).weights)
    ])"""
    with opened(browser, address) as view:
        for form in WEIGHTS[::5]:
            for name, size in view.evaluate(script, form)[::7]:
                assert int(size) == memory(open_model(name).blueprint, 1, weights_format=form).weights_bytes


def test_largest_context_is_the_account_s(browser: Any, address: str) -> None:
    script = """([budget, kv]) => [...plait.models.values()].map((m) => {
      const found = plait.account.largest(m, {batch: 2n, kv, layout: "runtime", weights: "stored"}, BigInt(budget));
      return [m.id, found.context === null ? null : Number(found.context), found.limit];
    })"""
    with opened(browser, address) as view:
        for budget, kv in ((2**31, "bf16"), (9 * 10**9, "q8"), (10**12, "f32")):
            for name, context, limit in view.evaluate(script, [str(budget), kv]):
                found = largest_context(open_model(name).blueprint, budget, batch=2, kv_format=kv)
                assert (context, limit) == (found.context, found.limit), name


def test_numbers_are_read_and_written_as_on_the_command_line(browser: Any, address: str) -> None:
    sizes = [0, 1, 1023, 1024, 1088, 10**6, 54 * 2**20, 38_708_183_040, 2**40 + 1, 5 * 2**50]
    with opened(browser, address) as view:
        assert view.evaluate("(list) => list.map((n) => plait.units.bytes(BigInt(n)))", [str(n) for n in sizes]) == [
            binary_bytes(n) for n in sizes
        ]
        for text in ("32k", "1m", "1.5k", "131072", "1_000", "1,024"):
            assert view.evaluate("(text) => String(plait.units.parseCount(text))", text) == str(parse_count(text))
        for text in ("8GiB", "8GB", "1.5gib", "24e", "1500000000"):
            expected = "null" if text == "24e" else str(parse_bytes(text))
            assert view.evaluate("(text) => String(plait.units.parseBytes(text))", text) == expected
        for text in ("", "-1", "0", "1.5", "x", "1 2", "1e3", "9999999999999999999999"):
            assert view.evaluate("(text) => plait.units.parseCount(text) === null", text), text
        for write, read in (("Count", "Count"), ("Bytes", "Bytes"), ("Bandwidth", "Bandwidth"), ("Flops", "Flops")):
            back = f"(list) => list.map((n) => String(plait.units.parse{read}(plait.units.write{write}(BigInt(n)))))"
            numbers = [str(n) for n in (1, 999, 1024, 1536, 10**9 + 1, 3_350_000_000_000, 2**59, 123_456_789)]
            assert view.evaluate(back, numbers) == numbers


def test_sliders_and_fields_change_the_figures(browser: Any, address: str) -> None:
    blueprint = open_model("spark-x2.5-4b").blueprint
    with opened(browser, address) as view:
        slider = view.locator("[data-control=context] input[type=range]")
        before = int(exact(view, "spark-x2.5-4b", "state"))
        assert before == memory(blueprint, 32_768).total_bytes
        slider.focus()
        view.keyboard.press("ArrowRight")
        assert view.input_value("[data-control=context] input[type=text]") == "40k"
        assert int(exact(view, "spark-x2.5-4b", "state")) == memory(blueprint, 40_960).total_bytes
        view.fill("[data-control=context] input[type=text]", "1m")
        assert int(exact(view, "spark-x2.5-4b", "state")) == memory(blueprint, 1_048_576).total_bytes
        view.fill("[data-control=batch] input[type=text]", "7")
        view.select_option("[data-control=kv] select", "q8")
        view.select_option("[data-control=weights] select", "q4_k")
        account = memory(blueprint, 1_048_576, batch=7, kv_format="q8", weights_format="q4_k")
        assert int(exact(view, "spark-x2.5-4b", "state")) == account.total_bytes
        assert int(exact(view, "spark-x2.5-4b", "weights")) == account.weights_bytes
        assert int(exact(view, "spark-x2.5-4b", "total")) == account.total_bytes + account.weights_bytes
        view.fill("[data-control=bandwidth] input[type=text]", "1GB/s")
        slow = float(exact(view, "spark-x2.5-4b", "decode"))
        view.fill("[data-control=bandwidth] input[type=text]", "2GB/s")
        assert float(exact(view, "spark-x2.5-4b", "decode")) == pytest.approx(2 * slow)
        view.wait_for_url(lambda url: url.endswith("bw=2GB/s"))  # it follows a moment later
        kept = view.url
        view.fill("[data-control=batch] input[type=text]", "many")
        assert view.get_attribute("[data-control=batch] input[type=text]", "aria-invalid") == "true"
        assert view.inner_text("[data-control=batch] [role=alert]") == "write a whole number"
        assert view.url == kept
        view.locator(".reset button").first.click()
        assert int(exact(view, "spark-x2.5-4b", "state")) == before


def test_layout_of_the_textbook(browser: Any, address: str) -> None:
    blueprint = open_model("gemma-4-12b").blueprint
    with opened(browser, address + "#c=32k&layout=kv") as view:
        found = int(exact(view, "gemma-4-12b", "state"))
        assert found == memory(blueprint, 32_768, kv_layout=True).total_bytes
        view.select_option("[data-control=layout] select", "runtime")
        assert int(exact(view, "gemma-4-12b", "state")) == memory(blueprint, 32_768).total_bytes < found


def test_filter_sort_and_pick(browser: Any, address: str) -> None:
    with opened(browser, address + "#pick=") as view:
        assert len(listed(view)) == len(names())
        view.click("[data-filter=delta]")
        delta = {name for name, model in models().items() if "delta" in model["mixers"]}
        assert set(listed(view)) == delta
        view.click("[data-filter=mixture]")
        both = {name for name in delta if "mixture" in models()[name]["feeds"]}
        assert set(listed(view)) == both != set()
        view.get_by_text("Clear", exact=True).click()
        view.fill("input[type=search]", "gemma 4 e")
        assert listed(view) == ["gemma-4-e2b", "gemma-4-e4b"]
        view.fill("input[type=search]", "no such model")
        assert view.inner_text(".nothing") == "No model passes these filters."
        view.fill("input[type=search]", "")
        view.click("[data-sort=parameters]")
        used = [int(models()[name]["parameters"]["used"]) for name in listed(view)]
        assert used == sorted(used, reverse=True)
        assert view.get_attribute("th:has([data-sort=parameters])", "aria-sort") == "descending"
        view.click("[data-sort=parameters]")
        assert listed(view)[0] == min(models(), key=lambda name: int(models()[name]["parameters"]["used"]))
        for name in ("gemma-3-270m", "smollm2-135m"):
            view.click(f'tr[data-model="{name}"] input')
        assert view.get_attribute('tr[data-model="gemma-3-270m"]', "aria-selected") == "true"
        view.click(".tray .primary")
        assert view.eval_on_selector_all("[data-card]", "all => all.map((one) => one.dataset.card)") == [
            "gemma-3-270m",
            "smollm2-135m",
        ]
        view.click("[data-card=smollm2-135m] header button")
        until(view, "location.hash.endsWith('pick=gemma-3-270m&sort=parameters')")


def test_an_address_may_be_encoded_otherwise(browser: Any, address: str) -> None:
    """What passes a link on may escape more of a name than this page does."""
    with opened(browser, address + "#view=compare&pick=gemma%2D3%2D270m,smollm2%2d135m") as view:
        shown = view.eval_on_selector_all("[data-card]", "all => all.map((one) => one.dataset.card)")
        assert shown == ["gemma-3-270m", "smollm2-135m"]
        assert view.locator("[role=alert]").count() == 0
        until(view, "location.hash.endsWith('pick=gemma-3-270m,smollm2-135m')")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_views_have_one_line_on_a_narrow_phone(browser: Any, address: str, lang: str) -> None:
    with opened(browser, f"{address}#lang={lang}", width=320, height=640) as view:
        lines = """all => all.map((one) => {
          const range = document.createRange();
          range.selectNodeContents(one);
          return range.getBoundingClientRect().height;
        })"""
        assert max(view.eval_on_selector_all(".top nav button, .top nav small", lines)) < 30
        assert view.evaluate("document.documentElement.scrollWidth") == 320


def test_no_more_than_eight_are_picked(browser: Any, address: str) -> None:
    with opened(browser, address + "#pick=" + ",".join(names()[:8])) as view:
        view.click(f'tr[data-model="{names()[9]}"] input')
        assert view.inner_text(".toast") == "At most 8 models stand side by side."
        assert view.locator("tr.picked").count() == 8


def test_link_restores_all_of_it(browser: Any, address: str) -> None:
    link = (
        "#c=100000&b=4&kv=q8&layout=kv&w=q8_0&bw=2TB/s&fl=50TFLOP/s&mem=24GiB&view=compare"
        "&pick=qwen3.5-9b,gemma-4-12b&theme=dark&lang=zh"
    )
    with opened(browser, address + link) as view:
        assert view.url == address + link
        assert view.get_attribute("html", "data-theme") == "dark"
        assert view.get_attribute("html", "lang") == "zh-Hans"
        assert view.input_value("[data-control=context] input[type=text]") == "100000"
        cells = view.eval_on_selector_all("[data-line=total_bytes] td", "all => all.map((one) => one.dataset.exact)")
        expected = [
            memory(open_model(name).blueprint, 100_000, batch=4, kv_format="q8", kv_layout=True).total_bytes
            for name in ("qwen3.5-9b", "gemma-4-12b")
        ]
        assert [int(n) for n in cells] == expected
        commands = view.inner_text(".commands").splitlines()
        assert commands[0] == (
            "plait memory qwen3.5-9b --context 100000 --batch 4 --kv-dtype q8 --layout kv --budget 24GiB"
        )
        # The address moves with what is set, and back.
        view.fill("[data-control=batch] input[type=text]", "5")
        until(view, "location.hash.includes('&b=5&')")
        view.evaluate("location.hash = '#view=table&q=spark'")
        view.wait_for_selector("tr[data-model]")
        assert listed(view) == ["spark-x2.5-1.7b", "spark-x2.5-4b"]


def test_way_back_leads_through_the_views(browser: Any, address: str) -> None:
    with opened(browser, address) as view:
        view.click("[data-view=compare]")
        view.wait_for_selector("[data-card]")
        view.fill("[data-control=batch] input[type=text]", "5")
        until(view, "location.hash === '#b=5&view=compare'")
        view.go_back()
        view.wait_for_selector("tr[data-model]")
        view.go_forward()
        view.wait_for_selector("[data-card]")
        assert view.input_value("[data-control=batch] input[type=text]") == "5"


def test_link_that_is_not_understood_is_said(browser: Any, address: str) -> None:
    with opened(browser, address + "#c=lots&b=0&kv=q3&pick=nobody&bogus=1&sort=x&lang=fr&q=%E0%A4%A") as view:
        said = view.inner_text(".notice")
        for part in ("c=lots", "b=0", "kv=q3", "pick=nobody", "bogus=1", "sort=x", "lang=fr", "q=%E0%A4%A"):
            assert part in said
        assert len(listed(view)) == len(names())


def test_compare_shows_what_the_commands_print(browser: Any, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(browser, address + "#view=compare&pick=qwen3.5-4b&c=64k") as view:
        told = _command(capsys, "flops", "qwen3.5-4b", "--context", "64k", "--json")
        for phase in ("prefill", "decode"):
            for kind, n in told[phase]["by_kind"].items():
                line = f'[data-line="{phase}.{kind}"] td'
                assert view.get_attribute(line, "data-exact") == str(n)
                assert view.inner_text(line).startswith(f"{n:,}")
        assert view.locator(".uplot canvas").count() == 4
        label = view.get_attribute("[data-chart=memory] [role=img]", "aria-label")
        assert label.startswith("State. 64k: Qwen3.5 4B: ")
        # A press in a chart takes its context over.
        box = view.locator("[data-chart=memory] .u-over").bounding_box()
        view.mouse.click(box["x"] + box["width"] * 0.25, box["y"] + 40)
        until(view, "/#c=\\d+k?&/.test(location.hash) && !location.hash.includes('c=64k')")


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_charts_have_the_colours_of_the_theme(browser: Any, address: str, theme: Theme) -> None:
    script = """([name, colour]) => {
      const canvas = document.querySelector(`[data-chart=${name}] canvas`);
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      for (let i = 0; i < data.length; i += 4) {
        if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) return true;
      }
      return false;
    }"""
    with opened(browser, address + "#view=compare&pick=qwen3.5-4b,gemma-4-12b", color_scheme=theme.name) as view:
        for name in ("memory", "decode", "prefill", "flops"):
            assert all(view.evaluate(script, [name, colour]) for colour in theme.series[:2])


def test_pictures_zoom_move_and_change(browser: Any, address: str) -> None:
    with opened(browser, address + "#view=pictures&pick=gemma-3-270m") as view:
        view.wait_for_selector(".paper svg")
        first = view.inner_html(".paper")
        place = "document.querySelector('.paper').style.transform"
        view.focus(".frame")
        for key in ("+", "ArrowLeft"):
            before = view.evaluate(place)
            view.keyboard.press(key)
            until(view, f"{place} !== {json.dumps(before)}")
        assert "scale(1)" not in view.evaluate(place)
        view.keyboard.press("0")
        until(view, f"{place}.includes('scale(1)')")
        view.click("[data-shown=layers]")
        until(view, f"document.querySelector('.paper svg').outerHTML !== {json.dumps(first)}")
        layers = view.inner_html(".paper")
        view.keyboard.press("Escape")
        view.evaluate("location.hash = '#view=pictures&picture=layers&pick=gemma-3-270m&theme=dark'")
        view.wait_for_selector("html[data-theme=dark]")
        until(view, f"document.querySelector('.paper').innerHTML !== {json.dumps(layers)}")


def test_an_address_from_outside_is_not_written_over(browser: Any, address: str) -> None:
    """It is set after a change is drawn and before the page has written the change's address."""
    script = """async (hash) => {
      const click = () => document.querySelector("[data-shown][aria-pressed=false]").click();
      click();
      for (let turn = 0; turn < 10; turn += 1) await null;
      location.hash = hash;
      click();
    }"""
    with opened(browser, address + "#view=pictures&pick=gemma-3-270m") as view:
        view.wait_for_selector(".paper svg")
        for theme in ("dark", "light"):
            view.evaluate(script, f"#view=pictures&picture=layers&pick=gemma-3-270m&theme={theme}")
            view.wait_for_selector(f"html[data-theme={theme}]", timeout=5000)
            until(view, "document.querySelector('[data-shown=layers]').ariaPressed === 'true'")
            until(view, f"location.hash.endsWith('theme={theme}')")


def test_keyboard_alone(browser: Any, address: str) -> None:
    with opened(browser, address + "#pick=") as view:
        view.keyboard.press("Tab")
        assert view.evaluate("document.activeElement.className") == "skip"
        view.keyboard.press("Enter")
        assert view.evaluate("document.activeElement.id") == "main"
        view.keyboard.press("/")
        until(view, "document.activeElement.type === 'search'")
        view.keyboard.type("qwen3.5")
        view.keyboard.press("Escape")
        assert view.evaluate("document.activeElement === document.body")
        shown = listed(view)
        view.keyboard.press("ArrowDown")
        assert view.evaluate("document.activeElement.dataset.model") == shown[0]
        view.keyboard.press("/")
        until(view, "document.activeElement.type === 'search'")
        view.keyboard.press("ArrowDown")
        assert view.evaluate("document.activeElement.dataset.model") == shown[0]
        assert view.locator("tbody tr[tabindex='0']").count() == 1
        view.keyboard.press("ArrowDown")
        assert view.evaluate("document.activeElement.dataset.model") == shown[1]
        style = "getComputedStyle(document.activeElement)"
        assert view.evaluate(f"{style}.outlineStyle") == "solid" and view.evaluate(f"{style}.outlineWidth") == "2px"
        view.keyboard.press("Space")
        view.keyboard.press("End")
        view.keyboard.press("x")
        assert view.locator("tr.picked").count() == 2
        view.keyboard.press("]")
        assert view.input_value("[data-control=context] input[type=text]") == "64k"
        view.keyboard.press("2")
        view.wait_for_selector("[data-card]")
        view.keyboard.press("?")
        until(view, "document.querySelector('dialog[open]') !== null")
        view.keyboard.press("Escape")
        until(view, "document.querySelector('dialog[open]') === null")
        view.keyboard.press("t")
        view.wait_for_selector("html[data-theme=dark]")
        view.keyboard.press("l")
        view.wait_for_selector("html[lang=zh-Hans]")
        view.keyboard.press("Escape")
        view.wait_for_selector("tr[data-model]")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_columns_stand_under_their_heads(browser: Any, address: str, lang: str) -> None:
    script = """() => {
      const place = (cell) => { const { left, width } = cell.getBoundingClientRect(); return [left, width]; };
      const shown = (row) => [...document.querySelector(row).cells].filter((cell) => cell.offsetWidth > 0);
      return ["thead tr", "tbody tr"].map((row) => shown(row).map(place));
    }"""
    fields = "(all) => all.map((one) => one.dataset.column ?? one.dataset.field)"
    with opened(browser, address + f"#mem=24GiB&c=1m&lang={lang}") as view:
        named = view.eval_on_selector_all("thead [data-column]", fields)
        assert [name for name in named if name not in ("title", "layers")] == (
            view.eval_on_selector_all("tbody tr:first-child [data-field]", fields)
        )
        for width in (1440, 1381, 1280, 1181, 1080, 721):
            view.set_viewport_size({"width": width, "height": 900})
            heads, cells = view.evaluate(script)
            assert heads == cells and all(cell[1] >= 25 for cell in cells)
            assert view.evaluate("document.documentElement.scrollWidth") == width


def test_every_control_has_a_name(browser: Any, address: str) -> None:
    script = """() => [...document.querySelectorAll("button, input, select, [tabindex='0']")].filter((one) =>
      !(one.getAttribute("aria-label") || one.textContent.trim() || (one.labels && one.labels.length))
      ).map((one) => one.outerHTML.slice(0, 120))"""
    with opened(browser, address + "#mem=1GiB&max=9B") as view:
        for key, there in (("1", "tbody"), ("2", "[data-card]"), ("3", ".paper svg")):
            view.keyboard.press(key)
            view.wait_for_selector(there)
            assert view.evaluate(script) == []


def test_phone_has_no_sideways_scroll(browser: Any, address: str) -> None:
    phone = {"has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    with opened(browser, address + "#mem=24GiB&max=9B", 360, 740, **phone) as view:
        assert not view.is_visible(".controls")
        view.click("aside summary")
        assert view.is_visible("[data-control=context] input[type=range]")
        view.click("aside summary")
        for lang in ("en", "zh"):
            for name, there in (("table", "tbody"), ("compare", "[data-card]"), ("pictures", ".paper svg")):
                view.click(f"[data-view={name}]")
                view.wait_for_selector(there)
                width = view.evaluate("[document.documentElement.scrollWidth, visualViewport.width]")
                assert width == [360, 360], (lang, name)
            view.click(".top .tools button:nth-child(2)")


def test_preferences_of_the_reader(browser: Any, address: str) -> None:
    with opened(browser, address, color_scheme="dark") as view:
        assert view.get_attribute("html", "data-theme") == "dark"
    context = browser.new_context(locale="zh-CN")
    view = context.new_page()
    view.goto(address)
    view.wait_for_selector("main > *")
    assert view.inner_text("[data-view=table]").startswith("目录")
    context.close()


def test_models_that_are_not_known_leave_blanks(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "sketch, one.json"
    path.write_text(json.dumps({"model_type": "unheard"}))
    found = [item for item in site.listed((str(path),)) if item.given]
    target = tmp_path / "index.html"
    from plait.explore.model import facts

    site.write(page_of([facts(item) for item in found], [item.id for item in found]), target)
    with opened(browser, target.as_uri() + "#mem=1GiB") as view:
        assert "unknown family" in view.inner_text("tbody")
        assert view.inner_text("tbody td.state") == "–"
        view.keyboard.press("2")
        assert "doubt" not in view.inner_text("[data-card] .big") and view.inner_text("[data-card] .big") == "–"
        view.keyboard.press("3")
        assert "nothing to draw" in view.inner_text(".frame")
        assert "pick" not in view.url  # the first picks are the usual ones

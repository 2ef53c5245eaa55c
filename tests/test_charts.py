"""Line charts: exact values, legible labels, valid and self-contained SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.draw.charts import Axis, Series, byte_ticks, line_chart, rate_ticks, token_ticks, tokens_text
from plait.draw.text import LABEL, SCALE, SMALLEST, width
from plait.errors import UsageError
from plait.units import binary_bytes

SVG = "{http://www.w3.org/2000/svg}"
X = Axis("context, tokens", token_ticks, tokens_text)
Y = Axis("bytes", byte_ticks, lambda value: binary_bytes(int(value)))


points = st.lists(
    st.tuples(st.integers(1, 2**40), st.integers(1, 2**60)), min_size=1, max_size=12, unique_by=lambda p: p[0]
).map(lambda found: tuple(sorted(found)))
series = st.lists(
    st.builds(Series, st.text(max_size=40), points, st.none() | st.integers(1, 2**40)), min_size=1, max_size=8
)


def drawn(found: list[Series], **options: object) -> ET.Element:
    return ET.fromstring(line_chart(found, title="A title", x=X, y=Y, **options))


def values(root: ET.Element) -> list[list[tuple[int, int]]]:
    """The points of each line, in the order in which the lines were given."""
    lines = [node for node in root.iter(f"{SVG}g") if node.get("data-series") is not None]
    return [
        [(int(at.attrib["data-x"]), int(at.attrib["data-y"])) for at in line.iter() if "data-x" in at.attrib]
        for line in lines
    ]


@settings(deadline=None, max_examples=60)
@given(series, st.sampled_from(["light", "dark"]), st.sampled_from([(360, 340), (760, 400), (940, 420)]))
@example([Series("", ((2**39, 1),))], "light", (760, 400))
def test_every_point_is_there_with_its_values_and_nothing_sticks_out(found, theme, size) -> None:
    root = drawn(found, theme=theme, size=size)
    assert values(root) == [[tuple(p) for p in item.points] for item in found]
    styles = {(style.size, style.bold): style for style in SCALE}
    for node in root.iter(f"{SVG}text"):
        style = styles[int(node.attrib["font-size"]), node.get("font-weight") == "700"]
        taken, x = width(node.text or "", style), float(node.attrib["x"])
        left = x - {"start": 0, "middle": taken / 2, "end": taken}[node.get("text-anchor", "start")]
        assert left >= -0.5
        assert left + taken <= size[0] + 0.5
        assert 0 < float(node.attrib["y"]) < size[1]
        assert style.size >= SMALLEST


@settings(deadline=None, max_examples=60)
@given(series)
def test_labels_at_the_ends_never_cover_each_other(found) -> None:
    root = drawn(found)
    labels = [n for n in root if n.tag == f"{SVG}text" and n.get("font-weight") == "700" and n.text != "A title"]
    heights = sorted(float(node.attrib["y"]) for node in labels)
    assert len(heights) == len(found)
    assert all(b - a >= LABEL.line - 0.02 for a, b in pairwise(heights))


def test_a_line_goes_up_where_its_values_do() -> None:
    root = drawn([Series("one", ((1024, 10), (4096, 1000), (2**20, 1001)))])
    marks = [n for n in root.iter(f"{SVG}circle") if "data-x" in n.attrib]
    across, down = ([float(n.attrib[key]) for n in marks] for key in ("cx", "cy"))
    assert across == sorted(across)
    assert down == sorted(down, reverse=True)
    # Logarithmic: 1k to 4k is a fifth of 1k to 1m.
    assert (across[1] - across[0]) / (across[2] - across[0]) == pytest.approx(0.2, abs=1e-3)


def test_what_lies_beyond_the_limit_is_dotted_and_hollow() -> None:
    found = [Series("one", ((1024, 10), (2048, 20), (4096, 30), (8192, 40)), limit=2048)]
    text = line_chart(found, title="t", x=X, y=Y)
    root = ET.fromstring(text)
    marks = [n for n in root.iter(f"{SVG}circle") if "data-x" in n.attrib]
    assert [n.attrib["fill"] == n.attrib["stroke"] for n in marks] == [True, True, False, False]
    assert ["beyond" in (n.findtext(f"{SVG}title") or "") for n in marks] == [False, False, True, True]
    assert text.count("stroke-dasharray") == 1
    assert "stroke-dasharray" not in line_chart([Series("one", found[0].points)], title="t", x=X, y=Y)


def test_a_chart_is_accessible_deterministic_and_self_contained() -> None:
    found = [Series(f"model & {i}", ((1024, 10 + i), (2048, 20 * i + 1))) for i in range(8)]
    text = line_chart(found, title="A <title>", x=X, y=Y)
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "A <title>"
    assert all(item.label in (root.findtext(f"{SVG}desc") or "") for item in found)
    assert text == line_chart(found, title="A <title>", x=X, y=Y)
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    strokes = {
        next(p for p in line.iter(f"{SVG}path")).get("stroke")
        for line in root.iter(f"{SVG}g")
        if line.get("data-series") is not None
    }
    assert len(strokes) == 8


@given(st.integers(1, 2**50), st.integers(1, 2**20))
def test_ticks_lie_between_the_values_and_are_few(low: int, times: int) -> None:
    for ticks in (byte_ticks, token_ticks, rate_ticks):
        found = ticks(float(low), float(low * times))
        assert 1 <= len(found) <= 7
        assert list(found) == sorted(set(found))
        assert all(low <= value <= low * times for value in found)


def test_ticks_are_round() -> None:
    assert token_ticks(1024, 2**20) == (2**10, 2**12, 2**14, 2**16, 2**18, 2**20)
    assert byte_ticks(2**21, 2**31) == (2**22, 2**24, 2**26, 2**28, 2**30)
    assert rate_ticks(1.5, 40) == (2, 5, 10, 20)
    assert rate_ticks(1, 1e5) == (1, 10, 100, 1000, 1e4, 1e5)
    assert [tokens_text(n) for n in (512, 1000, 4096, 2**20, 163840)] == ["512", "1,000", "4k", "1m", "160k"]


@pytest.mark.parametrize(
    "found",
    [[], [Series("one", ())], [Series("one", ((1, 0),))], [Series("one", ((-1, 1),))], [Series("a", ((1, 1),))] * 9],
)
def test_what_no_chart_can_show_is_refused(found: list[Series]) -> None:
    with pytest.raises(UsageError):
        line_chart(found, title="t", x=X, y=Y)

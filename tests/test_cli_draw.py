"""`plait draw`: what it writes, what it refuses."""

from __future__ import annotations

import json
import re
import struct
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from plait.cli.main import _status
from plait.draw import convert as conversion
from plait.errors import PlaitError, UsageError

SPARK = "spark-x2.5-4b"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    return _status(["draw", *arguments])


def test_a_picture_is_written_and_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SPARK) == 0
    assert capsys.readouterr().out.startswith("wrote spark-x2.5-4b.svg: ")
    text = (here / "spark-x2.5-4b.svg").read_text(encoding="utf-8")
    assert ET.fromstring(text)[0].text == "Architecture of Spark-X2.5-4B"
    assert re.findall(r'data-kind="(\w+)" data-layers="([^"]+)"', text) == [
        ("attention", "3,7,11,15,19,23,27,31,35"),
        ("window", "0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30,32-34"),
    ]
    assert [path.name for path in here.iterdir()] == ["spark-x2.5-4b.svg"]


def test_the_same_bytes_again_and_a_file_is_replaced(here: Path) -> None:
    assert run(SPARK, "-o", "a.svg") == 0
    first = (here / "a.svg").read_bytes()
    (here / "a.svg").write_bytes(b"old")
    assert run(SPARK, "-o", "a.svg") == 0
    assert (here / "a.svg").read_bytes() == first


def test_stdout_is_the_picture_alone(capfdbinary: pytest.CaptureFixture[bytes], here: Path) -> None:
    assert run(SPARK, "-o", "-", "--lang", "zh") == 0
    out = capfdbinary.readouterr().out
    assert "滑动窗口注意力" in out.decode("utf-8")
    ET.fromstring(out.decode("utf-8"))
    assert not list(here.iterdir())


def test_theme_and_language_change_the_picture(here: Path) -> None:
    pictures = set()
    for place, options in enumerate(([], ["--theme", "dark"], ["--lang", "zh"], ["--layer", "0"], ["--layers"])):
        assert run(SPARK, "-o", f"{place}.svg", *options) == 0
        pictures.add((here / f"{place}.svg").read_bytes())
    assert len(pictures) == 5


def test_layers_have_names_of_their_own(here: Path) -> None:
    assert run(SPARK, "--layer", "3") == 0
    assert run(SPARK, "--layers") == 0
    assert {path.name for path in here.iterdir()} == {"spark-x2.5-4b-layer-3.svg", "spark-x2.5-4b-layers.svg"}


def test_json_describes_the_picture(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert run(SPARK, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == SPARK and found["picture"] is None and not list(here.iterdir())
    layers = [box for box in found["boxes"] if box["box"] == "layer"]
    assert [(box["kind"], box["layers"][:5]) for box in layers] == [("attention", "3,7,1"), ("window", "0-2,4")]
    assert [box["times"] for box in found["boxes"] if box["box"] == "frame"] == [9, 3]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= found["width"] for box in found["boxes"])
    for link in found["links"]:
        assert found["boxes"][link["source"]]["box"] and found["boxes"][link["target"]]["box"]
    assert run(SPARK, "--json", "-o", "a.svg") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["picture"] == "a.svg" and found["bytes"] == (here / "a.svg").stat().st_size


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-model", "-o", "a.svg"], "no-such-model"),
        ([SPARK, "-o", "a.gif"], "ends in .svg, .png, .pdf"),
        ([SPARK, "-o", "a"], "no suffix"),
        ([SPARK, "-o", "no/a.svg"], "expected a directory"),
        ([SPARK, "--layer", "36"], "from 0 to 35"),
        ([SPARK, "--layer", "-1"], "from 0 to 35"),
        ([SPARK, "--layer", "0", "--layers"], "one of them"),
        ([SPARK, "--json", "--layers"], "leave out"),
        ([SPARK, "--json", "-o", "-"], "stdout"),
        ([SPARK, "--scale", "2"], "PNG alone"),
        ([SPARK, "-o", "a.png", "--scale", "0"], "scale"),
        ([SPARK, "-o", "a.png", "--scale", "nan"], "scale"),
        ([SPARK, "--theme", "sepia"], "sepia"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    arguments: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not list(here.iterdir())


def test_a_directory_is_not_replaced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "a.svg").mkdir()
    assert run(SPARK, "-o", "a.svg") == 2
    assert "cannot be replaced" in capsys.readouterr().err


def test_an_unknown_architecture_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "config.json").write_text('{"model_type": "strange", "hidden_size": 8, "num_hidden_layers": 2}')
    assert run("config.json") == 2
    said = capsys.readouterr().err
    assert "strange" in said and said.count("\n") == 1


def png_size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_png_and_pdf(here: Path) -> None:
    pytest.importorskip("typst", reason="the package typst is not installed")
    assert run(SPARK, "-o", "a.svg") == 0
    size = re.search(r'width="(\d+)" height="(\d+)" role', (here / "a.svg").read_text(encoding="utf-8"))
    assert size is not None
    width, height = int(size[1]), int(size[2])
    assert run(SPARK, "-o", "a.png") == 0
    assert run(SPARK, "-o", "b.png", "--scale", "0.5", "--theme", "dark") == 0
    for name, scale in (("a.png", 2), ("b.png", 0.5)):
        found = png_size((here / name).read_bytes())
        assert found == pytest.approx((width * scale, height * scale), abs=1)
    assert run(SPARK, "-o", "A.PDF") == 0
    data = (here / "A.PDF").read_bytes()
    assert data.startswith(b"%PDF-")
    box = re.search(rb"/MediaBox\s*\[\s*0 0 ([0-9.]+) ([0-9.]+)", data)
    assert box is not None
    assert (float(box[1]), float(box[2])) == pytest.approx((width * 0.75, height * 0.75), abs=1)
    assert run(SPARK, "-o", "again.pdf") == 0
    assert (here / "again.pdf").read_bytes() == data


def test_a_picture_too_large_is_refused(here: Path) -> None:
    pytest.importorskip("typst", reason="the package typst is not installed")
    with pytest.raises(UsageError, match="too large"):
        conversion.convert("<svg/>", "png", title="", width=10_000, height=10_000, scale=16)
    with pytest.raises(PlaitError, match="cannot be set as PDF"):
        conversion.convert("no picture", "pdf", title="", width=1, height=1)


def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    assert run(SPARK, "-o", "a.png") == 1
    assert "'typst' is not installed; run: pip install 'plait[draw]'" in capsys.readouterr().err
    assert not list(here.iterdir())
    assert run(SPARK, "-o", "a.svg") == 0


def test_chinese_needs_a_font_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    typst = pytest.importorskip("typst", reason="the package typst is not installed")

    class Bare:
        def families(self) -> list[str]:
            return ["DejaVu Sans Mono", "Libertinus Serif"]

    monkeypatch.setattr(typst, "Fonts", Bare)
    picture = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text y="9">{}</text></svg>'
    with pytest.raises(PlaitError, match="no font with Chinese characters"):
        conversion.convert(picture.format("窗口"), "png", title="", width=9, height=9)
    assert png_size(conversion.convert(picture.format("a"), "png", title="", width=9, height=9)) == (9, 9)

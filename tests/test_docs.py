"""The documents: what they name exists, the commands they show parse, and staleness is noticed."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import plait
from plait.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "plait"
DOCUMENTS = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "tests" / "data" / "README.md",
)
TEXTS = tuple(
    path
    for place in ("src", "tests", "scripts", "docs", "benchmarks", ".ci")
    for path in sorted((ROOT / place).rglob("*"))
    if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".gguf", ".safetensors", ".npy")
) + tuple(path for path in sorted(ROOT.iterdir()) if path.suffix in (".md", ".toml"))


@pytest.fixture
def docs():
    """The script that writes the generated parts, as a module of its own for each test."""
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def shell_commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command in the shell and console parts of a document."""
    for language, body in re.findall(r"```(sh|console)\n(.*?)```", text, re.DOTALL):
        for line in body.splitlines():
            if language == "console" and not line.startswith("$ "):
                continue
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="&|")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, "&&"]:
                if word not in ("&&", "|"):
                    words.append(word)
                    continue
                yield words
                words = []


ALL_COMMANDS = tuple(words for path in DOCUMENTS for words in shell_commands(path.read_text(encoding="utf-8")))
PLAIT_COMMANDS = tuple(words[1:] for words in ALL_COMMANDS if Path(words[0]).name == "plait")


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("https://"):
            assert (path.parent / target.split("#")[0]).exists(), f"{named(path)} links to {target}"


def is_there(word: str) -> bool:
    """A path from the root or inside the package, with or without `.py`, or a name in such a module."""
    for base in (ROOT, PACKAGE, *(PACKAGE / floor for floor in ("blueprint", "runtime", "engine"))):
        if any(base.glob(word)) or any(base.glob(f"{word}.py")):
            return True
        module, _, name = word.rpartition(".")
        file = base / f"{module}.py"
        if module and file.is_file():
            return re.search(rf"^(def|class) {name}\b|^{name}\b.* = ", file.read_text(), re.MULTILINE) is not None
    return False


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_named_files_exist(path: Path) -> None:
    for word in re.findall(r"`((?:\.ci|[a-z_]+)/[a-z_/.*]*)`", path.read_text(encoding="utf-8")):
        assert is_there(word) or is_there(f"tests/data/{word}"), f"{named(path)} names {word}"


def test_a_missing_file_is_noticed() -> None:
    assert is_there("ops/exact.pointwise")
    assert not is_there("ops/exact.no_such_name")
    assert not is_there("ops/nothing")


def test_every_command_is_shown() -> None:
    assert {words[0] for words in PLAIT_COMMANDS} >= set(COMMANDS)


@pytest.mark.parametrize("words", PLAIT_COMMANDS, ids=" ".join)
def test_shown_commands_parse(words: list[str]) -> None:
    if words[-1] == "--help":
        assert len(words) == 1 or words[0] in COMMANDS
        return
    with click.Context(main, info_name="plait") as context:
        command = main.get_command(context, words[0])
        assert command is not None
        command.make_context(words[0], words[1:], parent=context)


def test_shown_programs_exist() -> None:
    programs = [words[1] for words in ALL_COMMANDS if Path(words[0]).name in ("python", "sh") and len(words) > 1]
    assert "scripts/test" in programs
    assert "benchmarks/generate.py" in programs
    for program in programs:
        assert (ROOT / program).is_file(), program


@pytest.mark.parametrize("script", ["scripts/test", ".ci/run"])
def test_shell_scripts_are_well_formed(script: str) -> None:
    subprocess.run(["sh", "-n", str(ROOT / script)], check=True)


def test_the_changelog_names_this_version() -> None:
    assert plait.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_extras_named_in_the_documents_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for path in (*DOCUMENTS, ROOT / "scripts" / "test"):
        for group in re.findall(r"'\.\[([a-z,]+)\]'", path.read_text(encoding="utf-8")):
            assert set(group.split(",")) <= set(extras), f"{named(path)} names [{group}]"


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_no_place_of_one_machine_is_named(path: Path) -> None:
    places = re.compile(rb"/(?:" + b"|".join((b"ro" + b"ot", b"ho" + b"me", b"wo" + b"rk", b"Us" + b"ers")) + rb")/\w")
    found = places.search(path.read_bytes())
    assert found is None, f"{named(path)} names {found[0].decode()}..."


def test_the_picture_fetches_nothing() -> None:
    text = (ROOT / "docs" / "inspect.svg").read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "://" not in text
    assert "url(" not in text.replace("url(#", "")


def test_every_generated_part_is_found(docs) -> None:
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        if "<!-- generated:" in text.replace("`<!-- generated:", ""):
            assert named(path) in docs.DOCUMENTS
            outside = docs.BLOCK.sub("", text).replace("`<!-- generated: ... -->` and `<!-- end -->`", "")
            assert "<!-- " not in outside, f"{named(path)} has a comment without its counterpart"


def test_what_is_stale_is_noticed_and_made_anew(docs, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "DOCUMENTS", ("one.md",))
    monkeypatch.setattr(docs, "output", lambda command: f"so says {command}\n")
    (tmp_path / "docs").mkdir()
    document = tmp_path / "one.md"
    document.write_text("before\n<!-- generated: plait models -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    assert docs.main(["--check"]) == 1
    assert "-old" in capsys.readouterr().out
    assert "old" in document.read_text(encoding="utf-8")
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    text = document.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "$ plait models\nso says plait models\n" in text
    monkeypatch.setattr(docs, "output", lambda command: f"now says {command}\n")
    assert docs.main(["--check"]) == 1


def test_figures_of_one_run_are_left_out(docs) -> None:
    line = '{"event": "token", "id": 5, "text": "a", "logprob": -1.23456}'
    assert docs.steady(line) == '{"event": "token", "id": 5, "text": "a", "logprob": -1.23}'
    line = '{"event": "result", "timing": {"prompt_seconds": 0.25}}'
    assert "0.25" not in docs.steady(line)
    assert docs.steady("any 1.23456 text") == "any 1.23456 text"

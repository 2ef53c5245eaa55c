"""The documents: what they name exists, the commands they show parse, and staleness is noticed.

Their figures are not checked here but by `scripts/docs.py --check`, which makes them anew.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import plait
from plait.account.parameters import parameters_of
from plait.blueprint.catalog import Entry, entry
from plait.blueprint.families import family
from plait.blueprint.source import open_entry
from plait.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "plait"
DOCUMENTS = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "families").glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "tests" / "data" / "README.md",
)
TEXTS = tuple(
    path
    for place in ("src", "tests", "scripts", "docs", "benchmarks", ".ci")
    for path in sorted((ROOT / place).rglob("*"))
    if path.is_file()
    and not {"__pycache__", ".hypothesis"} & {*path.parts}
    and path.suffix not in (".gguf", ".safetensors", ".npy")
) + tuple(path for path in sorted(ROOT.iterdir()) if path.suffix in (".md", ".toml"))


def script(name: str, monkeypatch):
    """A program of `scripts/` as a module of its own for each test."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def docs(monkeypatch):
    """The script that writes the generated parts."""
    return script("docs", monkeypatch)


@pytest.fixture
def family_pages(monkeypatch):
    """The script that makes the pages on families."""
    return script("family_pages", monkeypatch)


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


def entry_of(name: str) -> Entry:
    found = entry(name)
    assert found is not None
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
        place = target[0] or target[1]
        if not place.startswith("https://"):
            assert (path.parent / place.split("#")[0]).exists(), f"{named(path)} links to {place}"


def is_there(word: str) -> bool:
    """A path from the root or inside the package, with or without `.py`, or a name in such a module."""
    for base in (ROOT, PACKAGE, *(PACKAGE / part for part in ("blueprint", "explore", "runtime", "engine"))):
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


def test_pictures_fetch_nothing(docs) -> None:
    for name in docs.PICTURES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text
        assert "url(" not in text.replace("url(#", "")


def test_every_picture_is_shown(docs) -> None:
    shown = {(ROOT / "docs" / "pictures" / Path(name).name) for name in docs.PICTURES}
    assert shown == set((ROOT / "docs" / "pictures").iterdir())
    texts = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    for name in docs.PICTURES:
        assert name in texts, f"no document shows {name}"


def test_both_readmes_show_the_same_and_link_each_other(docs) -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    assert "](README.zh.md)" in english
    assert "](README.md)" in chinese
    assert docs.BLOCK.findall(english) == docs.BLOCK.findall(chinese)
    links = [set(re.findall(r"\]\((?!README)([^)]+)\)", text)) for text in (english, chinese)]
    assert links[0] == links[1]


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
    monkeypatch.setattr(docs, "PICTURES", {"pictures/two.svg": "plait draw two"})
    monkeypatch.setattr(docs, "pages", lambda: {"pages/three.md": "the page\n"})
    monkeypatch.setattr(docs, "output", lambda command: f"so says {command}\n")
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
    assert (tmp_path / "pictures" / "two.svg").read_text(encoding="utf-8") == "so says plait draw two\n"
    page = tmp_path / "pages" / "three.md"
    assert page.read_text(encoding="utf-8") == "the page\n"
    page.write_text("the old page\n", encoding="utf-8")
    assert docs.main(["--check"]) == 1
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    monkeypatch.setattr(docs, "output", lambda command: f"now says {command}\n")
    assert docs.main(["--check"]) == 1


def test_a_shown_line_is_the_stdin_of_what_is_shown(docs) -> None:
    assert docs.output('echo "print(6 * 7)" | python -') == "42\n"
    assert docs.output("python -c 'print(repr(input.__name__))'") == "'input'\n"
    with pytest.raises(SystemExit):
        docs.output("python -c 'input()'")  # nothing is typed where nothing is shown


def test_figures_of_one_run_are_left_out(docs) -> None:
    line = '{"event": "token", "id": 5, "text": "a", "logprob": -1.23456}'
    assert docs.steady(line) == '{"event": "token", "id": 5, "text": "a", "logprob": -1.23}'
    line = '{"event": "result", "timing": {"prompt_seconds": 0.25}}'
    assert "0.25" not in docs.steady(line)
    assert docs.steady("any 1.23456 text") == "any 1.23456 text"


def test_pages_on_families_are_what_the_script_makes(family_pages) -> None:
    made = family_pages.pages()
    there = {named(path) for path in DOCUMENTS if path.parent.name == "families"}
    assert there == {name for name in made if name.startswith("docs/families/")}
    for name, text in made.items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name} is stale; run: python scripts/docs.py"


def test_figures_of_pages_come_from_the_blueprint(family_pages) -> None:
    source = open_entry(entry_of("gemma-3-4b"))
    models = {"gemma-3-4b": family_pages.Model(source.entry, source, parameters_of(source))}

    def text(words: str) -> str:
        return family_pages.filled(words, models)

    # https://arxiv.org/abs/2503.19786, section 2: windows of 1,024, theta 1M on full layers, scaled by 8.
    assert text("{gemma-3-4b layers} layers, W {gemma-3-4b window.window}") == "34 layers, W 1,024"
    assert text("{gemma-3-4b full.rope.theta}, {gemma-3-4b full.rope.scaling.factor}") == "1,000,000, 8"
    assert text("{gemma-3-4b full.rope.rotated} of {gemma-3-4b full.qk_dim}") == "256 of 256"
    # 5 full layers x 2 x 4 heads x 256 dims x 2 bytes
    assert text("{gemma-3-4b growth}") == "20,480"
    with pytest.raises(KeyError):
        text("{gemma-3-4b full.no_such_field}")
    with pytest.raises(KeyError):
        text("{no-such-model layers}")
    with pytest.raises(ValueError, match="no figure is understood"):
        text("a brace {gemma-3-4b}")


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "families" / "src").glob("*.toml")), ids=lambda p: p.stem)
def test_code_named_on_family_pages_is_in_the_reference(path: Path) -> None:
    text = tomllib.loads(path.read_text(encoding="utf-8"))
    named_code = [name for trap in text["traps"] for name in trap.get("code", ())]
    package = importlib.util.find_spec("transformers")
    assert package is not None
    assert package.submodule_search_locations is not None
    files = re.findall(r"models/\w+/\w+\.py", family(path.stem).REFERENCE)
    assert files or not named_code
    code = "".join((Path(package.submodule_search_locations[0]) / file).read_text(encoding="utf-8") for file in files)
    for name in named_code:
        assert re.search(rf"^(class|def) {name}\b", code, re.MULTILINE), f"{name} is not in {files}"

"""Writes what the documents show of Plait: every command's output, every example's, pictures, and pages on families.

    python scripts/docs.py           run the commands and write their output into the documents
    python scripts/docs.py --check   change nothing; exit status 1 and a diff where something is stale

A document says what it wants between two comments, and the part between them is replaced:

    <!-- generated: plait params gemma-3-270m -->     the command and its output
    <!-- generated: echo "Hi" | plait chat M -->      the same, with a line on stdin
    <!-- generated: python docs/estimators.py -->     the same of a program
    <!-- generated: source docs/api.py -->            the text of a file
    <!-- end -->

`PICTURES` are what commands write to stdout. The pages on families are made by `family_pages` from their sentences.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = (
    "README.md",
    "README.zh.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "docs/commands.md",
    "docs/memory.md",
)
BLOCK: Final = re.compile(r"<!-- generated: (?P<command>[^\n]+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
PICTURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "docs/pictures/spark-x2.5-4b.svg": "plait draw spark-x2.5-4b -o -",
        "docs/pictures/spark-x2.5-4b-dark.svg": "plait draw spark-x2.5-4b --theme dark -o -",
        "docs/pictures/spark-x2.5-4b-zh.svg": "plait draw spark-x2.5-4b --lang zh -o -",
        "docs/pictures/spark-x2.5-4b-zh-dark.svg": "plait draw spark-x2.5-4b --lang zh --theme dark -o -",
        "docs/pictures/qwen3.5-4b-layers.svg": "plait draw qwen3.5-4b --layers -o -",
        "docs/pictures/qwen3.5-4b-layers-dark.svg": "plait draw qwen3.5-4b --layers --theme dark -o -",
        "docs/pictures/qwen3.5-4b-layers-zh.svg": "plait draw qwen3.5-4b --layers --lang zh -o -",
        "docs/pictures/qwen3.5-4b-layers-zh-dark.svg": "plait draw qwen3.5-4b --layers --lang zh --theme dark -o -",
    }
)
COLUMNS: Final = 100


@cache
def output(command: str) -> str:
    """What `plait ...` or `python ...` prints on stdout, here and now; `echo LINE | ` before it is its stdin."""
    said, _, asked = command.rpartition(" | ")
    line = "".join(f"{word}\n" for word in shlex.split(said)[1:])
    program, *arguments = shlex.split(asked)
    words = {"plait": ["-m", "plait", *arguments], "python": arguments}[program]
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**environment, "COLUMNS": str(COLUMNS)},
        input=line,
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode != 0:
        sys.exit(f"docs: `{command}` ended with exit status {done.returncode}:\n{done.stderr}")
    return "\n".join(map(steady, done.stdout.splitlines())) + "\n"


def steady(line: str) -> str:
    """A line without what differs from run to run or machine to machine: seconds, and the last digits of logprobs."""
    if not line.startswith('{"event"'):
        return line
    event = json.loads(line)
    if "logprob" in event:
        event["logprob"] = round(event["logprob"], 2)
    if "timing" in event:
        event["timing"] = dict.fromkeys(event["timing"], "...")
    return json.dumps(event)


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}```\n"


def block(command: str) -> str:
    """The part of a document between its two comments."""
    if command.startswith("source "):
        return fenced("python", (ROOT / command.removeprefix("source ")).read_text(encoding="utf-8"))
    return fenced("console", f"$ {command}\n{output(command)}")


def refreshed(text: str) -> str:
    """A document with every generated part made anew."""
    return BLOCK.sub(lambda m: f"<!-- generated: {m['command']} -->\n{block(m['command'])}<!-- end -->", text)


def pages() -> Mapping[str, str]:
    """The pages on families."""
    place = str(ROOT / "scripts")
    if place not in sys.path:
        sys.path.insert(0, place)
    from family_pages import pages

    return pages()


def wanted() -> dict[str, str]:
    """The text each file should have."""
    files = {name: refreshed((ROOT / name).read_text(encoding="utf-8")) for name in DOCUMENTS}
    return {**files, **{name: output(command) for name, command in PICTURES.items()}, **pages()}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.exit("usage: python scripts/docs.py [--check]")
    stale = 0
    for name, text in wanted().items():
        path = ROOT / name
        found = path.read_text(encoding="utf-8") if path.is_file() else ""
        if found == text:
            continue
        stale += 1
        if arguments:
            lines = found.splitlines(keepends=True), text.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(*lines, f"{name} (as it is)", f"{name} (as it should be)"))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if arguments and stale:
        print(f"docs: {stale} of the files are stale; run: python scripts/docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Writes what the documents show of Plait: every command's output, every example's, and the picture.

    python scripts/docs.py           run the commands and write their output into the documents
    python scripts/docs.py --check   change nothing; exit status 1 and a diff where something is stale

A document says what it wants between two comments, and the part between them is replaced:

    <!-- generated: plait params gemma-3-270m -->     the command and its output
    <!-- generated: python docs/estimators.py -->     the same of a program
    <!-- generated: source docs/api.py -->            the text of a file
    <!-- end -->
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "docs/commands.md",
    "docs/memory.md",
)
BLOCK: Final = re.compile(r"<!-- generated: (?P<command>[^\n]+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
PICTURE: Final = "docs/inspect.svg"
PICTURED: Final = "plait inspect gemma-3-270m"
COLUMNS: Final = 100


@cache
def output(command: str) -> str:
    """What `plait ...` or `python ...` prints on stdout, here and now."""
    program, *arguments = shlex.split(command)
    words = {"plait": ["-m", "plait", *arguments], "python": arguments}[program]
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
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


def stamp(text: str) -> str:
    """Says of which text a picture was made; pictures of one text differ between versions of rich."""
    return f"<!-- {PICTURED}: sha256 {hashlib.sha256(text.encode()).hexdigest()} -->"


def picture(text: str) -> str:
    """A terminal window that shows the command and its output. The file names no font to fetch from elsewhere."""
    shown = Text(f"$ {PICTURED}\n{text.rstrip()}")
    shown.highlight_regex(r"(?m)^(\$ .*|gemma-3-270m|layers\s+mixer.*|RoPE of.*)$", "bold")
    width = max(map(len, shown.plain.splitlines()))
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=width, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(shown, soft_wrap=True)
    svg = console.export_svg(title="Plait", unique_id="plait")
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!-- Generated with Rich .*? -->", stamp(text), svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def wanted() -> dict[str, str]:
    """The text each file should have; a picture of the right output is right."""
    files = {name: refreshed((ROOT / name).read_text(encoding="utf-8")) for name in DOCUMENTS}
    path = ROOT / PICTURE
    drawn = path.read_text(encoding="utf-8") if path.is_file() else ""
    text = output(PICTURED)
    files[PICTURE] = drawn if stamp(text) in drawn else picture(text)
    return files


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
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if arguments and stale:
        print(f"docs: {stale} of the files are stale; run: python scripts/docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Draws the gallery: one picture of every model of the catalogue, and the page that shows them.

python scripts/gallery.py           write docs/gallery.md and docs/gallery/*.svg
python scripts/gallery.py --check   change nothing; exit status 1 and the names where something is stale
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from plait.account.parameters import parameters_of  # noqa: E402  (after the path is set)
from plait.blueprint.catalog import entries  # noqa: E402
from plait.blueprint.pattern import pattern  # noqa: E402
from plait.blueprint.source import open_entry  # noqa: E402
from plait.draw import diagram_svg  # noqa: E402
from plait.units import count  # noqa: E402

PAGE: Final = "docs/gallery.md"
PICTURES: Final = "docs/gallery"
INTRO: Final = """# The gallery

Every model of the catalogue, drawn by `plait draw` from the keys of its published config.json; `scripts/gallery.py`
writes this page. All pictures follow the same rules: bottom to top is the direction of the forward pass, equal layers
are drawn once with the number of repeats, every kind of layer has its colour, and one pixel is one pixel everywhere.

Such a picture of any model that Plait reads:

```sh
plait draw gemma-3-270m -o gemma.svg
plait draw qwen3.5-4b -o qwen.png --theme dark
plait draw spark-x2.5-4b -o layers.svg --layers
```
"""


def wanted() -> Mapping[str, str]:
    """The text of each file of the gallery, by its path from the root."""
    files: dict[str, str] = {}
    page = [INTRO]
    for entry in entries():
        source = open_entry(entry)
        account = parameters_of(source)
        blueprint = replace(source.blueprint, name=entry.title)
        picture = f"{PICTURES}/{entry.name}.svg"
        files[picture] = diagram_svg(blueprint, account=account)
        link = picture.removeprefix("docs/")
        page.append(f"## {entry.title}\n\n{pattern(blueprint)}; {count(account.used)} parameters\n")
        page.append(f"![Architecture of {entry.title}]({link})\n")
    files[PAGE] = "\n".join(page)
    return files


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.exit("usage: python scripts/gallery.py [--check]")
    files = wanted()
    there = {str(path.relative_to(ROOT)): path for path in (ROOT / PICTURES).glob("*")}
    stale = [name for name in there if name not in files]
    for name, text in files.items():
        path = ROOT / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        if arguments:
            print(f"{name} is stale")
        elif name in files:
            (ROOT / name).parent.mkdir(exist_ok=True)
            (ROOT / name).write_text(files[name], encoding="utf-8")
            print(f"wrote {name}")
        else:
            there[name].unlink()
            print(f"removed {name}")
    if arguments and stale:
        print(f"gallery: {len(stale)} files are stale; run: python scripts/gallery.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

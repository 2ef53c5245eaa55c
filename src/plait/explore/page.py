"""The page as one file: style, libraries, words and the data of its models, with nothing to fetch.

Everything stands in one classic script, since browsers do not load modules from `file://`. A content security policy
names the script by its hash and allows no connection: neither the page nor a name in a config can ask a network.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Final

from plait import __version__
from plait.account.flops import KINDS, conventions
from plait.account.memory import CATEGORIES
from plait.account.speed import ASSUMPTIONS
from plait.blueprint.state import SLAB, SLACK
from plait.draw.svg import plain
from plait.draw.theme import DARK, FEED_FORWARDS, LIGHT, MIXERS, Theme
from plait.explore.forms import KV, WEIGHTS, Json
from plait.explore.sentences import in_both
from plait.explore.words import LANGUAGES, WORDS

__all__ = ["GENERATOR", "page"]

GENERATOR: Final = "plait explore"
"""What the page says of itself, by which it is known again."""

_MOST: Final = 8
_LIBRARIES: Final = ("preact.umd.js", "preact-hooks.umd.js", "htm.umd.js", "uplot.iife.min.js", "panzoom.min.js")
# In the order in which each needs the ones before it.
_SCRIPTS: Final = (
    "start.js",
    "ui.js",
    "units.js",
    "account.js",
    "state.js",
    "controls.js",
    "table.js",
    "charts.js",
    "compare.js",
    "pictures.js",
    "app.js",
)
_LICENCES: Final = (
    ("Preact 10.29.8 (MIT)", "preact.LICENSE.txt"),
    ("htm 3.1.1 (Apache-2.0)", "htm.LICENSE.txt"),
    ("uPlot 1.6.32 (MIT)", "uplot.LICENSE.txt"),
    ("Panzoom 4.6.2 (MIT)", "panzoom.LICENSE.txt"),
)


def _text(folder: str, name: str) -> str:
    return files(__package__).joinpath(folder, name).read_text(encoding="utf-8")


def _colours(theme: Theme) -> str:
    """The theme's colours as properties of a style sheet."""
    found = {
        "paper": theme.paper,
        "panel": theme.panel,
        "ink": theme.ink,
        "muted": theme.muted,
        "line": theme.line,
        "frame": theme.frame,
    }
    for role, hue in theme.hues.items():
        found |= {f"hue-{role}": hue.accent, f"fill-{role}": hue.fill}
    found |= {f"series-{i}": colour for i, colour in enumerate(theme.series)}
    return "".join(f"--{name}:{value};" for name, value in found.items())


def _style() -> str:
    themes = f":root{{{_colours(LIGHT)}}}:root[data-theme=dark]{{{_colours(DARK)}}}"
    series = "".join(f".series-{i}{{--series:var(--series-{i})}}" for i in range(_MOST))
    return "\n".join((themes, series, _text("vendor", "uplot.min.css"), _text("page", "style.css")))


def _script() -> str:
    libraries = [_text("vendor", name) for name in _LIBRARIES]
    return "\n;".join([*libraries, *(_text("page", name) for name in _SCRIPTS)])


def _data(models: Sequence[Json], pick: Sequence[str]) -> str:
    """The data as JSON that may stand in a script element."""
    data = {
        "models": models,
        "pick": pick,
        "words": WORDS,
        "constants": {
            "version": __version__,
            "languages": LANGUAGES,
            "kv": KV,
            "weights": WEIGHTS,
            "categories": CATEGORIES,
            "kinds": KINDS,
            "mixers": MIXERS,
            "feeds": FEED_FORWARDS,
            "families": sorted({str(model["family"]) for model in models}),
            "slab": SLAB,
            "slack": SLACK,
            "most": _MOST,
        },
        "sentences": {"counted": in_both(conventions()), "granted": in_both(ASSUMPTIONS)},
        "licences": [[name, _text("vendor", file)] for name, file in _LICENCES],
    }

    def as_dict(value: object) -> object:
        assert isinstance(value, Mapping)
        return dict(value)

    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, default=as_dict)
    # Names of files may hold what is no text, or what turns the text after it round: a character in its place.
    text = plain(text)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page(models: Sequence[Json], pick: Sequence[str]) -> str:
    """The page of these models, each as `plait.explore.model.facts` has it.

    pick  ids of the models that stand side by side at first; of more than eight the first eight
    """
    script = _script()
    digest = b64encode(sha256(script.encode()).digest()).decode()
    parts = {
        "generator": GENERATOR,
        "script hash": f"sha256-{digest}",
        "style": _style(),
        "data": _data(models, pick[:_MOST]),
        "script": script,
    }
    pieces = _text("page", "index.html").split("{{")
    made = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        made += [parts[name], rest]
    return "".join(made)

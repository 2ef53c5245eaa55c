"""A small random model for tests of generation, and short ways to run it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from plait.blueprint.catalog import DEMO, entry
from plait.blueprint.shrink import tiny
from plait.cli.main import _status
from plait.engine.events import Result
from plait.engine.sampling import Sampling

SPARK = Path(__file__).parent / "data" / "spark-tiny"
PROMPT = "hello there"
WARM = Sampling(temperature=1.5, seed=7)


def write_config(file, **keys):
    """The config of a Gemma 3 of 6 layers, windows of 8 tokens, whose 271 tokens all have a text or are control
    tokens."""
    file.write_text(json.dumps({**tiny(entry(DEMO).config), "vocab_size": 271, **keys}))
    return file


def write_model(directory, **keys):
    """A random model of that config."""
    config = write_config(directory.parent / f"{directory.name}.json", **keys)
    assert _status(["random", str(config), "-o", str(directory)]) == 0
    return directory


def variant(source, target, **keys):
    """The same weights and tokenizer with other keys in the config."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **keys}))
    return target


def generate(engine, prompt=PROMPT, **request):
    """(events before the result, result)"""
    *events, result = engine.generate(prompt, **{"ignore_eos": True, "max_tokens": 24, **request})
    assert isinstance(result, Result)
    return events, result


def tokens_of(engine, prompt=PROMPT, **request):
    return list(generate(engine, prompt, **request)[1].tokens)

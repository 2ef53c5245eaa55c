"""`plait random`: what it says, and what it takes for a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from plait.blueprint.catalog import entry
from plait.blueprint.shrink import tiny
from plait.blueprint.source import from_config, open_model
from plait.cli.random import command
from plait.errors import UsageError
from plait.runtime.checkpoint import write_random


def config_of(name: str) -> dict[str, Any]:
    found = entry(name)
    assert found is not None
    return dict(found.config)


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    out = tmp_path / "made"
    text = _run("smollm2-135m", "-o", str(out), "--scale", "tiny")
    assert "172,512" in text
    assert "\x1b" not in text
    assert open_model(out).blueprint == from_config(tiny(config_of("smollm2-135m")), file="test")[0]
    again = tmp_path / "again.gguf"
    told = json.loads(_run(str(out), "-o", str(again), "--gguf", "--seed", "5", "--format", "bf16", "--json"))
    assert told["path"] == str(again)
    assert told["files"] == [str(again)]
    assert told["bytes"] == again.stat().st_size
    assert (told["parameters"], told["seed"], told["format"]) == (172_512, 5, "bf16")
    assert open_model(again).blueprint == open_model(out).blueprint


def test_a_config_file_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text(json.dumps({**tiny(config_of("qwen3-4b")), "torch_dtype": "bfloat16"}))
    told = json.loads(_run(str(file), "-o", str(tmp_path / "out"), "--json"))
    assert told["format"] == "bf16"
    assert open_model(tmp_path / "out").blueprint == open_model(file).blueprint


def test_a_gguf_file_is_no_config(tmp_path: Path) -> None:
    config = tiny(config_of("smollm2-135m"))
    blueprint, _ = from_config(config, file="test", name="test")
    path = write_random(blueprint, config, tmp_path, seed=3, gguf=True).path
    with pytest.raises(UsageError, match=r"config\.json"):
        _run(str(path), "-o", str(tmp_path / "out"))

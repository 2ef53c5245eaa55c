"""Blueprints of real files: configs that transformers writes, and GGUF headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import configs
import pytest

import plait
from plait.blueprint.source import open_model
from plait.errors import ConfigError, FileFormatError, ModelNotFound

transformers = pytest.importorskip("transformers")


def saved(config: Any, directory: Path) -> dict[str, Any]:
    config.save_pretrained(directory)
    found = json.loads((directory / "config.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("kind", "old"),
    [
        ("Gemma2Config", configs.gemma2()),
        ("Gemma3TextConfig", configs.gemma3()),
        ("Qwen3Config", configs.qwen3()),
        ("LlamaConfig", configs.llama()),
    ],
)
def test_configs_that_transformers_writes(kind: str, old: dict[str, Any], tmp_path: Path) -> None:
    """The library reads the old spelling and writes its newest; both are one model to Plait."""
    given = {key: value for key, value in old.items() if key not in ("model_type", "torch_dtype")}
    if kind == "Gemma3TextConfig":
        # Its constructor takes the settings per layer type only.
        given = {k: v for k, v in given.items() if k not in ("rope_theta", "rope_local_base_freq", "rope_scaling")}
        given["rope_parameters"] = {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        }
    new = saved(getattr(transformers, kind)(**given), tmp_path)
    assert "layer_types" in new or kind == "LlamaConfig"
    assert "rope_parameters" in new
    source = open_model(tmp_path)
    assert source.kind == "directory"
    assert source.coverage.unknown == ()
    assert source.blueprint == configs.read(old)


def test_the_catalogue_and_a_gguf_file_agree(gemma_gguf: Path) -> None:
    from_file, from_entry = plait.blueprint(gemma_gguf), plait.blueprint("gemma-3-270m")
    assert from_file == from_entry
    assert from_file.tokens.bos == from_entry.tokens.bos == 2
    assert from_file.evidence["layers.kind"].origin == "convention"


def test_smollm2_and_its_entry_agree(smollm_gguf: Path) -> None:
    assert plait.blueprint(smollm_gguf) == plait.blueprint("smollm2-135m")


def test_a_config_and_its_directory_are_one_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs.spark()))
    assert plait.blueprint(tmp_path) == plait.blueprint(str(tmp_path / "config.json")) == configs.read(configs.spark())
    assert plait.blueprint(tmp_path).name == tmp_path.name


TWICE = '{"model_type": "llama", "model_type": "qwen3"}'


@pytest.mark.parametrize("text", ["", "{", "[]", "null", TWICE, '{"a": ' * 9999])
def test_damaged_configs(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        plait.blueprint(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00{}")
    with pytest.raises(ConfigError, match="not valid JSON"):
        plait.blueprint(tmp_path)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model in this directory"):
        plait.blueprint(tmp_path)
    with pytest.raises(ModelNotFound, match="did you mean gemma-3-270m"):
        plait.blueprint("gema-3-270m")
    with pytest.raises(ModelNotFound, match="no such file"):
        plait.blueprint("nowhere.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00")
    with pytest.raises(FileFormatError, match=r"broken\.gguf"):
        plait.blueprint(tmp_path)
    (tmp_path / "second.gguf").write_bytes(b"GGUF\x03\x00")
    with pytest.raises(ModelNotFound, match=r"broken\.gguf, second\.gguf"):
        plait.blueprint(tmp_path)

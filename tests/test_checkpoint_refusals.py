"""Random checkpoints that are not written: what a container has no words for, and what must not be promised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from plait.blueprint.catalog import entry
from plait.blueprint.read.hub import HubModel
from plait.blueprint.shrink import tiny
from plait.blueprint.source import from_config, open_model
from plait.blueprint.spec import MultiTokenPrediction, Quantization
from plait.cli.main import _status
from plait.cli.random import command
from plait.errors import UnsupportedError
from plait.runtime.checkpoint import Written, write_random
from plait.runtime.checkpoint_gguf import text_alone
from plait.runtime.weights import open_weights

# A mixture of experts whose every layer is dense, so a GGUF file has no words for it.
DENSE_OF_MIXTURE: dict[str, Any] = {
    "model_type": "glm4_moe",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}


def small(name: str, **changes: object) -> dict[str, Any]:
    found = entry(name)
    assert found is not None
    return {**tiny(found.config), **changes}


def write(config: dict[str, Any], out: Path, **options: Any) -> Written:
    blueprint = from_config(config, file="test", name="test")[0]
    return write_random(blueprint, config, out, **{"seed": 3, "gguf": False, **options})


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> str:
        code = _status(["random", *arguments])
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert err.startswith("plait: error: ")
        assert err.count("\n") == 1
        return err

    return run


@pytest.mark.parametrize("options", [(), ("--scale", "tiny")], ids=" ".join)
def test_a_model_without_a_gguf_architecture(options: tuple[str, ...], tmp_path: Path, refused: Any) -> None:
    text = refused("deepseek-v3.2", "-o", str(tmp_path / "new" / "out"), "--gguf", *options)
    assert "GGUF files of DeepSeek-V3.2: expected an architecture of llama.cpp for it" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [(), ("--gguf",)], ids=" ".join)
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3"])
def test_fp8_is_for_models_that_declare_it(
    name: str, options: tuple[str, ...], tmp_path: Path, refused: Any
) -> None:
    arguments = (name, "-o", str(tmp_path / "out"), "--scale", "tiny", "--format", "fp8", *options)
    if name == "deepseek-v3" and not options:
        done = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return
    assert "found 'fp8'" in refused(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "activation"),
        ({"rope_theta": 1e39}, r"rope\.freq_base.*float32"),
        ({"max_position_embeddings": 2**32}, r"context_length.*2\*\*32"),
    ],
)
def test_what_gguf_cannot_say_leaves_nothing_behind(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    config = small("qwen3-4b", **changes)
    with pytest.raises(UnsupportedError, match=words) as caught:
        write(config, tmp_path / "new" / "out", gguf=True)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    write(config, tmp_path / "new" / "out")
    assert (tmp_path / "new" / "out" / "config.json").is_file()


def test_text_alone_has_nothing_of_another_container() -> None:
    plain = from_config(small("gemma-3-270m"), file="test")[0]
    more = replace(
        plain,
        towers=from_config(small("gemma-3-4b"), file="test")[0].towers,
        mtp=MultiTokenPrediction(plain.layers[:1], copies_embedding=False, copies_head=False),
        quantization=Quantization("fp8", "f8_e4m3", (128, 128)),
    )
    assert more.towers
    assert text_alone(more) == text_alone(plain) == plain


def test_written_weights_are_whole_and_the_config_says_so(tmp_path: Path) -> None:
    declared = from_config(DENSE_OF_MIXTURE, file="test")[0]
    assert declared.quantization is not None
    assert declared.mtp is not None
    done = write(DENSE_OF_MIXTURE, tmp_path / "out")
    assert any("quantization_config (fp8) is dropped" in note for note in done.notes)
    assert any("1 multi-token-prediction layers are not written" in note for note in done.notes)
    read = open_model(done.path).blueprint
    assert read.quantization is None
    assert text_alone(read) == text_alone(declared)
    assert read.mtp == declared.mtp
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert open_weights(open_model(done.path)).nbytes == 4 * done.parameters
    with pytest.raises(UnsupportedError, match="GGUF"):  # its keys describe mixtures only
        write(DENSE_OF_MIXTURE, tmp_path / "other", gguf=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_config_of_the_hub_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PLAIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    config = small("smollm2-135m")
    monkeypatch.setattr(
        "plait.blueprint.read.hub.open_hub", lambda found, transport: HubModel(found, "c" * 40, transport, config)
    )
    done = CliRunner().invoke(command, ["org/name", "-o", str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written == {**config, **{key: written[key] for key in ("dtype", "torch_dtype") if key in written}}
    assert open_model(tmp_path / "out").blueprint == from_config(config, file="test")[0]


def test_a_gguf_file_of_the_hub_is_no_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    for variable in ("PLAIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    header = open_model(write(small("smollm2-135m"), tmp_path, gguf=True).path).header
    monkeypatch.setattr(
        "plait.blueprint.read.hub.open_hub",
        lambda found, transport: HubModel(found, "c" * 40, transport, header=header),
    )
    text = refused("org/name", "-o", str(tmp_path / "out"))
    assert "org/name: a GGUF file has no config" in text
    assert not (tmp_path / "out").exists()

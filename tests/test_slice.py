"""Slices of a model with nested widths: what may be chosen, what is written, and that it is the model it says it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from configs import read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import plait
from plait.blueprint.catalog import entry
from plait.blueprint.slice import PUBLISHED, Choice, choose, sliced, sliced_config
from plait.blueprint.source import open_model
from plait.cli.slice import command
from plait.errors import PlaitError, UnsupportedError, UsageError
from plait.runtime.slice import slice_checkpoint

SLIDING, FULL = "sliding_attention", "full_attention"
# As E4B is built: 4 windows to a full layer would be large, so 1 to 1; the last 4 layers reuse keys and values.
TEXT = {
    "vocab_size": 60,
    "vocab_size_per_layer_input": 50,
    "hidden_size": 32,
    "hidden_size_per_layer_input": 6,
    "intermediate_size": [40, 40, 44, 36, 40, 40, 48, 40],
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "layer_types": [SLIDING, FULL] * 4,
    "sliding_window": 5,
    "num_kv_shared_layers": 4,
    "laurel_rank": 4,
    "altup_num_inputs": 3,
    "activation_sparsity_pattern": [0.9, 0.8, 0.7, 0.0, 0.0, 0.6, 0.5, 0.0],
    "max_position_embeddings": 128,
}
IDS = [3, 59, 1, 17, 52, 8, 8, 40, 2, 33, 21, 50]


def reference(settings_: dict[str, Any]) -> Any:
    import transformers

    torch.manual_seed(3)
    config = transformers.Gemma3nTextConfig(**settings_, attn_implementation="eager")
    model = transformers.Gemma3nForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with an encoder's tensor, unread keys and values, and files of a tokenizer."""
    directory = tmp_path_factory.mktemp("whole")
    reference(TEXT).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.vision_tower.conv.weight"] = torch.randn(3, 2, 2)
    tensors["model.layers.6.self_attn.k_proj.weight"] = torch.randn(8, 32)
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, directory / "model.safetensors")
    (directory / "tokenizer.json").write_text('{"some": "tokenizer"}')
    (directory / "README.md").write_text("of the whole model")
    return directory


def by_hand(state: dict[str, torch.Tensor], kept: list[int], widths: list[int]) -> dict[str, torch.Tensor]:
    """The state of a slice, written out tensor by tensor."""
    dim = TEXT["hidden_size_per_layer_input"]
    columns = torch.cat([torch.arange(i * dim, i * dim + dim) for i in kept])
    made: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if ".layers." not in name:
            if name.endswith("embed_tokens_per_layer.weight"):
                tensor = tensor[:, columns]
            elif name.endswith("per_layer_model_projection.weight"):
                tensor = tensor[columns]
            made[name] = tensor
            continue
        head, rest = name.split(".layers.")
        number, part = rest.split(".", 1)
        if int(number) not in kept:
            continue
        at = kept.index(int(number))
        if part in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
            tensor = tensor[: widths[at]]
        elif part == "mlp.down_proj.weight":
            tensor = tensor[:, : widths[at]]
        made[f"{head}.layers.{at}.{part}"] = tensor
    return made


@pytest.mark.parametrize(
    ("drop", "widths"), [((4, 5), [20] * 6), ((), [40, 20, 10, 36, 5, 40, 48, 1]), ((4, 5, 6, 7), [24] * 4)]
)
def test_a_slice_is_the_model_cut_by_hand(
    whole: Path, drop: tuple[int, ...], widths: list[int], tmp_path: Path
) -> None:
    import transformers

    source = open_model(whole)
    choice = choose(source.blueprint, drop, widths)
    written = slice_checkpoint(source, choice, tmp_path / "slice")
    kept = [index for index in range(8) if index not in drop]
    config = transformers.Gemma3nTextConfig(
        **{
            **TEXT,
            "num_hidden_layers": len(kept),
            "intermediate_size": widths,
            "layer_types": [TEXT["layer_types"][index] for index in kept],
            "activation_sparsity_pattern": [TEXT["activation_sparsity_pattern"][index] for index in kept],
            "num_kv_shared_layers": sum(index >= 4 for index in kept),
        },
        attn_implementation="eager",
    )
    model = transformers.Gemma3nForCausalLM(config).eval()
    state = {name: tensor.to(torch.bfloat16).float() for name, tensor in reference(TEXT).state_dict().items()}
    model.load_state_dict(by_hand(state, kept, widths))
    with torch.no_grad():
        expected = model(torch.tensor([IDS]), use_cache=False).logits[0]
    found = plait.load(written.path, dtype="float32").logits(IDS)
    assert (found - expected).abs().max() < 1e-4 * (expected.max() - expected.min())


def test_what_is_written(whole: Path, tmp_path: Path) -> None:
    source = open_model(whole)
    slice_checkpoint(source, choose(source.blueprint, (4, 5), 12), tmp_path / "slice")
    before, after = load_file(whole / "model.safetensors"), load_file(tmp_path / "slice" / "model.safetensors")
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    assert torch.equal(after["model.vision_tower.conv.weight"], before["model.vision_tower.conv.weight"])
    assert not any("layers.4.self_attn.k_proj" in name for name in after)
    wide = before["model.layers.6.mlp.down_proj.weight"]
    assert torch.equal(after["model.layers.4.mlp.down_proj.weight"], wide[:, :12])
    assert sorted(path.name for path in (tmp_path / "slice").iterdir()) == sorted(
        {path.name for path in whole.iterdir()} - {"README.md"}
    )
    assert [path.name for path in tmp_path.iterdir()] == ["slice"]
    config = json.loads((tmp_path / "slice" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_kv_shared_layers"]) == (6, 2)
    assert config["activation_sparsity_pattern"] == [0.9, 0.8, 0.7, 0.0, 0.5, 0.0]
    with pytest.raises(UsageError, match="a checkpoint is there already"):
        slice_checkpoint(source, choose(source.blueprint), tmp_path / "slice")
    slice_checkpoint(source, choose(source.blueprint), tmp_path / "slice", force=True)
    assert open_model(tmp_path / "slice").blueprint == source.blueprint
    with pytest.raises(UsageError, match="would replace its model"):
        slice_checkpoint(source, choose(source.blueprint), whole, force=True)


@pytest.mark.parametrize("nested", [True, False])
def test_the_published_slice_is_the_published_model(nested: bool) -> None:
    """Gemma 3n E2B is E4B without layers 20 to 24, of half the width."""
    config = dict(entry("gemma-3n-e4b").config)
    small = open_model("gemma-3n-e2b").blueprint
    if not nested:
        config, small = dict(config["text_config"]), replace(small, towers=())
    large = read(config)
    drop, width = PUBLISHED["E2B"]
    made = sliced(large, choose(large, drop, width))
    assert made == small == read(sliced_config(config, made))


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_chosen_is_what_the_config_says(data: st.DataObject) -> None:
    config = {"model_type": "gemma3n_text", **TEXT}
    large = read(config)
    drop = data.draw(st.sets(st.integers(0, 7), max_size=7))
    kept = [index for index in range(8) if index not in drop]
    widths = data.draw(st.lists(st.integers(1, 50), min_size=len(kept), max_size=len(kept)))
    sources = {4: 2, 5: 3, 6: 2, 7: 3}
    valid = (
        all(width <= TEXT["intermediate_size"][index] for index, width in zip(kept, widths, strict=True))
        and all(index % 2 == place % 2 for place, index in enumerate(kept))
        and all(sources[index] in kept for index in kept if index in sources)
    )
    if not valid:
        with pytest.raises(UsageError) as caught:
            choose(large, drop, widths)
        assert "\n" not in str(caught.value)
        return
    choice = choose(large, drop, widths)
    assert choice == Choice(tuple(kept), tuple(widths))
    made = sliced(large, choice)
    assert made == read(sliced_config(config, made))
    for place, index in enumerate(kept):
        before, after = large.layers[index].mixer.kv_source, made.layers[place].mixer.kv_source
        assert (None if after is None else kept[after]) == before


@pytest.mark.parametrize(
    ("drop", "widths", "words"),
    [
        ((8,), None, r"a layer to drop: expected one of \[0, 8\), found 8"),
        (range(8), None, "at least one layer that stays"),
        ((3,), None, "layer 5 reads the keys and values of layer 3"),
        ((4,), None, "layer 5 would be layer 4"),
        ((), 0, "width of layer 0: expected 1 to 40"),
        ((), 41, "width of layer 0: expected 1 to 40, as the model has it, found 41"),
        ((), [40] * 7, "one for each of the 8 layers that stay, found 7"),
    ],
)
def test_choices_that_are_no_model(drop: Any, widths: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose(read({"model_type": "gemma3n_text", **TEXT}), drop, widths)


def test_models_without_nested_widths() -> None:
    with pytest.raises(UnsupportedError, match="nested widths"):
        choose(open_model("gemma-4-e4b").blueprint)
    source = open_model("gemma-3n-e4b")
    with pytest.raises(UsageError, match="expected a directory"):
        slice_checkpoint(source, choose(source.blueprint), Path("nowhere"))


def test_the_command(whole: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(command, [str(whole), "-o", str(tmp_path / "out"), *arguments])

    widths = tmp_path / "widths.json"
    widths.write_text("[8, 8, 8, 8, 8, 9]")
    done = run("--drop", "4-5", "--width", str(widths), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["layers"], found["widths"]) == ([0, 1, 2, 3, 6, 7], [8, 8, 8, 8, 8, 9])
    assert "6 of 8 layers" in run("--drop", "4,5", "--force").output
    for wrong in (
        (),
        ("--to", "E2B", "--width", "4"),
        ("--to", "E2B"),
        ("--drop", "5-4"),
        ("--drop", "a"),
        ("--drop", ""),
        ("--width", "4.5"),
        ("--width", "[4]"),
        ("--width", str(tmp_path / "none.json")),
    ):
        failed = run(*wrong)
        assert isinstance(failed.exception, UsageError), wrong


def test_many_files_and_a_text_model_inside_another(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As published: names under `model.language_model.`, the keys of the text under `text_config`."""
    tensors = load_file(whole / "model.safetensors")
    nested = tmp_path / "nested"
    nested.mkdir()
    inner = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    vision = "model.language_model.vision_tower.conv.weight"
    inner["model.vision_tower.conv.weight"] = inner.pop(vision)
    save_file(inner, nested / "model.safetensors")
    text = json.loads((whole / "config.json").read_text())
    (nested / "config.json").write_text(json.dumps({"model_type": "gemma3n", "text_config": text}))
    source = open_model(nested)
    choice = choose(source.blueprint, (4, 5), 20)
    monkeypatch.setattr("plait.runtime.slice._FILE", 30_000)
    monkeypatch.setattr("plait.runtime.slice._PIECE", 100)
    done: list[tuple[int, int]] = []
    written = slice_checkpoint(source, choice, tmp_path / "many", progress=lambda *at: done.append(at))
    assert len([file for file in written.files if file.suffix == ".safetensors"]) > 1
    assert done[-1][0] == done[-1][1] == sum(at.nbytes for at in _tensors(tmp_path / "many"))
    monkeypatch.undo()
    plain = open_model(whole)
    slice_checkpoint(plain, choose(plain.blueprint, (4, 5), 20), tmp_path / "one")
    assert torch.equal(plait.load(tmp_path / "many").logits(IDS), plait.load(tmp_path / "one").logits(IDS))
    assert "vision_tower" in (tmp_path / "many" / "model.safetensors.index.json").read_text()


def _tensors(directory: Path) -> list[torch.Tensor]:
    return [tensor for file in directory.glob("*.safetensors") for tensor in load_file(file).values()]


def test_a_slice_that_fails_leaves_nothing(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(whole)

    def full(place: Path, *rest: object) -> None:
        (place / "model.safetensors").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plait.runtime.slice.write_shards", full)
    with pytest.raises(PlaitError, match="cannot be written"):
        slice_checkpoint(source, choose(source.blueprint, (4, 5)), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []

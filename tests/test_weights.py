"""Weights by role: the binding rules, both containers, and every kind of damage named before data is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from plait.blueprint.catalog import entry
from plait.blueprint.layout import PermutedRows
from plait.blueprint.shrink import tiny
from plait.blueprint.source import from_config, open_model
from plait.blueprint.tensors import inventory
from plait.errors import FileFormatError, UnsupportedError, WeightsError
from plait.runtime.checkpoint import write_random
from plait.runtime.weight_transforms import stored_rows
from plait.runtime.weights import Weights, open_weights

MIXED = (
    "deepseek-v3",
    "gemma-3n-e2b",
    "gemma-4-12b",
    "gemma-4-26b-a4b",
    "gemma-4-e2b",
    "glm-4.5",
    "glm-5",
    "mimo-v2-flash",
    "minimax-m2",
    "qwen3-30b-a3b",
    "qwen3-next-80b-a3b",
    "qwen3.5-0.8b",
    "qwen3.5-35b-a3b",
    "qwen3.6-27b",
)
MODELS = ("smollm2-135m", "qwen3-4b", "gemma-2-9b", "gemma-3-270m", "gemma-3-4b", "spark-x2.5-4b")


def config_of(name: str, **changes: object) -> dict[str, Any]:
    found = entry(name)
    assert found is not None
    return {**tiny(found.config), **changes}


def written(config: Mapping[str, Any], out: Path, **options: Any) -> Path:
    blueprint, _ = from_config(config, file="test", name="test")
    return write_random(blueprint, config, out, **{"seed": 7, "gguf": False, **options}).path


def opened(path: Path) -> Weights:
    return open_weights(open_model(path))


def edited(directory: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """The one file of a checkpoint, written again with other tensors."""
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    ("name", "form"), [*product(MODELS, ("f32", "bf16", "f16")), *((name, "bf16") for name in MIXED)]
)
def test_containers_hold_the_same_weights(name: str, form: str, tmp_path: Path) -> None:
    config = config_of(name)
    one = opened(written(config, tmp_path / "one", format=form))
    several = opened(written(config, tmp_path / "several", format=form, shards=3))
    gguf = opened(written(config, tmp_path / "gguf", format=form, gguf=True))
    blueprint, _ = from_config(config, file="test")
    assert one.roles == tuple(t.role for t in inventory(blueprint) if t.part == "text")
    assert one.roles == several.roles == gguf.roles
    assert len(several.files) == 3
    for tensor in (t for t in inventory(blueprint) if t.part == "text"):
        dense = one.dense(tensor.role, torch.float32)
        assert dense.shape == tensor.shape == gguf.shape(tensor.role)
        assert torch.equal(dense, several.dense(tensor.role, torch.float32))
        assert torch.equal(dense, gguf.dense(tensor.role, torch.float32)), tensor.role


@given(
    heads=st.integers(1, 4),
    pairs=st.integers(1, 4),
    columns=st.integers(1, 3),
)
def test_rows_are_put_back_as_converters_permute_them(heads: int, pairs: int, columns: int) -> None:
    d = 2 * pairs
    model = torch.arange(heads * d * columns, dtype=torch.float32).reshape(heads * d, columns)
    # what converters to GGUF write for q and k of the llama architecture
    stored = model.reshape(heads, 2, d // 2, columns).swapaxes(1, 2).reshape(model.shape)
    at = stored_rows(PermutedRows(heads), 0, heads * d, heads * d)
    assert torch.equal(stored[torch.as_tensor(list(at))], model)


def test_a_llama_gguf_stores_permuted_rows(tmp_path: Path) -> None:
    config = config_of("smollm2-135m")
    plain = opened(written(config, tmp_path / "hub"))
    path = written(config, tmp_path / "gguf", gguf=True)
    source = open_model(path)
    assert source.header is not None
    for role, name, heads in (("query", "attn_q", 6), ("key", "attn_k", 2)):
        place = source.header.tensors[f"blk.1.{name}.weight"]
        raw = torch.frombuffer(bytearray(path.read_bytes()[place.offset : place.end]), dtype=torch.float32)
        dense = plain.dense(f"layers.1.attention.{role}", torch.float32)
        permuted = dense.reshape(heads, 2, 8, 96).swapaxes(1, 2).reshape(dense.shape)
        assert torch.equal(raw.reshape(dense.shape), permuted)
        packed = open_weights(source).packed(f"layers.1.attention.{role}")
        assert packed is not None
        assert torch.equal(packed.expand(torch.float32), dense)


def test_fused_rows_are_cut_in_the_order_of_the_roles(tmp_path: Path) -> None:
    path = written(config_of("spark-x2.5-4b", attention_bias=True), tmp_path)
    weights, raw = opened(path), load_file(path / "model.safetensors")
    matrix, bias = (raw[f"model.layers.0.self_attn.q_k_v_proj.{end}"] for end in ("weight", "bias"))
    at = 0
    for role, rows in (("query", 128), ("key", 32), ("value", 32)):
        assert torch.equal(weights.dense(f"layers.0.attention.{role}", torch.float32), matrix[at : at + rows])
        assert torch.equal(weights.dense(f"layers.0.attention.{role}_bias", torch.float32), bias[at : at + rows])
        packed = weights.packed(f"layers.0.attention.{role}")
        assert packed is not None
        assert torch.equal(packed.data, matrix[at : at + rows])
        at += rows
    assert at == matrix.shape[0]


def test_a_file_that_does_not_align_its_tensors(tmp_path: Path) -> None:
    path = written(config_of("spark-x2.5-4b", attention_bias=True), tmp_path, format="bf16")
    before = opened(path)
    values = {role: before.dense(role, torch.float32) for role in before.roles}
    file = path / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes((length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :])
    moved.replace(file)
    after = opened(path)
    packed = after.packed("layers.0.attention.key_bias")
    assert packed is not None
    assert not packed.typed
    for role, value in values.items():
        assert torch.equal(after.dense(role, torch.float32), value), role


@pytest.mark.parametrize("gguf", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dense_is_memory_of_its_own(gguf: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    weights = opened(written(config_of("gemma-3-270m"), tmp_path, gguf=gguf))
    for role in ("embedding", "layers.0.mixer_norm", "layers.0.attention.query"):
        first = weights.dense(role, dtype)
        kept = first.clone()
        assert first.is_contiguous()
        assert first.dtype == dtype
        first.zero_()
        assert torch.equal(weights.dense(role, dtype), kept)


def test_one_is_taken_off_before_rounding(tmp_path: Path) -> None:
    config = config_of("gemma-3-270m")
    path = written(config, tmp_path, gguf=True)
    place = open_model(path).header.tensors["output_norm.weight"]
    stored = torch.full(place.shape, 1 + 2.0**-12)  # in bf16 this is 1
    with path.open("r+b") as file:
        file.seek(place.offset)
        file.write(stored.numpy().tobytes())
    weights = opened(path)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert torch.equal(weights.dense("final_norm", dtype), torch.full(place.shape, 2.0**-12, dtype=dtype))
    assert weights.packed("final_norm") is None


def test_packed_is_the_stored_bytes(tmp_path: Path) -> None:
    path = written(config_of("qwen3-4b"), tmp_path, gguf=True, format="q8_0")
    source = open_model(path)
    assert source.header is not None
    weights = open_weights(source)
    place = source.header.tensors["blk.0.ffn_up.weight"]
    packed = weights.packed("layers.0.feed_forward.up")
    assert packed is not None
    assert weights.format("layers.0.feed_forward.up").name == "q8_0"
    assert packed.data.numpy().tobytes() == path.read_bytes()[place.offset : place.end]
    assert weights.nbytes == sum(t.nbytes for t in source.header.tensors.values())


# -- what does not fit -----------------------------------------------------------------------------------------------


def _fault(directory: Path, kind: type[Exception] = WeightsError) -> str:
    with pytest.raises(kind) as caught:
        opened(directory)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_every_misfit_is_named_at_once(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["model.layers.7.extra.weight"] = torch.zeros(2)
        tensors["model.norm.weight"] = torch.zeros(3)

    text = _fault(edited(written(config_of("smollm2-135m"), tmp_path), damage))
    assert "1 missing (model.layers.0.mlp.up_proj.weight)" in text
    assert "1 unexpected (model.layers.7.extra.weight)" in text
    assert "1 misshaped (model.norm.weight in model.safetensors: expected (96,), found (3,))" in text
    assert str(tmp_path) in text


def test_long_lists_are_counted(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "mlp" in name]:
            del tensors[name]

    text = _fault(edited(written(config_of("smollm2-135m"), tmp_path), damage))
    assert re.search(r"6 missing \(([^,]+, ){4}[^,]+ and 1 more\)", text)


def test_a_transposed_weight_is_misshaped(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    path = edited(written(config_of("smollm2-135m"), tmp_path), lambda t: t.update({name: t[name].T.contiguous()}))
    assert f"{name} in model.safetensors: expected (96, 128), found (128, 96)" in _fault(path)


def test_a_type_that_is_no_number_of_a_weight(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    path = edited(written(config_of("smollm2-135m"), tmp_path), lambda t: t.update({name: t[name].to(torch.int32)}))
    text = _fault(path, UnsupportedError)
    assert name in text
    assert "found i32" in text


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = written(config_of("smollm2-135m"), tmp_path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    assert str(file) in _fault(path, FileFormatError)


def test_a_gguf_without_a_tensor(tmp_path: Path) -> None:
    path = written(config_of("qwen3-4b"), tmp_path, gguf=True)
    source = open_model(path)
    assert source.header is not None
    rest = {name: t for name, t in source.header.tensors.items() if name != "blk.1.ffn_gate.weight"}
    with pytest.raises(WeightsError, match=r"1 missing \(blk\.1\.ffn_gate\.weight\)"):
        open_weights(source, rest)


def test_weights_of_another_model(tmp_path: Path) -> None:
    path = written(config_of("smollm2-135m"), tmp_path)
    (path / "config.json").write_text(json.dumps(config_of("gemma-3-270m")))
    text = _fault(path)
    assert "missing" in text
    assert "misshaped" in text


def test_a_catalogue_entry_has_no_weights() -> None:
    with pytest.raises(WeightsError, match="google/gemma-3-27b"):
        open_weights(open_model("gemma-3-27b"))


def test_a_config_alone_has_no_weights(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps(config_of("smollm2-135m")))
    with pytest.raises(WeightsError, match=r"other\.json: a config alone"):
        open_weights(open_model(file))
    path = written(config_of("smollm2-135m"), tmp_path / "both")
    assert opened(path / "config.json").roles == opened(path).roles


# -- how others write ------------------------------------------------------------------------------------------------


def test_a_model_saved_by_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    weights, state = opened(tmp_path), model.state_dict()
    assert len(weights.roles) == len(state)
    pairs = {
        "embedding": "model.embed_tokens.weight",
        "head": "lm_head.weight",
        "final_norm": "model.norm.weight",
        "layers.1.attention.key": "model.layers.1.self_attn.k_proj.weight",
        "layers.1.attention.key_bias": "model.layers.1.self_attn.k_proj.bias",
        "layers.0.feed_forward.down": "model.layers.0.mlp.down_proj.weight",
    }
    for role, name in pairs.items():
        assert torch.equal(weights.dense(role, torch.float32), state[name]), role


@pytest.mark.parametrize(
    ("prefix", "vision"),
    [
        ("model.language_model.", "model.vision_tower.vision_model.head.weight"),
        ("language_model.model.", "vision_tower.vision_model.head.weight"),
        ("", "multi_modal_projector.mm_input_projection_weight"),
    ],
)
def test_prefixes_of_multimodal_files(prefix: str, vision: str, tmp_path: Path) -> None:
    path = written(config_of("gemma-3-4b"), tmp_path)
    before = opened(path).dense("layers.1.attention.query", torch.float32)

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[prefix + name.removeprefix("model.")] = tensors.pop(name)
        tensors[vision] = torch.zeros(1)

    weights = opened(edited(path, rename))
    assert torch.equal(weights.dense("layers.1.attention.query", torch.float32), before)


def test_a_copy_of_a_tied_head_is_accepted(tmp_path: Path) -> None:
    path = written(config_of("smollm2-135m"), tmp_path)
    edited(path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert "head" not in opened(path)


def test_a_head_that_is_not_tied_must_be_there(tmp_path: Path) -> None:
    path = written(config_of("qwen3-8b"), tmp_path)
    assert "head" in opened(path)
    assert "lm_head.weight" in _fault(edited(path, lambda t: t.pop("lm_head.weight")))

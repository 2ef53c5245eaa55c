"""Random checkpoints: what they say, what they hold, that other readers agree, and how they get to their place."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.blueprint.catalog import entry, names
from plait.blueprint.families import family
from plait.blueprint.shrink import tiny
from plait.blueprint.source import from_config, from_gguf, open_model
from plait.blueprint.spec import Attention, Blueprint
from plait.blueprint.tensors import Tensor as Wanted
from plait.blueprint.tensors import inventory
from plait.dtypes import BY_NAME
from plait.engine.tokenizer import load_tokenizer, tokenizer_from_gguf
from plait.errors import PlaitError, UnsupportedError, UsageError
from plait.runtime.blocks import pack
from plait.runtime.checkpoint import Written, write_random
from plait.runtime.checkpoint_files import split
from plait.runtime.checkpoint_gguf import _header, architecture_metadata
from plait.runtime.checkpoint_items import items_of
from plait.runtime.random_values import neutral, random_expert, random_rows, random_values
from plait.runtime.weights import open_weights

GGUF = tuple(name for name in names() if name != "deepseek-v3.2")
"""All of the catalogue that llama.cpp has an architecture for."""

LOADED = (
    "deepseek-v3",
    "gemma-2-9b",
    "gemma-3-270m",
    "gemma-3n-e2b",
    "gemma-4-12b",
    "gemma-4-26b-a4b",
    "gemma-4-e2b",
    "glm-4.5",
    "glm-5",
    "mimo-v2-flash",
    "minimax-m2",
    "qwen3-30b-a3b",
    "qwen3-8b",
    "qwen3-next-80b-a3b",
    "qwen3.5-0.8b",
    "qwen3.5-35b-a3b",
    "smollm2-135m",
)
"""One of each family that transformers has a model class for."""

SOME = ("smollm2-135m", "qwen3-4b", "gemma-2-9b", "gemma-3-270m", "gemma-3-27b", "spark-x2.5-4b")


def config_of(name: str, **changes: object) -> dict[str, Any]:
    found = entry(name)
    assert found is not None
    return {**found.config, **changes}


def blueprint_of(config: Mapping[str, object]) -> Blueprint:
    return from_config(config, file="test", name="test")[0]


def write(config: Mapping[str, Any], out: Path, **options: Any) -> Written:
    return write_random(blueprint_of(config), config, out, **{"seed": 3, "gguf": False, **options})


def text_part(blueprint: Blueprint) -> Blueprint:
    """What a GGUF file of the model holds."""
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, bidirectional_images=False))
        if isinstance(layer.mixer, Attention)
        else layer
        for layer in blueprint.layers
    )
    return replace(blueprint, towers=(), layers=layers, mtp=None, quantization=None)


# -- what a GGUF file says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["published", "tiny"])
@pytest.mark.parametrize("name", GGUF)
def test_metadata_reads_back_as_the_blueprint(name: str, size: str) -> None:
    config = config_of(name) if size == "published" else tiny(config_of(name))
    blueprint = blueprint_of(config)
    layout = family(blueprint.family).gguf_layout(blueprint)
    wanted = {t.role: t for t in inventory(blueprint) if t.part == "text"}
    entries = {item.name: (item.format, item.shape) for item in items_of(layout, wanted, BY_NAME["bf16"], gguf=True)}
    keys = architecture_metadata(blueprint, entries)
    assert from_gguf(_header(keys, entries))[0] == text_part(blueprint)
    prefix = str(keys["general.architecture"]) + "."
    assert keys[prefix + "block_count"] == len(blueprint.layers)
    assert keys[prefix + "context_length"] == blueprint.max_context


def test_what_gguf_has_no_key_for_is_refused(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    for changes, what in (
        ({"rope_scaling": yarn}, "rope.scaling"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}, "window"),
    ):
        config = tiny(config_of("qwen3-4b", **changes))
        with pytest.raises(UnsupportedError, match=what):
            write(config, tmp_path / "out", gguf=True)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", SOME)
def test_a_written_gguf_reads_back(name: str, tmp_path: Path) -> None:
    config = tiny(config_of(name))
    source = open_model(write(config, tmp_path, gguf=True).path)
    assert source.blueprint == text_part(blueprint_of(config))
    assert source.coverage.unknown == ()


def test_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    config = tiny(config_of("gemma-2-9b"))
    path = write(config, tmp_path, gguf=True, format="q8_0").path
    reader, weights = gguf.GGUFReader(path), open_weights(open_model(path))
    assert reader.get_field("gemma2.attention.sliding_window").contents() == 8
    found = {tensor.name: tensor for tensor in reader.tensors}
    for role, name in (("embedding", "token_embd.weight"), ("layers.2.feed_forward.down", "blk.2.ffn_down.weight")):
        values = gguf.quants.dequantize(found[name].data, found[name].tensor_type)
        assert np.array_equal(values, weights.dense(role, torch.float32).numpy())
    norm = found["blk.3.ffn_norm.weight"].data
    assert np.array_equal(norm - 1, weights.dense("layers.3.feed_forward_norm", torch.float32).numpy())


# -- what they hold --------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(-(2**70), 2**70), other=st.integers(0, 10**6))
def test_values_are_a_function_of_seed_and_role(seed: int, other: int) -> None:
    blueprint = blueprint_of(tiny(config_of("smollm2-135m")))
    first, second = [t for t in inventory(blueprint) if t.role.endswith("attention.key")]
    values = random_values(blueprint, first, seed)
    random_values(blueprint, second, other)
    assert torch.equal(random_values(blueprint, first, seed), values)
    assert not torch.equal(random_values(blueprint, second, seed), values)
    assert seed == other or not torch.equal(random_values(blueprint, first, other), values)


def test_rows_are_drawn_in_pieces_and_experts_apart() -> None:
    blueprint = blueprint_of(tiny(config_of("qwen3-30b-a3b")))
    for tensor in inventory(blueprint):
        whole = random_values(blueprint, tensor, 5)
        pieces = list(random_rows(blueprint, tensor, 5))
        assert torch.equal(torch.cat(pieces).reshape(tensor.shape), whole)
        if len(tensor.shape) > 2:
            assert len(pieces) == tensor.shape[0]
            assert torch.equal(random_expert(blueprint, tensor, 5, 2), whole[2])
            assert not torch.equal(whole[0], whole[1])


@pytest.mark.parametrize("rows", [131_072, 131_073, 262_165])
def test_a_tensor_of_several_pieces_is_one_stream(rows: int) -> None:
    """Pieces of 2**22 elements: 131,072 rows of 32; torch's own stream in one call is the oracle."""
    blueprint = blueprint_of(tiny(config_of("smollm2-135m")))
    tensor = Wanted("embedding", (rows, 32), "embedding")
    digest = hashlib.sha256(b"5\0embedding").digest()
    stream = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    whole = torch.randn(rows * 32, generator=stream).reshape(rows, 32) * 32**-0.5
    assert torch.equal(random_values(blueprint, tensor, 5), whole)


@pytest.mark.parametrize(("name", "center"), [("gemma-3-270m", 0.0), ("qwen3-4b", 1.0)])
def test_norms_lie_around_what_multiplies_by_one(name: str, center: float) -> None:
    blueprint = blueprint_of(tiny(config_of(name)))
    for tensor in inventory(blueprint):
        values = random_values(blueprint, tensor, 0)
        if tensor.use == "norm":
            assert neutral(blueprint, tensor.role) == center
            assert abs(values.mean().item() - center) < 0.15
            assert values.std() > 0.03
        elif tensor.part == "text":  # products keep the size of their input
            assert 0.9 < values.std().item() * tensor.shape[-1] ** 0.5 < 1.1


def test_block_formats_are_the_packed_values(tmp_path: Path) -> None:
    config = tiny(config_of("smollm2-135m"))
    plain = open_weights(open_model(write(config, tmp_path / "plain", gguf=True).path))
    packed = open_weights(open_model(write(config, tmp_path / "packed", gguf=True, format="q4_0").path))
    for role in ("embedding", "layers.0.feed_forward.up"):
        stored = packed.packed(role)
        assert stored is not None
        assert torch.equal(stored.data, pack(BY_NAME["q4_0"], plain.dense(role, torch.float32)))
    assert packed.format("final_norm").name == "f32"


def test_rows_that_fill_no_block_are_said(tmp_path: Path) -> None:
    config = tiny(config_of("smollm2-135m"))
    with pytest.raises(UsageError, match="multiple of 256"):
        write(config, tmp_path, gguf=True, format="q4_k")
    some = write({**config, "intermediate_size": 256}, tmp_path, gguf=True, format="q4_k")
    assert any("13 of 15 matrices are f32" in note for note in some.notes)


def test_parts_that_are_left_out_are_said(tmp_path: Path) -> None:
    done = write(tiny(config_of("gemma-3-4b")), tmp_path)
    assert any("vision" in note for note in done.notes)
    assert done.parameters == open_weights(open_model(tmp_path)).nbytes // 4


def test_the_config_names_the_type_of_the_weights(tmp_path: Path) -> None:
    write(tiny(config_of("spark-x2.5-4b")), tmp_path, format="f16")
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float16"
    assert open_model(tmp_path).blueprint.stored_format == "f16"


@settings(deadline=None)
@given(shards=st.integers(1, 20))
def test_shards_keep_the_order_and_none_is_empty(shards: int) -> None:
    blueprint = blueprint_of(tiny(config_of("smollm2-135m")))
    wanted = {t.role: t for t in inventory(blueprint)}
    items = items_of(family("llama").layout(blueprint), wanted, BY_NAME["f32"], gguf=False)
    assert len(items) == 20
    runs = split(items, shards)
    assert [item for run in runs for item in run] == items
    assert len(runs) == shards
    assert all(runs)


def test_other_readers_find_the_tensors(tmp_path: Path) -> None:
    from safetensors import safe_open

    written = write(tiny(config_of("gemma-3-270m")), tmp_path, shards=2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    weights, seen = open_weights(open_model(tmp_path)), 0
    for file in sorted(set(index["weight_map"].values())):
        with safe_open(tmp_path / file, "pt") as reader:
            assert reader.metadata() == {"format": "pt"}
            assert {n for n, f in index["weight_map"].items() if f == file} == set(reader.keys())
            seen += sum(prod(reader.get_slice(name).get_shape()) for name in reader.keys())  # noqa: SIM118
            if "model.norm.weight" in reader.keys():  # noqa: SIM118
                expected = weights.dense("final_norm", torch.float32)
                assert torch.equal(reader.get_tensor("model.norm.weight"), expected)
    assert seen == written.parameters
    assert index["metadata"]["total_size"] == 4 * seen


@pytest.mark.parametrize("name", LOADED)
def test_transformers_loads_every_weight(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = tiny(config_of(name))
    config.pop("quantization_config", None)
    write(config.get("text_config", config), tmp_path)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    logits = model(torch.arange(3, 19)[None]).logits
    assert 0.5 < logits.std() < 2


# -- the tokenizer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_both_containers_have_one_tokenizer(name: str, tmp_path: Path) -> None:
    config = tiny(config_of(name))
    write(config, tmp_path)
    source = open_model(write(config, tmp_path, gguf=True).path)
    assert source.header is not None
    hub, gguf = load_tokenizer(tmp_path), tokenizer_from_gguf(source.header)
    text = "Then the reader went on, über 東京\n\tand </s> the rest."
    tokens = hub.encode(text)
    assert tokens == gguf.encode(text)
    assert max(tokens) < blueprint_of(config).vocabulary
    assert hub.decode(tokens) == gguf.decode(tokens) == text
    assert (hub.bos, hub.eos) == (gguf.bos, gguf.eos)
    assert tokens[0] == hub.bos
    assert not hub.control & set(tokens[1:])
    named = blueprint_of(config).tokens
    assert named.bos in (None, hub.bos)
    assert set(named.eos) == set(hub.eos)


def test_a_vocabulary_too_small_for_a_tokenizer(tmp_path: Path) -> None:
    done = write({**tiny(config_of("smollm2-135m")), "vocab_size": 100}, tmp_path)
    assert any("no tokenizer" in note for note in done.notes)
    assert not (tmp_path / "tokenizer.json").exists()
    assert open_weights(open_model(tmp_path)).shape("embedding") == (100, 96)


# -- getting there ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_in_the_way(tmp_path: Path) -> None:
    config = tiny(config_of("smollm2-135m"))
    write(config, tmp_path, shards=3)
    (tmp_path / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="--force"):
        write(config, tmp_path, seed=4)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    write(config, tmp_path, seed=4, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "notes.txt",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    fresh = tmp_path.parent / "fresh"
    write(config, fresh, seed=4)
    role = "layers.1.attention.query"
    a, b = (open_weights(open_model(place)).dense(role, torch.float32) for place in (tmp_path, fresh))
    assert torch.equal(a, b)
    shutil.rmtree(fresh)


@pytest.mark.parametrize("gguf", [False, True])
def test_an_interrupt_leaves_what_was_there(gguf: bool, tmp_path: Path) -> None:
    config, out = tiny(config_of("smollm2-135m")), tmp_path / "out"
    write(config, out, gguf=gguf)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    calls = []

    def stop(done: int, total: int) -> None:
        calls.append((done, total))
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(config, out, gguf=gguf, seed=9, force=True, progress=stop)
    assert calls
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(KeyboardInterrupt):
        write(config, tmp_path / "new", gguf=gguf, progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UsageError, match="free space"):
        write(tiny(config_of("smollm2-135m")), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    config = tiny(config_of("smollm2-135m"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="a directory"):
        write(config, tmp_path / "file")
    with pytest.raises(PlaitError, match="cannot be written"):
        write(config, tmp_path / "file" / "below")


@pytest.mark.parametrize(
    "options",
    [
        {"format": "q8_0"},
        {"format": "f8_e4m3", "gguf": True},
        {"shards": 0},
        {"shards": 21},
        {"shards": 2, "gguf": True},
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        write(tiny(config_of("smollm2-135m")), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())

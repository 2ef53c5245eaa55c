"""Gemma 3n and 4 in GGUF files, with keys and tensors as the gguf package's writer has them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gemma_configs import FULL, KINDS, MIXTURE, SLIDING, gemma3n_text, gemma4_text, misfits, read
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

from plait.account.parameters import parameters_of
from plait.blueprint.families import family, gemma3n, gemma4
from plait.blueprint.source import open_model
from plait.blueprint.spec import Attention, Blueprint, FactorScaling
from plait.blueprint.tensors import inventory
from plait.errors import ConfigError, PlaitError, UnsupportedError

Tensors = dict[str, tuple[int, ...]]
CLIP = 1e30


def write(path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]]) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        match value:
            case bool():
                writer.add_bool(f"{arch}.{key}", value)
            case int():
                writer.add_uint32(f"{arch}.{key}", value)
            case float():
                writer.add_float32(f"{arch}.{key}", value)
            case list():
                writer.add_array(f"{arch}.{key}", value)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(blueprint: Blueprint) -> Tensors:
    """Names and shapes of a file, as the converter joins them: experts and streams stacked."""
    roles = {tensor.role: tensor.shape for tensor in inventory(blueprint)}
    found: Tensors = {}
    for binding in family(blueprint.family).gguf_layout(blueprint).bindings:
        shapes = [roles[role] for role in binding.roles]
        if len(shapes) == 1:
            shape = shapes[0]
        elif len(shapes[0]) == 3:
            shape = (shapes[0][0], sum(s[1] for s in shapes), shapes[0][2])
        else:
            shape = (len(shapes), *shapes[0])
        found[binding.names[0]] = shape
    return found


def filled(tensors: Tensors) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.zeros(shape, np.float32) for name, shape in tensors.items()}


def rope_factors(blueprint: Blueprint) -> dict[str, np.ndarray[Any, Any]]:
    full = next(m for layer in blueprint.layers if isinstance(m := layer.mixer, Attention) and m.window is None)
    assert full.rope is not None
    still = full.qk_dim // 2 - full.rope.pairs
    return {"rope_freqs.weight": np.array([1.0] * full.rope.pairs + [CLIP] * still, np.float32)}


def converted(config: dict[str, Any]) -> dict[str, Any]:
    """The keys the converter of llama.cpp writes for a text config."""
    kinds = [kind == SLIDING for kind in config["layer_types"]]
    keys: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": kinds,
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": 30.0,
        "rope.freq_base": 1_000_000.0,
        "rope.freq_base_swa": 10_000.0,
        "vocab_size": config["vocab_size"],
    }
    if config["model_type"] == "gemma3n_text":
        return {
            **keys,
            "attention.key_length": config["head_dim"],
            "attention.value_length": config["head_dim"],
            "altup.active_idx": 0,
            "altup.num_inputs": 4,
            # 0.95 and 0.9 as float32 quantiles; none of the others is cut.
            "activation_sparsity_scale": [1.6448533535003662, 1.2815515995025635, *[float("-inf")] * 4],
        }
    if (full := config["num_global_key_value_heads"]) is not None:
        keys["attention.head_count_kv"] = [2 if sliding else full for sliding in kinds]
    if config.get("use_double_wide_mlp"):
        first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
        keys["feed_forward_length"] = [56 if i < first else 112 for i in range(6)]
    if config.get("enable_moe_block"):
        keys |= {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24}
    return {
        **keys,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
    }


GEMMA4 = {
    "dense": gemma4_text(),
    "keys are values": gemma4_text(attention_k_eq_v=True, num_global_key_value_heads=1),
    "same heads": gemma4_text(attention_k_eq_v=True, num_global_key_value_heads=2),
    "mixture": gemma4_text(attention_k_eq_v=True, num_global_key_value_heads=1, **MIXTURE),
    "edge": gemma4_text(hidden_size_per_layer_input=8, num_kv_shared_layers=3, use_double_wide_mlp=True),
    "rotated by half": gemma4_text(
        rope_parameters={
            FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        }
    ),
}


@pytest.mark.parametrize("config", GEMMA4.values(), ids=GEMMA4.keys())
def test_gemma4_file_and_config_are_one_model(config: dict[str, Any], tmp_path: Path) -> None:
    wanted = read(config)
    tensors = {**filled(tensors_of(wanted)), **rope_factors(wanted)}
    for keys in (converted(config), gemma4.gguf_metadata(wanted)):
        source = open_model(write(tmp_path / "m.gguf", "gemma4", keys, tensors))
        assert source.blueprint == wanted
        assert source.coverage.unknown == ()
        counted = parameters_of(source)
        assert counted.differences == ()
        assert counted.in_file == sum(prod(t.shape) for t in tensors.values())


@pytest.mark.parametrize("shared", [0, 3])
def test_gemma3n_file_and_config_are_one_model(shared: int, tmp_path: Path) -> None:
    config = gemma3n_text(num_kv_shared_layers=shared)
    wanted = read(config)
    tensors = filled(tensors_of(wanted))
    assert tensors["altup_proj.weight"].shape == (3, 48, 48)
    for keys in (converted(config), gemma3n.gguf_metadata(wanted)):
        source = open_model(write(tmp_path / "m.gguf", "gemma3n", keys, tensors))
        assert source.blueprint == wanted
        assert source.coverage.unknown == ()
        assert parameters_of(source).differences == ()


def test_metadata_alone(tmp_path: Path) -> None:
    for name in ("dense", "keys are values", "mixture"):
        wanted = read(GEMMA4[name])
        found = open_model(write(tmp_path / "m.gguf", "gemma4", gemma4.gguf_metadata(wanted), {})).blueprint
        assert found == wanted
    plain = read(gemma3n_text(vocab_size_per_layer_input=300, laurel_rank=64))
    found = open_model(write(tmp_path / "m.gguf", "gemma3n", gemma3n.gguf_metadata(plain), {})).blueprint
    assert found == plain


def test_the_12b_reads_as_the_text_model_of_its_config(tmp_path: Path) -> None:
    wanted = open_model("gemma-4-12b").blueprint
    found = open_model(write(tmp_path / "m.gguf", "gemma4", family("gemma4_unified").gguf_metadata(wanted), {}))
    without = tuple(
        replace(layer, mixer=replace(layer.mixer, bidirectional_images=False))
        for layer in wanted.layers
        if isinstance(layer.mixer, Attention)
    )
    assert found.blueprint == replace(wanted, towers=(), layers=without)


@pytest.mark.parametrize("arch", [MODEL_ARCH.GEMMA3N, MODEL_ARCH.GEMMA4])
def test_names_are_the_formats_own(arch: MODEL_ARCH) -> None:
    configs = [gemma3n_text()] if arch == MODEL_ARCH.GEMMA3N else list(GEMMA4.values())
    known = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[arch]}
    module = family(MODEL_ARCH_NAMES[arch])
    for config in configs:
        blueprint = read(config)
        for name in tensors_of(blueprint):
            stem = name.rpartition(".")[0]
            parts = stem.split(".")
            if parts[0] == "blk":
                parts[1] = "{bid}"
            assert ".".join(parts) in known, name
        keys = {
            value.removeprefix("{arch}.")
            for group in (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope)
            for value in vars(group).values()
            if isinstance(value, str)
        }
        assert set(module.gguf_metadata(blueprint)) <= keys


def test_experts_in_one_tensor_each_are_read_too() -> None:
    blueprint = read(GEMMA4["mixture"])
    tensors = tensors_of(blueprint)
    assert misfits(blueprint, tensors, gguf=True) == []
    for i in range(6):
        del tensors[f"blk.{i}.ffn_gate_up_exps.weight"]
        tensors |= {f"blk.{i}.ffn_{part}_exps.weight": (6, 24, 48) for part in ("gate", "up")}
    assert misfits(blueprint, tensors, gguf=True) == []


def test_unused_keys_and_values_are_accepted() -> None:
    for blueprint in (read(GEMMA4["edge"]), read(gemma3n_text())):
        tensors = tensors_of(blueprint)
        spare: Tensors = {}
        for i, kind in enumerate(KINDS[3:], start=3):
            size = 32 if kind == FULL and blueprint.family == "gemma4" else 16
            spare |= {f"blk.{i}.attn_{k}.weight": (2 * size, 48) for k in "kv"}
            spare[f"blk.{i}.attn_k_norm.weight"] = (size,)
        assert misfits(blueprint, {**tensors, **spare}, gguf=True) == []
        assert misfits(blueprint, {**tensors, "blk.0.attn_kk.weight": (1, 1)}, gguf=True) == ["blk.0.attn_kk.weight"]


def test_odd_frequency_factors(tmp_path: Path) -> None:
    config = GEMMA4["dense"]
    tensors = filled(tensors_of(read(config)))

    def rope(factors: list[float]) -> object:
        data = {**tensors, "rope_freqs.weight": np.array(factors, np.float32)}
        mixer = open_model(write(tmp_path / "m.gguf", "gemma4", converted(config), data)).blueprint.layers[2].mixer
        assert isinstance(mixer, Attention)
        assert mixer.rope is not None
        return mixer.rope.pairs, mixer.rope.scaling

    assert rope([1.0] * 16) == (16, None)
    assert rope([2.0, 4.0] + [CLIP] * 14) == (2, FactorScaling((2.0, 4.0)))
    for wrong in ([1.0] * 8, [CLIP] + [1.0] * 15):
        with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight"):
            rope(wrong)


@pytest.mark.parametrize(
    ("arch", "changes", "says"),
    [
        ("gemma4", {"rope.dimension_count": 16}, "the head size 32"),
        ("gemma4", {"attention.sliding_window_pattern": [True] * 3}, "6 entries"),
        ("gemma4", {"feed_forward_length": [8, 8]}, "6 entries"),
        ("gemma4", {"attention.shared_kv_layers": 6}, "shared_kv_layers"),
        ("gemma4", {"attention.key_length": 0}, "at least 1"),
        ("gemma3n", {"altup.active_idx": 4}, "one of 4 streams"),
        ("gemma3n", {"activation_sparsity_scale": [0.5]}, "6 entries"),
        ("gemma3n", {"activation_sparsity_scale": [float("nan")] * 6}, "finite numbers"),
        ("gemma3n", {"activation_sparsity_scale": [float("inf")] * 6}, "shares below 1"),
        ("gemma3n", {"attention.value_length": 8}, "the key length 16"),
    ],
)
def test_refused(arch: str, changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    keys = {**converted(gemma4_text() if arch == "gemma4" else gemma3n_text()), **changes}
    with pytest.raises(ConfigError, match=says) as caught:
        open_model(write(tmp_path / "m.gguf", arch, keys, {}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arch", ["gemma4", "gemma3n"])
def test_every_missing_key_is_a_default_or_an_error(arch: str, tmp_path: Path) -> None:
    keys = converted(gemma4_text() if arch == "gemma4" else gemma3n_text())
    for key in keys:
        path = write(tmp_path / "m.gguf", arch, {k: v for k, v in keys.items() if k != key}, {})
        try:
            open_model(path)
        except PlaitError as error:
            assert "\n" not in str(error)

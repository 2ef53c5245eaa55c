"""Every role of every family, out of files as transformers saves them and as models are published otherwise.

The oracle is the state dict of the transformers model, cut by hand: fused projections head by head, experts apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from plait.blueprint.source import open_model
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet
from plait.errors import WeightsError
from plait.runtime.weights import Weights, open_weights

# Below `layers.N.`: role and the name in a state dict.
_BELOW = {
    "mixer_norm": "input_layernorm.weight",
    "attention.query": "self_attn.q_proj.weight",
    "attention.query_bias": "self_attn.q_proj.bias",
    "attention.key": "self_attn.k_proj.weight",
    "attention.key_bias": "self_attn.k_proj.bias",
    "attention.value": "self_attn.v_proj.weight",
    "attention.value_bias": "self_attn.v_proj.bias",
    "attention.output": "self_attn.o_proj.weight",
    "attention.output_bias": "self_attn.o_proj.bias",
    "attention.query_norm": "self_attn.q_norm.weight",
    "attention.key_norm": "self_attn.k_norm.weight",
    "attention.sinks": "self_attn.sinks",
    "attention.query_down": "self_attn.q_a_proj.weight",
    "attention.query_down_bias": "self_attn.q_a_proj.bias",
    "attention.query_latent_norm": "self_attn.q_a_layernorm.weight",
    "attention.query_up": "self_attn.q_b_proj.weight",
    "attention.key_value_down": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.key_value_down_bias": "self_attn.kv_a_proj_with_mqa.bias",
    "attention.key_value_norm": "self_attn.kv_a_layernorm.weight",
    "attention.key_value_up": "self_attn.kv_b_proj.weight",
    "attention.indexer.query": "self_attn.indexer.wq_b.weight",
    "attention.indexer.key": "self_attn.indexer.wk.weight",
    "attention.indexer.key_norm": "self_attn.indexer.k_norm.weight",
    "attention.indexer.key_norm_bias": "self_attn.indexer.k_norm.bias",
    "attention.indexer.weights": "self_attn.indexer.weights_proj.weight",
    "delta.query_key_value": "linear_attn.in_proj_qkv.weight",
    "delta.gate": "linear_attn.in_proj_z.weight",
    "delta.beta": "linear_attn.in_proj_b.weight",
    "delta.decay": "linear_attn.in_proj_a.weight",
    "delta.decay_log": "linear_attn.A_log",
    "delta.time_step_bias": "linear_attn.dt_bias",
    "delta.output_norm": "linear_attn.norm.weight",
    "delta.output": "linear_attn.out_proj.weight",
    "feed_forward.gate": "mlp.gate_proj.weight",
    "feed_forward.gate_bias": "mlp.gate_proj.bias",
    "feed_forward.up": "mlp.up_proj.weight",
    "feed_forward.up_bias": "mlp.up_proj.bias",
    "feed_forward.down": "mlp.down_proj.weight",
    "feed_forward.down_bias": "mlp.down_proj.bias",
    "feed_forward.router_scale": "router.scale",
    "feed_forward.expert_scale": "router.per_expert_scale",
    "feed_forward.shared_gate": "mlp.shared_expert_gate.weight",
    "feed_forward.dense_post_norm": "post_feedforward_layernorm_1.weight",
    "feed_forward.mixture_norm": "pre_feedforward_layernorm_2.weight",
    "feed_forward.mixture_post_norm": "post_feedforward_layernorm_2.weight",
    "feed_forward_post_norm": "post_feedforward_layernorm.weight",
    "per_layer_input.gate": "per_layer_input_gate.weight",
    "per_layer_input.projection": "per_layer_projection.weight",
    "per_layer_input.norm": "post_per_layer_input_norm.weight",
    "laurel.left": "laurel.linear_left.weight",
    "laurel.right": "laurel.linear_right.weight",
    "laurel.norm": "laurel.post_laurel_norm.weight",
    "altup.correct_scale": "altup.correct_output_scale",
    "altup.correction": "altup.correction_coefs.weight",
    "altup.prediction": "altup.prediction_coefs.weight",
    "altup.router": "altup.modality_router.weight",
    "altup.router_norm": "altup.router_norm.weight",
    "scalar": "layer_scalar",
}
_HALVES = ("attention.query", "attention.gate")  # of each head, where the gate has a number per element
_TOP = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "per_layer_embedding": "model.embed_tokens_per_layer.weight",
    "per_layer_projection": "model.per_layer_model_projection.weight",
    "per_layer_norm": "model.per_layer_projection_norm.weight",
}


def wanted(state: dict[str, Tensor], blueprint: Blueprint, role: str) -> Tensor:
    """What the state dict of a transformers model has for a role."""
    if role in _TOP:
        return state[_TOP[role]]
    if role.startswith("altup."):
        _, kind, number = role.split(".")
        stem = {"projection": "altup_projections", "unembedding": "altup_unembed_projections"}[kind]
        return state[f"model.{stem}.{int(number) - 1}.weight"]
    _, number, below = role.split(".", 2)
    layer = f"model.layers.{number}."
    mixer = blueprint.layers[int(number)].mixer
    sandwich = blueprint.layers[int(number)].mixer_post_norm is not None
    if below in ("feed_forward_norm", "mixer_post_norm"):
        before = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
        return state[f"{layer}{before if below == 'feed_forward_norm' else 'post_attention_layernorm'}.weight"]
    if isinstance(mixer, Attention) and mixer.gate is not None and below.removesuffix("_bias") in _HALVES:
        fused = state[f"{layer}self_attn.q_proj.{'bias' if below.endswith('_bias') else 'weight'}"]
        halves = fused.reshape(mixer.heads, 2, mixer.qk_dim, -1)[:, int("gate" in below)]
        return halves.reshape(mixer.heads * mixer.qk_dim, *fused.shape[1:])
    if isinstance(mixer, GatedDeltaNet) and below.startswith("delta."):
        found = _delta(state, layer + "linear_attn.", mixer, below.removeprefix("delta."))
        if found is not None:
            return found
    if below.startswith(("feed_forward.experts.", "feed_forward.shared.", "feed_forward.router")):
        found = _mixture(state, layer, below.removeprefix("feed_forward."))
        if found is not None:
            return found
    return state[layer + _BELOW[below]]


def _delta(state: dict[str, Tensor], prefix: str, mixer: GatedDeltaNet, below: str) -> Tensor | None:
    if below == "convolution":
        return state[f"{prefix}conv1d.weight"][:, 0]
    if f"{prefix}in_proj_qkvz.weight" not in state:
        return None
    repeats = mixer.value_heads // mixer.key_heads
    dims = [mixer.key_dim, mixer.key_dim, repeats * mixer.value_dim, repeats * mixer.value_dim]
    if below in ("query_key_value", "gate"):
        fused = state[f"{prefix}in_proj_qkvz.weight"]
        q, k, v, z = fused.reshape(mixer.key_heads, sum(dims), -1).split(dims, 1)
        return z.flatten(0, 1) if below == "gate" else torch.cat([part.flatten(0, 1) for part in (q, k, v)])
    if below in ("beta", "decay"):
        fused = state[f"{prefix}in_proj_ba.weight"]
        return fused.reshape(mixer.key_heads, 2, repeats, -1)[:, int(below == "decay")].flatten(0, 1)
    return None


def _mixture(state: dict[str, Tensor], layer: str, below: str) -> Tensor | None:
    def either(*names: str) -> Tensor:
        return next(state[layer + name] for name in names if layer + name in state)

    match below.split("."):
        case ["router"]:
            return either("mlp.gate.weight", "router.proj.weight")
        case ["router_bias"]:
            return either("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias")
        case ["experts", "down"]:
            return either("mlp.experts.down_proj", "experts.down_proj")
        case ["experts", which]:
            gate, up = either("mlp.experts.gate_up_proj", "experts.gate_up_proj").chunk(2, 1)
            return gate if which == "gate" else up
        case ["shared", which]:
            return either(f"mlp.shared_experts.{which}_proj.weight", f"mlp.shared_expert.{which}_proj.weight")
    return None


@cache
def state_of(name: str) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in tiny.reference_model(name).state_dict().items()}


def check(weights: Weights, blueprint: Blueprint, state: dict[str, Tensor]) -> None:
    """Every role, whole, expert by expert, and as stored where that is offered, is the right slice bit for bit."""
    for role in weights.roles:
        expected = wanted(state, blueprint, role)
        assert weights.shape(role) == expected.shape, role
        assert torch.equal(weights.dense(role, torch.float32), expected), role
        packed = weights.packed(role)
        assert packed is None or torch.equal(packed.expand(torch.float32), expected), role
        if len(expected.shape) > 1:
            for index in (0, expected.shape[0] - 1):
                assert torch.equal(weights.dense_at(role, index, torch.float32), expected[index]), role
                part = weights.packed_at(role, index)
                assert part is None or torch.equal(part.expand(torch.float32), expected[index]), role


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_model_saved_by_transformers(name: str, tmp_path: Path) -> None:
    source = open_model(tiny.save(name, tmp_path))
    weights = open_weights(source)
    check(weights, source.blueprint, state_of(name))
    for role in weights.roles:
        if ".experts." in role:
            assert weights.packed_at(role, 1) is not None, role


def laid_out(name: str, directory: Path, edit: Callable[[dict[str, Tensor]], Any]) -> tuple[Weights, Blueprint]:
    """The checkpoint as transformers saves it, its tensors changed by `edit`."""
    tiny.save(name, directory)
    file = directory / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(file).items()}
    edit(tensors)
    save_file({key: value.contiguous() for key, value in tensors.items()}, file, metadata={"format": "pt"})
    source = open_model(directory)
    return open_weights(source), source.blueprint


_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def fuse(tensors: dict[str, Tensor]) -> None:
    """One tensor an expert becomes two a layer."""
    found: dict[tuple[str, str], dict[int, Tensor]] = {}
    for key in list(tensors):
        if (match := _EXPERT.fullmatch(key)) is not None:
            found.setdefault((match[1], match[3]), {})[int(match[2])] = tensors.pop(key)
    assert found
    stacks = {key: torch.stack([each[i] for i in range(len(each))]) for key, each in found.items()}
    for stem in {stem for stem, _ in stacks}:
        tensors[f"{stem}.gate_up_proj"] = torch.cat((stacks[stem, "gate"], stacks[stem, "up"]), 1)
        tensors[f"{stem}.down_proj"] = stacks[stem, "down"]


def part(tensors: dict[str, Tensor]) -> None:
    """Two tensors a layer become one an expert."""
    for key in [key for key in tensors if key.endswith("experts.gate_up_proj")]:
        stem = key.removesuffix(".gate_up_proj")
        for i, (both, down) in enumerate(zip(tensors.pop(key), tensors.pop(f"{stem}.down_proj"), strict=True)):
            gate, up = both.chunk(2)
            tensors |= {f"{stem}.{i}.gate_proj.weight": gate, f"{stem}.{i}.up_proj.weight": up}
            tensors[f"{stem}.{i}.down_proj.weight"] = down


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_next", "qwen3_5_moe"])
@pytest.mark.parametrize("fused", [True, False])
def test_experts_fused_and_apart(name: str, fused: bool, tmp_path: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        is_fused = any(key.endswith("experts.gate_up_proj") for key in tensors)
        if fused != is_fused:
            (fuse if fused else part)(tensors)

    weights, blueprint = laid_out(name, tmp_path, edit)
    check(weights, blueprint, state_of(name))
    stacks = [role for role in weights.roles if ".experts." in role]
    assert all(weights.packed_at(role, 0) is not None for role in stacks)
    assert all((weights.packed(role) is not None) == fused for role in stacks)


def test_an_expert_is_read_alone(tmp_path: Path) -> None:
    weights, _ = laid_out("qwen3_moe", tmp_path, lambda t: None)
    role = next(role for role in weights.roles if ".experts." in role)
    count = weights.shape(role)[0]
    for wrong in (-1, count):
        with pytest.raises(IndexError):
            weights.dense_at(role, wrong, torch.float32)
        with pytest.raises(IndexError):
            weights.packed_at(role, wrong)
    with pytest.raises(ValueError, match="no elements with rows"):
        weights.dense_at("final_norm", 0, torch.float32)


def test_experts_of_unlike_shapes_are_named(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    expected = rf"1 misshaped \({re.escape(name)} in model\.safetensors: expected"
    with pytest.raises(WeightsError, match=expected) as caught:
        laid_out("qwen3_moe", tmp_path, lambda t: t.update({name: t[name][:-1]}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gemma4_e2b", "gemma3n"])
@pytest.mark.parametrize("there", [True, False])
def test_unused_shared_keys_and_values(name: str, there: bool, tmp_path: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        for key in list(tensors):
            if (match := re.search(r"layers\.(\d+)\.self_attn\.q_proj", key)) is None:
                continue
            prefix = key.split("layers.")[0] + f"layers.{match[1]}.self_attn."
            for word in ("k_proj.weight", "v_proj.weight", "k_norm.weight"):
                if int(match[1]) in reusing:
                    tensors.pop(prefix + word, None)
                    if there:
                        tensors[prefix + word] = torch.ones(3, 5)

    layers = open_model(tiny.save(name, tmp_path / "first")).blueprint.layers
    reusing = {i for i, x in enumerate(layers) if isinstance(x.mixer, Attention) and x.mixer.kv_source is not None}
    assert reusing
    weights, blueprint = laid_out(name, tmp_path / "then", edit)
    check(weights, blueprint, state_of(name))


def test_shared_experts_without_rows(tmp_path: Path) -> None:
    """transformers saves the tensors of no shared expert too, with no rows; one with rows is still unexpected."""
    name = "model.layers.1.mlp.shared_experts.up_proj.weight"

    def add(rows: int) -> Callable[[dict[str, Tensor]], None]:
        return lambda tensors: tensors.update({name: torch.ones(rows, 40)})

    weights, blueprint = laid_out("mimo_v2_flash", tmp_path / "none", add(0))
    check(weights, blueprint, state_of("mimo_v2_flash"))
    with pytest.raises(WeightsError, match=f"1 unexpected \\({re.escape(name)}"):
        laid_out("mimo_v2_flash", tmp_path / "one", add(1))


def test_a_copy_of_the_head_and_prediction_layers(tmp_path: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors["mtp.layers.0.mlp.up_proj.weight"] = torch.ones(4, 4)
        tensors["mtp.fc.weight"] = torch.ones(4, 8)
        if "lm_head.weight" not in tensors:
            embedding = next(value for key, value in tensors.items() if key.endswith("embed_tokens.weight"))
            tensors["lm_head.weight"] = embedding.clone()

    for name in ("qwen3_5", "qwen3_next"):
        weights, blueprint = laid_out(name, tmp_path / name, edit)
        check(weights, blueprint, state_of(name))


def test_the_table_of_per_layer_embeddings_is_read_row_by_row(tmp_path: Path) -> None:
    weights, _ = laid_out("gemma4_e2b", tmp_path, lambda t: None)
    table = weights.packed("per_layer_embedding")
    assert table is not None
    expected = state_of("gemma4_e2b")["model.embed_tokens_per_layer.weight"]
    ids = torch.tensor([[3, 0], [7, 3]])
    assert torch.equal(table.rows(ids, torch.float32), expected[ids])

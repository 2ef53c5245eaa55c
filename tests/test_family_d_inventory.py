"""Inventory and layout of the sigmoid-routed families against transformers' models, built without memory.

transformers joins gate and up projections of all experts in memory and saves each expert apart, under the published
names: the comparison is with what it would save.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from math import prod
from typing import Any

import pytest
import torch
import transformers
from configs import read
from routed_configs import CLASSES, deepseek_v3, deepseek_v32, glm_4_5, glm_5, mimo, minimax
from transformers.core_model_loading import revert_weight_conversion

from plait.account.parameters import parameters
from plait.blueprint.families import family
from plait.blueprint.layout import resolved
from plait.blueprint.spec import Blueprint
from plait.blueprint.tensors import inventory

Config = dict[str, Any]


def built(config: Config) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The model on the meta device, and name -> shape of what it would save."""
    name = CLASSES[config["model_type"]]
    own = getattr(transformers, f"{name}Config").from_dict(deepcopy(config))
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(own)
    saved = revert_weight_conversion(model, model.state_dict())
    return model, {key: tuple(value.shape) for key, value in saved.items()}


def check_layout(blueprint: Blueprint, saved: Mapping[str, tuple[int, ...]]) -> None:
    """Every name is bound, every role is found, all shapes fit."""
    layout = family(blueprint.family).layout(blueprint)
    shapes = {tensor.role: tensor.shape for tensor in inventory(blueprint) if tensor.part == "text"}
    bindings = resolved(layout, saved)
    names = [name for binding in bindings for name in binding.names]
    assert len(names) == len(set(names))
    assert set(names) == set(saved) - ({"lm_head.weight"} if blueprint.head.tied else set())
    assert [role for binding in bindings for role in binding.roles] == list(shapes)
    for binding in bindings:
        (role,) = binding.roles
        parts = [saved[name] for name in binding.names]
        if len(parts) == 1:
            assert parts[0] == shapes[role], role
        else:
            assert all(part == shapes[role][1:] for part in parts) and len(parts) == shapes[role][0], role


VARIANTS: tuple[tuple[Callable[[], Config], Config], ...] = (
    (deepseek_v3, {}),
    (deepseek_v3, {"q_lora_rank": None, "attention_bias": True}),
    (deepseek_v3, {"attention_bias": True, "n_shared_experts": 2, "first_k_dense_replace": 0}),
    (deepseek_v32, {}),
    (deepseek_v32, {"attention_bias": True, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"]}),
    (glm_5, {}),
    (glm_5, {"indexer_types": ["full", "shared", "full", "shared"], "attention_bias": True}),
    (glm_4_5, {}),
    (glm_4_5, {"use_qk_norm": False, "attention_bias": False, "first_k_dense_replace": 4}),
    (glm_4_5, {"tie_word_embeddings": True}),
    (mimo, {}),
    (mimo, {"attention_bias": True}),
    (minimax, {}),
)


@pytest.mark.parametrize(("family_config", "changes"), VARIANTS)
def test_every_tensor_has_its_place(family_config: Callable[[], Config], changes: Config) -> None:
    config = {**family_config(), **changes}
    if "mlp_layer_types" in changes:
        config = {**config, "first_k_dense_replace": 3}
    model, saved = built(config)
    blueprint = read(config)
    check_layout(blueprint, saved)
    account = parameters(blueprint)
    assert account.used == sum(parameter.numel() for parameter in model.parameters())
    biases = {name: shape for name, shape in saved.items() if name.endswith("e_score_correction_bias")}
    mtp = [t for t in inventory(blueprint) if t.part == "mtp" and t.role.endswith("router_bias")]
    assert account.beyond.router_bias == sum(map(prod, biases.values())) + sum(t.elements for t in mtp)
    per_layer = re.compile(r"model\.layers\.(\d+)\.")
    for index in range(len(blueprint.layers)):
        own = sum(t.elements for t in inventory(blueprint) if t.role.startswith(f"layers.{index}."))
        assert own == sum(prod(s) for n, s in saved.items() if (m := per_layer.match(n)) and int(m[1]) == index)


@pytest.mark.parametrize("config", [deepseek_v3(), glm_4_5()], ids=["deepseek_v3", "glm4_moe"])
def test_prediction_layers_as_transformers_builds_them(config: Config) -> None:
    """The generic prediction layer of transformers: two norms, a projection, a layer, a norm; no head of its own."""
    from transformers.modeling_layers import MtpModel

    model, _ = built(config)
    blueprint = read(config)
    with torch.device("meta"):
        made = MtpModel(model, num_mtp_layers=1)
    own = sum(parameter.numel() for parameter in made.layers.parameters())
    assert parameters(blueprint).beyond.mtp == own
    assert blueprint.mtp is not None
    assert (blueprint.mtp.copies_embedding, blueprint.mtp.copies_head) == (True, True)
    assert parameters(blueprint).beyond.duplicates == 2 * 301 * 32


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (deepseek_v3(), ("model.layers.4.embed_tokens.weight", "model.layers.4.mlp.experts.7.up_proj.weight")),
        (deepseek_v32(), ("model.layers.4.shared_head.head.weight", "model.layers.4.self_attn.indexer.wk.weight")),
        (glm_5(), ("model.layers.4.eh_proj.weight", "model.layers.4.mlp.gate.e_score_correction_bias")),
        (mimo(), ("model.mtp.layers.0.eh_proj.weight", "model.mtp.layers.2.self_attn.attention_sink_bias")),
    ],
)
def test_prediction_layers_of_files_are_known(config: Config, names: tuple[str, ...]) -> None:
    blueprint = read(config)
    ignored = family(blueprint.family).layout(blueprint).ignored
    for name in names:
        assert any(item.mtp and re.fullmatch(item.pattern, name) for item in ignored), name
    # The model's own layers, and those a file cannot have, are not among them.
    for name in ("model.layers.3.eh_proj.weight", "model.layers.5.eh_proj.weight", "model.layers.40.mlp.gate.weight"):
        assert not any(re.fullmatch(item.pattern, name) for item in ignored), name


def test_without_prediction_layers_their_tensors_are_unexpected() -> None:
    blueprint = read({**deepseek_v3(), "num_nextn_predict_layers": 0})
    assert blueprint.mtp is None
    ignored = family("deepseek_v3").layout(blueprint).ignored
    assert not any(re.fullmatch(item.pattern, "model.layers.4.eh_proj.weight") for item in ignored)


def test_published_names_of_minimax() -> None:
    """w1, w3, w2 are gate, up, down; the selection bias lies beside the router."""
    blueprint = read(minimax())
    names = {b.roles[0]: b.names for b in family("minimax_m2").layout(blueprint).bindings}
    prefix = "{body}layers.1.block_sparse_moe"
    for role, weight in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        expected = tuple(f"{prefix}.experts.{i}.{weight}.weight" for i in range(8))
        assert names[f"layers.1.feed_forward.experts.{role}"] == expected
    assert names["layers.1.feed_forward.router_bias"] == (f"{prefix}.e_score_correction_bias",)

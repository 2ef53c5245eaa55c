"""Where files keep the tensors of the Qwen families: against the reference's own models, and GGUF's constants."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import qwen_configs
import torch
from configs import read
from qwen_configs import HYBRID, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next

from plait.account.parameters import parameters
from plait.blueprint.families import ARCHITECTURES, family
from plait.blueprint.layout import Binding, Chained, GroupedRows, Layout, MinusOne, NegatedExp, TiledHeads, resolved
from plait.blueprint.source import from_gguf, open_model
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet
from plait.blueprint.tensors import inventory
from plait.errors import ConfigError, UnsupportedError

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def without_tower(config: Config) -> Config:
    return config["text_config"]


# Every feature of a family on and off: biases, dense layers among experts, tying, one repeat of a key head, no tower.
CASES: dict[str, tuple[str, Config]] = {
    "experts": ("Qwen3MoeForCausalLM", qwen3_moe()),
    "dense among experts": ("Qwen3MoeForCausalLM", {**qwen3_moe(), "mlp_only_layers": [1]}),
    "tied": ("Qwen3MoeForCausalLM", {**qwen3_moe(), "tie_word_embeddings": True}),
    "biases": ("Qwen3MoeForCausalLM", {**qwen3_moe(), "attention_bias": True}),
    "next": ("Qwen3NextForCausalLM", qwen3_next()),
    "next with biases": ("Qwen3NextForCausalLM", {**qwen3_next(), "attention_bias": True, "decoder_sparse_step": 2}),
    "next, another pattern": ("Qwen3NextForCausalLM", {**qwen3_next(), "full_attention_interval": 2}),
    "tower": ("Qwen3_5ForConditionalGeneration", qwen3_5()),
    "text": ("Qwen3_5ForCausalLM", without_tower(qwen3_5())),
    "text with biases": (
        "Qwen3_5ForCausalLM",
        {**without_tower(qwen3_5()), "attention_bias": True, "linear_num_value_heads": 2, "tie_word_embeddings": False},
    ),
    "tower and experts": ("Qwen3_5MoeForConditionalGeneration", qwen3_5_moe()),
    "text and experts": ("Qwen3_5MoeForCausalLM", without_tower(qwen3_5_moe())),
}


def model_of(kind: str, config: Config) -> Any:
    cls = getattr(transformers, kind)
    made = cls.config_class(**{key: value for key, value in config.items() if key != "model_type"})
    with torch.device("meta"):
        return cls(made)


def layout_of(blueprint: Blueprint) -> Layout:
    return family(blueprint.family).layout(blueprint)


def ignored(layout: Layout, name: str) -> bool:
    return any(re.fullmatch(item.pattern, name) for item in layout.ignored)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_names_and_shapes_of_the_reference(case: tuple[str, Config]) -> None:
    """Every tensor of the reference is bound or ignored, every role is found, and rows and columns fit.

    transformers holds the experts of a layer in two tensors in memory whatever the files have; `resolved` takes that
    form where it finds it, so both are held against the same names here.
    """
    kind, config = case
    blueprint = read(config)
    model = model_of(kind, config)
    stored: Shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    layout = layout_of(blueprint)
    bindings = resolved(layout, stored)
    names = [name for binding in bindings for name in binding.names]
    assert len(set(names)) == len(names)
    assert set(names) <= set(stored)
    assert all(ignored(layout, name) for name in stored if name not in names)
    shapes = {tensor.role: tensor.shape for tensor in inventory(blueprint) if tensor.part == "text"}
    roles = [role for binding in bindings for role in binding.roles]
    assert sorted(roles) == sorted(shapes)
    for binding in bindings:
        wanted = sum(prod(shapes[role]) for role in binding.roles)
        found = sum(prod(stored[name]) for name in binding.names)
        assert found == wanted, binding
        for role in binding.roles:
            if len(shapes[role]) > 1 and "convolution" not in role:
                assert stored[binding.names[0]][-1] == shapes[role][-1], binding


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_totals_of_the_reference(case: tuple[str, Config]) -> None:
    kind, config = case
    found = parameters(read(config))
    model = model_of(kind, config)
    tower = sum(p.numel() for name, p in model.named_parameters() if "visual." in name)
    assert found.parts["vision"] == tower
    assert found.used == sum(p.numel() for p in model.parameters())


def test_tower_tensors_are_those_of_the_reference() -> None:
    (tower,) = read(qwen3_5()).towers
    model = model_of("Qwen3_5ForConditionalGeneration", qwen3_5())
    mine = sorted(item.shape for item in tower.tensors for _ in range(item.copies))
    theirs = sorted(tuple(p.shape) for name, p in model.named_parameters() if "visual." in name)
    assert mine == theirs


def names_of(layout: Layout) -> list[str]:
    root = layout.roots[0]
    return [name.format(**root) for binding in layout.bindings for name in binding.names]


def test_published_names() -> None:
    """Names in the index files of the published checkpoints."""
    experts = names_of(layout_of(open_model("qwen3-30b-a3b").blueprint))
    assert "model.layers.47.mlp.experts.127.down_proj.weight" in experts
    assert "model.layers.0.mlp.experts.gate_up_proj" not in experts
    assert len(experts) == 48 * (9 + 3 * 128) + 3
    following = names_of(layout_of(open_model("qwen3-next-80b-a3b").blueprint))
    for name in ("in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight", "dt_bias", "A_log", "norm.weight"):
        assert f"model.layers.0.linear_attn.{name}" in following
    assert "model.layers.3.mlp.experts.511.gate_proj.weight" in following
    assert "model.layers.3.mlp.shared_expert_gate.weight" in following
    fused = open_model("qwen3.5-35b-a3b").blueprint
    both = names_of(layout_of(fused))
    assert {"model.layers.39.mlp.experts.gate_up_proj", "model.layers.39.mlp.experts.down_proj"} <= set(both)
    assert not any(".experts.0." in name for name in both)
    quantised = read({**qwen3_5_moe(), "quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 8]}})
    assert "model.layers.0.mlp.experts.5.up_proj.weight" in names_of(layout_of(quantised))


def test_either_form_of_experts_is_found() -> None:
    for config in (qwen3_moe(), qwen3_next(), qwen3_5_moe()):
        blueprint = read(config)
        layout = layout_of(blueprint)
        usual = resolved(layout, names_of(layout))
        assert [b.roles for b in usual] == [b.roles for b in layout.bindings]
        roots = {"body": "model.language_model.", "head": ""}
        other = [n.format(**roots) for variant in layout.variants for b in variant for n in b.names]
        plain = [b for b in layout.bindings if ".experts." not in b.roles[0]]
        kept = [n.format(**roots) for b in plain for n in b.names]
        found = resolved(layout, [*kept, *other])
        assert sorted(name for b in found for name in b.names) == sorted([*kept, *other])
        assert sorted(role for b in found for role in b.roles) == sorted(role for b in usual for role in b.roles)


def test_a_damaged_file_is_held_against_the_usual_form() -> None:
    layout = Layout(
        (Binding(("a", "b"), ("ab",)), Binding(("c",), ("c",))),
        variants=((Binding(("a",), ("a",)), Binding(("b",), ("b",))),),
    )
    assert resolved(layout, ["a", "b", "c"])[0].names == ("a",)
    for stored in (["a", "c"], ["ab", "a", "b", "c"], ["c"]):
        assert resolved(layout, stored) == layout.bindings


# -- transforms ----------------------------------------------------------------------------------------------------


def ungrouped(stored: torch.Tensor, form: GroupedRows) -> torch.Tensor:
    """Rows of the roles joined, from the definition: section by section what each group holds of it."""
    assert stored.shape[0] == sum(form.sections)
    shares = [rows // form.groups for rows in form.sections]
    groups = stored.reshape(form.groups, sum(shares), *stored.shape[1:])
    return torch.cat([part.reshape(-1, *stored.shape[1:]) for part in groups.split(shares, dim=1)])


def transform_of(layout: Layout, role: str) -> Any:
    return next(binding.transform for binding in layout.bindings if role in binding.roles)


def test_projections_of_next_are_split_as_the_reference_splits_them() -> None:
    """The reference's own method, on activations that are the numbers of the rows."""
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    blueprint = read(qwen3_next())
    delta = blueprint.layers[0].mixer
    assert isinstance(delta, GatedDeltaNet)
    keys, values = delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim
    numbers = torch.arange(2 * keys + 2 * values)
    rates = torch.arange(2 * delta.value_heads)
    sizes = SimpleNamespace(
        num_k_heads=delta.key_heads, num_v_heads=delta.value_heads, head_k_dim=delta.key_dim, head_v_dim=delta.value_dim
    )
    split = Qwen3NextGatedDeltaNet.fix_query_key_value_ordering(sizes, numbers[None, None], rates[None, None])
    query, key, value, z, b, a = (part.reshape(-1) for part in split)
    layout = layout_of(blueprint)
    projections = transform_of(layout, "layers.0.delta.gate")
    assert torch.equal(ungrouped(numbers, projections), torch.cat([query, key, value, z]))
    assert torch.equal(ungrouped(rates, transform_of(layout, "layers.0.delta.decay")), torch.cat([b, a]))


def test_query_and_gate_and_experts_are_split_as_the_reference_splits_them() -> None:
    layout = layout_of(read(qwen3_5_moe()))
    numbers = torch.arange(4 * 2 * 16)
    query, gate = numbers.view(4, 2 * 16).chunk(2, dim=-1)
    form = transform_of(layout, "layers.3.attention.gate")
    assert torch.equal(ungrouped(numbers, form), torch.cat([query.reshape(-1), gate.reshape(-1)]))
    rows = torch.arange(6 * 2 * 24).reshape(6, 2 * 24)
    gates, ups = rows.chunk(2, dim=-1)
    form = transform_of(layout, "layers.0.feed_forward.experts.up")
    assert torch.equal(ungrouped(rows.reshape(-1), form), torch.cat([gates.reshape(-1), ups.reshape(-1)]))


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_gguf_transforms_of_qwen3_5(repeats: int) -> None:
    config = {**without_tower(qwen3_5()), "linear_num_value_heads": 2 * repeats}
    blueprint = read(config)
    layout = family("qwen3_5").gguf_layout(blueprint)
    tiled = TiledHeads(2, repeats)
    found = {
        role: transform_of(layout, f"layers.0.delta.{role}")
        for role in ("query_key_value", "gate", "output", "decay_log", "beta", "output_norm", "convolution")
    }
    assert found["output_norm"] is None
    assert transform_of(layout, "layers.0.mixer_norm") == transform_of(layout, "final_norm") == MinusOne()
    assert transform_of(layout, "layers.3.attention.key_norm") == MinusOne()
    if repeats == 1:
        assert found["gate"] is None
        assert found["decay_log"] == NegatedExp()
        return
    assert found["gate"] == found["beta"] == tiled
    assert found["query_key_value"] == found["convolution"] == replace(tiled, start=2 * 2 * 8)
    assert found["output"] == replace(tiled, axis="columns")
    assert found["decay_log"] == Chained((tiled, NegatedExp()))
    # llama.cpp's converter: heads seen as [key head, repeat] are written as [repeat, key head].
    heads = torch.arange(2 * repeats)
    written = heads.reshape(2, repeats).T.reshape(-1)
    read_back = torch.empty_like(heads)
    for j in range(repeats):
        for i in range(2):
            read_back[i * repeats + j] = written[j * 2 + i]
    assert torch.equal(read_back, heads)


# -- GGUF ----------------------------------------------------------------------------------------------------------

GGUF: dict[str, tuple[str, Config]] = {
    "qwen3moe": ("QWEN3MOE", qwen3_moe()),
    "qwen3next": ("QWEN3NEXT", qwen3_next()),
    "qwen35": ("QWEN35", qwen3_5()),
    "qwen35moe": ("QWEN35MOE", qwen3_5_moe()),
}


@pytest.mark.parametrize("architecture", GGUF)
def test_gguf_names_are_known_to_the_format(architecture: str) -> None:
    word, config = GGUF[architecture]
    arch = gguf.MODEL_ARCH[word]
    assert gguf.MODEL_ARCH_NAMES[arch] == architecture
    blueprint = read(config)
    assert ARCHITECTURES[architecture] == blueprint.family
    layout = family(blueprint.family).gguf_layout(blueprint)
    patterns = {gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[arch]}
    known = {pattern.format(bid=bid) for pattern in patterns for bid in range(4)}
    names = [name for b in (*layout.bindings, *(x for v in layout.variants for x in v)) for name in b.names]
    for name in names:
        assert name.removesuffix(".weight").removesuffix(".bias") in known, name
    text = sorted(tensor.role for tensor in inventory(blueprint) if tensor.part == "text")
    assert sorted(role for binding in layout.bindings for role in binding.roles) == text


def keys_of_the_format() -> set[str]:
    def values(item: type) -> set[str]:
        found = {v for k, v in vars(item).items() if isinstance(v, str) and not k.startswith("_")}
        return found.union(*(values(v) for k, v in vars(item).items() if isinstance(v, type)))

    return {key.removeprefix("{arch}.") for key in values(gguf.Keys) if key.startswith("{arch}.")}


def header_of(architecture: str, metadata: Mapping[str, object], tensors: Mapping[str, object] | None = None) -> Any:
    """A header in memory: tied head and no biases unless `tensors` say otherwise."""
    keys = {f"{architecture}.{key}": tuple(v) if isinstance(v, list) else v for key, v in metadata.items()}
    return SimpleNamespace(
        path=Path("x.gguf"),
        metadata={"general.architecture": architecture, **keys},
        tensors=dict(tensors or {}),
        text=lambda key: architecture,
    )


def text_part(blueprint: Blueprint) -> Blueprint:
    return replace(blueprint, towers=(), mtp=None)


@pytest.mark.parametrize("architecture", GGUF)
def test_gguf_metadata_reads_back(architecture: str) -> None:
    _, config = GGUF[architecture]
    blueprint = read(config)
    metadata = family(blueprint.family).gguf_metadata(blueprint)
    assert set(metadata) <= keys_of_the_format()
    found, coverage = from_gguf(header_of(architecture, metadata))
    assert replace(found, head=blueprint.head) == text_part(blueprint)
    assert coverage.unknown == ()


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "qwen3-next-80b-a3b", "qwen3.6-27b", "qwen3.5-35b-a3b"])
def test_gguf_metadata_of_published_models_reads_back(name: str) -> None:
    blueprint = open_model(name).blueprint
    architecture = next(key for key, value in ARCHITECTURES.items() if value == blueprint.family)
    metadata = family(blueprint.family).gguf_metadata(blueprint)
    found, _ = from_gguf(header_of(architecture, metadata))
    assert replace(found, head=blueprint.head) == text_part(blueprint)


def test_gguf_patterns_that_are_no_interval() -> None:
    kinds = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    config = {**without_tower(qwen3_5()), "layer_types": kinds}
    del config["full_attention_interval"]
    blueprint = read(config)
    metadata = family("qwen3_5").gguf_metadata(blueprint)
    assert metadata["attention.head_count_kv"] == [2, 0, 0, 2]
    assert replace(from_gguf(header_of("qwen35", metadata))[0], head=blueprint.head) == text_part(blueprint)


def test_gguf_blocks_of_multi_token_prediction() -> None:
    """41 blocks of which the last predicts: 40 layers, and the block is known as what it is."""
    blueprint = open_model("qwen3.5-35b-a3b").blueprint
    metadata = {**family("qwen3_5_moe").gguf_metadata(blueprint), "block_count": 41, "nextn_predict_layers": 1}
    found, _ = from_gguf(header_of("qwen35moe", metadata))
    assert len(found.layers) == 40
    assert found.mtp == blueprint.mtp
    layout = family("qwen3_5_moe").gguf_layout(found)
    assert ignored(layout, "blk.40.nextn.eh_proj.weight")
    assert not ignored(layout, "blk.39.attn_q.weight")
    assert [item.mtp for item in layout.ignored if "blk" in item.pattern] == [True]
    with pytest.raises(ConfigError, match="nextn_predict_layers"):
        from_gguf(header_of("qwen35moe", {**metadata, "nextn_predict_layers": 41}))


SECTIONS: dict[str, tuple[Any, bool]] = {
    "four": ([1, 1, 0, 0], True),
    "three": ([1, 1, 0], True),
    "two": ([1, 1], False),
    "too many": ([2, 1, 0, 0], False),
    "a fourth axis": ([1, 0, 0, 1], False),
}


@pytest.mark.parametrize(("sections", "fine"), SECTIONS.values(), ids=SECTIONS)
def test_gguf_axes(sections: Any, fine: bool) -> None:
    blueprint = read(qwen3_5())
    metadata = {**family("qwen3_5").gguf_metadata(blueprint), "rope.dimension_sections": sections}
    if fine:
        mixer = from_gguf(header_of("qwen35", metadata))[0].layers[3].mixer
        assert isinstance(mixer, Attention)
        rope = mixer.rope
        assert rope is not None
        assert rope.axes == (1, 1, 0)
    else:
        with pytest.raises(ConfigError, match="dimension_sections"):
            from_gguf(header_of("qwen35", metadata))


UNWRITABLE: dict[str, Callable[[], Config]] = {
    "dense among experts": lambda: {**qwen3_moe(), "mlp_only_layers": [1]},
    "windows": lambda: {**qwen3_moe(), "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
    "no attention": lambda: {**qwen3_next(), "layer_types": HYBRID[:1] * 4, "full_attention_interval": 9},
    "no DeltaNet": lambda: {**qwen3_next(), "layer_types": HYBRID[3:] * 4, "full_attention_interval": 1},
}


@pytest.mark.parametrize("make", UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_gguf_cannot_say_is_refused(make: Callable[[], Config]) -> None:
    blueprint = read(make())
    with pytest.raises(UnsupportedError, match="GGUF metadata"):
        family(blueprint.family).gguf_metadata(blueprint)


def test_all_small_configs_are_read_without_a_key_left() -> None:
    assert {read(make()).family for make in qwen_configs.ALL} == {ARCHITECTURES[name] for name in GGUF}

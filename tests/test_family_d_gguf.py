"""GGUF files of the sigmoid-routed families: metadata there and back, llama.cpp's names, prediction blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from configs import gemma2, gemma3, llama, qwen3, read
from gguf.constants import MODEL_ARCH as ARCH
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES, Keys
from routed_configs import deepseek_v3, deepseek_v32, glm_4_5, glm_5, mimo, minimax

from plait.blueprint.families import ARCHITECTURES, family
from plait.blueprint.layout import AbsorbedKeys, resolved
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.source import from_gguf
from plait.blueprint.spec import Attention, Blueprint, LatentAttention, Mixture, YarnScaling
from plait.blueprint.tensors import inventory
from plait.dtypes import BY_NAME
from plait.errors import ConfigError, UnsupportedError

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

NAMES = {
    "deepseek_v3": ARCH.DEEPSEEK2,
    "glm_moe_dsa": ARCH.GLM_DSA,
    "glm4_moe": ARCH.GLM4_MOE,
    "mimo_v2_flash": ARCH.MIMO2,
    "minimax_m2": ARCH.MINIMAXM2,
}
FAMILIES = (deepseek_v3, glm_5, glm_4_5, mimo, minimax)


def header(architecture: str, keys: Mapping[str, object], shapes: Shapes) -> GGUFHeader:
    """What reading a file of these keys and tensors gives."""
    f32 = BY_NAME["f32"]
    path = Path("model.gguf")
    tensors = {name: StoredTensor(name, shape, f32, path, 0, 4 * prod(shape)) for name, shape in shapes.items()}
    metadata: dict[str, Any] = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{k}": tuple(v) if isinstance(v, list) else v for k, v in keys.items()}
    return GGUFHeader(
        path, 3, MappingProxyType(metadata), {"general.architecture": "str"}, MappingProxyType(tensors), 32, 0, (path,)
    )


def tensors_of(blueprint: Blueprint) -> Shapes:
    """Names and shapes of the tensors of a file that holds the text model."""
    roles = {tensor.role: tensor.shape for tensor in inventory(blueprint)}
    found: Shapes = {}
    for binding in family(blueprint.family).gguf_layout(blueprint).bindings:
        if isinstance(turned := binding.transform, AbsorbedKeys):
            (mixer,) = {layer.mixer for layer in blueprint.layers[:1]}
            assert isinstance(mixer, LatentAttention)
            found[binding.names[0]] = (turned.heads, mixer.kv_rank, turned.key_dim)
            found[binding.names[1]] = (turned.heads, turned.value_dim, mixer.kv_rank)
        else:
            (role,), (name,) = binding.roles, binding.names
            found[name] = roles[role]
    assert sum(map(prod, found.values())) == sum(t.elements for t in inventory(blueprint) if t.part == "text")
    return found


def architecture_of(blueprint: Blueprint) -> str:
    (name,) = [name for name, module in ARCHITECTURES.items() if module == blueprint.family]
    return name


def there_and_back(blueprint: Blueprint, shapes: Shapes | None = None, **changes: object) -> Blueprint:
    keys = {**family(blueprint.family).gguf_metadata(blueprint), **changes}
    given = tensors_of(blueprint) if shapes is None else shapes
    found, coverage = from_gguf(header(architecture_of(blueprint), keys, given))
    assert coverage.unknown == ()
    return found


@pytest.mark.parametrize("published", FAMILIES)
def test_metadata_read_back_as_the_text_model(published: Callable[[], Config]) -> None:
    blueprint = replace(read(published()), mtp=None)
    assert there_and_back(blueprint) == blueprint
    # Metadata alone: what only tensors show is then as in the published model.
    assert there_and_back(blueprint, {}) == (
        replace(blueprint, layers=tuple(map(without_norms, blueprint.layers))) if published is glm_4_5 else blueprint
    )


@pytest.mark.parametrize("published", [*FAMILIES, gemma2, gemma3, llama, qwen3])
def test_one_number_may_stand_for_each_layer(published: Callable[[], Config]) -> None:
    """A list of equal numbers, one a layer, says what one number says; a list of any other length is an error."""
    blueprint = replace(read(published()), mtp=None)
    keys = family(blueprint.family).gguf_metadata(blueprint)
    once = there_and_back(blueprint)
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length"):
        if isinstance(one := keys.get(key), int):
            assert there_and_back(blueprint, **{key: [one] * len(blueprint.layers)}) == once
    with pytest.raises(ConfigError, match="attention.head_count'"):
        there_and_back(blueprint, **{"attention.head_count": [4] * (len(blueprint.layers) + 1)})
    with pytest.raises(ConfigError, match="attention.head_count'"):
        there_and_back(blueprint, **{"attention.head_count": [4] * (len(blueprint.layers) - 1) + [8]})


def test_full_layers_alone_need_no_window() -> None:
    config = {**gemma3(), "layer_types": ["full_attention"] * gemma3()["num_hidden_layers"]}
    config.pop("sliding_window_pattern", None)
    blueprint = read(config)
    keys = family("gemma3").gguf_metadata(blueprint)
    pattern = {"attention.sliding_window_pattern": [False] * len(blueprint.layers)}
    found, coverage = from_gguf(header("gemma3", {**keys, **pattern}, tensors_of(blueprint)))
    assert [layer.mixer.window for layer in found.layers if isinstance(layer.mixer, Attention)] == [None] * len(
        blueprint.layers
    )
    assert not coverage.unknown


def without_norms(layer: Any) -> Any:
    return replace(layer, mixer=replace(layer.mixer, qk_norm=None))


@pytest.mark.parametrize("published", FAMILIES)
def test_names_are_those_of_llama_cpp(published: Callable[[], Config]) -> None:
    blueprint = read(published())
    architecture = NAMES[blueprint.family]
    assert architecture_of(blueprint) == MODEL_ARCH_NAMES[architecture]
    known = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[architecture]}
    for name in tensors_of(blueprint):
        stem = name.rsplit(".", 1)[0]
        parts = stem.split(".")
        if parts[0] == "blk":
            stem = ".".join(["blk", "{bid}", *parts[2:]])
        assert stem in known, name
    texts = [v for group in (Keys.LLM, Keys.Attention, Keys.Attention.Indexer, Keys.Rope) for v in vars(group).values()]
    # Later than the constants of gguf 0.19: the factor on the values of MiMo.
    stated = {text.removeprefix("{arch}.") for text in texts if isinstance(text, str)} | {"attention.value_scale"}
    assert set(family(blueprint.family).gguf_metadata(blueprint)) <= stated


def test_deepseek_v3_2_has_no_gguf() -> None:
    blueprint = read(deepseek_v32())
    known = family("deepseek_v32")
    assert "deepseek_v32" not in ARCHITECTURES.values()
    for refused in (known.gguf_layout, known.gguf_metadata):
        with pytest.raises(UnsupportedError, match=r"DeepSeek-V3\.2"):
            refused(blueprint)


@pytest.mark.parametrize(("factor", "mscale"), [(40.0, 1.0), (40, 0.707), (32.0, 0.5)])
def test_yarn_comes_back_exactly(factor: float, mscale: float) -> None:
    config = deepseek_v3()
    config["rope_scaling"] = {**config["rope_scaling"], "factor": factor, "mscale": mscale, "mscale_all_dim": mscale}
    blueprint = replace(read(config), mtp=None)
    assert there_and_back(blueprint) == blueprint
    mixer = blueprint.layers[0].mixer
    assert isinstance(mixer, LatentAttention) and isinstance(mixer.rope.scaling, YarnScaling)
    keys = family("deepseek_v3").gguf_metadata(blueprint)
    # llama.cpp's files hold a tenth of mscale_all_dim.
    assert keys["rope.scaling.yarn_log_multiplier"] == pytest.approx(0.1 * mscale, abs=1e-9)


def test_yarn_without_mscale_scales_cos_and_sin() -> None:
    config = deepseek_v3()
    config["rope_scaling"] = {
        key: value for key, value in config["rope_scaling"].items() if not key.startswith("mscale")
    }
    blueprint = replace(read(config), mtp=None)
    assert there_and_back(blueprint) == blueprint


def test_block_count_counts_prediction_blocks() -> None:
    """41 blocks of which 1 predicts are 40 layers."""
    for published in (glm_4_5, glm_5, mimo):
        blueprint = replace(read(published()), mtp=None)
        count = len(blueprint.layers)
        keys = family(blueprint.family).gguf_metadata(blueprint)
        arrays = {key: [*value, value[-1]] for key, value in keys.items() if isinstance(value, list)}
        shapes = {**tensors_of(blueprint), f"blk.{count}.nextn.embed_tokens.weight": (301, 32)}
        found = there_and_back(blueprint, shapes, block_count=count + 1, nextn_predict_layers=1, **arrays)
        assert replace(found, mtp=None) == blueprint
        assert found.mtp is not None and len(found.mtp.layers) == 1
        if published is not mimo:
            assert (found.mtp.copies_embedding, found.mtp.copies_head) == (True, False)
        layout = family(found.family).gguf_layout(found)
        assert any(item.mtp for item in layout.ignored)
    with pytest.raises(ConfigError, match="nextn_predict_layers"):
        there_and_back(blueprint, block_count=2, nextn_predict_layers=2)


def test_arrays_of_mimo_are_kept_whole() -> None:
    blueprint = replace(read(mimo()), mtp=None)
    kv_heads = [1, 2, 4, 2, 1, 1, 2]
    found = there_and_back(blueprint, {}, **{"attention.head_count_kv": kv_heads})
    mixers = [layer.mixer for layer in found.layers]
    assert [mixer.kv_heads for mixer in mixers if isinstance(mixer, Attention)] == kv_heads
    pattern = [0, 1, 1, 1, 1, 0, 1]
    numbered = there_and_back(blueprint, **{"attention.sliding_window_pattern": pattern})
    assert numbered == blueprint
    for damaged in ({"attention.head_count_kv": [1, 2]}, {"attention.sliding_window_pattern": [1]}):
        with pytest.raises(ConfigError, match=next(iter(damaged)).rsplit(".", 1)[1]):
            there_and_back(blueprint, {}, **damaged)


def test_older_mimo_files_lack_the_value_scale() -> None:
    blueprint = replace(read(mimo()), mtp=None)
    keys = {k: v for k, v in family("mimo_v2_flash").gguf_metadata(blueprint).items() if k != "attention.value_scale"}
    found, _ = from_gguf(header("mimo2", keys, tensors_of(blueprint)))
    assert found == blueprint
    assert found.evidence["attention.value_scale"].origin == "default"


def test_older_files_hold_the_expansion_of_the_latent_whole() -> None:
    blueprint = replace(read(deepseek_v3()), mtp=None)
    shapes = {
        name: shape for name, shape in tensors_of(blueprint).items() if not name.endswith(("k_b.weight", "v_b.weight"))
    }
    shapes |= {f"blk.{i}.attn_kv_b.weight": (4 * (6 + 8), 10) for i in range(4)}
    keys = {k: v for k, v in family("deepseek_v3").gguf_metadata(blueprint).items() if not k.endswith("_mla")}
    keys |= {"attention.key_length": 10, "attention.value_length": 8, "attention.head_count_kv": 4}
    found, coverage = from_gguf(header("deepseek2", keys, shapes))
    assert (found, coverage.unknown) == (blueprint, ())
    bindings = resolved(family("deepseek_v3").gguf_layout(found), shapes)
    assert {name for binding in bindings for name in binding.names} == set(shapes)
    assert all(binding.transform is None for binding in bindings)


def test_older_files_choose_among_all_experts() -> None:
    """Files without the keys of groups, a bias or a scoring function are taken at their word."""
    blueprint = replace(read(deepseek_v3()), mtp=None)
    shapes = {name: shape for name, shape in tensors_of(blueprint).items() if "exp_probs_b" not in name}
    dropped = ("expert_group_count", "expert_group_used_count", "expert_gating_func", "expert_weights_norm")
    keys = {k: v for k, v in family("deepseek_v3").gguf_metadata(blueprint).items() if k not in dropped}
    found, _ = from_gguf(header("deepseek2", keys, shapes))
    part = found.layers[-1].feed_forward
    assert isinstance(part, Mixture)
    assert (part.router.scores, part.router.groups, part.router.selection_bias) == ("softmax", 1, False)
    assert not part.router.renormalise


def test_groups_of_softmax_scores_are_refused() -> None:
    """DeepSeek-V2 scores a group by its one best expert."""
    blueprint = replace(read(deepseek_v3()), mtp=None)
    with pytest.raises(UnsupportedError, match="expert_group_count"):
        there_and_back(blueprint, expert_gating_func=1)


@pytest.mark.parametrize(
    ("published", "changes", "word"),
    [
        (deepseek_v3, {"expert_gating_func": 7}, "expert_gating_func"),
        (deepseek_v3, {"attention.key_length_mla": 4}, "key_length_mla"),
        (deepseek_v3, {"rope.scaling.type": "longrope"}, "rope.scaling.type"),
        (glm_4_5, {"expert_count": 0}, "expert_count"),
        (minimax, {"expert_used_count": 9}, "active experts"),
    ],
)
def test_damaged_metadata(published: Callable[[], Config], changes: Config, word: str) -> None:
    blueprint = replace(read(published()), mtp=None)
    with pytest.raises((ConfigError, UnsupportedError), match=word) as error:
        there_and_back(blueprint, **changes)
    assert "\n" not in str(error.value)


def test_biases_of_latent_attention_have_no_gguf_tensors() -> None:
    blueprint = read({**deepseek_v3(), "attention_bias": True})
    with pytest.raises(UnsupportedError, match="biases"):
        family("deepseek_v3").gguf_layout(blueprint)


def test_layers_that_share_a_choice_show_in_the_tensors() -> None:
    blueprint = replace(read({**glm_5(), "index_topk_freq": 2, "num_hidden_layers": 6}), mtp=None)
    assert there_and_back(blueprint) == blueprint
    sources = [mixer.indexer.source for layer in blueprint.layers if (mixer := layer.mixer) and mixer.indexer]
    assert sources == [None, None, 1, None, 3, None]
    # The metadata alone have no word for it.
    assert there_and_back(blueprint, {}) == replace(read({**glm_5(), "num_hidden_layers": 6}), mtp=None)


@pytest.mark.parametrize("published", FAMILIES)
def test_damage_of_any_key_is_read_or_refused_in_one_line(published: Callable[[], Config]) -> None:
    blueprint = read(published())
    keys = {**family(blueprint.family).gguf_metadata(blueprint), "nextn_predict_layers": 1}
    for key in keys:
        for value in (None, True, -1, 0, 3, 10**30, 0.5, float("nan"), "x", (), (1,), (True,), ("x",)):
            try:
                from_gguf(header(architecture_of(blueprint), {**keys, key: value}, {}))
            except (ConfigError, UnsupportedError) as error:
                assert "\n" not in str(error)

"""Qwen3-MoE, Qwen3-Next and Qwen3.5: what their configs say, in every spelling, and what follows from it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import qwen_configs
from configs import read
from qwen_configs import HYBRID, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next

from plait.account.memory import memory
from plait.account.parameters import parameters, parameters_of
from plait.blueprint.check import not_run
from plait.blueprint.dump import dump, load
from plait.blueprint.families import family
from plait.blueprint.families.qwen_parts import three_axes
from plait.blueprint.source import from_config, open_model
from plait.blueprint.spec import Attention, Blueprint, Gated, GatedDeltaNet, Mixture, Norm, Rope
from plait.blueprint.state import Snapshot, laws
from plait.errors import ConfigError, UnsupportedError

transformers = pytest.importorskip("transformers")

Config = dict[str, Any]
MIB = 2**20

# Totals of the published files; those of 0.8B, 27B and 35B-A3B are sums over their published configs.
PUBLISHED = (
    ("qwen3-30b-a3b", 30_532_122_624, 30_532_122_624, 3_353_032_704),
    ("qwen3-next-80b-a3b", 81_324_862_720, 79_674_391_296, 3_874_929_408),
    ("qwen3.5-0.8b", 873_438_784, 852_985_920, 852_985_920),
    ("qwen3.5-2b", 2_274_069_824, 2_213_241_664, 2_213_241_664),
    ("qwen3.5-4b", 4_659_865_088, 4_539_265_536, 4_539_265_536),
    ("qwen3.5-9b", 9_653_104_368, 9_409_813_744, 9_409_813_744),
    ("qwen3.5-35b-a3b", 35_951_822_704, 35_107_181_936, 3_901_560_176),
    ("qwen3.6-27b", 27_781_427_952, 27_356_728_560, 27_356_728_560),
)


@pytest.mark.parametrize(("name", "in_file", "used", "active"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_models(name: str, in_file: int, used: int, active: int) -> None:
    source = open_model(name)
    assert source.coverage.unknown == ()
    found = parameters_of(source)
    assert (found.in_file, found.used, found.active) == (in_file, used, active)
    assert found.beyond.mtp == in_file - used
    assert load(dump(source.blueprint)) == source.blueprint


def test_qwen3_5_4b_by_part() -> None:
    found = parameters_of(open_model("qwen3.5-4b"))
    assert found.parts == {"text": 4_205_751_296, "vision": 333_514_240, "audio": 0, "mtp": 120_599_552}


def mixers(blueprint: Blueprint) -> tuple[Attention, GatedDeltaNet]:
    attention = next(layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention))
    delta = next(layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, GatedDeltaNet))
    return attention, delta


def test_what_a_hybrid_layer_is() -> None:
    blueprint = read(qwen3_5())
    attention, delta = mixers(blueprint)
    assert attention.gate is not None
    assert (attention.gate.per, attention.gate.activation, attention.scale) == ("element", "sigmoid", 0.25)
    assert attention.rope == Rope(1e7, 2, 4, distance=2, axes=(1, 1, 0), interleaved_axes=True)
    assert attention.qk_norm is not None
    assert attention.qk_norm.norm == blueprint.final_norm == Norm(1e-6, offset=1.0)
    assert delta.output_norm == Norm(1e-6)
    assert (delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, delta.conv_kernel) == (2, 6, 8, 12, 4)
    assert [type(layer.mixer) for layer in blueprint.layers] == [GatedDeltaNet] * 3 + [Attention]
    assert blueprint.head.tied
    assert blueprint.mtp is not None
    assert (len(blueprint.mtp.layers), blueprint.mtp.layers[0].mixer) == (1, attention)


def test_qwen3_next_has_no_image_axes_and_a_layer_no_key_speaks_of() -> None:
    blueprint = read(qwen3_next())
    attention, _ = mixers(blueprint)
    assert attention.rope is not None
    assert (attention.rope.axes, attention.rope.pairs) == (None, 2)
    assert blueprint.mtp is not None
    assert blueprint.evidence["mtp.layers"].origin == "convention"
    assert read({**qwen3_next(), "mtp_num_hidden_layers": 0}).mtp is None
    part = blueprint.layers[0].feed_forward
    assert isinstance(part, Mixture)
    assert part.shared is not None
    assert (part.shared.width, part.shared.gated, part.router.scores, part.router.renormalise) == (
        40,
        True,
        "softmax",
        True,
    )


def test_more_prediction_layers_share_what_leads_into_them() -> None:
    """One more layer costs a layer: the projection and the norms around it stand once."""

    def beyond(layers: int) -> int:
        return parameters(read({**qwen3_next(), "mtp_num_hidden_layers": layers})).beyond.mtp

    full = parameters(read({**qwen3_next(), "layer_types": HYBRID[3:] * 4, "full_attention_interval": 1}))
    around = 2 * 300 * 64 + 64
    layer = (full.parts["text"] - around) // 4
    assert beyond(1) == layer + 2 * 64 * 64 + 3 * 64
    assert beyond(2) == beyond(1) + layer
    copied = parameters(read(inside(qwen3_5(), lambda c: {**c, "mtp_use_dedicated_embeddings": True})))
    assert copied.beyond.duplicates == 300 * 64


def test_dense_layers_among_experts() -> None:
    """The rule of the reference: named in mlp_only_layers, or off the step."""
    config = {**qwen3_moe(), "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    kinds = [type(layer.feed_forward) for layer in read(config).layers]
    assert kinds == [Gated, Mixture, Gated, Gated, Gated, Mixture]
    dense, coverage = from_config({**qwen3_moe(), "num_experts": 0}, file="x")
    assert {type(layer.feed_forward) for layer in dense.layers} == {Gated}
    assert "intermediate_size" in coverage.used
    assert "intermediate_size" in from_config(qwen3_moe(), file="x")[1].irrelevant


@pytest.mark.parametrize("config", [qwen3_5(), qwen3_5_moe()])
def test_the_places_of_a_nested_config_must_agree(config: Config) -> None:
    with pytest.raises(ConfigError, match="'dtype' and 'text_config.dtype' disagree"):
        read({**config, "dtype": "float32"})
    with pytest.raises(ConfigError, match="'torch_dtype' and 'text_config.dtype' disagree"):
        read({**config, "torch_dtype": "float16"})
    with pytest.raises(ConfigError, match="'dtype' and 'torch_dtype' disagree"):
        read({**config, "dtype": "bfloat16", "torch_dtype": "float16"})
    with pytest.raises(ConfigError, match="'tie_word_embeddings' and 'text_config.tie_word_embeddings' disagree"):
        read({**inside(config, lambda c: {**c, "tie_word_embeddings": True}), "tie_word_embeddings": False})
    # The text model's class default, false, beside what the whole model says, is what transformers writes.
    written = {**inside(config, lambda c: {**c, "tie_word_embeddings": False}), "tie_word_embeddings": True}
    assert read(written).head.tied


@pytest.mark.parametrize("config", [qwen3_moe(), qwen3_next()])
def test_keys_of_experts_that_no_layer_has_are_known(config: Config) -> None:
    every = list(range(config["num_hidden_layers"]))
    beside = {"num_local_experts": config["num_experts"], "output_router_logits": False, "router_aux_loss_coef": 0.001}
    dense, coverage = from_config({**config, **beside, "mlp_only_layers": every}, file="x")
    assert {type(layer.feed_forward) for layer in dense.layers} == {Gated}
    assert not coverage.unknown
    assert {"num_experts_per_tok", "moe_intermediate_size"} <= {*coverage.irrelevant}


def test_windows_of_qwen3_moe_are_on_all_layers() -> None:
    config = {**qwen3_moe(), "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    windows = [layer.mixer.window for layer in read(config).layers if isinstance(layer.mixer, Attention)]
    assert windows == [8] * 4
    with pytest.raises(ConfigError, match="max_window_layers"):
        read({**config, "max_window_layers": 2})


@pytest.mark.parametrize(
    ("sections", "pairs", "expected"),
    [((11, 11, 10), 32, (11, 11, 10)), ((11, 11, 10), 2, (1, 1, 0)), ((24, 20, 20), 64, (24, 20, 20))],
)
def test_three_axes(sections: tuple[int, ...], pairs: int, expected: tuple[int, ...]) -> None:
    """Against the overwriting of the reference: time everywhere, then height and width in their strides."""
    axis = [0] * pairs
    for number in (1, 2):
        for i in range(pairs)[number : sections[number] * 3 : 3]:
            axis[i] = number
    assert three_axes(sections, pairs) == expected == tuple(axis.count(n) for n in range(3))


def without(config: Config, *keys: str, **added: Any) -> Config:
    assert all(key in config for key in keys)
    return {**{key: value for key, value in config.items() if key not in keys}, **added}


def inside(config: Config, change: Callable[[Config], Config]) -> Config:
    return {**config, "text_config": change(config["text_config"])}


SPELLINGS: dict[str, tuple[Config, Config]] = {
    "layer_types beside the interval": (qwen3_next(), {**qwen3_next(), "layer_types": HYBRID}),
    "layer_types alone": (qwen3_next(), without(qwen3_next(), "full_attention_interval", layer_types=HYBRID)),
    "default interval": (qwen3_next(), without(qwen3_next(), "full_attention_interval")),
    "default share": (qwen3_next(), without(qwen3_next(), "partial_rotary_factor")),
    "rope_parameters": (
        qwen3_next(),
        without(
            qwen3_next(),
            "rope_theta",
            "rope_scaling",
            "partial_rotary_factor",
            rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        ),
    ),
    "num_local_experts": (qwen3_moe(), without(qwen3_moe(), "num_experts", num_local_experts=6)),
    "null list": (qwen3_moe(), {**qwen3_moe(), "mlp_only_layers": None}),
    "interval alone": (qwen3_5(), inside(qwen3_5(), lambda c: without(c, "layer_types"))),
    "rope_scaling": (
        qwen3_5(),
        inside(
            qwen3_5(),
            lambda c: without(
                c,
                "rope_parameters",
                rope_theta=1e7,
                rope_scaling={"type": "default", "mrope_section": [1, 1, 0], "mrope_interleaved": True},
            ),
        ),
    ),
    "later keys": (
        qwen3_5(),
        {
            **inside(qwen3_5(), lambda c: {**c, "output_gate_type": "swish", "partial_rotary_factor": 0.25}),
            "language_model_only": False,
        },
    ),
    "dtype outside": (qwen3_5(), {**inside(qwen3_5(), lambda c: without(c, "dtype")), "dtype": "bfloat16"}),
    "sections of larger heads": (
        qwen3_5(),
        inside(
            qwen3_5(),
            lambda c: {**c, "rope_parameters": {**c["rope_parameters"], "mrope_section": [11, 11, 10]}},
        ),
    ),
}


@pytest.mark.parametrize(("one", "other"), SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_agree(one: Config, other: Config) -> None:
    (a, known), (b, also) = from_config(one, file="one"), from_config(other, file="other")
    assert a == b
    assert a.stored_format == b.stored_format
    assert known.unknown == also.unknown == ()


def test_text_alone_is_the_text_of_the_whole() -> None:
    outer = qwen3_5()
    alone = read(outer["text_config"])
    whole = read(outer)
    assert whole.towers
    assert not alone.towers
    assert (alone.layers, alone.head, alone.mtp) == (whole.layers, whole.head, whole.mtp)


WRONG: dict[str, tuple[Config, str, str]] = {
    "patterns": ({**qwen3_next(), "layer_types": HYBRID[::-1]}, "full_attention_interval", "layer_types"),
    "kinds": ({**qwen3_next(), "layer_types": ["mamba"] * 4}, "layer_types", "'mamba' at layer 0"),
    "length": ({**qwen3_next(), "layer_types": HYBRID[:3]}, "layer_types", "4 entries"),
    "heads": ({**qwen3_next(), "linear_num_value_heads": 5}, "value heads", "multiple of 2"),
    "activation": ({**qwen3_next(), "hidden_act": "gelu"}, "hidden_act", "silu"),
    "experts": ({**qwen3_moe(), "num_local_experts": 7}, "'num_experts'", "'num_local_experts'"),
    "dense layers": ({**qwen3_moe(), "mlp_only_layers": ["a"]}, "mlp_only_layers", "layer numbers"),
    "no experts off": (inside(qwen3_5_moe(), lambda c: {**c, "mlp_only_layers": [1]}), "mlp_only_layers", "[]"),
    "axes": (
        inside(qwen3_5(), lambda c: {**c, "mrope_section": [2, 0, 0]}),
        "rope_parameters.mrope_section",
        "'text_config.mrope_section'",
    ),
    "order of axes": (inside(qwen3_5(), lambda c: {**c, "mrope_interleaved": False}), "mrope_interleaved", "true"),
    "gate": (inside(qwen3_5(), lambda c: {**c, "output_gate_type": "tanh"}), "output_gate_type", "sigmoid"),
}


@pytest.mark.parametrize(("config", "key", "words"), WRONG.values(), ids=WRONG)
def test_contradictions_are_named(config: Config, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(config)
    message = str(caught.value)
    assert key in message
    assert words in message
    assert message.startswith("config.json: ")
    assert "\n" not in message


def test_a_tower_that_feeds_the_text_model_is_refused() -> None:
    config = qwen3_5()
    config["vision_config"]["deepstack_visual_indexes"] = [1]
    with pytest.raises(UnsupportedError, match="deepstack_visual_indexes"):
        read(config)


CLASSES = {
    "qwen3_moe": "Qwen3MoeConfig",
    "qwen3_next": "Qwen3NextConfig",
    "qwen3_5": "Qwen3_5Config",
    "qwen3_5_moe": "Qwen3_5MoeConfig",
    "qwen3_5_text": "Qwen3_5TextConfig",
    "qwen3_5_moe_text": "Qwen3_5MoeTextConfig",
}


def saved(kind: str, config: Config, directory: Path) -> Config:
    """What transformers writes for a config it has read."""
    made = getattr(transformers, CLASSES[kind])(**{k: v for k, v in config.items() if k != "model_type"})
    made.save_pretrained(directory)
    found = json.loads((directory / "config.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("old", [make() for make in qwen_configs.ALL], ids=[make.__name__ for make in qwen_configs.ALL])
def test_configs_that_transformers_writes(old: Config, tmp_path: Path) -> None:
    new = saved(old["model_type"], old, tmp_path)
    blueprint, coverage = from_config(new, file="new")
    assert blueprint == read(old)
    assert coverage.unknown == ()


@pytest.mark.parametrize("kind", CLASSES)
def test_class_defaults(kind: str, tmp_path: Path) -> None:
    """A config of nothing but its type is the model the class makes of nothing."""
    full = saved(kind, {}, tmp_path)
    if kind in ("qwen3_5", "qwen3_5_moe"):
        bare: Config = {"model_type": kind, "text_config": {}, "vision_config": {}}
    else:
        bare = {"model_type": kind}
    blueprint, coverage = from_config(full, file="full")
    assert coverage.unknown == ()
    assert blueprint == read(bare)
    evidence = read(bare).evidence
    assert {item.origin for item in evidence.values()} <= {"default", "convention", "derived", "key"}
    assert evidence["hidden"].origin == "default"


def test_state_of_27b() -> None:
    """64 layers: 48 of Gated DeltaNet with 48 value and 16 key heads of 128 x 128, 16 of 4 KV heads x 256."""
    blueprint = open_model("qwen3.6-27b").blueprint
    snapshots = [item for item in laws(blueprint) if isinstance(item.law, Snapshot)]
    size = {"recurrent": 0, "convolution": 0}
    for item in snapshots:
        assert isinstance(item.law, Snapshot)
        size[item.category] += 4 * sum(part.elements for part in item.law.parts)
    assert size["recurrent"] == 144 * MIB
    assert size["convolution"] == 5.625 * MIB
    account = memory(blueprint, context=262_144)
    assert account.categories["rows"].need_bytes == 16 * 2**30


@pytest.mark.parametrize(
    ("name", "slope"), [("qwen3.5-0.8b", 12_288), ("qwen3.5-35b-a3b", 20_480), ("qwen3-next-80b-a3b", 24_576)]
)
def test_growth_per_token(name: str, slope: int) -> None:
    blueprint = open_model(name).blueprint
    assert memory(blueprint, context=4097).per_token_bytes == slope
    need = [memory(blueprint, context=n).categories["rows"].need_bytes for n in (1000, 1001)]
    assert need[1] - need[0] == slope


def test_what_does_not_run_is_said() -> None:
    """Each kind is named for the families that have it, and for no other; once it runs, for none."""
    missing = {make.__name__: not_run(read(make())) for make in qwen_configs.ALL}
    having = {
        "mixtures of experts": {"qwen3_moe", "qwen3_next", "qwen3_5_moe"},
        "Gated DeltaNet": {"qwen3_next", "qwen3_5", "qwen3_5_moe"},
    }
    for kind, families in having.items():
        assert {name for name, parts in missing.items() if kind in parts} in (families, set())
    assert {kind for parts in missing.values() for kind in parts} <= set(having)


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "gemma2", "gemma3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe"]
)
def test_references_exist(name: str) -> None:
    """What a family names as its reference is there, in the version it names."""
    project, version, path, kind = family(name).REFERENCE.split()
    assert project == "transformers"
    if not transformers.__version__.startswith(version + "."):
        pytest.skip(f"transformers {transformers.__version__} is another version")
    module = importlib.import_module("transformers." + path.removesuffix(".py").replace("/", "."))
    assert hasattr(module, kind)


FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [16, 16],
}


def test_fp8_of_experts() -> None:
    whole = ["lm_head", "model.layers.2.self_attn.v_proj"]
    for i in range(4):
        whole += [f"model.layers.{i}.{name}" for name in ("mlp.gate", "input_layernorm", "self_attn.k_proj")]
    config = {**qwen3_moe(), "quantization_config": {**FP8, "modules_to_not_convert": whole}}
    blueprint, coverage = from_config(config, file="x")
    assert coverage.unknown == ()
    assert blueprint.quantization is not None
    assert set(blueprint.quantization.excluded) == {
        "head",
        "attention.key",
        "mixer_norm",
        "feed_forward.router",
        "layers.2.attention.value",
    }
    # Blocks of 16 x 16: q 64 x 64, v 32 x 64, o 64 x 64 and 6 x (gate, up 24 x 64; down 64 x 24), no v in layer 2.
    layer = 4 * 4 + 2 * 4 + 4 * 4 + 6 * (2 * 4 + 2 * 4 + 4 * 2)
    assert parameters(blueprint).beyond.fp8_scales == 4 * layer - 2 * 4
    with pytest.raises(ConfigError, match="all together"):
        read({**config, "quantization_config": {**FP8, "ignored_layers": ["model.layers.2.mlp.experts.1.up_proj"]}})


def test_fp8_of_a_model_with_a_tower() -> None:
    names = ["model.visual.blocks.0.attn.qkv", "mtp.fc", "mtp.layers.0.self_attn.q_proj", "lm_head"]
    names += [f"model.language_model.layers.{i}.linear_attn.in_proj_a" for i in range(3)]
    config = inside(qwen3_5_moe(), lambda c: {**c, "tie_word_embeddings": False})
    config = {**config, "quantization_config": {**FP8, "modules_to_not_convert": names}}
    config["tie_word_embeddings"] = False
    found = read(config).quantization
    assert found is not None
    assert set(found.excluded) == {"head", "mtp.0.attention.query", "mtp.0.attention.gate", "delta.decay"}
    with pytest.raises(ConfigError, match="modules_to_not_convert"):
        read({**config, "quantization_config": {**FP8, "modules_to_not_convert": ["model.layers.0.nothing"]}})

"""One model in several spellings is one blueprint; spellings that disagree are an error naming both keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import configs
import pytest
from configs import gemma2, gemma3, llama, qwen3, read, spark
from gemma_configs import gemma3n_text, gemma4_text
from routed_configs import mimo

from plait.blueprint.source import from_config
from plait.blueprint.spec import Attention, LinearScaling, Llama3Scaling, Rope, YarnScaling
from plait.errors import ConfigError, UnsupportedError

Config = dict[str, Any]
FAMILIES = (gemma2, gemma3, llama, qwen3, spark)
KINDS = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]


def without(config: Config, *keys: str, **added: Any) -> Config:
    assert all(key in config for key in keys)
    return {**{key: value for key, value in config.items() if key not in keys}, **added}


def nested_rope(config: Config) -> Config:
    """Gemma 3's rotary settings per layer type, as transformers 5 writes them."""
    return without(
        config,
        "rope_theta",
        "rope_local_base_freq",
        "rope_scaling",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    )


def answer(config: Config) -> str | None:
    """What reading says, None where it succeeds; any other error than Plait's own goes through."""
    try:
        read(config)
    except (ConfigError, UnsupportedError) as error:
        return str(error)
    return None


SPELLINGS: dict[str, tuple[Config, Config]] = {
    "rope per layer type": (gemma3(), nested_rope(gemma3())),
    "both rope spellings": (gemma3(), {**gemma3(), "rope_parameters": nested_rope(gemma3())["rope_parameters"]}),
    "flat rope_parameters": (
        llama(),
        without(
            llama(),
            "rope_theta",
            "rope_scaling",
            rope_parameters={**llama()["rope_scaling"], "rope_theta": llama()["rope_theta"]},
        ),
    ),
    "type for rope_type": (
        llama(),
        {**llama(), "rope_scaling": without(llama()["rope_scaling"], "rope_type", type="llama3")},
    ),
    "null scaling": (qwen3(), without(qwen3(), "rope_scaling")),
    "default scaling": (qwen3(), {**qwen3(), "rope_scaling": {"rope_type": "default"}}),
    "dtype": (gemma3(), without(gemma3(), "torch_dtype", dtype="bfloat16")),
    "layer_types": (gemma3(), without(gemma3(), "sliding_window_pattern", layer_types=KINDS)),
    "default period": (gemma3(), without(gemma3(), "sliding_window_pattern")),
    "private period": (gemma3(), without(gemma3(), "sliding_window_pattern", _sliding_window_pattern=6)),
    "pattern beside layer_types": (gemma3(), {**gemma3(), "layer_types": KINDS}),
    "hidden_act": (gemma3(), without(gemma3(), "hidden_activation", hidden_act="gelu_pytorch_tanh")),
    "numbers without a point": (gemma3(), without(gemma3(), "rope_theta", rope_theta=1_000_000, vocab_size=300.0)),
    "layer_types of gemma 2": (
        gemma2(),
        {**gemma2(), "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "layer_types of qwen 3": (qwen3(), {**qwen3(), "layer_types": ["full_attention"] * 4}),
    "head size of llama": (llama(), {**llama(), "head_dim": 16}),
    "defaults of gemma 2": (gemma2(), without(gemma2(), "attn_logit_softcapping", "rope_theta", "rms_norm_eps")),
    "bookkeeping": (spark(), {**spark(), "architectures": ["X"], "use_cache": True, "transformers_version": "5"}),
}


@pytest.mark.parametrize(("one", "other"), SPELLINGS.values(), ids=SPELLINGS)
def test_spellings_agree(one: Config, other: Config) -> None:
    assert json.dumps(one) != json.dumps(other)
    a, b = read(one), read(other)
    assert a == b
    assert hash(a) == hash(b)
    assert a.stored_format == b.stored_format


def test_a_text_config_inside_is_the_same_model() -> None:
    flat = gemma3()
    inner = without(flat, "torch_dtype")
    nested = read({"model_type": "gemma3", "text_config": inner, "torch_dtype": "bfloat16"})
    same = [layer.mixer for layer in read(flat).layers]
    for layer, mixer in zip(nested.layers, same, strict=True):
        assert isinstance(layer.mixer, Attention)
        assert isinstance(mixer, Attention)
        # Only what images may see differs.
        assert layer.mixer.bidirectional_images
        assert (layer.mixer.rope, layer.mixer.window, layer.mixer.heads) == (mixer.rope, mixer.window, mixer.heads)
    assert (nested.vocabulary, nested.hidden, nested.head) == (300, 64, read(flat).head)


CONFLICTS: dict[str, tuple[Config, tuple[str, str]]] = {
    "theta": (
        {**gemma3(), "rope_parameters": {"full_attention": {"rope_theta": 5.0}, "sliding_attention": {}}},
        ("rope_parameters.full_attention.rope_theta", "rope_theta"),
    ),
    "window theta": (
        {**gemma3(), "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0},
                                         "sliding_attention": {"rope_theta": 5.0}}},
        ("rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"),
    ),
    "scaling": (
        {**llama(), "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        ("rope_scaling", "rope_parameters.rope_type"),
    ),
    "dtype": ({**gemma3(), "dtype": "float16"}, ("dtype", "torch_dtype")),
    "activation": ({**gemma3(), "hidden_act": "silu"}, ("hidden_activation", "hidden_act")),
    "pattern": ({**gemma3(), "layer_types": ["full_attention"] * 7}, ("sliding_window_pattern", "layer_types")),
    "kind of scaling": (
        {**llama(), "rope_scaling": {**llama()["rope_scaling"], "type": "linear"}},
        ("rope_scaling.rope_type", "rope_scaling.type"),
    ),
}


@pytest.mark.parametrize(("config", "keys"), CONFLICTS.values(), ids=CONFLICTS)
def test_conflicts_name_both_keys(config: Config, keys: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(config)
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert "\n" not in message
    for key in keys:
        assert key in message


REQUIRED = (
    *((family, key) for family in (gemma2, qwen3, llama, spark) for key in (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size",
        "max_position_embeddings")),
    (spark, "head_dim"),
    (spark, "sliding_window"),
    (spark, "num_key_value_heads"),
    (spark, "rope_parameters"),
    *((family, "model_type") for family in FAMILIES),
)


@pytest.mark.parametrize(("family", "key"), REQUIRED, ids=[f"{f.__name__}-{k}" for f, k in REQUIRED])
def test_missing_keys_are_named(family: Callable[[], Config], key: str) -> None:
    with pytest.raises(ConfigError, match="rope_theta" if key == "rope_parameters" else key):
        read(without(family(), key))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_every_key_of_the_wrong_kind_is_a_named_error(family: Callable[[], Config]) -> None:
    """Whatever stands under a key that describes the model, the answer is a blueprint or one line."""
    wrong: tuple[Any, ...] = ("x", -1, 0, 1.5, True, [], {}, [1], {"a": 1}, float("nan"), 10**400, "")
    for key in family():
        for value in wrong:
            message = answer({**family(), key: value})
            assert message is None or (message.startswith("config.json: ") and "\n" not in message)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        (gemma3, "hidden_size", "64"),
        (gemma3, "hidden_size", True),
        (gemma3, "num_hidden_layers", 0),
        (gemma3, "num_hidden_layers", 10**9),
        (gemma3, "vocab_size", 2**63),
        (gemma3, "rms_norm_eps", 0.0),
        (gemma3, "sliding_window", 0),
        (gemma3, "sliding_window", "8"),
        (gemma3, "layer_types", ["full_attention"]),
        (gemma3, "layer_types", ["linear_attention"] * 7),
        (gemma3, "hidden_activation", "tanh"),
        (gemma3, "tie_word_embeddings", 1),
        (llama, "rope_scaling", "linear"),
        (llama, "rope_scaling", {"rope_type": "llama3"}),
        (qwen3, "rope_theta", -5),
        (qwen3, "torch_dtype", "int8"),
        (spark, "gate_attn_act_mode", "tanh"),
        (spark, "num_key_value_heads", 3),
    ],
)
def test_values_of_the_wrong_kind(family: Callable[[], Config], key: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        read({**family(), key: value})


def test_a_null_window_is_no_window_and_zero_is_an_error() -> None:
    def windows(config: Config) -> list[int | None]:
        return [layer.mixer.window for layer in read(config).layers if isinstance(layer.mixer, Attention)]

    on = {**qwen3(), "use_sliding_window": True}
    assert windows({**on, "sliding_window": 8}) == [None, None, 8, 8]
    assert windows({**on, "sliding_window": None}) == [None] * 4
    assert windows(qwen3()) == [None] * 4
    assert windows({**qwen3(), "sliding_window": 8}) == [None] * 4
    with pytest.raises(ConfigError, match="sliding_window"):
        read({**on, "sliding_window": 0})
    with pytest.raises(ConfigError, match="layer_types"):
        read({**qwen3(), "layer_types": ["sliding_attention"] * 4})


@pytest.mark.parametrize("family", [gemma2, gemma3, gemma3n_text, gemma4_text, mimo, spark])
def test_window_layers_without_a_window_are_a_contradiction(family: Callable[[], Config]) -> None:
    """A null is no window, never the class default; where no layer has a window it says nothing."""
    config = {**family(), "sliding_window": None}
    config.pop("sliding_window_size", None)
    with pytest.raises(ConfigError, match="sliding_window"):
        read(config)


@pytest.mark.parametrize("family", [gemma2, gemma3, gemma3n_text, mimo])
def test_a_null_window_says_nothing_to_full_layers(family: Callable[[], Config]) -> None:
    config = {**family(), "sliding_window": None}
    kinds = ["full_attention"] * config["num_hidden_layers"]
    for key in ("sliding_window_size", "hybrid_layer_pattern", "sliding_window_pattern"):
        config.pop(key, None)
    layers = read({**config, "layer_types": kinds}).layers
    assert [layer.mixer.window for layer in layers if isinstance(layer.mixer, Attention)] == [None] * len(kinds)


@pytest.mark.parametrize(("family", "whole"), [(gemma3, "gemma3"), (gemma3n_text, "gemma3n"), (gemma4_text, "gemma4")])
def test_what_the_text_part_alone_says_counts(family: Callable[[], Config], whole: str) -> None:
    text = {key: value for key, value in family().items() if key not in ("dtype", "torch_dtype", "tie_word_embeddings")}
    nested = {"model_type": whole, "text_config": {**text, "dtype": "float32"}}
    assert read(nested).stored_format == "f32"
    with pytest.raises(ConfigError, match="'torch_dtype' and 'text_config.dtype' disagree"):
        read({**nested, "torch_dtype": "bfloat16"})
    untied = {"model_type": whole, "text_config": {**text, "tie_word_embeddings": False}}
    with pytest.raises(ConfigError, match="'tie_word_embeddings' and 'text_config.tie_word_embeddings' disagree"):
        read(untied)
    assert not read({**untied, "tie_word_embeddings": False}).head.tied


def test_kv_heads_that_no_key_speaks_of() -> None:
    """Qwen3's class has 32; null is as many as heads, as it is in Llama, whose class has no number."""

    def kv_heads(config: Config) -> int:
        mixer = read(config).layers[0].mixer
        assert isinstance(mixer, Attention)
        return mixer.kv_heads

    for family, absent in ((llama, 64), (qwen3, 32)):
        config = {**family(), "num_attention_heads": 64, "head_dim": 16}
        assert kv_heads({**config, "num_key_value_heads": None}) == 64
        del config["num_key_value_heads"]
        assert kv_heads(config) == absent


def test_rotations_of_each_kind_of_layer() -> None:
    def ropes(config: Config) -> set[Rope | None]:
        return {layer.mixer.rope for layer in read(config).layers if isinstance(layer.mixer, Attention)}

    assert ropes(gemma3()) == {
        Rope(1_000_000.0, 8, 16, distance=8, scaling=LinearScaling(8.0)),
        Rope(10_000.0, 8, 16, distance=8),
    }
    # A quarter of the head turns, with frequencies over the rotated dims alone.
    assert ropes(spark()) == {Rope(5_000_000.0, 2, 4, distance=2), Rope(10_000.0, 8, 16, distance=8)}
    assert ropes(llama()) == {Rope(500_000.0, 8, 16, distance=8, scaling=Llama3Scaling(8.0, 1.0, 4.0, 64))}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    (rope,) = ropes({**qwen3(), "rope_scaling": yarn})
    assert rope is not None
    assert isinstance(rope.scaling, YarnScaling)
    # 0.1 ln(4) + 1, https://arxiv.org/abs/2309.00071, equation 22
    assert rope.scaling.attention_factor == pytest.approx(1.1386294361119891, abs=1e-15)
    with pytest.raises(UnsupportedError, match="rope_type"):
        read({**qwen3(), "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})


def test_unknown_keys_are_reported_and_known_ones_are_sorted() -> None:
    config = {
        **configs.gemma3(),
        "use_cache": True,
        "surprise": 1,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0, "wobble": 2},
    }
    _, coverage = from_config(config, file="config.json")
    assert set(coverage.unknown) == {"rope_scaling.wobble", "surprise"}
    assert "use_cache" in coverage.irrelevant
    assert "rope_scaling.factor" in coverage.used
    everything = (*coverage.used, *coverage.irrelevant, *coverage.unknown)
    assert len(everything) == len(set(everything)) == len(config) - 1 + 3


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_no_key_of_a_published_spelling_is_unknown(family: Callable[[], Config]) -> None:
    assert from_config(family(), file="config.json")[1].unknown == ()


def test_evidence_says_where_a_value_comes_from() -> None:
    evidence = read(without(gemma3(), "sliding_window_pattern", "rms_norm_eps")).evidence
    assert (evidence["hidden"].origin, evidence["hidden"].key, evidence["hidden"].value) == ("key", "hidden_size", "64")
    assert (evidence["norm.eps"].origin, evidence["norm.eps"].key) == ("default", "rms_norm_eps")
    assert evidence["layers.kind"].origin == "default"
    assert (evidence["window.rope.theta"].origin, evidence["window.rope.theta"].key) == ("key", "rope_local_base_freq")
    assert evidence["head.tied"].origin == "default"


def test_an_unknown_family_is_said_to_be_one() -> None:
    with pytest.raises(UnsupportedError, match=r"'model_type'.*'mamba'"):
        read({"model_type": "mamba"})


@pytest.mark.parametrize("family", [gemma2, gemma3, llama, qwen3])
def test_heads_that_are_rotated_whole_refuse_a_share(family: Callable[[], Config]) -> None:
    assert read({**family(), "partial_rotary_factor": 1.0}) == read(family())
    with pytest.raises(ConfigError, match="'partial_rotary_factor': expected 1: this family rotates whole heads"):
        read({**family(), "partial_rotary_factor": 0.5})

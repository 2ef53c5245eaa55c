"""Keys of every file are accounted for, and families nobody taught Plait are described as far as their keys go."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import configs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gguf_header import ARR, BOOL, F32, I32, STR, U32, array, build, entry, key, text

import plait
from plait.account.outline import outline_largest, outline_memory, outline_weights
from plait.blueprint.catalog import entries
from plait.blueprint.check import not_run
from plait.blueprint.families import family
from plait.blueprint.families.generic import outline_of_config
from plait.blueprint.outline import OutlineLayer
from plait.blueprint.source import Sketch, Source, describe, open_entry, open_model
from plait.cli import main as cli
from plait.errors import ConfigError, PlaitError, UnsupportedError, UsageError

MIB = 2**20


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli._status(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def config(**changes: Any) -> dict[str, Any]:
    """A config of a family that does not exist; None takes a key out."""
    base: dict[str, Any] = {
        "model_type": "never_heard_of",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 512,
        "intermediate_size": 96,
    }
    return {name: value for name, value in {**base, **changes}.items() if value is not None}


def sketch(data: dict[str, Any], tmp_path: Path) -> Sketch:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data))
    found = describe(path)
    assert isinstance(found, Sketch)
    return found


def gguf(tmp_path: Path, name: str = "lfm2", *, kv: int | Sequence[int] = 8, **extra: bytes) -> Path:
    """GGUF metadata of LFM2-1.2B's shape: 16 layers of 2048, 32 heads, no stored head size; one small tensor."""
    numbers = {"block_count": 16, "context_length": 128_000, "embedding_length": 2048, "feed_forward_length": 8192}
    numbers |= {"attention.head_count": 32, "shortconv.l_cache": 3, "vocab_size": 65_536}
    keys = [key("general.architecture", STR, text(name))]
    keys += [key(f"{name}.{word}", U32, struct.pack("<I", n)) for word, n in numbers.items()]
    per_layer = not isinstance(kv, int)
    packed = array(I32, len(kv), struct.pack(f"<{len(kv)}i", *kv)) if per_layer else struct.pack("<I", kv)
    keys.append(key(f"{name}.attention.head_count_kv", ARR if per_layer else U32, packed))
    keys.append(key(f"{name}.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)))
    keys += [key(f"{name}.{word}", int(raw[0]), raw[1:]) for word, raw in extra.items()]
    path = tmp_path / "m.gguf"
    path.write_bytes(build(keys, [entry("token_embd.weight", (32, 3), 8, 0)], 102))
    return path


LFM2 = (0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0)


def test_every_key_of_the_catalogue_is_known() -> None:
    for item in entries():
        found = open_entry(item).coverage
        assert found.unknown == (), item.name
        assert found.used


def test_coverage_counts(status: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**configs.qwen3(), "surprise": 1, "use_cache": True}))
    found = json.loads(status("inspect", str(tmp_path), "--json")[1])["coverage"]
    sizes = [len(found[kind]) for kind in ("used", "irrelevant", "unknown")]
    assert sum(sizes) == len(configs.qwen3()) + 2
    out = status("inspect", str(tmp_path), "--coverage")[1]
    assert "Keys of the file: {} used, {} irrelevant, {} unknown".format(*sizes) in out
    assert ["unknown", "surprise"] in [line.split() for line in out.splitlines()]


def test_inspect_names_the_reference(status: Any) -> None:
    for name in ("gemma-3-270m", "spark-x2.5-4b"):
        reference = family(plait.blueprint(name).family).REFERENCE
        assert reference in status("inspect", name)[1]


def test_lfm2_from_its_per_layer_array(tmp_path: Path, status: Any) -> None:
    """LFM2-1.2B: 6 of 16 layers hold 8 KV heads of 64: 384 MiB at 32,768 tokens in f16."""
    path = gguf(tmp_path, kv=LFM2)
    found = describe(path)
    assert isinstance(found, Sketch)
    kept = [i for i, layer in enumerate(found.outline.layers) if layer.kind == "full"]
    assert kept == [i for i, heads in enumerate(LFM2) if heads]
    memory = outline_memory(found, 32_768, kv_format="f16")
    assert memory.total_bytes == 384 * MIB
    assert memory.layers.states["rows"] == 6
    assert memory.max_context == found.outline.max_context
    assert memory.per_token_bytes == 6 * 2 * 8 * 64 * 2
    answer = json.loads(status("memory", str(path), "--context", "32768", "--kv-dtype", "f16", "--json")[1])
    assert (answer["total_bytes"], answer["family_known"], answer["weights_bytes"]) == (384 * MIB, False, 102)
    assert any("0, 1, 3, 4, 6, 7, 9, 11, 13, 15" in note for note in answer["notes"])


def test_what_a_number_of_kv_heads_for_all_layers_leaves_open(tmp_path: Path) -> None:
    """With convolutions in the file and no statement of which layers have them, nothing is guessed."""
    found = describe(gguf(tmp_path))
    assert isinstance(found, Sketch)
    with pytest.raises(UnsupportedError, match=r"'lfm2\.shortconv\.l_cache' may change what layers keep") as caught:
        outline_memory(found, 10)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=16, max_size=16),
    st.lists(st.booleans(), min_size=16, max_size=16),
    st.integers(1, 40),
    st.integers(1, 100),
)
def test_per_layer_arrays_are_taken_layer_by_layer(
    tmp_path_factory: pytest.TempPathFactory, kv: list[int], sliding: list[bool], window: int, context: int
) -> None:
    extra = {
        "attention.sliding_window": bytes([U32]) + struct.pack("<I", window),
        "attention.sliding_window_pattern": bytes([ARR]) + array(BOOL, 16, bytes(sliding)),
        "attention.key_length": bytes([U32]) + struct.pack("<I", 24),
        "attention.value_length": bytes([U32]) + struct.pack("<I", 40),
    }
    path = gguf(tmp_path_factory.mktemp("m"), "never-heard-of", kv=kv, **extra)
    found = describe(path)
    assert isinstance(found, Sketch)
    assert found.outline.doubts == ()
    by_hand = sum(n * (24 + 40) * (min(context, window) if w else context) for n, w in zip(kv, sliding, strict=True))
    assert outline_memory(found, context, kv_format="f32").total_bytes == 4 * by_hand


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, "full full full full"),
        ({"layer_types": ["conv", "full_attention"] * 2}, "none full none full"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 9}, "window full window full"),
        ({"full_attention_interval": 2, "linear_conv_kernel_dim": 4}, "none full none full"),
        ({"sliding_window": 9, "sliding_window_pattern": 4}, "window window window full"),
        ({"sliding_window": 9, "use_sliding_window": False, "max_window_layers": 3}, "full full full full"),
        ({"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_conv": 4}, "none full none full"),
        ({"full_attn_idxs": [1, 2], "conv_L_cache": 3}, "none full full none"),
        ({"layers_block_type": ["mamba", "attention"] * 2, "mamba_n_heads": 3}, "none full none full"),
        ({"num_key_value_heads": [0, 2, 1, 0]}, "none full full none"),
    ],
)
def test_kinds_of_layers(tmp_path: Path, changes: dict[str, Any], kinds: str) -> None:
    outline = sketch(config(**changes), tmp_path).outline
    assert " ".join(layer.kind for layer in outline.layers) == kinds
    assert outline.doubts == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 9}, "'sliding_window' gives a window, and no key says for which layers"),
        ({"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
        ({"layer_types": ["full_attention"] * 3}, "'layer_types' is not a list of 4 words"),
        ({"layer_types": ["sliding_attention"] * 4}, "the window is not stated"),
        ({"kv_lora_rank": 512}, "'kv_lora_rank' may change what layers keep"),
        ({"num_kv_shared_layers": 2}, "'num_kv_shared_layers' may change"),
        ({"mamba_d_state": 16}, "'mamba_d_state' may change"),
        ({"global_head_dim": 512}, "'global_head_dim' may change"),
        ({"swa_num_key_value_heads": 8}, "'swa_num_key_value_heads' may change"),
        ({"attention_chunk_size": 8192}, "'attention_chunk_size' may change"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"n_layer": 5}, "keys 'num_hidden_layers' and 'n_layer' disagree"),
        ({"num_hidden_layers": None}, "the number of layers is not stated"),
        ({"num_key_value_heads": "many"}, "'num_key_value_heads' is not understood"),
        ({"num_key_value_heads": [1, 2]}, "'num_key_value_heads' is not understood"),
        ({"num_attention_heads": None, "head_dim": None}, "is not stated"),
        ({"attn_layer_period": 2, "attn_layer_offset": 2}, "needs an offset below it"),
    ],
)
def test_where_the_keys_do_not_suffice(tmp_path: Path, changes: dict[str, Any], words: str, status: Any) -> None:
    found = sketch(config(**changes), tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        outline_memory(found, 10)
    assert words in str(caught.value)
    code, out, err = status("memory", str(tmp_path), "--context", "10")
    assert (code, out, err.count("\n")) == (2, "", 1)
    code, out, _ = status("inspect", str(tmp_path))
    assert code == 0
    assert "Keys and values are not counted, because:" in out


def test_what_was_assumed_is_said(tmp_path: Path) -> None:
    outline = sketch(config(num_key_value_heads=None, head_dim=None), tmp_path).outline
    assert outline.layers[0] == OutlineLayer("full", "", 4, 4, 16, 16, None)
    assert [note.split("'")[1] for note in outline.notes] == ["num_key_value_heads", "head_dim"]
    assert outline.evidence["attention.heads"].key == "num_attention_heads"


def test_keys_of_a_nested_text_model(tmp_path: Path) -> None:
    nested = {"model_type": "never_heard_of", "text_config": config(), "vision_config": {"hidden_size": 5}}
    found = sketch(nested, tmp_path)
    assert found.outline.hidden == 64
    assert "text_config.num_key_value_heads" in found.coverage.used
    assert found.coverage.unknown == ("vision_config",)


def test_inspect_lists_what_it_knows_and_every_key(tmp_path: Path, status: Any) -> None:
    data = config(num_experts=8, num_experts_per_tok=2, surprise=[1, 2], head_dim=32)
    sketch(data, tmp_path)
    code, out, err = status("inspect", str(tmp_path))
    assert (code, err) == (0, "")
    for name in data:
        assert any(name in line.split() for line in out.splitlines()), name
    for words in ("never_heard_of: unknown", "8, 2 a token", "heads 4, KV heads 2, head 32", "no: the family is"):
        assert words in out
    assert "unknown  surprise" in out
    found = json.loads(status("inspect", str(tmp_path), "--json")[1])
    assert (found["family"], found["family_known"]) == ("never_heard_of", False)
    assert found["outline"]["layers"][3]["kv_heads"] == 2
    assert found["coverage"]["unknown"] == ["surprise"]


def test_other_commands_say_why_not(tmp_path: Path, status: Any) -> None:
    sketch(config(), tmp_path)
    with pytest.raises(UnsupportedError, match="'model_type'.*never_heard_of.*`plait inspect` shows"):
        open_model(tmp_path)
    code, _, err = status("params", str(tmp_path))
    assert code == 2
    assert "no weights are at hand to count" in err


def test_parameters_of_an_unknown_family_are_those_of_its_file(tmp_path: Path, status: Any) -> None:
    path = gguf(tmp_path, kv=LFM2)
    found = json.loads(status("params", str(path), "--json")[1])
    assert (found["in_file"], found["used"], found["active"]) == (96, None, None)
    assert found["by_format"] == {"q8_0": 96}
    assert "Counted from the headers of 1 file (gguf, 1 tensors)." in status("params", str(path))[1]


def test_budgets_of_an_unknown_family(tmp_path: Path) -> None:
    lone = sketch(config(), tmp_path)
    assert outline_weights(lone) is None
    with pytest.raises(UsageError, match="only a config was named"):
        outline_largest(lone, 10**6, weights=None)
    found = describe(gguf(tmp_path, kv=LFM2))
    assert isinstance(found, Sketch)
    weights = outline_weights(found)
    assert weights == 102
    fit = outline_largest(found, 102 + 10 * 12_288, weights=weights)
    assert (fit.context, fit.limit) == (10, "budget")


def test_known_families_are_no_sketches(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs.llama()))
    assert isinstance(describe(tmp_path), Source)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="model_type"):
        describe(tmp_path)


WORDS = (
    "num_hidden_layers",
    "n_layer",
    "num_key_value_heads",
    "head_dim",
    "layer_types",
    "sliding_window",
    "sliding_window_pattern",
    "full_attention_interval",
    "full_attn_idxs",
    "text_config",
    "intermediate_size",
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=5))
def test_any_keys_give_an_outline(changes: dict[str, Any]) -> None:
    data = {**config(), **changes}
    try:
        outline, coverage = outline_of_config(data, family="never_heard_of", file="config.json")
    except PlaitError as error:
        assert "\n" not in str(error)
        return
    listed = {name.split(".")[0] for name in (*coverage.used, *coverage.irrelevant, *coverage.unknown)}
    assert listed <= data.keys()
    for layer in outline.layers:
        assert (layer.kv_heads is not None) == (layer.kind in ("full", "window"))


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        (("--mixer", "window"), lambda item: "window" in item["mixers"]),
        (("--mixer", "window", "--mixer", "full"), lambda item: {"window", "full"} <= set(item["mixers"])),
        (("--max-params", "1B"), lambda item: item["used"] <= 10**9),
        (("--max-params", "268098176"), lambda item: item["used"] <= 268_098_176),
        (("--min-context", "128k"), lambda item: item["max_context"] >= 131_072),
        (("--runs",), lambda item: item["run"]),
        (("--family", "gemma3", "--runs"), lambda item: item["family"] == "gemma3" and item["run"]),
    ],
)
def test_filters_of_the_catalogue(status: Any, options: tuple[str, ...], holds: Any) -> None:
    everything = json.loads(status("models", "--json")[1])
    found = json.loads(status("models", *options, "--json")[1])
    assert found == [item for item in everything if holds(item)]
    # All of the catalogue runs.
    assert 0 < len(found) < len(everything) + (options == ("--runs",))


def test_filters_that_leave_nothing_and_wrong_ones(status: Any) -> None:
    none = ("models", "--max-params", "1K")
    assert json.loads(status(*none, "--json")[1]) == []
    assert status(*none)[1] == "No model of the catalogue passes these filters.\n"
    for wrong in ("--max-params=many", "--max-params=1.0001K", "--mixer=mamba", "--min-context=-1"):
        code, out, err = status("models", wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_runs_is_what_the_runtime_runs(status: Any) -> None:
    names = [item["name"] for item in json.loads(status("models", "--runs", "--json")[1])]
    assert all(not not_run(plait.blueprint(name)) for name in names)

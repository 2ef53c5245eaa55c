"""Files held against the blueprint: what they hold is counted, and every difference is named."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import configs
import pytest
import routed_configs
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_family_d_gguf import architecture_of, header, tensors_of
from test_gguf_header import F32, STR, U32, build, entry, key, text

from plait.account.headers import Headers, compare, headers_of
from plait.account.memory import block_scales
from plait.account.parameters import account_of, parameters, parameters_of
from plait.blueprint.catalog import entries, names
from plait.blueprint.families import family
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.source import Source, from_config, from_gguf, open_entry, open_model
from plait.blueprint.spec import Attention
from plait.blueprint.tensors import inventory
from plait.cli import main as cli
from plait.dtypes import BY_NAME
from plait.errors import FileFormatError

Shapes = dict[str, tuple[int, ...]]
NAMES: Shapes = {"model.embed_tokens.weight": (300, 64), "model.norm.weight": (64,)}
for _i in range(4):
    NAMES |= {
        f"model.layers.{_i}.{name}.weight": shape
        for name, shape in {
            "input_layernorm": (64,),
            "self_attn.q_proj": (128, 64),
            "self_attn.k_proj": (64, 64),
            "self_attn.v_proj": (64, 64),
            "self_attn.o_proj": (64, 128),
            "self_attn.q_norm": (32,),
            "self_attn.k_norm": (32,),
            "post_attention_layernorm": (64,),
            "mlp.gate_proj": (96, 64),
            "mlp.up_proj": (96, 64),
            "mlp.down_proj": (64, 96),
        }.items()
    }
# What differences are about where a file holds the text graph alone.
_TOWERS = ("vision", "audio", "embedders")
_BESIDE = (*_TOWERS, "multi-token prediction", "block scales")
TOTAL = sum(map(prod, NAMES.values()))


def stored(shapes: Mapping[str, tuple[int, ...]], form: str = "bf16") -> dict[str, StoredTensor]:
    """Tensors as a reader of headers gives them."""
    made = BY_NAME[form]
    return {name: StoredTensor(name, s, made, Path("f"), 0, made.nbytes(prod(s))) for name, s in shapes.items()}


def account(shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any] | None = None) -> Any:
    """The account of a qwen3 config beside files of these tensors."""
    blueprint, coverage = from_config(config or configs.qwen3(), file="config.json")
    return account_of(Source("directory", blueprint, coverage), Headers("safetensors", stored(shapes)))


def write(directory: Path, shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any]) -> Path:
    """A safetensors file of zeros beside its config."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * prod(shape)]}
        at += 4 * prod(shape)
    raw = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(at))
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli._status(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_file_that_fits() -> None:
    found = account(NAMES)
    assert (found.in_file, found.used, found.differences) == (TOTAL, TOTAL, ())
    assert found.used_bytes == 2 * TOTAL
    assert found.counted_from == f"the headers of 1 file (safetensors, {len(NAMES)} tensors)"


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(sorted(NAMES)), max_size=5), st.sets(st.sampled_from(sorted(NAMES)), max_size=5))
def test_every_difference_is_named(without: set[str], doubled: set[str]) -> None:
    doubled -= without
    shapes: Shapes = {name: shape for name, shape in NAMES.items() if name not in without}
    shapes |= {name: (2 * shapes[name][0], *shapes[name][1:]) for name in doubled}
    shapes["model.layers.0.extra.weight"] = (7, 9)
    found = account(shapes)
    assert found.in_file == sum(map(prod, shapes.values()))
    assert len(found.differences) == len(without) + len(doubled) + 1
    for name in without:
        assert f"tensor '{name}' is missing" in found.differences
    for name in doubled:
        assert f"tensor '{name}': expected {NAMES[name]}, found {shapes[name]}" in found.differences
    line = next(line for line in found.differences if "extra" in line)
    assert line == "tensor 'model.layers.0.extra.weight' (63 elements, shape (7, 9)) is no part of the graph"


def test_a_transposed_matrix_is_misshaped() -> None:
    assert len(account({**NAMES, "model.layers.1.mlp.up_proj.weight": (64, 96)}).differences) == 1
    # An axis of length 1 is the container's own.
    assert account({**NAMES, "model.layers.1.mlp.up_proj.weight": (96, 1, 64)}).differences == ()


def test_copies_and_constants_are_no_differences() -> None:
    extra: Shapes = {"lm_head.weight": (300, 64), "model.layers.0.self_attn.rotary_emb.inv_freq": (16,)}
    found = account({**NAMES, **extra})
    assert found.differences == ()
    assert (found.beyond.duplicates, found.beyond.buffers) == (300 * 64, 16)
    assert found.in_file == TOTAL + 300 * 64 + 16
    assert found.used_bytes == 2 * TOTAL
    assert set(found.ignored) == {"a copy of the embedding or the head", "computed from the config"}


def test_block_scales_are_counted_apart() -> None:
    extra: Shapes = {"model.layers.0.mlp.up_proj.weight_scale_inv": (1, 1)}
    found = account({**NAMES, **extra})
    assert (found.in_file, found.beyond.fp8_scales, found.differences) == (TOTAL, 1, ())
    assert found.used_bytes == 2 * TOTAL + 2
    orphan = account({**NAMES, "model.layers.9.mlp.up_proj.weight_scale_inv": (1, 1)})
    assert len(orphan.differences) == 1
    assert (orphan.in_file, orphan.beyond.fp8_scales) == (TOTAL + 1, 0)


@pytest.mark.parametrize("name", ["gemma3", "gemma2", "qwen3", "llama"])
def test_what_transformers_writes(name: str, tmp_path: Path) -> None:
    found = parameters_of(open_model(tiny.save(name, tmp_path)))
    alone = parameters(open_model(tmp_path / "config.json").blueprint)
    assert (found.in_file, found.used, found.differences) == (alone.in_file, alone.used, ())
    assert found.counted_from.startswith("the headers of 1 file")


def test_a_vision_tower_in_the_file_and_not(tmp_path: Path) -> None:
    import torch
    import transformers

    text_config = {**tiny.SETTINGS["gemma3"], "vocab_size": 211}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "vision_use_head": False}
    config = transformers.Gemma3Config(text_config=text_config, vision_config=vision, mm_tokens_per_image=4)
    with torch.device("meta"):
        model = transformers.Gemma3ForConditionalGeneration(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    source = open_model(write(tmp_path, shapes, json.loads(config.to_json_string(use_diff=False))))
    found = parameters_of(source)
    assert found.differences == ()
    assert found.in_file == sum(map(prod, shapes.values())) == found.used
    assert found.parts["vision"] > 0
    assert found.used_bytes == 4 * found.used
    text_only = Headers("safetensors", stored({n: s for n, s in shapes.items() if "language_model" in n}))
    (line,) = account_of(source, text_only).differences
    assert line.startswith(f"vision: expected {found.parts['vision']} elements beside the text model")


def test_directories_with_and_without_weights(tmp_path: Path, status: Any) -> None:
    write(tmp_path, {**NAMES, "surplus": (3,)}, configs.qwen3())
    found = json.loads(status("params", str(tmp_path), "--json")[1])
    assert (found["in_file"], found["used"]) == (TOTAL + 3, TOTAL)
    assert found["differences"] == ["tensor 'surplus' (3 elements, shape (3,)) is no part of the graph"]
    out = status("params", str(tmp_path))[1]
    assert "Counted from the headers of 1 file (safetensors," in out
    assert "tensor 'surplus'" in out
    assert "1 differences from the config" in status("inspect", str(tmp_path))[1]
    memory = json.loads(status("memory", str(tmp_path), "--context", "9", "--json")[1])
    assert memory["weights_bytes"] == 4 * TOTAL
    assert "the files differ from what the config lets expect" in memory["notes"][1]
    (tmp_path / "model.safetensors").unlink()
    found = json.loads(status("params", str(tmp_path), "--json")[1])
    assert (found["in_file"], found["counted_from"], found["differences"]) == (TOTAL, "the config alone", [])
    memory = json.loads(status("memory", str(tmp_path), "--context", "9", "--json")[1])
    assert memory["weights_bytes"] == 2 * TOTAL
    assert memory["notes"] == ["no weights are at hand: they are counted from the config, in bf16"]
    assert "none at hand, parameters are counted from the config alone" in status("inspect", str(tmp_path))[1]


def test_damaged_weights_are_no_silence(tmp_path: Path, status: Any) -> None:
    write(tmp_path, NAMES, configs.qwen3())
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(FileFormatError):
        headers_of(open_model(tmp_path))
    for command in (("params", str(tmp_path)), ("memory", str(tmp_path), "--context", "9")):
        code, out, err = status(*command)
        assert (code, out, err.count("\n")) == (2, "", 1)
    code, out, err = status("inspect", str(tmp_path))
    assert (code, err) == (0, "")
    assert "cannot be read, parameters are counted from the config: " in out
    assert json.loads(status("inspect", str(tmp_path), "--json")[1])["weights"]["unread"] is not None


def gguf(tmp_path: Path, change: Callable[[Shapes], None]) -> Path:
    """A Llama of one layer; shapes innermost last."""
    shapes: Shapes = {"token_embd.weight": (300, 64), "output_norm.weight": (64,)}
    below = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    below |= {"ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    shapes |= {f"blk.0.{name}.weight": shape for name, shape in below.items()}
    change(shapes)
    numbers = {"block_count": 1, "context_length": 512, "embedding_length": 64, "feed_forward_length": 96}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    keys = [key("general.architecture", STR, text("llama"))]
    keys += [key(f"llama.{name}", U32, struct.pack("<I", n)) for name, n in numbers.items()]
    keys.append(key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)))
    entries, at = [], 0
    for name, shape in shapes.items():
        entries.append(entry(name, shape[::-1], 0, at))
        at += -(-4 * prod(shape) // 32) * 32
    path = tmp_path / "m.gguf"
    path.write_bytes(build(keys, entries, at))
    return path


def test_a_gguf_header(tmp_path: Path) -> None:
    total = 300 * 64 + 64 + 2 * 64 + 64 * 64 * 2 + 32 * 64 * 2 + 3 * 96 * 64
    found = parameters_of(open_model(gguf(tmp_path, lambda _: None)))
    assert (found.in_file, found.used, found.differences) == (total, total, ())
    assert found.used_bytes == 4 * total

    def damage(shapes: Shapes) -> None:
        del shapes["blk.0.ffn_up.weight"]
        shapes["blk.0.attn_k.weight"] = (32, 63)
        shapes["blk.0.strange.weight"] = (5,)

    found = parameters_of(open_model(gguf(tmp_path, damage)))
    assert found.in_file == total - 96 * 64 - 32 + 5
    assert [line.split("'")[1] for line in found.differences] == [
        "blk.0.attn_k.weight",
        "blk.0.ffn_up.weight",
        "blk.0.strange.weight",
    ]


_LATENT_GGUF = [routed_configs.deepseek_v3, routed_configs.glm_5]


@pytest.mark.parametrize("config", [*_LATENT_GGUF, routed_configs.glm_4_5])
def test_gguf_files_with_prediction_blocks(config: Callable[[], dict[str, Any]]) -> None:
    """Turned keys fit, and blocks behind the model's last are multi-token prediction where a file holds them."""
    whole, _ = from_config(config(), file="config.json")
    text_alone = replace(whole, mtp=None)
    count = len(whole.layers)
    shapes = tensors_of(text_alone)
    ahead = {f"blk.{count}.{t.role}": t.shape for t in inventory(whole) if t.part == "mtp"}
    keys = {**family(whole.family).gguf_metadata(text_alone), "block_count": count + 1, "nextn_predict_layers": 1}

    def account_of_file(tensors: Shapes) -> Any:
        made = header(architecture_of(whole), keys, tensors)
        return account_of(Source("gguf", *from_gguf(made)), Headers("gguf", made.tensors))

    found = account_of_file({**shapes, **ahead})
    assert found.differences == ()
    # Biases that choose experts are counted as such, in the layers that predict too.
    biases = sum(t.elements for t in inventory(whole) if t.part == "mtp" and t.buffer)
    assert found.beyond.mtp == sum(map(prod, ahead.values())) - biases == parameters(whole).beyond.mtp
    assert found.in_file == sum(map(prod, [*shapes.values(), *ahead.values()]))
    without = account_of_file(shapes)
    expected = sum(map(prod, ahead.values()))
    assert without.differences == (f"multi-token prediction: expected {expected} elements, found 0",)
    assert (without.beyond.mtp, without.used) == (0, found.used)
    copied = account_of_file({**shapes, **ahead, f"blk.{count}.nextn.embed_tokens.weight": (301, 32)})
    assert (copied.differences, copied.beyond.duplicates) == ((), 301 * 32)
    assert copied.beyond.mtp == found.beyond.mtp


@pytest.mark.parametrize("config", _LATENT_GGUF)
def test_turned_keys_that_do_not_fit(config: Callable[[], dict[str, Any]]) -> None:
    blueprint = replace(from_config(config(), file="config.json")[0], mtp=None)
    shapes = tensors_of(blueprint)
    heads, rank, key_dim = shapes["blk.1.attn_k_b.weight"]
    for wrong in ((heads, key_dim, rank), (heads * rank, key_dim), (heads, rank, key_dim + 1)):
        made = compare(blueprint, Headers("gguf", stored({**shapes, "blk.1.attn_k_b.weight": wrong}, "f32")), 0)
        assert made.differences == (
            f"tensor 'blk.1.attn_k_b.weight': expected {(heads, rank, key_dim)}, found {wrong}",
        )


def test_embedders_are_beside_the_text_model() -> None:
    """Gemma 3n: the encoders and the embedders that join them to the text model are explained together."""
    source, shapes = of_layout("gemma-3n-e2b")
    beside = {part: sum(t.elements for t in inventory(source.blueprint) if t.part == part) for part in _TOWERS}
    shapes["model.vision_tower.all.weight"] = (beside["vision"],)
    shapes["model.audio_tower.all.weight"] = (beside["audio"],)
    shapes["model.embed_audio.all.weight"] = (beside["embedders"],)
    found = account_of(source, Headers("safetensors", stored(shapes)))
    assert found.differences == ()
    assert found.in_file == sum(map(prod, shapes.values()))
    del shapes["model.embed_audio.all.weight"]
    found = account_of(source, Headers("safetensors", stored(shapes)))
    assert f"embedders: expected {beside['embedders']} elements" in " ".join(found.differences)


def test_parts_that_only_add_up_together() -> None:
    blueprint, _ = from_config(configs.qwen3(), file="config.json")
    found = compare(blueprint, Headers("safetensors", stored(NAMES)), unused_kv=1000)
    # Unused weights of shared keys and values may be in a file or not.
    assert (found.unused_shared_kv, found.differences) == (0, ())


def of_layout(name: str) -> tuple[Any, Shapes]:
    """A catalogue entry's source, and tensors of the text graph as the family's layout stores them."""
    source = open_entry(next(item for item in entries() if item.name == name))
    layout = family(source.blueprint.family).layout(source.blueprint)
    roles = {tensor.role: tensor for tensor in inventory(source.blueprint)}
    root = layout.roots[0]
    shapes: Shapes = {}
    for binding in layout.bindings:
        own = [roles[role].shape for role in binding.roles]
        columns = own[0][-1] if max(map(len, own)) > 1 else 1
        rows = sum(map(prod, own)) // columns // len(binding.names)
        for word in binding.names:
            shapes[word.format(**root)] = (rows, columns) if columns > 1 else (rows,)
    return source, shapes


@pytest.mark.parametrize("name", names())
def test_the_layout_of_every_family_fits_its_inventory(name: str) -> None:
    source, shapes = of_layout(name)
    found = account_of(source, Headers("safetensors", stored(shapes)))
    # Towers, layers that predict further tokens and block scales are not here.
    beside = [line for line in found.differences if line.split(":")[0] in _BESIDE]
    assert [line for line in found.differences if line not in beside][:3] == []
    assert found.in_file == sum(map(prod, shapes.values()))


def test_deepseek_files_in_blocks() -> None:
    """Each quantised matrix has its scales beside it; what the config lets expect is what such a file holds."""
    source, shapes = of_layout("deepseek-v3.2")
    blueprint = source.blueprint
    quantised = {t.role for t in inventory(blueprint) if t.part == "text" and block_scales(t, blueprint.quantization)}
    expected = sum(block_scales(t, blueprint.quantization) for t in inventory(blueprint) if t.role in quantised)
    scales: Shapes = {}
    layout = family(blueprint.family).layout(blueprint)
    for binding in layout.bindings:
        if quantised.issuperset(binding.roles):
            for word in binding.names:
                name = word.format(**layout.roots[0])
                rows, columns = shapes[name]
                scales[f"{name}_scale_inv"] = (-(-rows // 128), -(-columns // 128))
    found = account_of(source, Headers("safetensors", stored({**shapes, **scales})))
    assert found.beyond.fp8_scales == expected == sum(map(prod, scales.values()))
    assert found.in_file == sum(map(prod, shapes.values()))


@pytest.mark.parametrize("bounds", [True, False])
def test_two_towers_and_unused_keys_and_values(bounds: bool) -> None:
    """Gemma 4 E2B: files with unused keys and values, and with or without clip bounds, are explained to the last."""
    source, shapes = of_layout("gemma-4-e2b")
    blueprint = source.blueprint
    first = next(name for name in shapes if name.endswith("layers.0.self_attn.k_proj.weight"))
    for i, part in enumerate(blueprint.layers):
        mixer = part.mixer
        if isinstance(mixer, Attention) and mixer.kv_source is not None:
            key_name = first.replace("layers.0.", f"layers.{i}.")
            shapes[key_name] = (mixer.kv_heads * mixer.qk_dim, blueprint.hidden)
            shapes[key_name.replace("k_proj", "v_proj")] = (mixer.kv_heads * mixer.v_dim, blueprint.hidden)
            shapes[key_name.replace("k_proj", "k_norm")] = (mixer.qk_dim,)
    towers = [t for t in inventory(blueprint) if t.part in ("vision", "audio")]
    shapes["model.vision_tower.all.weight"] = (sum(t.elements for t in towers if not t.buffer),)
    clips = sum(t.elements for t in towers if t.buffer)
    if bounds:
        shapes["model.vision_tower.all.input_max"] = (clips,)
    found = account_of(source, Headers("safetensors", stored(shapes)))
    assert found.differences == ()
    assert found.in_file == sum(map(prod, shapes.values()))
    alone = parameters(blueprint)
    assert found.beyond.unused_shared_kv == alone.beyond.unused_shared_kv > 0
    assert alone.beyond.buffers - found.beyond.buffers == (0 if bounds else clips)
    assert found.used_bytes == 2 * (found.used + found.beyond.layer_scalars + (clips if bounds else 0))

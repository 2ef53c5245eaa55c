"""`plait generate` on what cannot work: one clear line for everything that goes wrong."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import pytest
import torch
from calling_generate import ENVIRONMENT, PROGRAM, caller, refusal, write_models
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def model(models):
    return str(models / "model")


@pytest.fixture
def call(capsys):
    return caller(capsys)


@pytest.fixture
def refused(call):
    return refusal(call)


# -- what is asked cannot be done ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gemma-3-270", "x"], ["gemma-3-270: no such file", "did you mean gemma-3-270m", "plait models"]),
        (["no/such/model.gguf", "x"], ["no/such/model.gguf: no such file or directory"]),
        (["qwen3-4b", "x"], ["qwen3-4b", "no weights", "Qwen/Qwen3-4B"]),
        ([""], ["the prompt is empty"]),
        (["MODEL", ""], ["the prompt is empty"]),
        (["a", "b", "c"], ["expected [MODEL] PROMPT, found 3 arguments", "quotes"]),
        ([], ["[MODEL] PROMPT", "plait generate --help"]),
        (["MODEL", "x", "--no-such"], ["No such option", "--no-such"]),
        (["MODEL", "x", "-n", "0"], ["max_tokens: expected a positive integer, found 0"]),
        (["MODEL", "x", "-n", "many"], ["--max-tokens", "'many'"]),
        (["MODEL", "x", "--temperature", "-1"], ["temperature: expected a finite number >= 0, found -1.0"]),
        (["MODEL", "x", "--temperature", "nan"], ["temperature", "found nan"]),
        (["MODEL", "x", "--top-k", "-5"], ["top_k", "found -5"]),
        (["MODEL", "x", "--top-p", "1.5"], ["top_p: expected a number in [0, 1], found 1.5"]),
        (["MODEL", "x", "--min-p", "2"], ["min_p", "found 2.0"]),
        (["MODEL", "x", "--repetition-penalty", "0"], ["repetition_penalty", "found 0.0"]),
        (["MODEL", "x", "--presence-penalty", "9"], ["presence_penalty", "found 9.0"]),
        (["MODEL", "x", "--frequency-penalty", "inf"], ["frequency_penalty", "found inf"]),
        (["MODEL", "x", "--seed", "-1"], ["seed: expected an integer in [0, 2**64), found -1"]),
        (["MODEL", "x", "--stop", ""], ["stop string 0: expected at least one character"]),
        (["MODEL", "x", "--dtype", "int4"], ["dtype: expected one of stored, stored8, float32", "'int4'"]),
        (["MODEL", "x", "--kv-dtype", "q4"], ["kv_dtype: expected one of float32", "'q4'"]),
        (["MODEL", "x", "--device", "abacus"], ["device: expected a device torch can use here", "'abacus'"]),
        (["MODEL", "x", "--device", "meta"], ["device", "'meta'"]),
        (["MODEL", "x", "--memory", "lots"], ["--memory", "'lots'", "8GiB"]),
        (["MODEL", "a\udcffb"], ["surrogate U+DCFF at character 1"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_usage(refused, model, arguments, words):
    refused(*(model if argument == "MODEL" else argument for argument in arguments), words=words)


def test_too_little_memory(refused, model):
    refused(model, "x", "--memory", "100KiB", status=1, words=["the weights need", "the memory cap is 100 KiB"])
    refused(model, "x", "--memory", "900KiB", "-n", "5000", status=1, words=["5002 tokens need", "cap is 900 KiB"])


@pytest.mark.parametrize(("stdin", "words"), [(b"a\xffb", "not UTF-8 (byte 1)"), (b"", "the prompt is empty")])
def test_bad_standard_input(refused, model, monkeypatch, stdin, words):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    refused(model, "-", words=[words])


def test_closed_standard_input(refused, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    refused(model, "-", words=["standard input is closed"])


# -- files that are no models --------------------------------------------------------------------------------------


@pytest.fixture
def damaged(models, tmp_path):
    """A copy of the model, changed by a function of its directory."""

    def make(change):
        place = tmp_path / "damaged"
        shutil.copytree(models / "model", place)
        change(place)
        return place

    return make


def _cut(name, size):
    def change(place):
        data = (place / name).read_bytes()
        (place / name).write_bytes(data[:size])

    return change


def _tensors(edit):
    def change(place):
        tensors = load_file(place / "model.safetensors")
        edit(tensors)
        save_file(tensors, place / "model.safetensors")

    return change


def _config(**keys):
    def change(place):
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, **keys}))

    return change


def _text(name, data):
    return lambda place: (place / name).write_bytes(data)


NORM = "model.layers.0.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda place: (place / "tokenizer.json").unlink(), ["expected tokenizer.json", "beside the weights"]),
        (_text("tokenizer.json", b"{"), ["tokenizer.json: JSON"]),
        (_text("tokenizer.json", b"\xff"), ["tokenizer.json: JSON"]),
        (_text("config.json", b"{"), ["config.json", "JSON"]),
        (_text("config.json", b"\xff\xfe"), ["config.json", "JSON"]),
        (_text("config.json", b"[]"), ["config.json", "expected a JSON object, found list"]),
        (_config(model_type="no_such_family"), ["config.json: key 'model_type'", "'no_such_family'"]),
        (_config(hidden_size="wide"), ["config.json", "hidden_size", "wide"]),
        (lambda place: (place / "config.json").unlink(), ["no model in this directory", "config.json"]),
        (lambda place: (place / "model.safetensors").unlink(), ["no weights in the directory"]),
        (_cut("model.safetensors", 0), ["model.safetensors: the file is empty"]),
        (_cut("model.safetensors", 5), ["model.safetensors: not a safetensors file"]),
        (_cut("model.safetensors", 100), ["model.safetensors: the file ends within the header", "100 bytes"]),
        (_cut("model.safetensors", -1), ["model.safetensors: the file ends before the data", "download it again"]),
        (_tensors(lambda t: t.pop(NORM)), ["1 missing", NORM]),
        (_tensors(lambda t: t.update(extra=torch.zeros(1))), ["1 unexpected (extra)"]),
        (_tensors(lambda t: t.update({NORM: torch.zeros(3, 5)})), ["1 misshaped", NORM, "(64,)", "found (3, 5)"]),
        (_config(vocab_size=999), ["misshaped", "embed_tokens", "(999, 64)", "found (271, 64)"]),
        (_config(max_position_embeddings=12), ["context exceeded: 19 tokens needed, the limit is 12"]),
    ],
)
def test_damaged_models(refused, damaged, change, words):
    place = damaged(change)
    assert str(place) in refused(place, "twenty characters..", words=words) or "context exceeded" in words[0]


def test_weights_that_are_no_numbers(refused, damaged):
    place = damaged(_tensors(lambda tensors: tensors[NORM].fill_(float("nan"))))
    refused(place, "x", status=1, words=["logits", "NaN"])


@pytest.mark.parametrize("size", [0, 3, 37, 1000, 0.5, -1])
def test_damaged_gguf_files(refused, models, tmp_path, size):
    data = (models / "model.gguf").read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(data[: int(size * len(data)) if size == 0.5 else size])
    assert f"{file}: " in refused(file, "x")


def test_a_failing_process_says_one_line(models, tmp_path):
    """The same through a real process, where warnings, last flushes and threads would show."""
    file = tmp_path / "cut.gguf"
    file.write_bytes((models / "model.gguf").read_bytes()[:37])
    done = subprocess.run([*PROGRAM, str(file), "x"], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"plait: error: {file}: ")

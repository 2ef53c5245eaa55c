"""`plait flops`: its JSON names, its tables, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.account.flops import flops
from plait.account.memory import weights_of
from plait.blueprint.source import open_model
from plait.cli import main as cli


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in this process: (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli._status(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_json_names_are_stable(status: Any) -> None:
    code, out, err = status("flops", "spark-x2.5-4b", "--context", "128k", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {
        "model", "name", "kind", "path", "context", "batch", "max_context", "layers", "prefill", "decode",
        "conventions", "bound", "notes",
    }  # fmt: skip
    both = {"tokens", "total", "per_token", "by_kind", "products", "mixing"}
    assert set(found["prefill"]) == both | {"total_all_logits"}
    assert set(found["decode"]) == both
    assert (found["context"], found["batch"], found["bound"], found["notes"]) == (131_072, 1, None, [])
    account = flops(plait.blueprint("spark-x2.5-4b"), 131_072)
    assert found["prefill"]["total"] == account.prefill.total == 2_286_223_687_155_712
    assert found["prefill"]["total_all_logits"] == account.prefill.total_all_logits
    assert found["prefill"]["per_token"] == account.prefill.total / 131_072
    assert found["decode"]["total"] == 27_777_630_208
    for phase in (found["prefill"], found["decode"]):
        assert sum(phase["by_kind"].values()) == phase["total"] == phase["products"] + phase["mixing"]
        assert set(phase["by_kind"]) == set(found["layers"])
        assert all(isinstance(n, int) for n in phase["by_kind"].values())
    assert found["conventions"][0] == "1 multiply-add = 2 FLOPs"


def test_json_of_a_bound(status: Any) -> None:
    rates = ("--bandwidth", "50GB/s", "--flops", "1.2TFLOPS")
    words = ("flops", "spark-x2.5-4b", "--context", "4096", "--batch", "4", *rates, "--weights-dtype", "q8_0", "--json")
    code, out, _ = status(*words)
    assert code == 0
    bound = json.loads(out)["bound"]
    assert set(bound) == {"bandwidth", "flops", "weights_dtype", "kv_dtype", "prefill", "decode", "assumptions"}
    assert (bound["bandwidth"], bound["flops"]) == (50 * 10**9, 1_200_000_000_000)
    assert (bound["weights_dtype"], bound["kv_dtype"]) == ("q8_0", "bf16")
    for phase in (bound["prefill"], bound["decode"]):
        assert set(phase) == {"tokens_per_second", "binds", "by_bandwidth", "by_flops", "bytes"}
        moved = phase["bytes"]
        assert set(moved) == {"weights_bytes", "state_read_bytes", "state_written_bytes", "total_bytes"}
        assert phase["tokens_per_second"] == min(phase["by_bandwidth"], phase["by_flops"])
    assert bound["prefill"]["binds"] == "flops"
    assert bound["decode"]["binds"] == "bandwidth"
    # 4 sequences of 9 x 4096 and 27 x 512 rows of 4 heads x 512 elements.
    assert bound["decode"]["bytes"]["state_read_bytes"] == 4 * (9 * 4096 + 27 * 512) * 4 * 512 * 2
    one = json.loads(status("flops", "spark-x2.5-4b", "--context", "4096", "--flops", "1", "--json")[1])["bound"]
    assert (one["bandwidth"], one["decode"]["by_bandwidth"], one["decode"]["binds"]) == (None, None, "flops")


def test_a_file_is_counted_in_its_own_formats(status: Any, gemma_gguf: Path) -> None:
    words = ("flops", str(gemma_gguf), "--context", "100", "--bandwidth", "10GB/s", "--json")
    found = json.loads(status(*words)[1])
    assert found["bound"]["decode"]["bytes"]["weights_bytes"] == weights_of(open_model(gemma_gguf))
    whole = json.loads(status(*words, "--weights-dtype", "bf16")[1])
    assert whole["bound"]["decode"]["bytes"]["weights_bytes"] == 2 * 268_098_176
    assert whole["decode"] == found["decode"]


def test_the_table(status: Any) -> None:
    code, out, err = status(
        "flops", "gemma-3-270m", "--context", "4k", "--bandwidth", "50GB/s", "--flops", "400GFLOP/s"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "FLOPs of gemma-3-270m at 4,096 tokens"
    rows = {line.split("  ")[0]: line.split() for line in lines}
    assert rows["window attention"][2:] == ["15", "322.1", "GFLOP", "30.8%", "80.61", "MFLOP", "13.0%"]
    assert rows["total"][1:] == ["1.046", "TFLOP", "100.0%", "617.9", "MFLOP", "100.0%"]
    assert rows["per token"][2:] == ["255.3", "MFLOP", "617.9", "MFLOP"]
    assert any(line.startswith("Exactly: prefill 1,045,664,104,448 (") for line in lines)
    assert "At most, tokens/s with 50 GB/s and 400 GFLOP/s" in lines
    # 400e9 x 4096 / 1,045,664,104,448, and 50e9 / (536,196,352 + 3 x 4096 x 1024 + 15 x 512 x 1024).
    assert rows["prefill"][1:3] == ["1,566.9", "flops"]
    assert rows["decode"][1:3] == ["89.8", "bandwidth"]
    for text in ("1 multiply-add = 2 FLOPs", "not counted: norms", "the head runs for the last token of a prefill"):
        assert any(text in line for line in lines)
    assert "\x1b" not in out
    plain = status("flops", "gemma-3-270m", "--context", "4k")[1]
    assert "At most" not in plain
    assert plain.splitlines()[:8] == lines[:8]


def test_more_sequences_and_longer_ones(status: Any) -> None:
    code, out, _ = status("flops", "gemma-3-270m", "--context", "64k", "--batch", "3")
    assert code == 0
    assert out.splitlines()[0].endswith("65,536 tokens, 3 sequences")
    assert "Note: the model's own limit is 32,768 tokens" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--context"),
        (("--context", "0"), "context must be at least 1"),
        (("--context", "9" * 400), "too large"),
        (("--context", "5q"), "5q"),
        (("--context", "5", "--batch", "0"), "--batch"),
        (("--context", "5", "--bandwidth", "50GB"), "write it like 50GB/s"),
        (("--context", "5", "--bandwidth", "50Gb/s"), "write it like 50GB/s"),
        (("--context", "5", "--flops", "fast"), "write it like 400GFLOP/s"),
        (("--context", "5", "--flops", "0"), "above 0"),
        (("--context", "5", "--weights-dtype", "q8_0"), "give --bandwidth or --flops"),
        (("--context", "5", "--kv-dtype", "f16"), "give --bandwidth or --flops"),
        (("--context", "5", "--flops", "1", "--kv-dtype", "int3"), "'int3'"),
        (("--context", "5", "--flops", "1", "--weights-dtype", "int3"), "'int3'"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(options: tuple[str, ...], words: str, status: Any) -> None:
    code, out, err = status("flops", "spark-x2.5-4b", *options)
    assert (code, out) == (2, "")
    assert err.startswith("plait: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_it_explains_itself(status: Any) -> None:
    code, out, _ = status("flops", "--help")
    assert code == 0
    for option in ("--context", "--batch", "--bandwidth", "--flops", "--weights-dtype", "--kv-dtype", "--json"):
        assert option in out


def test_it_loads_nothing_heavy() -> None:
    probe = (
        "from plait.cli.main import _status\n"
        "_status(['flops', 'spark-x2.5-4b', '--context', '1m', '--bandwidth', '50GB/s'])\n"
        "import sys\nprint('loaded', sorted(set(sys.modules) & {'torch', 'numpy', 'rich', 'gguf'}))"
    )
    root = Path(plait.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.splitlines()[-1] == "loaded []"

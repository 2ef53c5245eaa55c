"""A short run of the fuzzer, and that it notices what it is there to notice."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

import plait
from plait.blueprint.catalog import entry
from plait.blueprint.read.gguf import read_gguf
from plait.blueprint.source import from_config, open_model
from plait.errors import ConfigError, FileFormatError, PlaitError

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, as a module of its own."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("fuzz_script", SCRIPTS / "fuzz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fuzz_script", module)
    spec.loader.exec_module(module)
    return module


def test_a_thousand_cases() -> None:
    """In a process of its own: it bounds its memory."""
    command = [sys.executable, str(SCRIPTS / "fuzz.py"), "--count", "1000", "--seed", "2"]
    path = {"PYTHONPATH": str(Path(plait.__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("1000 cases: ")


def test_cases_are_a_function_of_seed_and_number(fuzz: ModuleType) -> None:
    first = [fuzz.case(5, n) for n in range(60)]
    assert first == [fuzz.case(5, n) for n in range(60)]
    assert first != [fuzz.case(6, n) for n in range(60)]
    assert len({raw for _, raw in first}) > 55


def test_cases_reach_deep(fuzz: ModuleType, tmp_path: Path) -> None:
    """Some are read, some refused, in both containers; and refusals are of many kinds."""
    endings: Counter[tuple[str, bool]] = Counter()
    messages: set[str] = set()
    for number in range(300):
        name, raw = fuzz.case(3, number)
        path = tmp_path / name
        path.write_bytes(raw)
        try:
            open_model(path)
            endings[name, True] += 1
        except PlaitError as error:
            endings[name, False] += 1
            messages.add(str(error).split(": ", 1)[-1][:25])
    assert min(endings.values()) >= 10 and len(endings) == 4
    assert len(messages) > 40


def test_an_undamaged_header_is_read(fuzz: ModuleType, tmp_path: Path) -> None:
    """The bytes the script writes are GGUF: without damage every entry's metadata comes back as it was."""
    cases = sys.modules["fuzz_cases"]
    for number, data in enumerate(cases.headers()):
        writer = cases.Writer(bytearray(b"GGUF"))
        for count, size in ((3, 4), (0, 8), (len(data), 8)):
            writer.word(count, size)
        rng = Random(number)
        for key, value in data.items():
            writer.text(key)
            writer.value(value, rng)
        path = tmp_path / "model.gguf"
        path.write_bytes(bytes(writer.data))
        assert set(read_gguf(path).metadata) == set(data)


def raising(error: BaseException):
    def trial(path: Path, rng: Random, seconds: float) -> str:
        raise error

    return trial


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("y"), MemoryError(), RecursionError(), AssertionError()])
def test_other_exceptions_are_findings(fuzz: ModuleType, error: Exception) -> None:
    report = fuzz.run([4], 1, trial=raising(error))
    assert [finding.number for finding in report.findings] == [4]
    assert report.findings[0].what.startswith(type(error).__name__)
    assert dict(report.endings) == {"finding": 1}


def test_a_hang_is_a_finding(fuzz: ModuleType) -> None:
    def trial(path: Path, rng: Random, seconds: float) -> str:
        with fuzz.limited(seconds):
            until = time.process_time() + 60
            while time.process_time() < until:
                try:
                    sum(range(1000))
                except Exception:
                    continue
        return "read"

    report = fuzz.run([0], 1, trial=trial, seconds=0.05)
    assert [finding.what.split(":")[0] for finding in report.findings] == ["Hang"]


@pytest.mark.parametrize("text", ["", "two\nlines", "a\r\nb", "x" * 50_000])
def test_messages_that_are_not_one_line_are_findings(fuzz: ModuleType, text: str) -> None:
    fuzz.one_line(ConfigError("config.json: key 'x': expected 1, found 2"))
    for error in (ConfigError(text), FileFormatError(text)):
        with pytest.raises(fuzz.Broken, match="a message of"):
            fuzz.one_line(error)


def test_failures_that_are_not_the_input_s_are_findings(fuzz: ModuleType) -> None:
    with pytest.raises(fuzz.Broken):
        fuzz.one_line(PlaitError("something failed"))


def survivor(tmp_path: Path) -> Path:
    """A config that is read."""
    found = entry("spark-x2.5-1.7b")
    assert found is not None
    (tmp_path / "config.json").write_text(json.dumps(dict(found.config)))
    return tmp_path / "config.json"


@pytest.mark.parametrize("printed", ["\x1b[2J", "{} \x07", '{"a": NaN}', '{"a": Infinity}', "not JSON"])
def test_bad_output_is_a_finding(
    fuzz: ModuleType, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = survivor(tmp_path)
    assert fuzz.attempt(path, Random(1), 60.0) == "read"
    monkeypatch.setattr(fuzz, "run_command", lambda _: printed)
    found = 0
    for seed in range(8):  # each form of output is chosen in some
        try:
            fuzz.attempt(path, Random(seed), 60.0)
        except (fuzz.Broken, ValueError):
            found += 1
    assert found > 0


def test_memory_is_bounded() -> None:
    """In a process of its own, which may grow by 50 MiB and wants 500."""
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import fuzz\n"
        "with fuzz.bounded(50 * 2**20):\n"
        "    report = fuzz.run([0], 1, trial=lambda *_: str(len(bytearray(500 * 2**20))))\n"
        "print(report.findings[0].what)"
    )
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not tell the size of a process")
    path = {"PYTHONPATH": str(Path(plait.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    assert done.stdout.startswith("MemoryError")


def test_the_script_says_what_it_found(fuzz: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--count", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("5 cases: ")
    report = fuzz.run([3, 4], 1, trial=raising(ValueError("surprise")))
    fuzz._show(report, 0)
    out = capsys.readouterr().out
    assert out.startswith("2 x test_fuzz.py:") or "surprise" in out
    assert "2 finding" in out


@pytest.mark.parametrize(
    ("model", "keys", "value", "words"),
    [
        ("qwen3.5-2b", ("vision_config", "patch_size"), 10**400, "integers of at least 1 and at most"),
        ("gemma-3n-e2b", ("audio_config", "sscp_conv_kernel_size"), [[3, 10**400], [3, 3]], "pairs of integers"),
        ("qwen3-30b-a3b", ("mlp_only_layers",), [10**400], "a list of layer numbers"),
        ("gemma-3n-e2b", ("text_config", "altup_num_inputs"), 65_536, "AltUp streams: expected at most 2000"),
    ],
)
def test_numbers_that_would_fill_the_memory(model: str, keys: tuple[str, ...], value: object, words: str) -> None:
    found = entry(model)
    assert found is not None
    config = json.loads(json.dumps(dict(found.config)))
    place = config
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(ConfigError, match=words) as caught:
        from_config(config, file="config.json")
    assert len(str(caught.value).splitlines()) == 1

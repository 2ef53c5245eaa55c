"""`plait cache explain`: what it says of prompts, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import get_args

import pytest
from calling_generate import ENVIRONMENT, write_models

from plait.cache.report import Reason
from plait.cli.cache import REASONS
from plait.cli.main import _status
from plait.engine.load import CACHE, load

TEXT = "The quick brown fox jumps over the lazy dog. " * 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def explain(place, tmp_path, capsys):
    """`plait cache explain` of texts and traces in files: (exit status, stdout, stderr)."""

    def run(*contents, options=(), model=place / "model"):
        files = []
        for number, content in enumerate(contents):
            if isinstance(content, list):
                file = tmp_path / f"{number}.jsonl"
                file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in content))
            else:
                file = tmp_path / f"{number}.txt"
                file.write_bytes(content if isinstance(content, bytes) else content.encode())
            files.append(str(file))
        code = _status(["cache", "explain", str(model), *files, *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def facts(explain):
    def run(*contents, options=(), **more):
        code, out, err = explain(*contents, options=(*options, "--json"), **more)
        assert (code, err) == (0, ""), err
        return json.loads(out)

    return run


def test_it_says_what_generation_does(place, facts):
    engine = load(place / "model")
    first, second = TEXT, TEXT[:200] + "cat. " + TEXT
    found = facts(first, second, first, options=["--budget", CACHE])
    for text, said in zip((first, second, first), found["requests"], strict=True):
        *_, result = engine.generate(text, max_tokens=1, ignore_eos=True)
        for key in ("prompt", "common", "resume", "lost", "reason"):
            assert said[key] == getattr(result.cache, key), key
        assert said["anchors"] == [{"position": m.position, "kind": m.kind} for m in result.cache.anchors]
        stats = engine.stats()["cache"]
        for key in ("page_bytes", "tail_bytes", "snapshot_bytes", "bytes", "pages"):
            assert said["store"][key] == getattr(stats, key)
    assert found["total"]["reused"] == stats.reused > 0


def test_the_place_where_two_prompts_part(facts, explain):
    found = facts(TEXT, TEXT.replace("lazy", "la\nky", 1))["requests"][1]
    differs = found["differs"]
    assert 0 < found["common"] < found["prompt"]
    assert differs["position"] == found["common"]
    assert differs["request"] == 0
    assert differs["before_text"].endswith("la")
    assert differs["stored_text"].startswith("zy dog")
    assert differs["prompt_text"].startswith("\nky dog")
    code, out, err = explain(TEXT, TEXT.replace("lazy", "la\nky", 1))
    assert (code, err) == (0, "")
    assert '     stored  "zy dog' in out
    assert '     prompt  "\\nky dog' in out


def test_a_conversation_goes_on(facts, explain):
    turns = [{"prompt": TEXT, "reply": " Yes."}, {"prompt": TEXT + " Yes." + " And then?"}]
    first, second = facts(turns)["requests"]
    assert (first["reply"], first["differs"]) == (5, None)
    assert second["common"] == second["resume"] == first["prompt"] + 5
    assert second["differs"]["stored"] == []
    assert "it goes on where request 1 (" in explain(turns)[1]
    assert "begins with all of it" in explain(TEXT, TEXT[:50])[1]
    assert "all of it is reused but the last token" in explain(TEXT, TEXT)[1]


def test_ids_need_no_tokenizer(place, facts, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(place / "model", bare)
    (bare / "tokenizer.json").unlink()
    ids = list(range(3, 103))
    for contents in ((str(ids), " ".join(map(str, ids))), ([{"prompt": ids}, {"prompt": ids}],)):
        found = facts(*contents, options=["--tokens"], model=bare)["requests"]
        assert [(one["prompt"], one["resume"]) for one in found] == [(100, 0), (100, 99)]
        assert found[1]["differs"]["before_text"] is None
    # Of a catalogue name only the config is needed.
    assert facts(str(ids), options=["--tokens"], model="qwen3.5-0.8b")["snapshot_bytes"] > 18 * 2**20


def test_recurrent_models_say_why(facts):
    ids = list(range(1, 301))
    trace = [{"prompt": ids}, *({"prompt": [*ids[:100], *range(n, n + 90)]} for n in (1000, 2000))]
    second, third = facts(trace, options=["--tokens"], model="qwen3.5-0.8b")["requests"][1:]
    assert (second["common"], second["resume"], second["reason"]) == (100, 0, "no_anchor")
    assert {"position": 64, "kind": "fork"} in second["placed"]
    assert third["resume"] == 64
    small = facts(trace, options=["--tokens", "--budget", "1MiB"], model="qwen3.5-0.8b")["requests"]
    assert all(one["store"]["bytes"] <= 2**20 for one in small)
    assert small[-1]["reason"] == "evicted"


def test_marks_become_anchors(facts):
    ids = list(range(1, 301))
    marks = [{"position": 130, "kind": "turn"}]
    trace = [{"prompt": ids, "marks": marks}, {"prompt": [*ids[:150], 9]}]
    first, second = facts(trace, options=["--tokens"], model="qwen3.5-0.8b")["requests"]
    assert marks[0] in first["placed"]
    assert second["resume"] == 130
    assert second["anchors"] == marks


def test_types_and_sizes(facts):
    full, half = (facts(TEXT, options=["--kv-dtype", kind]) for kind in ("f32", "bf16"))
    assert full["page_bytes"] == 2 * half["page_bytes"]
    assert full["requests"][0]["store"]["page_bytes"] == 2 * half["requests"][0]["store"]["page_bytes"]
    # Blocks of 32 elements are 34 bytes; the types have the names `generate` knows them by as well.
    trace = [{"prompt": [1, 2, 3]}]
    kinds = ("bf16", "q8", "int8")
    wide, blocks, again = (
        facts(trace, options=["--tokens", "--kv-dtype", kind], model="gemma-3-270m") for kind in kinds
    )
    assert blocks["page_bytes"] * 32 == wide["page_bytes"] * 17
    assert (blocks["kv_dtype"], blocks) == ("q8", again)
    none = facts(TEXT, TEXT, options=["--budget", "0"])
    assert [one["resume"] for one in none["requests"]] == [0, 0]


def test_every_reason_has_words():
    assert set(REASONS) == set(get_args(Reason))


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (b"\xff", [], ["0.txt", "not UTF-8", "byte 0"]),
        ("", ["--tokens"], ["0.txt", "no tokens"]),
        ("1 2 x", ["--tokens"], ["0.txt", "whole numbers", "'x'"]),
        ("1 -2", ["--tokens"], ["'-2'"]),
        ("1 271", ["--tokens"], ["token id", "[0, 271)", "271"]),
        ("1 " * 32_768, ["--tokens"], ["context exceeded", "32768", "0.txt"]),
        (["{"], [], ["0.jsonl:1", "a JSON object"]),
        (["\n", "[1]\n"], [], ["0.jsonl:2", "a JSON object", "[1]"]),
        (["[" * 100_000], [], ["0.jsonl:1"]),
        ([{}], [], ["keys of a request", "[]"]),
        ([{"prompt": "a", "replies": "b"}], [], ["keys of a request", "replies"]),
        ([{"prompt": 3}], [], ["prompt", "text or a list of token ids", "3"]),
        ([{"prompt": [1, True]}], [], ["prompt", "list of token ids"]),
        ([{"prompt": [1, 2.5]}], [], ["prompt", "2.5"]),
        ([{"prompt": [1, -1]}], [], ["token id", "-1"]),
        ([{"prompt": []}], [], ["no tokens"]),
        ([{"prompt": [1], "reply": None}], [], ["reply", "null"]),
        ([{"prompt": "text"}], ["--tokens"], ["--tokens", "no text"]),
        ([{"prompt": [1], "marks": 3}], [], ["marks", "a list"]),
        ([{"prompt": [1], "marks": [3]}], [], ["a mark", "position"]),
        ([{"prompt": [1], "marks": [{"position": 2, "kind": "turn"}]}], [], ["a mark", "1..1"]),
        ([{"prompt": [1], "marks": [{"position": True, "kind": "turn"}]}], [], ["a mark", "true"]),
        ([{"prompt": [1], "marks": [{"position": 1, "kind": ["turn"]}]}], [], ["a mark"]),
        ([{"prompt": [1], "marks": [{"position": 1, "kind": "end"}]}], [], ["a mark", "system"]),
        ("x", ["--budget", "much"], ["--budget", "8GiB"]),
        ("x", ["--kv-dtype", "q4"], ["--kv-dtype"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_cannot_be_read_is_named(explain, content, options, words):
    code, out, err = explain(content, options=options)
    assert (code, out) == (2, ""), err
    assert err.startswith("plait: error: ")
    assert err.count("\n") == 1
    assert len(err) < 600
    for word in words:
        assert word in err


def test_a_fault_in_the_last_file_comes_before_any_answer(explain):
    code, out, err = explain(TEXT, TEXT, b"\xff")
    assert (code, out) == (2, "")
    assert "2.txt" in err


def test_no_tokenizer_and_no_file(explain, place, capsys):
    code, out, err = explain("text", model="spark-x2.5-4b")
    assert (code, out) == (2, "")
    assert "--tokens" in err
    assert _status(["cache", "explain", str(place / "model"), "nowhere.txt"]) == 2
    assert "nowhere.txt" in capsys.readouterr().err


def test_gguf_files_and_configs_have_the_same_tokenizer(place, facts):
    found = [facts(TEXT, model=place / name)["requests"] for name in ("model", "model.gguf", "model/config.json")]
    assert found[0] == found[2]
    assert found[1][0]["prompt"] == found[0][0]["prompt"]


def test_it_loads_neither_torch_nor_numpy(place, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    arguments = ["cache", "explain", str(place / "model"), str(tmp_path / "a.txt")]
    probe = (
        f"from plait.cli.main import _status\nassert _status({arguments!r}) == 0\nimport sys\n"
        "print('loaded', sorted(set(sys.modules) & {'torch', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"

"""`plait memory` as users and programs see it: names in the JSON, lines of the table, notes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import configs
import pytest

from plait.account.memory import KV_FORMATS, stored_weights
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.source import open_model
from plait.cli import main as cli
from plait.dtypes import BY_NAME
from plait.engine.load import KV_DTYPES
from plait.runtime.ops.codes import stored_width


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Any:
    """What `plait memory ...` prints."""

    def run(*arguments: str) -> str:
        code = cli._status(("memory", *arguments))
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return captured.out

    return run


def lines(text: str) -> dict[str, list[str]]:
    """First cell of each row to the others."""
    cells = [[c.strip() for c in line.split("  ") if c.strip()] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells if row}


def test_names_that_programs_rely_on(show: Any) -> None:
    found = json.loads(show("qwen3.5-0.8b", "--context", "1k", "--json"))
    stable = {
        "model", "name", "kind", "path", "context", "batch", "kv_dtype", "layout", "max_context", "total_bytes",
        "reserved_bytes", "per_token_bytes", "weights_bytes", "per_layer_table_bytes", "categories", "layers", "policy",
        "notes",
    }  # fmt: skip
    assert set(found) == stable
    assert set(found["categories"]) == {"rows", "windows", "indexer", "snapshots"}
    assert set(found["categories"]["snapshots"]) == {"need_bytes", "reserved_bytes", "recurrent", "convolution"}
    assert set(found["policy"]) == {"need", "reserved"}
    snapshots = found["categories"]["snapshots"]
    for kind in ("need_bytes", "reserved_bytes"):
        assert snapshots[kind] == snapshots["recurrent"][kind] + snapshots["convolution"][kind] > 0
        total = {"need_bytes": "total_bytes", "reserved_bytes": "reserved_bytes"}[kind]
        assert sum(item[kind] for item in found["categories"].values()) == found[total]
    assert found["layers"] == {
        "rows": 6, "windows": 0, "indexer": 0, "recurrent": 18, "convolution": 18, "shared_kv": 0, "shared_choice": 0,
    }  # fmt: skip


def test_each_kind_of_state_is_a_line(show: Any) -> None:
    delta = lines(show("qwen3.5-0.8b", "--context", "1k"))
    assert {"rows of 6 layers", "recurrent states of 18 layers", "convolution tails of 18 layers"} <= set(delta)
    # 18 layers of 16 heads of 128 x 128 floats.
    assert delta["recurrent states of 18 layers"][0] == f"{18 * 16 * 128 * 128 * 4:,}"
    sparse = lines(show("deepseek-v3.2", "--context", "1k"))
    assert sparse["indexer keys of 61 layers"][0] == f"{61 * 1024 * 128 * 2:,}"
    shared = lines(show("gemma-4-e4b", "--context", "1k"))
    assert shared["shared keys and values of 18 layers"] == ["0", "0 B", "0", "0 B"]
    assert "windows of 20 layers" in shared and "rows of 4 layers" in shared
    for found in (delta, sparse):
        assert not any(name.startswith("shared") for name in found)


def test_the_table_of_per_layer_embeddings(show: Any) -> None:
    out = show("gemma-4-e2b", "--context", "1k")
    table = 2 * 262_144 * 35 * 256
    assert lines(out)["of these per-layer table"][0] == f"{table:,}"
    assert "can stay on disk" in out
    made = json.loads(show("gemma-4-e2b", "--context", "1k", "--json"))
    assert made["per_layer_table_bytes"] == table
    assert "per-layer" not in show("gemma-3-4b", "--context", "1k")


def test_the_table_of_a_file_is_what_its_header_lists() -> None:
    source = open_model("gemma-4-e2b")
    place = Path("model.gguf")
    tensors = {
        "per_layer_token_embd.weight": StoredTensor(
            "per_layer_token_embd.weight", (64, 32), BY_NAME["q8_0"], place, 0, 64 * 34
        ),
        "token_embd.weight": StoredTensor("token_embd.weight", (10, 10), BY_NAME["f16"], place, 4096, 200),
    }
    nothing: MappingProxyType[str, Any] = MappingProxyType({})
    header = GGUFHeader(place, 3, nothing, nothing, MappingProxyType(tensors), 32, 8192, (place,))
    found = stored_weights(replace(source, header=header))
    assert (found.total_bytes, found.table_bytes) == (64 * 34 + 200, 64 * 34)


def test_q8_is_counted_as_it_is_kept(show: Any) -> None:
    out = show("spark-x2.5-4b", "--context", "1m", "--kv-dtype", "q8")
    # 9 full layers, 4 KV heads, keys and values of 8 blocks of 34 bytes.
    assert lines(out)["growth per token"][0] == f"{9 * 4 * 2 * 8 * 34:,}"
    assert "Note: q8 takes 34 bytes for each 32 elements of a head's vector, its last block padded" in out
    # What the note says is what a run with q8 stores.
    assert [stored_width(dim, KV_DTYPES["q8"]) * KV_DTYPES["q8"].itemsize for dim in (32, 33, 256)] == [34, 68, 8 * 34]
    for name in KV_FORMATS:
        assert "Note:" not in show("spark-x2.5-4b", "--context", "1m", "--kv-dtype", name)


def test_a_budget_names_the_need(show: Any) -> None:
    out = show("spark-x2.5-4b", "--context", "1k", "--budget", "16GiB")
    assert "The largest context whose need fits 16 GiB beside the weights: " in out
    fit = json.loads(show("spark-x2.5-4b", "--context", "1k", "--budget", "16GiB", "--json"))["fit"]
    assert f"{fit['context']:,} tokens." in out
    here = json.loads(show("spark-x2.5-4b", "--context", str(fit["context"]), "--json"))
    assert here["total_bytes"] + here["weights_bytes"] <= 2**34
    assert here["total_bytes"] + here["weights_bytes"] + here["per_token_bytes"] > 2**34


def test_a_model_of_an_unknown_family(show: Any, tmp_path: Path) -> None:
    """Keys and values are counted where every layer's are told; the weights of a config alone are not known."""
    config = {**configs.llama(), "model_type": "nova", "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    out = show(str(tmp_path), "--context", "100")
    assert lines(out)["rows of 2 layers"][0] == f"{2 * 100 * 2 * 2 * 16 * 2:,}"
    assert "weights" not in lines(out)
    assert "'nova' is not known" in out
    made = json.loads(show(str(tmp_path), "--context", "100", "--json"))
    assert made["weights_bytes"] is None
    assert made["total_bytes"] == 2 * 100 * 2 * 2 * 16 * 2
    cli_status = cli._status(("memory", str(tmp_path), "--context", "100", "--budget", "1GiB"))
    assert cli_status == 2


def test_a_quantization_whose_blocks_are_not_told(show: Any, tmp_path: Path) -> None:
    """Weights that cannot be counted as they are stored are counted as something else, and it is said."""
    config = json.loads(json.dumps(dict(open_model("deepseek-v3").entry.config)))
    config["quantization_config"] = {"quant_method": "awq"}
    file = tmp_path / "other.json"
    file.write_text(json.dumps(config))
    out = show(str(file), "--context", "100")
    assert "the config declares awq and not how its blocks are stored; the weights are counted in bf16" in out

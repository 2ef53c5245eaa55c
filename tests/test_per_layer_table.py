"""Tables of per-layer embeddings stay in their file: only the rows of the tokens at hand are read."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import plait
from plait.blueprint.source import open_model
from plait.runtime.packed import Packed
from plait.runtime.steps.per_layer import Inputs

ELEMENTS = 256 * 2**20
NAME = "model.embed_tokens_per_layer.weight"

# Loads a model, runs tokens and says by how many KiB the memory of the process grew.
_PROGRAM = """
import sys
import plait

def resident():
    with open("/proc/self/status") as file:
        found = {line.split(":")[0]: line.split()[1] for line in file if line.startswith("Rss")}
    return sum(int(found[key]) for key in ("RssAnon", "RssFile"))

directory, tokens = sys.argv[1], [int(token) for token in sys.argv[2].split(",")]
plait.load(directory.replace("large", "small")).logits([1, 2, 3])  # what torch needs is there
before = resident()
engine = plait.load(directory)
logits = engine.logits(tokens)
print(resident() - before, engine.model.weight_bytes, logits.isfinite().all().item())
"""


def _config(directory: Path, rows: int) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config |= {"vocab_size_per_layer_input": rows}
    path.write_text(json.dumps(config))


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small model, and the same with a table of 1 GiB in a sparse file, whose rows are zeros."""
    small = tiny.save("gemma4_e2b", tmp_path_factory.mktemp("small"))
    large = small.parent / small.name.replace("small", "large")
    large.mkdir()
    (large / "config.json").write_text((small / "config.json").read_text())
    with safe_open(small / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    width = tensors.pop(NAME).shape[1]
    save_file(tensors, large / "model-00001-of-00002.safetensors")
    rows = ELEMENTS // width
    header = {NAME: {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, 4 * rows * width]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    table = large / "model-00002-of-00002.safetensors"
    with table.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + 4 * rows * width)
    where = dict.fromkeys(tensors, "model-00001-of-00002.safetensors") | {NAME: table.name}
    (large / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    _config(large, rows)
    return small, large


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_table_larger_than_the_memory_it_gets(directories: tuple[Path, Path]) -> None:
    _, large = directories
    command = [sys.executable, "-c", _PROGRAM, str(large), "5,200,17,210,3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(plait.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    grown, weights, finite = done.stdout.split()
    assert finite == "True"
    # 1 GiB of table, of which a few pages are read for each token.
    assert int(grown) < 32 * 2**10
    assert int(weights) < 2**20


def test_the_rows_of_the_tokens_are_read_and_no_others(directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    small, _ = directories
    engine = plait.load(small)
    asked: list[int] = []
    rows = Packed.rows

    def watched(self: Packed, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        asked.extend(ids.tolist())
        return rows(self, ids, dtype)

    monkeypatch.setattr(Packed, "rows", watched)
    engine.logits([7, 9, 7])
    # Once for the embedding, once for the table.
    assert asked == [7, 9, 7] * 2


def test_tokens_beyond_the_table_read_its_first_row(tmp_path: Path) -> None:
    """Gemma 3n has more tokens than rows of the table (transformers, Gemma3nTextModel.get_per_layer_inputs)."""
    directory = tiny.save("gemma3n", tmp_path)
    rows = open_model(directory).blueprint.per_layer_embeddings.vocabulary
    engine = plait.load(directory)
    step = next(step for step in engine.model.steps if isinstance(step, Inputs))
    beyond = engine.logits([5, rows, rows - 1])
    table = step.table.data.clone()
    table[0] = table[5]
    changed = replace(step, table=Packed(step.table.format, table, step.table.shape))
    engine.model.steps = tuple(changed if other is step else other for other in engine.model.steps)
    found = engine.logits([5, rows, rows - 1])
    assert torch.equal(found[0], beyond[0])
    assert not torch.equal(found[1], beyond[1])

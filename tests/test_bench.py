"""`plait bench`: what is measured, what stands beside it, and states that were not computed."""

from __future__ import annotations

import json

import pytest
import torch

import plait
from plait.account.speed import decode_traffic
from plait.blueprint.source import open_model
from plait.blueprint.tensors import inventory
from plait.cli.main import _status
from plait.engine.bench import Work, bench, weight_sizes
from plait.errors import ContextExceeded, UsageError
from plait.runtime.kernels import native
from plait.runtime.measure import Memory, filled
from plait.runtime.session import Span
from plait.runtime.threads import VARIABLE

SMALL = 2**16


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    place = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    assert _status(["random", "Qwen3.5-0.8B", "--scale", "tiny", "--gguf", "--format", "q8_0", "-o", str(place)]) == 0
    return place


@pytest.fixture
def threads(monkeypatch):
    """Threads may be set; afterwards they are as before."""
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setenv("MKL_DYNAMIC", "FALSE")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_json(checkpoint, capsys, threads):
    options = "--prompt 5 --decode 3 --context 0,70 --batch 2 --repeat 2 --threads 1 --memory 64KiB --dtype float32"
    assert _status(["bench", str(checkpoint), *options.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["threads"] == 1 and sum(found["forms"].values()) > 0
    assert 0 < found["bandwidth_least"] <= found["bandwidth"] <= found["bandwidth_most"]
    assert [(s["phase"], s["context"], s["batch"], s["tokens"]) for s in found["speeds"]] == [
        ("prefill", 0, 1, 5),
        ("decode", 0, 2, 6),
        ("prefill", 70, 1, 5),
        ("decode", 70, 2, 6),
    ]
    source = open_model(checkpoint)
    for speed in found["speeds"]:
        assert len(speed["seconds"]) == 2 and speed["flops_per_second"] > 0
        middle = sum(speed["seconds"]) / 2
        assert speed["tokens_per_second"] == pytest.approx(speed["tokens"] / middle)
        if speed["phase"] == "prefill":
            assert speed["bound"] is None and speed["of_bound"] is None
            continue
        # Weights of float32, and the state of both sequences, in the middle of the pass.
        sizes = {role: 4 * n for role, n in _elements(source).items()}
        moved = decode_traffic(source.blueprint, speed["context"] + 4, sizes, batch=2, kv_format="f32").total_bytes
        assert speed["bytes_per_step"] == moved
        assert speed["bound"] == pytest.approx(2 * found["bandwidth"] / moved)
        assert speed["of_bound"] == pytest.approx(speed["tokens_per_second"] / speed["bound"])


def _elements(source):
    return {tensor.role: tensor.elements for tensor in inventory(source.blueprint)}


def test_table(checkpoint, capsys):
    options = "--prompt 4 --decode 2 --repeat 1 --memory 4KiB"
    assert _status(["bench", str(checkpoint), *options.split()]) == 0
    title, header, *lines = capsys.readouterr().out.splitlines()
    assert title.endswith(("thread", "threads"))
    assert header.split("  ")[-1] == "of that"
    assert [line.split()[0] for line in lines] == ["prefill", "decode", "memory:", "weights:"]
    assert lines[1].endswith("%")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--prompt 0 --decode 0", "nothing to measure"),
        ("--context 999999999", "context"),
        ("--context x", "is not understood"),
        ("--batch 0", "batch"),
        ("--dtype f7", "dtype"),
        ("--memory 1", "memory to read"),
    ],
)
def test_what_cannot_be_measured_is_refused(checkpoint, capsys, options, said):
    assert _status(["bench", str(checkpoint), *options.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(err.splitlines()) == 1


def test_a_step_is_counted_in_the_type_weights_are_used_in(checkpoint):
    source = open_model(checkpoint)
    engine = plait.load(checkpoint, dtype="bfloat16", cache=0)
    elements = _elements(source)
    sizes = weight_sizes(source, engine.model)
    assert {role: sizes[role] for role in elements} == {role: 2 * n for role, n in elements.items()}
    made = bench(engine, source, Work(prompt=0, decode=1, repeat=1, memory=SMALL))
    (speed,) = made.speeds
    assert speed.tokens == 1 and speed.spread[0] == speed.tokens_per_second == speed.spread[1]


@pytest.mark.skipif(native() is None, reason="torch computes here")
@pytest.mark.parametrize("name", ["Qwen3.5-0.8B", "gemma-3n-e2b", "glm-5"])
def test_a_step_of_weights_as_stored_reads_what_was_prepared(name, tmp_path):
    """Each prepared weight once; of experts the share that is chosen, of tables a row of the file."""
    place = tmp_path / "tiny.gguf"
    assert _status(["random", name, "--scale", "tiny", "--gguf", "--format", "q8_0", "-o", str(place)]) == 0
    source, engine = open_model(place), plait.load(place, cache=0)
    sizes, prepared = weight_sizes(source, engine.model), 0
    found = {tensor.role: tensor for tensor in inventory(source.blueprint) if tensor.part == "text"}
    assert set(engine.model.kept) <= set(found)
    assert engine.model.kept
    for role, tensor in found.items():
        if tensor.buffer or (tensor.use == "embedding" and not (role == "embedding" and source.blueprint.head.tied)):
            continue
        prepared += sizes[role]
        assert sizes[role] == engine.model.kept.get(role, 4 * tensor.elements)
    # What is expanded is padded to panels of 16 outputs, and some vectors are held in more than one form.
    assert 0.95 * engine.model.weight_bytes <= prepared <= 1.05 * engine.model.weight_bytes
    (speed,) = bench(engine, source, Work(prompt=0, decode=1, repeat=1, memory=SMALL)).speeds
    assert speed.bytes_per_step == decode_traffic(source.blueprint, 3, sizes, kv_format="f32").total_bytes


def test_blocks_of_keys_and_values_are_counted(checkpoint, capsys):
    options = "--prompt 0 --decode 1 --repeat 1 --memory 4KiB --context 70 --kv-dtype q8 --json"
    assert _status(["bench", str(checkpoint), *options.split()]) == 0
    (speed,) = json.loads(capsys.readouterr().out)["speeds"]
    source, engine = open_model(checkpoint), plait.load(checkpoint, cache=0)
    moved = decode_traffic(source.blueprint, 73, weight_sizes(source, engine.model), kv_format="q8")
    assert speed["bytes_per_step"] == moved.total_bytes


def test_contexts_over_the_limit_are_refused_before_work(checkpoint):
    engine = plait.load(checkpoint, cache=0)
    limit = engine.blueprint.max_context
    with pytest.raises(ContextExceeded):
        Work(prompt=8, contexts=(limit - 7,)).check(limit)
    Work(prompt=8, decode=0, contexts=(limit - 8,)).check(limit)
    with pytest.raises(UsageError, match="repeat"):
        Work(repeat=0)


@pytest.fixture(scope="module", params=["gemma-3-270m", "qwen3.5-0.8b", "gemma-3n-e2b", "glm-5"])
def model(request, tmp_path_factory):
    """Windows, values, shared rows, latent rows with an indexer."""
    place = tmp_path_factory.mktemp("filled") / request.param
    assert _status(["random", request.param, "--scale", "tiny", "-o", str(place)]) == 0
    return plait.load(place, cache=0).model


@pytest.mark.parametrize("length", [0, 1, 64, 65, 333])
def test_a_filled_session_is_as_large_as_a_computed_one_and_goes_on(model, length):
    short, whole = filled(model, length, token=1), model.session()
    if length:
        model.run([Span(whole, (1,) * length)], want="none")
    assert short.position == whole.position == length
    assert short.held() == whole.held()
    for ours, theirs in zip(short.runs, whole.runs, strict=True):
        assert (ours.first, len(ours.slabs)) == (theirs.first, len(theirs.slabs))
        for index, slab in enumerate(ours.slabs, ours.first):
            rows = min(64, length - index * 64)
            for part in (part for parts in slab.views.values() for part in parts):
                assert (part[:, rows:] == 0).all()
                assert (part[:, :rows] != 0).any(-1).all()
    logits, expected = (model.run([Span(session, (1,))])[0] for session in (short, whole))
    assert torch.isfinite(logits).all()
    if length <= 64:
        assert torch.equal(logits, expected)
    short.close()
    whole.close()
    assert set(model.pool.held().values()) <= {0}


def test_a_filled_session_is_not_longer_than_the_model(model):
    with pytest.raises(ContextExceeded):
        filled(model, model.blueprint.max_context + 1)


def test_memory_is_read():
    memory = Memory(SMALL)
    assert memory.bandwidth(passes=1) > 0
    with pytest.raises(UsageError):
        Memory(8)


def test_every_word_is_read():
    native = pytest.importorskip("plait.runtime._native")
    generator = torch.Generator().manual_seed(0)
    for count in (0, 1, 7, 8, 15, 16, 17, 255, 4096, 5000, 70001):
        words = torch.randint(-(2**62), 2**62, (count,), generator=generator)
        expected = 0
        for word in words.tolist():
            expected ^= word
        assert native.fold(words.data_ptr(), count) == expected % 2**64

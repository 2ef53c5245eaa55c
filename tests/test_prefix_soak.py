"""A short run of `scripts/prefix_soak.py`, and that it would notice what it is there to notice."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("prefix_soak_script", ROOT / "scripts" / "prefix_soak.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module", params=["gemma3", "qwen3_5"])
def engine(request, soak, tmp_path_factory):
    return soak.engine_of(request.param, tmp_path_factory.mktemp(request.param))


def test_two_hundred_requests(soak, engine):
    engine.prefixes.store.clear()
    found = soak.soak("tiny", engine, 200, 3, 10)
    assert found.faults == ()
    assert found.compared >= 10
    assert 0 < found.reused < found.prompt_tokens
    assert found.evicted > 0


def test_a_wrong_answer_is_noticed(soak, engine, monkeypatch):
    """Where a restored row is another, warm is not cold."""
    resume = type(engine.model.session()).resume

    def spoiled(self, tokens, runs, values):
        resume(self, tokens, runs, values)
        if tokens:
            for held in [slab for run in self.runs for slab in run.slabs] + [v.now for v in self.values]:
                with torch.inference_mode():
                    held.data += 1.0

    monkeypatch.setattr(type(engine.model.session()), "resume", spoiled)
    assert any("is not the cold one" in fault for fault in soak.soak("tiny", engine, 60, 3, 1).faults)
    monkeypatch.undo()
    engine.clear_cache()


def test_growth_and_what_stays_held_are_noticed(soak, engine, monkeypatch):
    sizes = iter(range(0, 2**40, 2 * soak.GROWTH))
    monkeypatch.setattr(soak, "resident", lambda: next(sizes))
    # Kept, as a conversation that nobody holds gives its state back without being closed.
    kept = []
    monkeypatch.setattr(soak.Conversation, "close", lambda self: kept.append(self))
    faults = soak.soak("tiny", engine, 60, 3, 20).faults
    monkeypatch.undo()
    for talk in kept:
        talk.close()
    assert any("resident memory grew" in fault for fault in faults)
    assert any("stay held" in fault for fault in faults)

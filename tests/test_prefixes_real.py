"""A real hybrid: what begins with known tokens has the bits of what was computed from the start."""

from __future__ import annotations

import tiny
import torch

import plait


def test_warm_is_cold_on_a_real_model(gemma_gguf):
    """Windows of 512 and full layers; shared lengths around slabs, the window and the whole prompt."""
    engine = plait.load(gemma_gguf, dtype="bfloat16")
    base = tiny.tokens(700, vocabulary=200_000)
    engine.session(base).close()
    for shared in (700, 640, 513, 130, 3):
        ids = [*base[:shared], *tiny.tokens(9, vocabulary=200_000, seed=shared)]
        before = engine.stats()["cache"].reused
        talk = engine.session(ids)
        warm, reused = talk.logits, engine.stats()["cache"].reused - before
        position = talk.position - 5
        back = talk.rollback(position)
        talk.close()
        engine.prefixes.store.check()
        cold = engine.logits(ids)
        assert torch.equal(warm, cold[-1]), shared
        assert torch.equal(back, cold[position - 1]), shared
        assert reused <= shared
        if shared >= 577:
            assert reused > 0, shared
    engine.clear_cache()
    assert set(engine.model.pool.held().values()) == {0}

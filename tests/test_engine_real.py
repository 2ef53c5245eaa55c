"""Requests in company on the real Gemma 3 270M: each as if it were alone."""

from __future__ import annotations

import plait
from plait.engine.events import Result
from plait.engine.sampling import Sampling

WISHES = [
    ("The capital of France is", {}),
    ("def fibonacci(n):", {"logprobs": 2, "speculate": 4}),
    ("Once upon a time there was a " * 30, {"sampling": Sampling(temperature=0.8, seed=5)}),
    ("1, 2, 3, 4, 5, 1, 2, 3, 4,", {"speculate": 4, "sampling": Sampling(temperature=1.2, top_k=40, seed=9)}),
]


def test_company_changes_nothing(gemma_gguf):
    with plait.load(gemma_gguf) as engine:
        alone = [engine.submit(prompt, max_tokens=10, **more).result() for prompt, more in WISHES]
        engine.clear_cache()
        tickets = [engine.submit(prompt, max_tokens=10, **more) for prompt, more in WISHES]
        left = engine.submit("A reader who leaves", max_tokens=50)
        together = [ticket.result() for ticket in tickets[:2]]
        left.cancel()
        together += [ticket.result() for ticket in tickets[2:]]
    for one, other in zip(alone, together, strict=True):
        assert isinstance(one, Result)
        assert (one.text, one.tokens, one.finish_reason) == (other.text, other.tokens, other.finish_reason)
        assert len(one.tokens) == 10

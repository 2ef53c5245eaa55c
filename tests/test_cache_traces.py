"""How much of what agents ask for is reused: traces of tokens through the store, held against the ideal.

The ideal reuses the longest beginning a prompt shares with any earlier text, all but the prompt's last token.
"""

from __future__ import annotations

from functools import cache

import pytest
from cache_oracle import shape
from cache_traces import TRACES, Ask, Outcome, ideal, run

from plait.cache import Mark, Shape

KIB, MIB = 1 << 10, 1 << 20
# Bytes of published models: rows and window rows of a token, a snapshot.
MODELS: dict[str, tuple[Shape, tuple[int, ...], int]] = {
    "full rows (12 KiB a token)": (shape(rows=1), (12 * KIB,), 0),
    "Gemma 3 4B": (shape((1024,), rows=1), (20 * KIB, 116 * KIB), 0),
    "Qwen3.5-0.8B": (shape(rows=1, snapshots=1), (12 * KIB,), 19_503_513),
}
RECURRENT = "Qwen3.5-0.8B"


@cache
def asks(trace: str) -> tuple[Ask, ...]:
    return tuple(TRACES[trace]())


@cache
def outcome(model: str, trace: str, *, marked: bool = False, third: bool = False) -> Outcome:
    law, rows, snapshot = MODELS[model]
    budget = outcome(model, trace, marked=marked).stats.bytes // 3 if third else 1 << 60
    verify = bool(snapshot) and not third and not marked
    return run(asks(trace), law, budget=budget, row_bytes=rows, snapshot_bytes=snapshot, marked=marked, verify=verify)


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("model", [name for name in MODELS if name != RECURRENT])
def test_with_room_rows_are_reused(model: str, trace: str) -> None:
    assert outcome(model, trace).share >= 0.98


@pytest.mark.parametrize("trace", TRACES)
def test_with_room_recurrent_models_reuse(trace: str) -> None:
    found = outcome(RECURRENT, trace)
    assert found.share >= 0.95
    assert found.stats.snapshot_bytes == sum(found.stats.anchors.values()) * MODELS[RECURRENT][2]
    # With what the template knows, more is reused; where there is no template nothing changes.
    marked = outcome(RECURRENT, trace, marked=True)
    assert marked.share >= (0.98 if asks(trace)[0].marks else found.share)


@pytest.mark.parametrize(("model", "marked"), [*((model, False) for model in MODELS), (RECURRENT, True)])
def test_with_a_third_of_the_room(model: str, marked: bool) -> None:
    """Over all traces, each with a third of the bytes it would fill; some of them do not fit one prompt then."""
    found = [outcome(model, trace, marked=marked, third=True) for trace in TRACES]
    assert sum(o.reused for o in found) >= 0.80 * sum(o.ideal for o in found)
    for one in found:
        assert one.stats.bytes <= one.stats.budget


def test_the_ideal_is_what_it_says() -> None:
    def ask(*tokens: int) -> Ask:
        return Ask(tokens, (9, 9), (Mark(1, "turn"),))

    assert ideal([ask(1, 2, 3)]) == 0
    assert ideal([ask(1, 2, 3), ask(1, 2, 3)]) == 2
    assert ideal([ask(1, 2, 3), ask(1, 2, 4, 5)]) == 2
    assert ideal([ask(1, 2, 3), ask(7), ask(1, 2, 3, 9, 9, 9)]) == 5
    assert ideal([ask(5), ask(1, 2), ask(1, 2, 3), ask(1, 2, 9, 9)]) == 2 + 3

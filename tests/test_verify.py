"""`verify`: every check holds where the invariants do, and each fails where what it looks at is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from plait.blueprint.catalog import entry
from plait.blueprint.shrink import tiny
from plait.blueprint.source import from_config
from plait.errors import UnsupportedError
from plait.runtime.build import attention as build_attention
from plait.runtime.model import Model, Numbers
from plait.runtime.session import Session
from plait.runtime.slabs import Slab, SlabRun
from plait.runtime.steps.attend import Attend
from plait.runtime.steps.delta import DeltaRule
from plait.runtime.steps.stream import Normalise
from plait.runtime.values import ValueRun
from plait.runtime.verify import CLAIMS, Subject, default_lengths, verify_model, verify_small
from plait.runtime.weight_source import RandomWeights

# One model of each way to remember: rows and windows, values, latents and an indexer's keys, shared and folded rows.
MODELS = ("gemma-3-270m", "qwen3.5-0.8b", "deepseek-v3.2", "gemma-4-26b-a4b", "gemma-3n-e2b")
LENGTHS = (1, 75)  # beyond a slab and the rows behind a window


def small(name):
    found = entry(name)
    assert found is not None
    keys = tiny(found.config)
    return from_config(keys, file="tiny", name=name)[0], keys


def outcomes(name, lengths=LENGTHS, **options):
    """Name of each check -> the check."""
    blueprint, keys = small(name)
    return {check.name: check for check in verify_small(blueprint, keys, lengths, seed=3, **options)}


@pytest.mark.parametrize("name", MODELS)
def test_everything_holds(name):
    found = outcomes(name)
    assert list(found) == list(CLAIMS)
    assert {check.name: check.found for check in found.values() if check.outcome == "fails"} == {}
    windows = name not in ("qwen3.5-0.8b", "deepseek-v3.2")
    assert found["window"].outcome == ("holds" if windows else "not tried")
    assert all(check.count > 0 for check in found.values() if check.outcome == "holds")
    assert ("GGUF" in found["containers"].tried.partition("not tried")[2]) == (name == "deepseek-v3.2")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_hold(dtype):
    found = outcomes("gemma-3-270m", (20,), dtype=dtype)
    assert {check.name for check in found.values() if check.outcome == "fails"} == set()


def test_what_cannot_be_tried_says_why():
    found = outcomes("gemma-3-270m", (1,))
    assert [(c.name, c.outcome) for c in found.values() if c.outcome != "holds"] == [
        ("splits", "not tried"),
        ("window", "not tried"),
        ("failure", "not tried"),
    ]
    assert "--lengths 9" in found["window"].tried
    blueprint, _ = small("deepseek-v3.2")
    last = list(verify_small(blueprint, None, (3,), seed=0))[-1]
    assert last.outcome == "not tried"
    assert "no config" in last.tried
    assert "GGUF" in last.tried


def test_a_model_at_hand():
    blueprint, _ = small("qwen3-0.6b")
    numbers = Numbers(torch.float32, torch.float32)
    model = Model(blueprint, RandomWeights(blueprint, 0), numbers, torch.device("cpu"))
    found = list(verify_model(Subject(model, (1, 40), 0, small=False)))
    assert [c.name for c in found] == list(CLAIMS)
    assert [c.name for c in found if c.outcome == "not tried"] == ["window", "containers"]
    assert not [c for c in found if c.outcome == "fails"]


def test_lengths_stay_within_the_context():
    blueprint, _ = small("gemma-3-270m")
    for context in (1, 2, 60, 66, 1000):
        for kind in (True, False):
            found = default_lengths(replace(blueprint, max_context=context), small=kind)
            assert found
            assert found == tuple(sorted(found))
            assert found[-1] <= context
    # Beyond two slabs and three windows of 8.
    assert default_lengths(blueprint, small=True)[-1] > 2 * 64 + 3 * 8


def test_a_context_of_two_tokens():
    blueprint, keys = small("gemma-3-270m")
    keys = {**keys, "max_position_embeddings": 2}
    found = list(verify_small(replace(blueprint, max_context=2), keys, (1, 2), seed=0))
    assert not [c for c in found if c.outcome == "fails"]


# -- broken models -------------------------------------------------------------------------------------------------


def failing(name, lengths=LENGTHS):
    return {check.name: check.found for check in outcomes(name, lengths).values() if check.outcome == "fails"}


def replace_step(monkeypatch, kind, broken):
    """Steps of a kind do something else: no program takes them, the others run as ever."""
    monkeypatch.setattr(kind, "__call__", broken)
    monkeypatch.setattr(kind, "lower", lambda self, lowering: False)


def test_bits_that_depend_on_the_call(monkeypatch):
    real = Normalise.__call__

    def broken(self, call):
        real(self, call)
        if call.registers[self.target].shape[0] == 3:
            call.registers[self.target] = call.registers[self.target] * (1 + 2**-22)

    replace_step(monkeypatch, Normalise, broken)
    found = failing("gemma-3-270m")
    assert "splits" in found
    assert "75 tokens in calls of 3: " in found["splits"]
    assert "the first at row 0" in found["splits"]
    assert found["splits"].endswith("the first layer that differs is 0 (window), at row 0")


def test_bits_that_depend_on_a_late_layer_name_it(monkeypatch):
    real = DeltaRule.__call__

    def broken(self, call):
        real(self, call)
        if self.layer == 2 and call.positions.numel() < 70:
            call.registers["y"] = call.registers["y"] + 2**-10

    replace_step(monkeypatch, DeltaRule, broken)
    found = failing("qwen3.5-0.8b")
    assert "the first layer that differs is 2 (delta)" in found["splits"]


def test_bits_that_depend_on_company(monkeypatch):
    real = Attend.__call__

    def broken(self, call):
        real(self, call)
        if len(call.spans) > 1:
            call.registers["y"] = call.registers["y"] * (1 + 2**-20)

    replace_step(monkeypatch, Attend, broken)
    found = failing("gemma-3-270m")
    assert list(found) == ["company"]
    assert "in company of 3" in found["company"]


@pytest.mark.parametrize("off", [-1, 1])
def test_a_window_off_by_one(off, monkeypatch):
    def broken(**words):
        window = words["window"]
        return Attend(**{**words, "window": None if window is None else window + off})

    monkeypatch.setattr(build_attention, "Attend", broken)
    found = failing("gemma-3-270m")
    assert list(found) == ["window"]
    wanted = "which is 8 before, changes its logits" if off > 0 else "the window's first token changes no logits"
    assert wanted in found["window"]


def test_state_that_is_not_let_go(monkeypatch):
    monkeypatch.setattr(SlabRun, "trim", lambda self, position: None)
    found = failing("gemma-3-270m", (75, 150))
    assert set(found) == {"state", "failure"}
    assert "150 tokens: the session holds {'windows'" in found["state"] or "the session holds {'rows'" in found["state"]
    assert "after a failure at step 0 the session holds" in found["failure"]


def test_sessions_that_leave_state_behind(monkeypatch):
    monkeypatch.setattr(SlabRun, "clear", lambda self: None)
    assert "after closing the pool holds" in failing("gemma-3-270m")["state"]


def test_an_account_that_predicts_other_bytes(monkeypatch):
    from plait.runtime.verify import state

    real = state.memory
    monkeypatch.setattr(state, "memory", lambda blueprint, length, **words: real(blueprint, length + 64, **words))
    assert list(failing("gemma-3-270m")) == ["state"]


def test_a_fork_that_writes_to_the_other(monkeypatch):
    def broken(self, rows):
        self.share()
        return self

    monkeypatch.setattr(Slab, "copy", broken)
    found = failing("gemma-3-270m")
    assert list(found) == ["back"]
    assert "fork" in found["back"]


def test_going_back_to_another_value(monkeypatch):
    def broken(self, position):
        self.trim()
        while self.bases and self.bases[-1][0] >= position:
            self._release(self.bases.pop()[1])

    monkeypatch.setattr(ValueRun, "cut", broken)
    found = failing("qwen3.5-0.8b")
    assert list(found) == ["back"]
    assert "back from 75 to 74 tokens" in found["back"]


def test_going_back_that_is_refused(monkeypatch):
    monkeypatch.setattr(Session, "resume_point", lambda self, position: None)
    assert failing("gemma-3-270m") == {"back": "75 tokens: going back 0 is refused"}


def test_a_failed_call_that_moves_the_session(monkeypatch):
    real = Session.prepare

    def broken(self, count):
        real(self, count)
        if count == 37:
            self.tokens.append(0)

    monkeypatch.setattr(Session, "prepare", broken)
    found = failing("gemma-3-270m")
    assert "after a failure at step 0 the session stands at 39, expected 38" in found["failure"]


def test_a_masked_row(monkeypatch):
    real = Attend.__call__
    blueprint, _ = small("smollm2-135m")

    def broken(self, call):
        real(self, call)
        # What a softmax over nothing gives. In the last layer: no other row looks at these after it.
        if self.held.layer == len(blueprint.layers) - 1:
            call.registers["y"][call.positions >= 70] = torch.nan

    replace_step(monkeypatch, Attend, broken)
    found = failing("smollm2-135m")
    assert found["finite"] == "75 tokens: 5 rows with logits that are not finite, the first 70"


def test_containers_that_hold_other_weights(monkeypatch):
    real = RandomWeights.dense

    def broken(self, role, dtype):
        made = real(self, role, dtype)
        return made + 2**-12 if role == "layers.1.feed_forward.down" else made

    monkeypatch.setattr(RandomWeights, "dense", broken)
    found = failing("smollm2-135m")
    assert list(found) == ["containers"]
    assert "weights from safetensors" in found["containers"]


def test_an_error_inside_is_a_failure(monkeypatch):
    def broken(self, call):
        raise UnsupportedError("no such thing")

    replace_step(monkeypatch, Attend, broken)
    found = failing("smollm2-135m")
    assert found["splits"] == "UnsupportedError: no such thing"
    assert set(found) == set(CLAIMS) - {"window"}

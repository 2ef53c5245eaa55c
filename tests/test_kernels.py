"""The native kernels, level by level: against float64, and bit for bit over every cut of the rows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.blueprint.spec import Rope
from plait.errors import UsageError
from plait.runtime import kernels
from plait.runtime.ops import linear
from plait.runtime.ops.activation import ACTIVATIONS
from plait.runtime.ops.heads import native_heads
from plait.runtime.ops.norm import native_rms_norm, rms_norm_reference
from plait.runtime.ops.rope import rotate

LEVELS = kernels.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="the package was built without its native kernels")


def _native(level):
    from plait.runtime._native import Native

    return Native(level)


def _normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _gap(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("level", LEVELS)
@given(rows=st.integers(1, 40), groups=st.integers(1, 3), width=st.integers(1, 90), weighted=st.booleans())
@settings(max_examples=25, deadline=None)
def test_norms_are_right_and_rows_are_their_own(level, rows, groups, width, weighted):
    x = _normal(rows, groups, width)
    weight = _normal(groups, width, seed=1) if weighted else None
    found = native_rms_norm(_native(level), x, weight, 1e-6)
    expected = rms_norm_reference(x.double(), None if weight is None else weight.double(), 1e-6)
    assert _gap(found, expected) < 2e-6
    assert torch.equal(native_rms_norm(_native(level), x[rows // 2 :], weight, 1e-6), found[rows // 2 :])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("number", "name"), [(0, "silu"), (1, "gelu_tanh"), (2, "sigmoid"), (3, "gelu")])
def test_gates_are_right_far_out_too(level, number, name):
    gate = torch.cat((torch.linspace(-120, 120, 4801), torch.tensor([0.0, -0.0, 1e-30, -1e-30])))
    both = torch.stack((gate, torch.full_like(gate, 1.5)), 1).reshape(1, -1, 2).transpose(1, 2).reshape(1, -1)
    found = torch.empty(1, gate.numel())
    _native(level).gated(number, both.data_ptr(), both.stride(0), found.data_ptr(), 1, gate.numel())
    expected = ACTIVATIONS[name](gate.double()) * 1.5
    assert ((found[0] - expected).abs() <= 3e-6 * expected.abs() + 1e-6).all()


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_no_number_comes_through(level):
    x = torch.tensor([[1.0, float("nan"), 2.0, 1.0]])
    found = torch.empty(1, 2)
    _native(level).gated(0, x.data_ptr(), 4, found.data_ptr(), 1, 2)
    assert not found[0, 0].isnan()
    assert found[0, 1].isnan()
    product = linear.Native(_native(level), torch.ones(3, 4).bfloat16())
    assert product(x).isnan().all()


def test_a_level_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, "sse9")
    kernels.chosen.cache_clear()
    with pytest.raises(UsageError, match="PLAIT_KERNELS.*expected one of off, portable"):
        kernels.native()
    kernels.chosen.cache_clear()


def test_bits_do_not_depend_on_the_number_of_threads(tmp_path):
    script = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
import tiny, torch, plait
ids = tiny.tokens(700)
for dtype in ("float32", "bfloat16"):
    torch.save(plait.load(sys.argv[2], dtype=dtype).logits(ids), sys.argv[3] + dtype)
"""
    import tiny

    directory = tiny.save("gemma3", tmp_path / "model")
    for threads in ("1", "3"):
        subprocess.run(
            [sys.executable, "-c", script, os.path.dirname(__file__), str(directory), str(tmp_path / threads)],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            check=True,
            timeout=300,
        )
    for dtype in ("float32", "bfloat16"):
        one, three = (torch.load(f"{tmp_path / threads}{dtype}") for threads in ("1", "3"))
        assert torch.equal(one, three)


def test_an_installation_without_kernels_says_so_once(monkeypatch, smollm_gguf):
    from click.testing import CliRunner

    from plait.cli.generate import command

    for built, times in ((False, 1), (True, 0)):
        monkeypatch.setattr(kernels, "built", lambda built=built: built)
        made = CliRunner().invoke(command, [str(smollm_gguf), "Hello", "-n", "1"])
        assert made.exit_code == 0
        assert made.stderr.count("installed without its native kernels") == times


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 40),
    heads=st.integers(1, 3),
    pairs=st.integers(1, 20),
    start=st.integers(0, 5),
    adjacent=st.booleans(),
    weighted=st.booleans(),
    data=st.data(),
)
def test_heads_are_right_and_rows_are_their_own(level, rows, heads, pairs, start, adjacent, weighted, data):
    distance = 0 if adjacent else data.draw(st.integers(pairs, pairs + 5))
    width = start + (2 * pairs if adjacent else pairs + distance) + data.draw(st.integers(0, 4))
    rope = Rope(
        theta=10_000.0,
        pairs=pairs,
        divisor=2 * pairs,
        pairing="adjacent" if adjacent else "half",
        distance=distance,
        start=start,
    )
    wide = _normal(rows, heads + 1, width)
    x, angles = wide[:, :heads], _normal(rows, pairs, seed=2)
    cos, sin = angles.cos(), angles.sin()
    weight = _normal(heads, width, seed=1) if weighted else None
    found = native_heads(_native(level), x, weight, 1e-6, rope, cos, sin)
    expected = x.double()
    if weight is not None:
        expected = rms_norm_reference(expected, weight.double(), 1e-6)
    expected = rotate(expected.clone(), rope, cos.double(), sin.double())
    assert _gap(found, expected) < 3e-6
    half = rows // 2
    assert torch.equal(native_heads(_native(level), x[half:], weight, 1e-6, rope, cos[half:], sin[half:]), found[half:])

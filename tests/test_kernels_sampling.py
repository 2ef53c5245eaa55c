"""Choosing from few tokens, by the kernels, is choosing from all of them in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.engine import sampling as reference
from plait.engine.sampling import REPETITION, Sampler, Sampling
from plait.engine.shortlist import NativeRow
from plait.runtime import kernels

LEVELS = kernels.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="the package was built without its native kernels")

each_level = pytest.mark.parametrize("level", LEVELS)


def _native(level):
    from plait.runtime._native import Native

    return Native(level)


def _row(kind, size, seed):
    """Logits: spread as a model's are, of few values with many ties, or mostly -inf."""
    row = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 4
    if kind == "ties":
        row = row.round()
    if kind == "few":
        row[torch.rand(size, generator=torch.Generator().manual_seed(seed + 1)) < 0.97] = -math.inf
        row[seed % size] = 1.0
    return row


rows = st.builds(
    _row,
    st.sampled_from(["spread", "ties", "few"]),
    st.sampled_from([1, 2, 15, 16, 17, 63, 100, 511, 1025, 5000, 40_001]),
    st.integers(0, 2**31),
)


@st.composite
def requests(draw):
    sampling = Sampling(
        temperature=draw(st.sampled_from([0.0, 1e-3, 0.7, 1.0, 2.5])),
        top_k=draw(st.sampled_from([None, 1, 5, 40, 300])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.3, 0.0])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.6])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5, -1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.2])),
    )
    return sampling, draw(st.dictionaries(st.integers(0, 40_000), st.integers(0, 3), max_size=6))


@each_level
@settings(max_examples=120, deadline=None)
@given(row=rows, request=requests(), position=st.integers(0, 10**6))
def test_few_tokens_give_what_all_give(level, row, request, position):
    sampling, wide = request
    counts = {token % len(row): count for token, count in wide.items()}
    # The most probable tokens are the ones that come again.
    counts |= {int(row.argmax()): 2}
    plain, fast = Sampler(sampling, seed=3), Sampler(sampling, seed=3)
    kept, native = NativeRow.of, _native(level)
    try:
        NativeRow.of = staticmethod(lambda logits: None)
        expected = plain.choose(row, position, counts)
        NativeRow.of = staticmethod(lambda logits: kept(logits, native))
        found = fast.choose(row, position, counts)
    finally:
        NativeRow.of = kept
    assert found.token == expected.token
    assert found.logprob == pytest.approx(expected.logprob, abs=1e-6)
    assert found.logprob <= 0.0


@each_level
@given(row=rows, count=st.sampled_from([1, 2, 7, 64, 1024, 50_000]))
@settings(max_examples=60, deadline=None)
def test_the_largest_are_those_of_a_full_sort(level, row, count):
    order = torch.sort(row, stable=True, descending=True).indices.tolist()
    expected = sorted(i for i in order[:count] if row[i] > -math.inf)
    found = NativeRow.of(row, _native(level))
    assert found.largest(count).tolist() == expected
    assert found.index == order[0]
    assert found.peak == row.max().item()


@each_level
@pytest.mark.parametrize("size", [1, 16, 1000, 40_001])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_to_be_refused_are_left_to_the_reference(level, size, bad):
    for at in {0, size // 2, size - 1}:
        row = torch.randn(size, generator=torch.Generator().manual_seed(1))
        row[at] = bad
        assert NativeRow.of(row, _native(level)) is None
    assert NativeRow.of(torch.full((size,), -math.inf), _native(level)) is None
    # More than float32 holds is left to float64; what it holds is read in any type and layout.
    assert NativeRow.of(torch.full((size,), 0.1, dtype=torch.float64), _native(level)) is None
    for row in (torch.zeros(size).double(), torch.zeros(size).bfloat16(), torch.zeros(size, 2)[:, 0]):
        assert NativeRow.of(row, _native(level)).peak == 0.0


@each_level
def test_log_probabilities_are_those_of_float64(level):
    for size, spread in ((3, 1.0), (1000, 8.0), (262_144, 0.0), (262_144, 3.0), (262_144, 30.0)):
        row = torch.randn(size, generator=torch.Generator().manual_seed(size)) * spread
        expected = row.double().log_softmax(0)
        found = NativeRow.of(row, _native(level))
        for token in (found.index, 0, size - 1):
            assert found.logprob(token) == pytest.approx(expected[token].item(), abs=1e-6)


@pytest.mark.parametrize("penalty", REPETITION)
def test_the_strongest_penalties_take_no_logit_out_of_range(penalty):
    row = torch.zeros(1000)
    row[700], row[300] = 3e38, -3e38
    chosen = Sampler(Sampling(repetition_penalty=penalty)).choose(row, 0, {700: 1, 300: 1})
    assert chosen.token == 700


def test_bits_do_not_depend_on_the_number_of_threads():
    row = torch.randn(262_144, generator=torch.Generator().manual_seed(0)) * 3
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            native_row = NativeRow.of(row)
            found.append((native_row.index, native_row.logprob(5), native_row.largest(50).tolist()))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_the_nucleus_of_a_whole_row_is_that_of_a_full_sort():
    row = torch.randn(30_000, generator=torch.Generator().manual_seed(4)) * 2
    values = row.double().numpy()
    for share in (0.1, 0.9, 0.999):
        sampling = Sampling(temperature=1.0, top_p=share)
        expected = reference.candidates(values, sampling, {})
        found = reference.candidates(values, sampling, {}, NativeRow.of(row))
        assert np.array_equal(found.tokens, expected.tokens)
        assert np.array_equal(found.weights, expected.weights)

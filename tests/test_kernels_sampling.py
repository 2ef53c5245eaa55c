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
from plait.engine.whole import chosen_of_all
from plait.errors import PlaitError
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
        NativeRow.of = staticmethod(lambda logits: NativeRow.read(native, logits))
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
    found = NativeRow.read(_native(level), row)
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
        assert NativeRow.read(_native(level), row) is None
    assert NativeRow.read(_native(level), torch.full((size,), -math.inf)) is None
    # More than float32 holds is left to float64; what it holds is read in any type and layout.
    assert NativeRow.read(_native(level), torch.full((size,), 0.1, dtype=torch.float64)) is None
    for row in (torch.zeros(size).double(), torch.zeros(size).bfloat16(), torch.zeros(size, 2)[:, 0]):
        assert NativeRow.read(_native(level), row).peak == 0.0


@each_level
def test_log_probabilities_are_those_of_float64(level):
    for size, spread in ((3, 1.0), (1000, 8.0), (262_144, 0.0), (262_144, 3.0), (262_144, 30.0)):
        row = torch.randn(size, generator=torch.Generator().manual_seed(size)) * spread
        expected = row.double().log_softmax(0)
        found = NativeRow.read(_native(level), row)
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
            wide = Sampling(temperature=1.0, top_p=0.99)
            tokens = [chosen_of_all(native_row, wide, {}, at / 64) for at in range(64)]
            found.append((native_row.index, native_row.logprob(5), native_row.largest(50).tolist(), tokens))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@each_level
@settings(max_examples=60, deadline=None)
@given(
    row=st.builds(
        _row, st.sampled_from(["spread", "ties", "few"]), st.sampled_from([4096, 5000, 40_001]), st.integers(0, 99)
    ),
    temperature=st.sampled_from([1e-320, 0.05, 0.7, 1.0, 30.0, 1e300]),
    top_p=st.sampled_from([1.0, 0.999999, 0.95, 0.5, 1e-9, 0.0]),
    min_p=st.sampled_from([0.0, 1e-7, 0.2, 1.0]),
    penalty=st.sampled_from([1.0, 1.3, 0.6]),
    presence=st.sampled_from([0.0, 0.5, -1.0]),
    frequency=st.sampled_from([0.0, 0.2]),
    likeliest=st.booleans(),
    seen=st.lists(st.integers(0, 40_000), max_size=40),
    fraction=st.floats(0.0, 1.0, exclude_max=True),
)
def test_any_token_of_a_row_is_chosen_as_by_the_reference(
    level, row, temperature, top_p, min_p, penalty, presence, frequency, likeliest, seen, fraction
):
    sampling = Sampling(
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalty,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    counts = {token % len(row): 1 for token in seen} | ({int(row.argmax()): 2} if likeliest else {})
    left = reference.candidates(row.double().numpy(), sampling, counts)
    found = chosen_of_all(NativeRow.read(_native(level), row), sampling, counts, fraction)
    reached = np.cumsum(left.weights)
    place = int(np.searchsorted(left.tokens, found))
    assert left.tokens[place] == found
    assert left.weights[place] > 0.0
    # Sums over all weights round differently: at the very end of a token's share its neighbour may be found.
    goal, slack = fraction * reached[-1], 1e-12 * reached[-1]
    assert reached[place] - left.weights[place] - slack <= goal <= reached[place] + slack


@each_level
def test_few_and_short_rows_are_left_to_others(level):
    native = _native(level)
    long, short = torch.arange(5000.0), torch.arange(4000.0)
    for row, sampling in (
        (short, Sampling(temperature=1.0)),
        (long, Sampling(temperature=1.0, top_k=5)),
        (long, Sampling(temperature=0.0, repetition_penalty=2.0)),
    ):
        assert chosen_of_all(NativeRow.read(native, row), sampling, {1: 1}, 0.5) is None
    # A penalty that makes a score infinite: the reference refuses it.
    strong = NativeRow.read(native, torch.full((5000,), 3e38))
    weak = Sampling(temperature=1.0, frequency_penalty=-2.0)
    assert chosen_of_all(strong, weak, {3: 2**62}, 0.5) is not None
    row = torch.full((5000,), -math.inf)
    row[3] = -3e38
    gone = Sampling(temperature=1.0, repetition_penalty=REPETITION[1])
    assert chosen_of_all(NativeRow.read(native, row), gone, {3: 1}, 0.5) == 3
    # All tokens were generated before.
    repeated = Sampling(temperature=1.0, repetition_penalty=1.5)
    assert chosen_of_all(NativeRow.read(native, long), repeated, dict.fromkeys(range(5000), 1), 0.5) is not None
    with pytest.raises(PlaitError, match="counts of generated tokens"):
        chosen_of_all(strong, repeated, {5000: 1}, 0.5)


def test_levels_choose_alike():
    row = torch.randn(40_001, generator=torch.Generator().manual_seed(2)) * 5
    wide = [Sampling(temperature=t, top_p=p, min_p=1e-9) for t in (0.3, 1.0, 4.0) for p in (0.9, 1.0)]
    found = [
        [
            chosen_of_all(NativeRow.read(_native(level), row), sampling, {}, at / 200)
            for sampling in wide
            for at in range(200)
        ]
        for level in LEVELS
    ]
    assert all(tokens == found[0] for tokens in found)

"""The sampler against hand-written distributions, a brute-force filter and a Philox written out in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plait.engine.sampling import Choice, Sampler, Sampling, _pick, candidates, uniform
from plait.errors import PlaitError, UsageError, UserError

BASE: Final = (0.1, 0.4, 0.2, 0.25, 0.05)
# Upper 0.1 % points of the chi-square distribution, by degrees of freedom (standard table).
CRITICAL: Final = {1: 10.828, 2: 13.816, 3: 16.266, 4: 18.467, 9: 27.877, 24: 51.179}
DRAWS: Final = 3000


def logits_of(probabilities: Sequence[float], shift: float = 0.0) -> torch.Tensor:
    return torch.tensor([math.log(p) + shift for p in probabilities], dtype=torch.float32)


def normalised(weights: Sequence[float]) -> list[float]:
    return [weight / math.fsum(weights) for weight in weights]


def chi_square(observed: Sequence[int], expected: Sequence[float]) -> float:
    """The statistic over cells of positive probability; infinite if an impossible cell was hit."""
    total = sum(observed)
    if any(seen and not p for seen, p in zip(observed, expected, strict=True)):
        return math.inf
    return sum((seen - total * p) ** 2 / (total * p) for seen, p in zip(observed, expected, strict=True) if p)


def drawn(sampling: Sampling, logits: torch.Tensor, counts: Mapping[int, int], draws: int = DRAWS) -> list[int]:
    sampler = Sampler(sampling, seed=20240229)
    hits = [0] * len(logits)
    for position in range(draws):
        hits[sampler.choose(logits, position, counts).token] += 1
    return hits


# Each row: options, counts of generated tokens, unnormalised probabilities written out from BASE.
DISTRIBUTIONS: Final[tuple[tuple[dict[str, Any], dict[int, int], list[float]], ...]] = (
    ({"temperature": 1.0}, {}, [0.1, 0.4, 0.2, 0.25, 0.05]),
    ({"temperature": 0.5}, {}, [0.01, 0.16, 0.04, 0.0625, 0.0025]),
    ({"temperature": 2.0}, {}, [math.sqrt(p) for p in BASE]),
    ({"temperature": 1.0, "top_k": 2}, {}, [0, 0.4, 0, 0.25, 0]),
    ({"temperature": 1.0, "top_p": 0.7}, {}, [0, 0.4, 0.2, 0.25, 0]),
    ({"temperature": 1.0, "min_p": 0.4}, {}, [0, 0.4, 0.2, 0.25, 0]),
    ({"temperature": 1.0, "presence_penalty": 1.0}, {1: 3, 2: 0}, [0.1, 0.4 / math.e, 0.2, 0.25, 0.05]),
    ({"temperature": 1.0, "frequency_penalty": 0.5}, {1: 3, 2: 0}, [0.1, 0.4 * math.exp(-1.5), 0.2, 0.25, 0.05]),
    ({"temperature": 1.0, "repetition_penalty": 2.0}, {1: 3, 2: 0}, [0.1, 0.16, 0.2, 0.25, 0.05]),
    # Tokens 1 and 3 hold 0.65 of all but 0.684 of the four largest: top-p takes shares of what top-k left.
    ({"temperature": 1.0, "top_k": 4, "top_p": 0.68}, {}, [0, 0.4, 0, 0.25, 0]),
    # Penalties come before temperature: exp(-1 / 2) of the square root, not exp(-1).
    ({"temperature": 2.0, "presence_penalty": 1.0}, {1: 1}, [p**0.5 for p in (0.1, 0.4 / math.e, 0.2, 0.25, 0.05)]),
    # Temperature comes before min-p: 0.1 / 0.4 is below 0.4, its square root is not.
    ({"temperature": 2.0, "min_p": 0.4}, {}, [math.sqrt(0.1), math.sqrt(0.4), math.sqrt(0.2), 0.5, 0]),
)


@pytest.mark.parametrize(("options", "counts", "weights"), DISTRIBUTIONS)
def test_draws_follow_the_stated_distribution(
    options: dict[str, Any], counts: dict[int, int], weights: list[float]
) -> None:
    expected = normalised(weights)
    hits = drawn(Sampling(**options), logits_of(BASE), counts)
    freedom = sum(1 for p in expected if p) - 1
    assert chi_square(hits, expected) < CRITICAL[freedom], hits


@pytest.mark.parametrize("row", range(1, len(DISTRIBUTIONS)))
def test_the_chi_square_test_notices_an_option_that_is_ignored(row: int) -> None:
    hits = drawn(Sampling(temperature=1.0), logits_of(BASE), {})
    assert chi_square(hits, normalised(DISTRIBUTIONS[row][2])) > CRITICAL[4]


def test_draws_at_neighbouring_positions_and_seeds_are_independent() -> None:
    logits = torch.zeros(5)
    along = [Sampler(Sampling(1.0), seed=7).choose(logits, position, {}).token for position in range(5001)]
    across = [Sampler(Sampling(1.0), seed=seed).choose(logits, 7, {}).token for seed in range(5001)]
    for tokens in (along, across):
        pairs = [0] * 25
        for left, right in pairwise(tokens):
            pairs[5 * left + right] += 1
        assert chi_square(pairs, [1 / 25] * 25) < CRITICAL[24]


def test_random_numbers_are_uniform_and_in_range() -> None:
    numbers = [uniform(seed, position) for seed in (0, 2**64 - 1) for position in range(2000)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    tenths = [0] * 10
    for number in numbers:
        tenths[int(number * 10)] += 1
    assert chi_square(tenths, [0.1] * 10) < CRITICAL[9]


def philox(counter: int, key: int) -> list[int]:
    """Philox4x64-10 as in the paper of Salmon et al. (2011), on Python integers."""
    mask = 2**64 - 1
    c = [(counter >> 64 * word) & mask for word in range(4)]
    k = [key & mask, (key >> 64) & mask]
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 2**64)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
    return c


def test_the_philox_of_this_file_gives_the_published_answer() -> None:
    # Known-answer vector of the Random123 library: counter 0, key 0.
    assert philox(0, 0) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]


words = st.one_of(st.integers(0, 50), st.integers(0, 2**64 - 1), st.integers(2**64 - 3, 2**64 - 1))


@given(words, words)
def test_the_random_number_is_philox_of_seed_and_position(seed: int, position: int) -> None:
    assert uniform(seed, position) == (philox(position + 1, seed)[0] >> 11) / 2**53


def brute_force(logits: Sequence[float], s: Sampling, counts: Mapping[int, int]) -> dict[int, float]:
    """Token -> probability by sorting and looping; skips examples that lie on a rounding edge."""
    scores = list(logits)
    for token, count in counts.items():
        if count:
            r = s.repetition_penalty
            scores[token] = scores[token] / r if scores[token] > 0 else scores[token] * r
            scores[token] = scores[token] - count * s.frequency_penalty - s.presence_penalty
    ranked = sorted((t for t in range(len(scores)) if scores[t] > -math.inf), key=lambda t: (-scores[t], t))
    if s.top_k is not None:
        ranked = ranked[: s.top_k]
    weight = {t: math.exp(scores[t] / s.temperature - scores[ranked[0]] / s.temperature) for t in ranked}
    if s.top_p < 1.0:
        goal = s.top_p * math.fsum(weight.values())
        kept: list[int] = []
        while not kept or math.fsum(weight[t] for t in kept) < goal:
            kept.append(ranked[len(kept)])
            assume(abs(math.fsum(weight[t] for t in kept) - goal) > 1e-9)
        ranked = kept
    assume(all(abs(weight[t] - s.min_p) > 1e-9 for t in ranked) or s.min_p in (0.0, 1.0))
    ranked = [t for t in ranked if weight[t] >= s.min_p]
    total = math.fsum(weight[t] for t in ranked)
    return {t: weight[t] / total for t in sorted(ranked)}


values = st.one_of(st.integers(-3, 3).map(float), st.floats(-20, 20, width=32), st.just(-math.inf))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], Sampling, dict[int, int]]:
    logits = draw(st.lists(values, min_size=1, max_size=24).filter(lambda row: max(row) > -math.inf))
    sampling = Sampling(
        temperature=draw(st.floats(0.05, 5.0)),
        top_k=draw(st.none() | st.integers(-1, 26)),
        top_p=draw(st.sampled_from((0.0, 1.0)) | st.floats(0.0, 1.0)),
        min_p=draw(st.sampled_from((0.0, 1.0)) | st.floats(0.0, 1.0)),
        repetition_penalty=draw(st.sampled_from((1.0, 1.3, 0.5, 4.0))),
        presence_penalty=draw(st.sampled_from((0.0, 1.0, -2.0))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.25, -0.5))),
    )
    counts = draw(st.dictionaries(st.integers(0, len(logits) - 1), st.integers(0, 4), max_size=5))
    return logits, sampling, counts


@settings(max_examples=300, deadline=None)
@given(cases(), st.integers(0, 1000))
def test_candidates_and_choice_equal_brute_force(
    case: tuple[list[float], Sampling, dict[int, int]], position: int
) -> None:
    logits, sampling, counts = case
    expected = brute_force(logits, sampling, counts)
    row = np.array(logits)
    found = candidates(row, sampling, counts)
    assert row.tolist() == logits
    assert found.tokens.tolist() == list(expected)
    np.testing.assert_allclose(found.weights / found.weights.sum(), list(expected.values()), rtol=1e-9, atol=1e-12)

    choice = Sampler(sampling, seed=3).choose(torch.tensor(logits), position, counts)
    fraction, reached = uniform(3, position), 0.0
    skipped = 0
    for probability in expected.values():
        assume(abs(reached + probability - fraction) > 1e-9)
        reached += probability
        skipped += reached < fraction
    assert choice.token == list(expected)[skipped]
    whole = math.fsum(math.exp(value) for value in logits)
    assert choice.logprob == pytest.approx(logits[choice.token] - math.log(whole), abs=1e-6)
    assert choice.logprob <= 0.0


@pytest.mark.parametrize("share", [0.001, 0.2, 0.9, 0.999999])
@pytest.mark.parametrize("levels", [5, 100_000])
def test_top_p_of_a_large_vocabulary_equals_a_full_sort(share: float, levels: int) -> None:
    # Flat rows: the nucleus is far larger than what top-p sorts first; few levels make long runs of ties.
    row = np.random.default_rng(5).integers(0, levels, 20_000) / levels
    order = np.lexsort((np.arange(len(row)), -row))
    running = np.cumsum(np.exp(row[order]))
    size = int(np.count_nonzero(running < share * running[-1])) + 1
    found = candidates(row, Sampling(temperature=1.0, top_p=share), {})
    assert found.tokens.tolist() == sorted(order[:size].tolist())


@given(st.lists(values, min_size=1, max_size=12).filter(lambda row: max(row) > -math.inf), st.integers(0, 500))
@settings(deadline=None)
def test_options_that_are_off_change_nothing(row: list[float], position: int) -> None:
    logits = torch.tensor(row)
    plain = Sampler(Sampling(temperature=0.8), seed=1).choose(logits, position, {0: 2})
    counts_off = [Sampling(0.8, top_k=count) for count in (0, -1, len(row), 10**9)]
    for sampling in (*counts_off, Sampling(0.8, top_p=1), Sampling(0.8, min_p=0)):
        assert Sampler(sampling, seed=1).choose(logits, position, {0: 2}) == plain


@given(st.lists(st.integers(-40, 40), min_size=1, max_size=12, unique=True), st.integers(0, 500))
@settings(deadline=None)
def test_narrow_settings_are_greedy(row: list[int], position: int) -> None:
    logits = torch.tensor(row, dtype=torch.float32)
    greedy = Sampler(Sampling()).choose(logits, position, {})
    assert greedy.token == row.index(max(row))
    nearly = (Sampling(1e-6), Sampling(5e-324), Sampling(9.0, top_k=1), Sampling(9.0, top_p=0), Sampling(9.0, min_p=1))
    filtered = (Sampling(top_k=1), Sampling(top_p=0.1), Sampling(min_p=0.9), Sampling(seed=3))
    for sampling in nearly + filtered:
        assert Sampler(sampling).choose(logits, position, {}) == greedy


def test_ties_go_to_the_lower_index() -> None:
    row = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])
    assert Sampler(Sampling()).choose(torch.from_numpy(row), 0, {}).token == 1
    for count, kept in ((1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (5, [1, 2, 3, 4, 5])):
        assert candidates(row, Sampling(temperature=1.0, top_k=count), {}).tokens.tolist() == kept
    assert candidates(np.zeros(10), Sampling(temperature=1.0, top_p=0.35), {}).tokens.tolist() == [0, 1, 2, 3]


def test_rounding_by_the_temperature_does_not_change_ranks() -> None:
    # Next to the peak both small values round to one number; top-k still sees which is larger.
    row = np.array([1e-30, 2e-30, 5.0])
    assert candidates(row, Sampling(temperature=1.0, top_k=2), {}).tokens.tolist() == [1, 2]


def test_minus_infinity_is_never_chosen() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    for sampling in (Sampling(50.0), Sampling(50.0, top_k=5), Sampling(50.0, presence_penalty=-2.0)):
        hits = drawn(sampling, logits, {0: 4}, draws=200)
        assert [hit > 0 for hit in hits] == [False, True, False, True, False]


@pytest.mark.parametrize(("fraction", "token"), [(0.0, 1), (0.25, 3), (0.5, 4), (1 - 2**-53, 4)])
def test_an_edge_of_the_cdf_belongs_to_the_next_token_with_weight(fraction: float, token: int) -> None:
    assert _pick(np.array([0.0, 0.25, 0.0, 0.25, 0.5, 0.0]), fraction) == token


def test_same_seed_and_position_give_the_same_token_in_any_order() -> None:
    rows = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=11)
    forward = Sampler(sampling)
    first = [forward.choose(rows[position], position, {}) for position in range(40)]
    other = Sampler(sampling)
    for position in [39, 0, 17, 17, 5, *range(39, -1, -1)]:
        assert other.choose(rows[position].clone(), position, {}) == first[position]
    flat = torch.zeros(300)
    assert len({forward.choose(flat, position, {}).token for position in range(40)}) > 20


def test_seeds() -> None:
    flat = torch.zeros(1000)
    sampling = Sampling(temperature=1.0)

    def run(sampler: Sampler) -> list[Choice]:
        return [sampler.choose(flat, position, {}) for position in range(8)]

    left, right = Sampler(sampling), Sampler(sampling)
    assert 0 <= left.seed != right.seed < 2**64
    assert run(left) != run(right)
    assert run(Sampler(sampling, seed=left.seed)) == run(left)
    assert run(Sampler(Sampling(temperature=1.0, seed=5))) == run(Sampler(sampling, seed=5))
    assert Sampler(Sampling(seed=5), seed=6).seed == 6
    assert Sampler(Sampling(seed=5)).seed == 5
    assert Sampler(sampling, seed=0).seed == 0
    assert run(Sampler(sampling, seed=2**64 - 1)) != run(Sampler(sampling, seed=2**64 - 2))
    for seed in (-1, 2**64, True, 1.0):
        with pytest.raises(UsageError, match="seed"):
            Sampler(sampling, seed=seed)


def test_penalties_come_from_counts_alone_and_leave_logprob_raw() -> None:
    logits = logits_of((0.5, 0.3, 0.2), shift=4.0)  # positive logits
    sampler = Sampler(Sampling(presence_penalty=1.0))
    for counts in ({}, {0: 0}):
        assert sampler.choose(logits, 9, counts).token == 0
    choice = sampler.choose(logits, 9, {0: 1})
    assert choice.token == 1
    assert choice.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    # Presence does not grow with the count, frequency does: log(0.5 / 0.3) is 0.511.
    assert Sampler(Sampling(presence_penalty=0.5)).choose(logits, 9, {0: 100}).token == 0
    assert Sampler(Sampling(frequency_penalty=0.3)).choose(logits, 9, {0: 1}).token == 0
    assert Sampler(Sampling(frequency_penalty=0.3)).choose(logits, 9, {0: 2}).token == 1
    # Repetition pushes down on both sides of zero, however often the token came.
    for row in (torch.tensor([1.0, 0.8]), torch.tensor([-0.8, -1.0])):
        assert Sampler(Sampling(repetition_penalty=1.2)).choose(row, 9, {0: 9}).token == 0
        assert Sampler(Sampling(repetition_penalty=1.3)).choose(row, 9, {0: 1}).token == 1
    scores = candidates(np.array([2.0, 1.0]), Sampling(1.0, repetition_penalty=2.0, presence_penalty=0.5), {0: 1})
    assert scores.weights.tolist() == [math.exp(-0.5), 1.0]  # 2 / 2 - 0.5, not (2 - 0.5) / 2


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.tensor([0.0, math.nan, 1.0]), "a NaN for token 1"),
        (torch.tensor([0.0, math.nan, math.inf]), "a NaN for token 1"),
        (torch.tensor([0.0, math.inf]), r"\+inf for token 1"),
        (torch.full((3,), -math.inf), "-inf for every token"),
        (torch.zeros(0), "floating type, found"),
        (torch.zeros(1, 4), "floating type, found"),
        (torch.tensor(1.0), "floating type, found"),
        (torch.tensor([1, 2]), "torch.int64"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits(logits: torch.Tensor, message: str, temperature: float) -> None:
    with pytest.raises(PlaitError, match=message) as caught:
        Sampler(Sampling(temperature=temperature)).choose(logits, 0, {})
    assert not isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("counts", [{5: 1}, {-1: 1}, {10**30: 1}, {0: -1}, {0: 10**30}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_counts(counts: dict[int, int], temperature: float) -> None:
    with pytest.raises(PlaitError, match="counts of generated tokens"):
        Sampler(Sampling(temperature, presence_penalty=1.0)).choose(torch.zeros(5), 0, counts)


@pytest.mark.parametrize("position", [-1, 2**64, True, 1.5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_positions(position: int, temperature: float) -> None:
    with pytest.raises(PlaitError, match="position"):
        Sampler(Sampling(temperature)).choose(torch.zeros(5), position, {})


def test_penalties_that_overflow_are_refused() -> None:
    with pytest.raises(PlaitError, match="after penalties"):
        Sampler(Sampling(repetition_penalty=1e-6)).choose(torch.tensor([1e305, 1.0], dtype=torch.float64), 0, {0: 1})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floating_types_and_gradients(dtype: torch.dtype) -> None:
    row = torch.tensor([0.5, 2.0, -1.0], dtype=dtype, requires_grad=True)
    assert Sampler(Sampling()).choose(row, 0, {}) == Sampler(Sampling()).choose(row.detach().float(), 0, {})


NUMBERS: Final = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
BAD_EVERYWHERE: Final = (math.nan, math.inf, -math.inf, True, False, "1", None, [1.0], 10**400, 1j)
INVALID: Final[tuple[tuple[str, object], ...]] = (
    *((field, value) for field in NUMBERS for value in BAD_EVERYWHERE),
    *((field, -0.1) for field in ("temperature", "top_p", "min_p", "repetition_penalty")),
    *((field, 1.1) for field in ("top_p", "min_p")),
    *(("repetition_penalty", value) for value in (0.0, 2.2e-313, 1e-7, 1e7)),
    *((field, value) for field in ("presence_penalty", "frequency_penalty") for value in (-2.1, 2.1)),
    *(("top_k", value) for value in (-2, True, False, 0.0, -1.0, 40.0, "40", math.nan, [1])),
    *(("seed", value) for value in (-1, 2**64, 10**5000, True, 1.0, "1", math.nan)),
)


@pytest.mark.parametrize(("field", "value"), INVALID, ids=lambda part: str(type(part).__name__))
def test_invalid_values_are_refused_with_the_field_named(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"^{field}: expected an? .+, found .+") as caught:
        Sampling(**{field: value})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_the_message_shows_expected_and_found() -> None:
    with pytest.raises(UsageError, match=r"^top_p: expected a number in \[0, 1\], found 1\.5$"):
        Sampling(top_p=1.5)
    with pytest.raises(UsageError, match=r"^min_p: expected .*, found the string 'x\\n'$"):
        Sampling(min_p="x\n")


def test_valid_values_are_normalised() -> None:
    assert Sampling(top_k=0) == Sampling(top_k=-1) == Sampling() == Sampling(temperature=0, top_p=1, min_p=0)
    sampling = Sampling(temperature=1, top_k=3, presence_penalty=-2, frequency_penalty=2, repetition_penalty=1, seed=0)
    assert all(type(getattr(sampling, field)) is float for field in NUMBERS)
    assert sampling.top_k == 3
    assert (Sampling().greedy, Sampling().penalised) == (True, False)
    assert (sampling.greedy, sampling.penalised) == (False, True)
    assert {field.name for field in fields(Sampling)} == {*NUMBERS, "top_k", "seed"}
    with pytest.raises(FrozenInstanceError):
        sampling.seed = 1
